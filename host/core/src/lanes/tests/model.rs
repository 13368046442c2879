//! Compares the lanes, step by step, with a model that knows no queues: a table of states and their fates.

use proptest::prelude::*;

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::{OnDeadLetter, RateSpec};
use crate::lanes::tests::{at, options, state_of};
use crate::lanes::*;
use crate::ports::{StateDelivery, Verdict};
use crate::state::{Change, State};

/// The rate of a past in the model.
const PACE: RateSpec = RateSpec { per_second: 20, burst: Some(2) };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelFate {
    /// Not taken in: not yet read, or left.
    Unread,
    Waiting,
    Flying,
    Delivered,
    Filtered,
    Superseded,
    Parked,
    /// A dead letter that an operator dropped.
    Dropped,
    /// Replayed, and its state not yet read.
    Recalled,
}

#[derive(Clone, Copy, Debug)]
struct ModelRow {
    lane: u8,
    fit: SubscriptionFit,
    change: Change,
    uid: u8,
    fate: ModelFate,
    tries: u32,
    prior: u32,
    not_before: u64,
    replay: bool,
    /// A row of the journal says that it is owed.
    owed: bool,
    /// Parked, but not yet durably. Nothing in its lane passes it, also under `continue`.
    is_unsaved: bool,
    /// The lanes have had the state since the start, and not only its row.
    known: bool,
    /// It was applied, and no answer came. Only its receipt tells that.
    applied: bool,
    /// Its receipt is there.
    receipt: bool,
    /// It came back unanswered since it was last refused.
    untried: bool,
    /// Retention removed it from the journal.
    removed: bool,
}

/// A finished state that was offered once more and is not yet finished again.
#[derive(Clone, Copy, Debug, Default)]
struct OfferedAgain {
    is_flying: bool,
    tries: u32,
    not_before: u64,
}

#[derive(Clone, Copy, Debug)]
enum ModelStep {
    /// Append a state of this lane to the journal: how it fits, and whether it is an end.
    Append(u8, SubscriptionFit, bool),
    Count,
    Read(usize),
    CatchUp(usize),
    Take(usize),
    Done(usize),
    Retry(usize, Option<u64>),
    Reject(usize),
    /// A call fails. Its state may have been applied.
    GiveBack(usize, bool),
    /// Looks for the receipts of so many states that may have been applied.
    Ask(usize),
    /// Removes the receipts that nobody needs.
    Prune,
    Advance(u64),
    Replay(usize),
    Drop(usize),
    /// Retention removes what is finished.
    Retain,
    Kept,
    Fill(usize),
    /// Reads so many owed states back, as they were after the last save or before it.
    Return(usize, bool),
    /// Resync the newest state of this lane.
    Resync(u8),
    Resynced(usize, ModelAnswer),
    /// The states in flight were applied, or not, as the bits say. The manifest may have another policy then.
    Restart(u64, bool),
}

#[derive(Clone, Copy, Debug)]
enum ModelAnswer {
    Done,
    Retry,
    Reject,
    GiveBack,
}

fn answer() -> impl Strategy<Value = ModelAnswer> {
    prop_oneof![
        3 => Just(ModelAnswer::Done),
        3 => Just(ModelAnswer::Retry),
        1 => Just(ModelAnswer::Reject),
        1 => Just(ModelAnswer::GiveBack),
    ]
}

/// Lanes from 3 on belong to a subscription to `latest`.
fn fit() -> impl Strategy<Value = SubscriptionFit> {
    prop_oneof![10 => Just(SubscriptionFit::Wanted), 2 => Just(SubscriptionFit::Filtered), 2 => Just(SubscriptionFit::Foreign)]
}

fn op() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        12 => (0u8..5, fit(), any::<bool>()).prop_map(|(lane, fit, ends)| ModelStep::Append(lane, fit, ends)),
        3 => Just(ModelStep::Count),
        6 => (1usize..6).prop_map(ModelStep::Read),
        5 => (1usize..6).prop_map(ModelStep::CatchUp),
        6 => (1usize..5).prop_map(ModelStep::Take),
        5 => any::<usize>().prop_map(ModelStep::Done),
        4 => (any::<usize>(), proptest::option::of(0u64..200)).prop_map(|(pick, after)| ModelStep::Retry(pick, after)),
        1 => any::<usize>().prop_map(ModelStep::Reject),
        2 => (any::<usize>(), proptest::bool::weighted(0.3))
            .prop_map(|(pick, applied)| ModelStep::GiveBack(pick, applied)),
        3 => (1usize..8).prop_map(ModelStep::Ask),
        4 => Just(ModelStep::Prune),
        3 => (0u64..250).prop_map(ModelStep::Advance),
        2 => any::<usize>().prop_map(ModelStep::Replay),
        1 => any::<usize>().prop_map(ModelStep::Drop),
        2 => Just(ModelStep::Retain),
        3 => Just(ModelStep::Kept),
        4 => (1usize..10).prop_map(ModelStep::Fill),
        4 => (1usize..10, any::<bool>()).prop_map(|(limit, is_old)| ModelStep::Return(limit, is_old)),
        4 => (0u8..5).prop_map(ModelStep::Resync),
        4 => (any::<usize>(), answer()).prop_map(|(pick, answer)| ModelStep::Resynced(pick, answer)),
        1 => (any::<u64>(), proptest::bool::weighted(0.25))
            .prop_map(|(applied, is_changed)| ModelStep::Restart(applied, is_changed)),
    ]
}

struct LaneModel {
    lanes: Lanes,
    rows: BTreeMap<Seq, ModelRow>,
    again: BTreeMap<Seq, OfferedAgain>,
    /// Resyncs since the start: handed over, not handed over, failed.
    resyncs: (u64, u64, u64),
    /// The dead letters as a journal holds them after a save.
    letters: BTreeMap<Seq, DeadLetter>,
    /// Rows that were saved and of which the lanes don't know it yet.
    unheard: Vec<Seq>,
    /// Rows that were removed and of which the lanes don't know it yet: an answer may still have them.
    removed: Vec<Seq>,
    /// The same of states that became dead letters.
    parked: Vec<Seq>,
    now: u64,
    policy: OnDeadLetter,
    /// The most rows.
    owes: usize,
    /// The end of the past; 0 for none.
    past: Seq,
}

impl LaneModel {
    fn new(policy: OnDeadLetter, owes: usize, past: Seq) -> Self {
        let mut lanes = Lanes::new(model_options(policy, owes), &PluginProgress::default());
        lanes.begin_past(&"jobs".into(), past, PACE);
        Self {
            lanes,
            past,
            rows: BTreeMap::new(),
            again: BTreeMap::new(),
            resyncs: (0, 0, 0),
            letters: BTreeMap::new(),
            unheard: Vec::new(),
            removed: Vec::new(),
            parked: Vec::new(),
            now: 0,
            policy,
            owes,
        }
    }

    fn with(&self, fate: ModelFate) -> Vec<Seq> {
        self.rows.iter().filter(|(_, row)| row.fate == fate).map(|(seq, _)| *seq).collect()
    }

    fn pick(&self, fate: ModelFate, pick: usize) -> Option<Seq> {
        let seqs = self.with(fate);
        (!seqs.is_empty()).then(|| seqs[pick % seqs.len()])
    }

    fn append(&mut self, lane: u8, fit: SubscriptionFit, ends: bool) {
        let seq = self.rows.len() as Seq + 1;
        let before = self.rows.values().rfind(|row| row.lane == lane && row.fit != SubscriptionFit::Foreign);
        let uid = before.map_or(0, |row| row.uid + u8::from(row.change == Change::Gone));
        let change = if ends { Change::Gone } else { Change::Present };
        let fit = if fit == SubscriptionFit::Wanted && lane >= 3 { SubscriptionFit::Latest } else { fit };
        let fate = ModelFate::Unread;
        let row = ModelRow {
            lane,
            fit,
            change,
            uid,
            fate,
            tries: 0,
            prior: 0,
            not_before: 0,
            replay: false,
            owed: false,
            is_unsaved: false,
            known: false,
            applied: false,
            receipt: false,
            untried: false,
            removed: false,
        };
        self.rows.insert(seq, row);
    }

    fn state(&self, seq: Seq) -> Arc<State> {
        let row = &self.rows[&seq];
        state_of(namespace(row.lane), row.lane.into(), seq, row.change, row.uid)
    }

    /// Whether the journal has the state and the plugin subscribes to it. Where a state was removed, a run of positions that
    /// were left may go on.
    fn is_subscribed(row: &ModelRow) -> bool {
        row.fit != SubscriptionFit::Foreign && !row.removed
    }

    fn count(&mut self) {
        let (counted, newest) = (self.lanes.counted_through(), self.rows.len() as Seq);
        let states = self.rows.range(counted + 1..).filter(|(_, row)| Self::is_subscribed(row)).count();
        self.lanes.count(newest, states as u64);
    }

    /// The states that the journal has at these positions.
    fn journal(
        &self,
        from: Seq,
        end: Seq,
        except: &[String],
        limit: usize,
    ) -> Vec<(Arc<State>, SubscriptionFit)> {
        let rows = self
            .rows
            .range(from..=end)
            .filter(|(_, row)| !row.removed && !except.iter().any(|name| name == namespace(row.lane)));
        rows.take(limit).map(|(seq, row)| (self.state(*seq), row.fit)).collect()
    }

    fn read(&mut self, limit: usize) {
        let (after, newest) = (self.lanes.last_read(), self.rows.len() as Seq);
        if self.lanes.is_scattered() || after >= newest {
            return;
        }
        let behind = if self.lanes.is_in_past() { Vec::new() } else { self.lanes.namespaces_behind() };
        let end = if behind.is_empty() { newest } else { self.lanes.counted_through().min(newest) };
        if end <= after {
            return;
        }
        let states = self.journal(after + 1, end, &behind, limit);
        let end = states.last().filter(|_| states.len() == limit).map_or(end, |(state, _)| state.seq);
        let now = Duration::from_millis(self.now);
        if behind.is_empty() {
            self.lanes.read(states, end, now);
        } else {
            self.lanes.read_outside(states, end, now);
        }
        self.taken_in(after + 1, self.lanes.last_read());
    }

    fn catch_up(&mut self, limit: usize) {
        let now = Duration::from_millis(self.now);
        let Some(CatchUpRange { from, limit: most }) = self.lanes.next_behind(now) else { return };
        let states = self.journal(from, self.lanes.last_read(), &[], limit.min(most));
        let end = states.last().expect("what was left is there").0.seq;
        self.lanes.take_in_deferred(from, states, end, now);
        self.taken_in(from, end);
    }

    /// Notes that the unread states there, unless left, are in their lanes.
    fn taken_in(&mut self, from: Seq, end: Seq) {
        let rows = self.rows.range(from..=end);
        let taken = rows.filter(|(seq, row)| {
            row.fate == ModelFate::Unread && Self::is_subscribed(row) && !self.lanes.positions.is_left(**seq)
        });
        let taken: Vec<Seq> = taken.map(|(seq, _)| *seq).collect();
        for seq in taken {
            let row = self.rows[&seq];
            self.row(seq).known = true;
            self.row(seq).fate =
                if row.fit == SubscriptionFit::Filtered { ModelFate::Filtered } else { ModelFate::Waiting };
            if row.fit == SubscriptionFit::Filtered {
                continue;
            }
            self.supersede(row.lane);
            self.replace(seq);
        }
    }

    /// A state of `latest` takes the place of older ones in its lane.
    fn replace(&mut self, seq: Seq) {
        let row = self.rows[&seq];
        let older = self.rows.range(..seq).filter(|(old, older)| {
            older.fate == ModelFate::Waiting
                && !older.replay
                && gives_way(older, &row)
                && (self.is_held(**old) || self.is_last_row(**old, seq))
        });
        let older: Vec<Seq> = older.map(|(old, _)| *old).collect();
        for old in older {
            let old = self.row(old);
            (old.fate, old.tries) = (ModelFate::Superseded, 0);
        }
    }

    /// Whether a waiting state is in its lane, and not a row alone.
    fn is_held(&self, seq: Seq) -> bool {
        let lane = self.lanes.lanes.get(&self.state(seq).lane_key());
        self.rows[&seq].replay || lane.is_none_or(|lane| lane.debt.rows == 0 || seq < lane.debt.next)
    }

    /// This is the lane's last row before a state, and known well enough to give way.
    fn is_last_row(&self, seq: Seq, before: Seq) -> bool {
        let row = self.rows[&seq];
        let between = self.rows.range(seq + 1..before).filter(|(_, other)| other.lane == row.lane);
        row.known && !between.clone().any(|(seq, row)| row.fate == ModelFate::Waiting && !self.is_held(*seq))
    }

    /// Rows forget their tries.
    fn forget_tries(&mut self) {
        let rows: Vec<Seq> =
            self.with(ModelFate::Waiting).into_iter().filter(|seq| !self.is_held(*seq)).collect();
        for seq in rows {
            let row = self.row(seq);
            (row.tries, row.not_before) = (0, 0);
        }
    }

    /// An answer that is under way may still have the row of this state.
    fn is_removed(&self, seq: Seq) -> bool {
        self.removed.contains(&seq) || self.parked.contains(&seq)
    }

    fn return_owed(&mut self, limit: usize, is_old: bool) {
        let Some(from) = self.lanes.next_owed() else { return };
        let is_there = |seq: &Seq, row: &ModelRow| row.owed && !(is_old && self.unheard.contains(seq));
        let rows = self.rows.range(from..);
        let rows = rows.filter(|(seq, row)| is_there(seq, row) || self.is_removed(**seq));
        let states: Vec<_> = rows.take(limit).map(|(seq, row)| (self.state(*seq), row.fit)).collect();
        let end = states.last().filter(|_| states.len() == limit).map(|(state, _)| state.seq);
        let before: Vec<(Seq, bool)> =
            states.iter().map(|(one, _)| (one.seq, self.is_held(one.seq))).collect();
        let now = Duration::from_millis(self.now);
        assert_eq!(self.lanes.return_owed(from, states, end, now), 0, "none is missing");
        for (seq, was_held) in before {
            if !was_held && self.is_held(seq) && self.rows[&seq].fate == ModelFate::Waiting {
                self.row(seq).known = true;
                self.supersede(self.rows[&seq].lane);
                self.replace(seq);
            }
        }
    }

    /// Whether a newer state of its object waits behind this state of `latest`.
    fn is_old(&self, seq: Seq) -> bool {
        let old = &self.rows[&seq];
        !old.replay
            && self.rows.range(seq + 1..).any(|(newer, row)| {
                row.fate == ModelFate::Waiting && !row.replay && gives_way(old, row) && self.is_held(*newer)
            })
    }

    fn row(&mut self, seq: Seq) -> &mut ModelRow {
        self.rows.get_mut(&seq).unwrap()
    }

    fn apply(&mut self, op: ModelStep) {
        match op {
            ModelStep::Append(lane, fit, ends) => self.append(lane, fit, ends),
            ModelStep::Count => {
                self.recount();
                self.count();
            }
            ModelStep::Read(limit) => self.read(limit),
            ModelStep::CatchUp(limit) => self.catch_up(limit),
            ModelStep::Take(max) => self.take(max),
            ModelStep::Done(pick) => self.finish(pick, &Verdict::Done),
            ModelStep::Retry(pick, after_ms) => {
                self.finish(pick, &Verdict::Retry { after_ms, reason: "not yet".into() });
            }
            ModelStep::Reject(pick) => self.finish(pick, &Verdict::Reject("never".into())),
            ModelStep::GiveBack(pick, applied) => self.give_back(pick, applied),
            ModelStep::Ask(limit) => self.ask(limit),
            ModelStep::Prune => self.prune(),
            ModelStep::Resync(lane) => self.resync(lane),
            ModelStep::Resynced(pick, answer) => self.resynced(pick, answer),
            ModelStep::Advance(ms) => self.now += ms,
            ModelStep::Replay(pick) => self.replay(pick),
            ModelStep::Drop(pick) => self.drop_letter(pick),
            ModelStep::Retain => self.retain(),
            ModelStep::Kept => self.kept(),
            ModelStep::Fill(max) => self.fill(max),
            ModelStep::Return(max, is_old) => self.return_owed(max, is_old),
            ModelStep::Restart(applied, is_changed) => self.restart(applied, is_changed),
        }
        self.save();
        self.forget_tries();
        self.check();
    }

    /// Whether an unfinished or held state lies before this one in its lane.
    fn is_barred(&self, seq: Seq) -> bool {
        let lane = self.rows[&seq].lane;
        self.rows.range(..seq).filter(|(_, row)| row.lane == lane).any(|(_, row)| match row.fate {
            ModelFate::Unread => row.fit.is_handed_over(),
            ModelFate::Waiting | ModelFate::Flying => true,
            ModelFate::Parked | ModelFate::Recalled => {
                (self.policy == OnDeadLetter::Hold || row.is_unsaved) && !self.rows[&seq].replay
            }
            _ => false,
        })
    }

    /// A state that waits in a lane replaces a resync that is not in flight.
    fn supersede(&mut self, lane: u8) {
        let before = self.again.len();
        let rows = &self.rows;
        self.again.retain(|seq, again| rows[seq].lane != lane || again.is_flying);
        self.resyncs.1 += (before - self.again.len()) as u64;
    }

    fn resync(&mut self, lane: u8) {
        let mut rows =
            self.rows.iter().filter(|(_, row)| row.lane == lane && row.fit != SubscriptionFit::Foreign);
        let Some((&seq, newest)) = rows.clone().next_back() else { return };
        let is_finished = |row: &ModelRow| match row.fate {
            ModelFate::Waiting | ModelFate::Flying | ModelFate::Unread => false,
            ModelFate::Parked | ModelFate::Recalled => {
                self.policy == OnDeadLetter::Continue && !row.is_unsaved
            }
            _ => true,
        };
        let is_parked = matches!(newest.fate, ModelFate::Parked | ModelFate::Recalled);
        let is_free = rows.all(|(seq, row)| is_finished(row) && !self.again.contains_key(seq));
        // After a restart the lanes know only once they have read past it that it need not be read again.
        let is_ahead = seq > self.lanes.last_read();
        // The dispatcher asks only for states that were read and not left.
        if rows_unread(&self.rows, lane) {
            return;
        }
        let is_swept = self.lanes.positions.is_left(seq);
        let expected = is_free && !is_parked && !is_ahead && !is_swept && self.lanes.resync_room() > 0;
        let now = Duration::from_millis(self.now);
        let taken = self.lanes.resync_state(self.state(seq), now);
        assert_eq!(taken, expected, "{seq} of {lane}: {:?}", self.rows);
        if expected {
            self.again.insert(seq, OfferedAgain::default());
        } else {
            self.resyncs.1 += 1;
        }
    }

    fn resynced(&mut self, pick: usize, answer: ModelAnswer) {
        let flying: Vec<Seq> = self.again.iter().filter(|(_, a)| a.is_flying).map(|(s, _)| *s).collect();
        if flying.is_empty() {
            return;
        }
        let seq = flying[pick % flying.len()];
        let (lane, now) = (self.rows[&seq].lane, self.now);
        let waits_behind = self.rows.values().any(|row| row.lane == lane && row.fate == ModelFate::Waiting);
        let mut again = self.again.remove(&seq).unwrap();
        again.is_flying = false;
        let retry = Verdict::Retry { after_ms: None, reason: "not yet".into() };
        let settled = match answer {
            ModelAnswer::Done => self.lanes.apply_verdict(seq, Verdict::Done, at(now)),
            ModelAnswer::Retry => self.lanes.apply_verdict(seq, retry, at(now)),
            ModelAnswer::Reject => self.lanes.apply_verdict(seq, Verdict::Reject("never".into()), at(now)),
            ModelAnswer::GiveBack => {
                self.lanes.return_untried(seq, Duration::from_millis(now));
                SettledAs::Unknown
            }
        };
        let expected = match answer {
            ModelAnswer::Done => {
                self.resyncs.0 += 1;
                SettledAs::Resynced
            }
            ModelAnswer::Retry if waits_behind => {
                self.resyncs.1 += 1;
                SettledAs::Superseded
            }
            ModelAnswer::Retry if again.tries < 2 => {
                again.tries += 1;
                again.not_before = now + 100 * u64::from(again.tries);
                self.again.insert(seq, again);
                SettledAs::Retried(Duration::from_millis(again.not_before))
            }
            ModelAnswer::Retry | ModelAnswer::Reject => {
                self.resyncs.2 += 1;
                SettledAs::Dropped
            }
            ModelAnswer::GiveBack if waits_behind => {
                self.resyncs.1 += 1;
                SettledAs::Unknown
            }
            ModelAnswer::GiveBack => {
                self.again.insert(seq, again);
                SettledAs::Unknown
            }
        };
        assert_eq!(settled, expected);
    }

    fn takeable(&self) -> Vec<Seq> {
        let again = self.again.iter().filter(|(_, again)| again.is_flying).map(|(seq, _)| *seq);
        let flying: Vec<u8> =
            self.with(ModelFate::Flying).into_iter().chain(again).map(|seq| self.rows[&seq].lane).collect();
        let mut waiting = self.with(ModelFate::Waiting);
        waiting.retain(|seq| {
            let row = self.rows[seq];
            !flying.contains(&row.lane) && row.not_before <= self.now && !self.is_barred(*seq)
        });
        waiting
    }

    fn take(&mut self, max: usize) {
        let takeable = self.takeable();
        let ready = self.ready();
        let batch = self.lanes.take(Duration::from_millis(self.now), max);
        assert!(batch.len() <= max);
        for delivery in &batch {
            let seq = delivery.state.seq;
            if delivery.resync {
                self.take_again(delivery);
                continue;
            }
            assert!(takeable.contains(&seq), "{seq} was handed over, but only {takeable:?} could be");
            let row = self.row(seq);
            assert_eq!(delivery.attempt, row.prior + row.tries + 1);
            assert_eq!(row.fate, ModelFate::Waiting, "{seq} was handed over twice");
            row.fate = ModelFate::Flying;
        }
        if batch.iter().filter(|delivery| !delivery.resync).count() < takeable.len() && batch.len() < max {
            let lanes = &self.lanes;
            let is_full = |seq: &Seq| !lanes.shares.fits_one_more(self.state(*seq).lane_key().namespace);
            let comes = !lanes.wanted_positions(1).is_empty()
                || takeable.iter().any(is_full)
                || takeable.iter().any(|seq| !self.is_held(*seq));
            assert!(comes, "{takeable:?} are due, and neither taken nor asked for");
        }
        self.check_turns(&ready, &batch, max);
    }

    /// The lanes in line, for each namespace.
    fn ready(&self) -> BTreeMap<u64, usize> {
        let mut ready = BTreeMap::new();
        for (key, _) in self.lanes.lanes.iter().filter(|(_, lane)| lane.place == LanePlace::Ready) {
            *ready.entry(key.namespace).or_default() += 1;
        }
        ready
    }

    /// Checks that no namespace is served two times more than another one in line.
    fn check_turns(&self, ready: &BTreeMap<u64, usize>, batch: &[StateDelivery], max: usize) {
        let served = |namespace| batch.iter().filter(|d| d.state.lane_key().namespace == namespace).count();
        let most = ready.keys().map(|namespace| served(*namespace)).max().unwrap_or(0);
        for (namespace, lanes) in ready {
            let fair = served(*namespace) == *lanes || served(*namespace) + 1 >= most;
            assert!(
                fair || batch.len() < max,
                "{namespace} had {} of {lanes}, another {most}",
                served(*namespace)
            );
        }
    }

    fn take_again(&mut self, delivery: &StateDelivery) {
        let seq = delivery.state.seq;
        let lane = self.rows[&seq].lane;
        let owed =
            |row: &&ModelRow| row.lane == lane && matches!(row.fate, ModelFate::Waiting | ModelFate::Flying);
        assert!(!self.rows.values().any(|row| owed(&row)), "{seq} went before what its lane is owed");
        let again = self.again.get_mut(&seq).expect("what is handed over again was taken");
        assert!(!again.is_flying && again.not_before <= self.now, "{seq} {again:?}");
        assert_eq!(delivery.attempt, again.tries + 1);
        again.is_flying = true;
    }

    fn finish(&mut self, pick: usize, verdict: &Verdict) {
        let Some(seq) = self.pick(ModelFate::Flying, pick) else { return };
        let now = self.now;
        // Its receipt tells.
        let verdict = if self.rows[&seq].applied { &Verdict::Done } else { verdict };
        let is_known = self.rows[&seq].applied == self.rows[&seq].receipt;
        assert!(is_known, "{seq} is applied twice: its receipt is gone");
        let (is_old, policy) = (self.is_old(seq), self.policy);
        let settled = self.lanes.apply_verdict(seq, verdict.clone(), at(now));
        let row = self.row(seq);
        row.untried = false;
        let parks = match verdict {
            Verdict::Done => false,
            Verdict::Reject(_) => true,
            Verdict::Retry { .. } => row.tries == 2,
        };
        let expected = match verdict {
            Verdict::Done => {
                row.fate = ModelFate::Delivered;
                SettledAs::Delivered
            }
            Verdict::Retry { .. } if is_old => {
                (row.fate, row.tries) = (ModelFate::Superseded, 0);
                SettledAs::Superseded
            }
            _ if parks => {
                *row = ModelRow {
                    fate: ModelFate::Parked,
                    prior: row.prior + row.tries + 1,
                    tries: 0,
                    not_before: 0,
                    is_unsaved: policy == OnDeadLetter::Continue && !row.replay,
                    ..*row
                };
                SettledAs::Parked
            }
            Verdict::Retry { after_ms, .. } => {
                row.tries += 1;
                row.not_before = now + after_ms.unwrap_or(if row.tries == 1 { 100 } else { 200 });
                row.fate = ModelFate::Waiting;
                SettledAs::Retried(Duration::from_millis(row.not_before))
            }
            Verdict::Reject(_) => unreachable!("it parks"),
        };
        assert_eq!(settled, expected);
    }

    fn give_back(&mut self, pick: usize, applied: bool) {
        let Some(seq) = self.pick(ModelFate::Flying, pick) else { return };
        let is_old = self.is_old(seq);
        self.lanes.return_untried(seq, Duration::from_millis(self.now));
        let row = self.row(seq);
        row.untried = true;
        // What has a receipt already is not applied again.
        row.receipt |= applied && !row.applied;
        row.applied |= applied;
        row.fate = if is_old { ModelFate::Superseded } else { ModelFate::Waiting };
        row.tries = if is_old { 0 } else { row.tries };
    }

    fn ask(&mut self, limit: usize) {
        let asked = self.lanes.doubtful_positions(limit);
        let has_receipt = |seq: &&Seq| self.rows[*seq].applied && self.rows[*seq].receipt;
        let applied: HashSet<Seq> = asked.iter().filter(has_receipt).copied().collect();
        for seq in &asked {
            let row = self.rows[seq];
            assert_eq!(row.applied, row.receipt, "the receipt of {seq} is gone: {row:?}");
            assert!(matches!(row.fate, ModelFate::Waiting | ModelFate::Recalled), "{seq} {row:?}");
        }
        assert_eq!(self.lanes.resolve_doubts(&asked, &applied), applied.len());
        for seq in applied {
            let row = self.row(seq);
            (row.fate, row.tries, row.not_before) = (ModelFate::Delivered, 0, 0);
        }
    }

    /// Removes receipts as who keeps them does: up to the saved cursor, but for those that are needed.
    fn prune(&mut self) {
        let cursor = self.lanes.cursor();
        let through = self.lanes.first_needed_receipt().map_or(cursor, |first| cursor.min(first - 1));
        self.rows.range_mut(..=through).for_each(|(_, row)| row.receipt = false);
    }

    fn replay(&mut self, pick: usize) {
        let Some(seq) = self.pick(ModelFate::Parked, pick) else { return };
        let letter = self.letters.get_mut(&seq).unwrap();
        letter.replaying = true;
        self.lanes.replay_letter(letter);
        let row = self.row(seq);
        (row.fate, row.is_unsaved) = (ModelFate::Recalled, false);
    }

    fn drop_letter(&mut self, pick: usize) {
        let Some(seq) = self.pick(ModelFate::Parked, pick) else { return };
        self.letters.get_mut(&seq).unwrap().dropped = true;
        self.lanes.drop_letter(seq);
        let row = self.row(seq);
        (row.fate, row.is_unsaved) = (ModelFate::Dropped, false);
    }

    /// Retention keeps letters, rows, and the newest state of each object.
    fn retain(&mut self) {
        let newest: BTreeMap<u8, Seq> = self.rows.iter().map(|(seq, row)| (row.lane, *seq)).collect();
        let finished = [ModelFate::Delivered, ModelFate::Filtered, ModelFate::Superseded];
        for (seq, row) in &mut self.rows {
            row.removed |= finished.contains(&row.fate) && !row.owed && newest[&row.lane] != *seq;
        }
    }

    fn kept(&mut self) {
        let letters: Vec<Seq> =
            self.rows.iter().filter(|(_, row)| row.is_unsaved).map(|(seq, _)| *seq).collect();
        self.rows.values_mut().for_each(|row| row.is_unsaved = false);
        self.lanes.letters_saved(letters);
        let (rows, letters) = (std::mem::take(&mut self.unheard), std::mem::take(&mut self.parked));
        self.lanes.note_saved_rows(rows, letters, std::mem::take(&mut self.removed));
    }

    fn fill(&mut self, max: usize) {
        let asked = self.lanes.wanted_positions(max);
        assert!(asked.len() <= max);
        assert!(
            asked.iter().all(|seq| !self.rows[seq].removed),
            "{asked:?} are wanted, and one was finished"
        );
        let states = asked.iter().map(|seq| self.state(*seq)).collect();
        assert_eq!(self.lanes.fill_wanted(&asked, states, Duration::from_millis(self.now)), [0; 0]);
        for seq in asked {
            if self.rows[&seq].fate == ModelFate::Recalled {
                self.supersede(self.rows[&seq].lane);
                let row = self.row(seq);
                row.fate = ModelFate::Waiting;
                row.replay = true;
            }
        }
    }

    fn save(&mut self) {
        let LetterChanges { parked, revived, owed } = self.lanes.take_letters();
        for seq in owed {
            assert!(!std::mem::replace(&mut self.row(seq).owed, true), "{seq} was owed already");
            assert!(!self.rows[&seq].removed, "{seq} was finished");
            self.unheard.push(seq);
        }
        self.removed.extend(&revived);
        self.parked.extend(parked.iter().map(|letter| letter.seq));
        for seq in revived {
            let was_owed = std::mem::replace(&mut self.row(seq).owed, false);
            assert!(self.letters.remove(&seq).is_some() || was_owed);
        }
        for letter in parked {
            assert_eq!(letter.attempts, self.rows[&letter.seq].prior);
            self.row(letter.seq).owed = false;
            self.letters.insert(letter.seq, letter);
        }
    }

    /// Restarts as after a kill: only the progress, the letters and the journal remain.
    fn restart(&mut self, applied: u64, is_changed: bool) {
        let flying = self.rows.iter_mut().filter(|(_, row)| row.fate == ModelFate::Flying);
        flying.for_each(|(seq, row)| {
            let is_new = applied & 1 << (seq % 64) > 0 && !row.applied;
            row.applied |= is_new;
            row.receipt |= is_new;
        });
        self.rows.values_mut().for_each(|row| row.untried = false);
        if is_changed {
            self.policy = match self.policy {
                OnDeadLetter::Hold => OnDeadLetter::Continue,
                OnDeadLetter::Continue => OnDeadLetter::Hold,
            };
        }
        let progress = self.lanes.progress_to_save();
        (self.again, self.resyncs) = (BTreeMap::new(), (0, 0, 0));
        self.lanes = Lanes::new(model_options(self.policy, self.owes), &progress);
        self.lanes.note_previous_run(self.rows.len() as Seq);
        self.lanes.begin_past(&"jobs".into(), self.past, PACE);
        for row in self.rows.values_mut() {
            row.fate = match row.fate {
                ModelFate::Flying | ModelFate::Waiting if row.replay => ModelFate::Recalled,
                ModelFate::Flying | ModelFate::Waiting if row.owed => ModelFate::Waiting,
                ModelFate::Flying | ModelFate::Waiting => ModelFate::Unread,
                other => other,
            };
            (row.tries, row.not_before, row.replay, row.is_unsaved) = (0, 0, false, false);
            row.known = false;
        }
        for letter in self.letters.values() {
            if letter.dropped {
                self.lanes.drop_letter(letter.seq);
                continue;
            }
            let of = state_of(
                namespace(self.rows[&letter.seq].lane),
                self.rows[&letter.seq].lane.into(),
                letter.seq,
                Change::Present,
                0,
            );
            self.lanes.hold_lane_at(letter.seq, of.lane_key());
            if letter.replaying {
                self.lanes.restore_replay(letter);
                self.rows.get_mut(&letter.seq).unwrap().prior = letter.attempts;
            } else {
                self.lanes.add_parked(letter.seq);
            }
        }
        self.unheard.clear();
        self.removed.clear();
        self.parked.clear();
        for seq in self.rows.iter().filter(|(_, row)| row.owed).map(|(seq, _)| *seq).collect::<Vec<_>>() {
            self.lanes.restore_owed_row(&self.state(seq));
        }
        let newest = self.rows.len() as Seq;
        for (after, through) in unfinished_ranges(&progress, newest) {
            let rows = self.rows.range(after + 1..=through).filter(|(_, row)| Self::is_subscribed(row));
            let unread = rows.inspect(|(seq, row)| {
                assert_eq!(row.fate, ModelFate::Unread, "{seq} is finished and forgotten");
            });
            let unread = unread.count() as u64;
            self.lanes.count(through, unread);
        }
        self.lanes.count(newest, 0);
    }

    /// Checks that a new count of everything equals the running count.
    fn recount(&mut self) {
        if self.lanes.is_countable() {
            let (from, through) = (self.lanes.last_read() + 1, self.lanes.counted_through());
            let rows = self.rows.range(from..=through.max(from)).map(|(_, row)| row);
            let unread =
                rows.filter(|row| row.fate == ModelFate::Unread && Self::is_subscribed(row)).count() as u64;
            self.lanes.set_unread_count(through, unread);
        }
    }

    fn check(&self) {
        let count =
            |fates: &[ModelFate]| self.rows.values().filter(|row| fates.contains(&row.fate)).count() as u64;
        let stats = self.lanes.lane_stats();
        assert_eq!(stats.delivered, count(&[ModelFate::Delivered]));
        assert_eq!(stats.filtered, count(&[ModelFate::Filtered, ModelFate::Superseded]));
        assert_eq!(stats.superseded, count(&[ModelFate::Superseded]));
        assert_eq!(stats.dead, count(&[ModelFate::Parked, ModelFate::Dropped]));
        assert_eq!(stats.dropped, count(&[ModelFate::Dropped]));
        let known = self.rows.range(..=self.lanes.counted_through()).map(|(_, row)| row);
        let unread =
            known.filter(|row| row.fate == ModelFate::Unread && Self::is_subscribed(row)).count() as u64;
        assert_eq!(
            stats.waiting,
            count(&[ModelFate::Waiting, ModelFate::Flying, ModelFate::Recalled]) + unread
        );
        let again = self.again.values().filter(|again| again.is_flying).count() as u64;
        assert_eq!(stats.in_flight, count(&[ModelFate::Flying]) + again);
        assert_eq!((stats.resynced, stats.resync_skipped, stats.resync_failed), self.resyncs);
        assert_eq!(self.lanes.resync.held, self.again.len());
        assert_eq!(
            stats.retrying,
            self.rows.values().filter(|row| row.tries > 0 && row.fate != ModelFate::Delivered).count() as u64
        );
        let lanes = &self.lanes;
        let shares = &lanes.shares;
        assert!(shares.loaded <= lanes.options.window, "{shares:?}");
        assert!(shares.deferred <= lanes.options.deferred + lanes.options.window, "{shares:?}");
        assert!(lanes.positions.count_deferred_runs() <= lanes.options.runs + 6, "{:?}", lanes.positions);
        assert_eq!(shares.loaded, lanes.lanes.values().map(|lane| lane.loaded).sum::<usize>());
        let unloaded = lanes.lanes.values().map(|lane| lane.queue.len() - lane.loaded);
        assert_eq!(shares.deferred, unloaded.sum::<usize>());

        let progress = lanes.progress_to_save();
        let is_finished = |seq: Seq| {
            seq <= progress.cursor || progress.above.iter().any(|(from, to)| (from..=to).contains(&&seq))
        };
        for (seq, row) in self.rows.iter().filter(|(_, row)| Self::is_subscribed(row)) {
            let is_open = matches!(row.fate, ModelFate::Unread | ModelFate::Waiting | ModelFate::Flying)
                && !row.replay
                && !row.owed;
            assert_eq!(is_finished(*seq), !is_open, "{seq} {row:?} {progress:?}");
        }
        assert!(progress.above.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", progress.above);
        self.check_receipts(progress.cursor);
        // What waits in a lane becomes rows whatever their number.
        let depth = lanes.options.window + lanes.options.deferred;
        assert!(lanes.debts.states <= self.owes.saturating_add(2 * depth), "{:?}", lanes.debts);
    }

    /// Checks that no receipt may go that is needed, and that nothing else keeps any: a lane may stand still for years.
    fn check_receipts(&self, cursor: Seq) {
        let recalled = self.lanes.first_needed_receipt();
        for (seq, row) in self.rows.range(..=cursor).filter(|(_, row)| row.applied) {
            let is_finished = matches!(row.fate, ModelFate::Delivered | ModelFate::Superseded);
            let is_kept = recalled.is_some_and(|first| first <= *seq);
            assert!(is_finished || is_kept, "the receipt of {seq} may go: {recalled:?} {row:?}");
        }
        let Some(first) = recalled else { return };
        let row = self.rows[&first];
        let is_asked_for = self.lanes.doubtful_positions(usize::MAX).contains(&first);
        let is_handed_over = row.fate == ModelFate::Flying || row.untried;
        let is_unheard = self.is_removed(first);
        assert!(is_asked_for || is_handed_over || is_unheard, "{first} keeps all receipts above it: {row:?}");
    }

    /// Checks that nothing is lost: with a plugin that answers `done`, every state is finished.
    fn drain(&mut self) {
        for _ in 0..2000 {
            self.apply(ModelStep::Count);
            self.apply(ModelStep::Read(8));
            self.apply(ModelStep::CatchUp(8));
            self.apply(ModelStep::Replay(0));
            self.apply(ModelStep::Fill(8));
            self.apply(ModelStep::Ask(8));
            self.apply(ModelStep::Return(8, false));
            self.apply(ModelStep::Prune);
            self.apply(ModelStep::Advance(300));
            self.apply(ModelStep::Take(4));
            for _ in 0..4 {
                self.apply(ModelStep::Done(0));
                self.apply(ModelStep::Resynced(0, ModelAnswer::Done));
            }
            self.apply(ModelStep::Kept);
            self.apply(ModelStep::Retain);
            let stats = self.lanes.lane_stats();
            // Positions that were left may turn out to belong to nobody.
            let is_read = self.lanes.last_read() == self.rows.len() as Seq
                && self.lanes.positions.count_deferred_runs() == 0;
            if is_read && stats.waiting == 0 && stats.dead == stats.dropped && self.again.is_empty() {
                break;
            }
        }
        let stats = self.lanes.lane_stats();
        assert_eq!((stats.waiting, stats.dead), (0, stats.dropped));
        assert_eq!(self.lanes.shares.count_behind(), 0);
        assert!(self.lanes.pasts.is_empty() || self.past > self.rows.len() as Seq, "its end was reached");
        assert_eq!(self.lanes.cursor(), self.rows.len() as Seq);
        assert!(self.lanes.lanes.is_empty(), "an empty lane is not kept");
        assert!(
            self.letters.values().all(|letter| letter.dropped) && self.rows.values().all(|row| !row.owed)
        );
        assert_eq!(self.lanes.first_needed_receipt(), None);
    }
}

/// Some retries are so far off that their lanes owe what waits behind them.
fn model_options(policy: OnDeadLetter, owes: usize) -> LaneOptions {
    LaneOptions { owe_after: Duration::from_millis(150), rows: owes, ..options(policy) }
}

fn namespace(lane: u8) -> &'static str {
    ["a", "a", "b", "c", "a"][usize::from(lane)]
}

fn gives_way(old: &ModelRow, newer: &ModelRow) -> bool {
    (old.fit, newer.fit) == (SubscriptionFit::Latest, SubscriptionFit::Latest)
        && (old.lane, old.uid, old.change) == (newer.lane, newer.uid, Change::Present)
}

/// Whether the lane has a state that is neither taken in nor foreign.
fn rows_unread(rows: &BTreeMap<Seq, ModelRow>, lane: u8) -> bool {
    rows.values()
        .any(|row| row.lane == lane && row.fate == ModelFate::Unread && row.fit != SubscriptionFit::Foreign)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_keeps_order_accounts_and_every_state(
        hold in any::<bool>(),
        owes in prop_oneof![2 => Just(usize::MAX), 1 => Just(4usize)],
        past in prop_oneof![2 => Just(0u64), 1 => 1u64..20],
        ops in proptest::collection::vec(op(), 1..160),
    ) {
        let policy = if hold { OnDeadLetter::Hold } else { OnDeadLetter::Continue };
        let mut model = LaneModel::new(policy, owes, past);
        for op in ops {
            model.apply(op);
        }
        model.drain();
    }
}
