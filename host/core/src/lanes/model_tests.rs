//! The lanes in lockstep with a model that knows no queues: a table of states and their fates.

use proptest::prelude::*;

use super::tests::{at, options, state};
use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    Flying,
    Delivered,
    Filtered,
    Skipped,
    Parked,
    /// Taken back, its state not yet read.
    Recalled,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    lane: u8,
    fate: Fate,
    tries: u32,
    prior: u32,
    not_before: u64,
    replay: bool,
}

/// A state of the table that was offered once more and is not finished again.
#[derive(Clone, Copy, Debug, Default)]
struct Again {
    is_flying: bool,
    tries: u32,
    not_before: u64,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push(u8),
    Filter,
    Skip,
    Take(usize),
    Done(usize),
    Retry(usize, Option<u64>),
    Reject(usize),
    GiveBack(usize),
    Advance(u64),
    Replay(usize),
    Fill(usize),
    /// Of this lane, its newest.
    Resync(u8),
    Resynced(usize, Answer),
    Restart,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Done,
    Retry,
    Reject,
    GiveBack,
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        3 => Just(Answer::Done),
        3 => Just(Answer::Retry),
        1 => Just(Answer::Reject),
        1 => Just(Answer::GiveBack),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u8..5).prop_map(Op::Push),
        1 => Just(Op::Filter),
        1 => Just(Op::Skip),
        6 => (1usize..5).prop_map(Op::Take),
        5 => any::<usize>().prop_map(Op::Done),
        4 => (any::<usize>(), proptest::option::of(0u64..200)).prop_map(|(pick, after)| Op::Retry(pick, after)),
        1 => any::<usize>().prop_map(Op::Reject),
        2 => any::<usize>().prop_map(Op::GiveBack),
        3 => (0u64..250).prop_map(Op::Advance),
        2 => any::<usize>().prop_map(Op::Replay),
        4 => (1usize..10).prop_map(Op::Fill),
        4 => (0u8..5).prop_map(Op::Resync),
        4 => (any::<usize>(), answer()).prop_map(|(pick, answer)| Op::Resynced(pick, answer)),
        1 => Just(Op::Restart),
    ]
}

struct Model {
    lanes: Lanes,
    rows: BTreeMap<Seq, Row>,
    again: BTreeMap<Seq, Again>,
    /// Resyncs since the start that were handed over, not handed over, and failed.
    resyncs: (u64, u64, u64),
    /// The dead letters as a journal would have them after a save.
    letters: BTreeMap<Seq, DeadLetter>,
    now: u64,
    policy: OnDeadLetter,
}

impl Model {
    fn new(policy: OnDeadLetter) -> Self {
        let lanes = Lanes::new(options(policy), &Progress::default());
        Self {
            lanes,
            rows: BTreeMap::new(),
            again: BTreeMap::new(),
            resyncs: (0, 0, 0),
            letters: BTreeMap::new(),
            now: 0,
            policy,
        }
    }

    fn with(&self, fate: Fate) -> Vec<Seq> {
        self.rows.iter().filter(|(_, row)| row.fate == fate).map(|(seq, _)| *seq).collect()
    }

    fn pick(&self, fate: Fate, pick: usize) -> Option<Seq> {
        let seqs = self.with(fate);
        (!seqs.is_empty()).then(|| seqs[pick % seqs.len()])
    }

    fn add(&mut self, lane: u8, fate: Fate) -> Seq {
        let seq = self.rows.len() as Seq + 1;
        self.rows.insert(seq, Row { lane, fate, tries: 0, prior: 0, not_before: 0, replay: false });
        seq
    }

    fn row(&mut self, seq: Seq) -> &mut Row {
        self.rows.get_mut(&seq).unwrap()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Push(_) if self.lanes.room() == 0 => {}
            Op::Push(lane) => {
                self.supersede(lane);
                let seq = self.add(lane, Fate::Waiting);
                self.lanes.push(state(seq, lane));
            }
            Op::Filter => {
                let seq = self.add(0, Fate::Filtered);
                self.lanes.filter(seq);
            }
            Op::Skip => {
                let seq = self.add(0, Fate::Skipped);
                self.lanes.skip_to(seq);
            }
            Op::Take(max) => self.take(max),
            Op::Done(pick) => self.finish(pick, &Verdict::Done),
            Op::Retry(pick, after_ms) => {
                self.finish(pick, &Verdict::Retry { after_ms, reason: "not yet".into() });
            }
            Op::Reject(pick) => self.finish(pick, &Verdict::Reject("never".into())),
            Op::GiveBack(pick) => {
                if let Some(seq) = self.pick(Fate::Flying, pick) {
                    self.lanes.give_back(seq);
                    self.row(seq).fate = Fate::Waiting;
                }
            }
            Op::Resync(lane) => self.resync(lane),
            Op::Resynced(pick, answer) => self.resynced(pick, answer),
            Op::Advance(ms) => self.now += ms,
            Op::Replay(pick) => self.replay(pick),
            Op::Fill(max) => self.fill(max),
            Op::Restart => self.restart(),
        }
        self.save();
        self.check();
    }

    /// What bars a state: an unfinished or held one before it in its lane.
    fn is_barred(&self, seq: Seq) -> bool {
        let lane = self.rows[&seq].lane;
        self.rows.range(..seq).filter(|(_, row)| row.lane == lane).any(|(_, row)| match row.fate {
            Fate::Waiting | Fate::Flying => true,
            Fate::Parked | Fate::Recalled => self.policy == OnDeadLetter::Hold && !self.rows[&seq].replay,
            _ => false,
        })
    }

    /// What waits in a lane takes the place of a resync that doesn't fly.
    fn supersede(&mut self, lane: u8) {
        let before = self.again.len();
        let rows = &self.rows;
        self.again.retain(|seq, again| rows[seq].lane != lane || again.is_flying);
        self.resyncs.1 += (before - self.again.len()) as u64;
    }

    fn resync(&mut self, lane: u8) {
        let mut rows = self.rows.iter().filter(|(_, row)| row.lane == lane);
        let Some((&seq, newest)) = rows.clone().next_back() else { return };
        let is_finished = |row: &Row| match row.fate {
            Fate::Waiting | Fate::Flying => false,
            Fate::Parked | Fate::Recalled => self.policy == OnDeadLetter::Continue,
            _ => true,
        };
        let is_parked = matches!(newest.fate, Fate::Parked | Fate::Recalled);
        let is_free = rows.all(|(seq, row)| is_finished(row) && !self.again.contains_key(seq));
        let expected = is_free && !is_parked && self.lanes.resync_room() > 0;
        assert_eq!(self.lanes.resync(state(seq, lane)), expected, "{seq} of {lane}: {:?}", self.rows);
        if expected {
            self.again.insert(seq, Again::default());
        } else {
            self.resyncs.1 += 1;
        }
    }

    fn resynced(&mut self, pick: usize, answer: Answer) {
        let flying: Vec<Seq> = self.again.iter().filter(|(_, a)| a.is_flying).map(|(s, _)| *s).collect();
        if flying.is_empty() {
            return;
        }
        let seq = flying[pick % flying.len()];
        let (lane, now) = (self.rows[&seq].lane, self.now);
        let waits_behind = self.rows.values().any(|row| row.lane == lane && row.fate == Fate::Waiting);
        let mut again = self.again.remove(&seq).unwrap();
        again.is_flying = false;
        let retry = Verdict::Retry { after_ms: None, reason: "not yet".into() };
        let settled = match answer {
            Answer::Done => self.lanes.finish(seq, Verdict::Done, at(now)),
            Answer::Retry => self.lanes.finish(seq, retry, at(now)),
            Answer::Reject => self.lanes.finish(seq, Verdict::Reject("never".into()), at(now)),
            Answer::GiveBack => {
                self.lanes.give_back(seq);
                Settled::Unknown
            }
        };
        let expected = match answer {
            Answer::Done => {
                self.resyncs.0 += 1;
                Settled::Resynced
            }
            Answer::Retry if waits_behind => {
                self.resyncs.1 += 1;
                Settled::Superseded
            }
            Answer::Retry if again.tries < 2 => {
                again.tries += 1;
                again.not_before = now + 100 * u64::from(again.tries);
                self.again.insert(seq, again);
                Settled::Retried(Duration::from_millis(again.not_before))
            }
            Answer::Retry | Answer::Reject => {
                self.resyncs.2 += 1;
                Settled::Dropped
            }
            Answer::GiveBack if waits_behind => {
                self.resyncs.1 += 1;
                Settled::Unknown
            }
            Answer::GiveBack => {
                self.again.insert(seq, again);
                Settled::Unknown
            }
        };
        assert_eq!(settled, expected);
    }

    fn takeable(&self) -> Vec<Seq> {
        let again = self.again.iter().filter(|(_, again)| again.is_flying).map(|(seq, _)| *seq);
        let flying: Vec<u8> =
            self.with(Fate::Flying).into_iter().chain(again).map(|seq| self.rows[&seq].lane).collect();
        let mut waiting = self.with(Fate::Waiting);
        waiting.retain(|seq| {
            let row = self.rows[seq];
            !flying.contains(&row.lane) && row.not_before <= self.now && !self.is_barred(*seq)
        });
        waiting
    }

    fn take(&mut self, max: usize) {
        let takeable = self.takeable();
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
            assert_eq!(row.fate, Fate::Waiting, "{seq} was handed over twice");
            row.fate = Fate::Flying;
        }
        if batch.iter().filter(|delivery| !delivery.resync).count() < takeable.len() && batch.len() < max {
            let comes = !self.lanes.wanted(1).is_empty() || self.lanes.loaded == self.lanes.options.window;
            assert!(comes, "{takeable:?} are due, and neither taken nor asked for");
        }
    }

    fn take_again(&mut self, delivery: &Delivery) {
        let seq = delivery.state.seq;
        let lane = self.rows[&seq].lane;
        let owed = |row: &&Row| row.lane == lane && matches!(row.fate, Fate::Waiting | Fate::Flying);
        assert!(!self.rows.values().any(|row| owed(&row)), "{seq} went before what its lane is owed");
        let again = self.again.get_mut(&seq).expect("what is handed over again was taken");
        assert!(!again.is_flying && again.not_before <= self.now, "{seq} {again:?}");
        assert_eq!(delivery.attempt, again.tries + 1);
        again.is_flying = true;
    }

    fn finish(&mut self, pick: usize, verdict: &Verdict) {
        let Some(seq) = self.pick(Fate::Flying, pick) else { return };
        let now = self.now;
        let settled = self.lanes.finish(seq, verdict.clone(), at(now));
        let row = self.row(seq);
        let parks = match verdict {
            Verdict::Done => false,
            Verdict::Reject(_) => true,
            Verdict::Retry { .. } => row.tries == 2,
        };
        let expected = match verdict {
            Verdict::Done => {
                row.fate = Fate::Delivered;
                Settled::Delivered
            }
            _ if parks => {
                *row = Row {
                    fate: Fate::Parked,
                    prior: row.prior + row.tries + 1,
                    tries: 0,
                    not_before: 0,
                    ..*row
                };
                Settled::Parked
            }
            Verdict::Retry { after_ms, .. } => {
                row.tries += 1;
                row.not_before = now + after_ms.unwrap_or(if row.tries == 1 { 100 } else { 200 });
                row.fate = Fate::Waiting;
                Settled::Retried(Duration::from_millis(row.not_before))
            }
            Verdict::Reject(_) => unreachable!("it parks"),
        };
        assert_eq!(settled, expected);
    }

    fn replay(&mut self, pick: usize) {
        let Some(seq) = self.pick(Fate::Parked, pick) else { return };
        let letter = self.letters.get_mut(&seq).unwrap();
        letter.replaying = true;
        self.lanes.replay(letter);
        self.row(seq).fate = Fate::Recalled;
    }

    fn fill(&mut self, max: usize) {
        let asked = self.lanes.wanted(max);
        assert!(asked.len() <= max);
        let states = asked.iter().map(|seq| state(*seq, self.rows[seq].lane)).collect();
        assert_eq!(self.lanes.fill(&asked, states), [0; 0]);
        for seq in asked {
            if self.rows[&seq].fate == Fate::Recalled {
                self.supersede(self.rows[&seq].lane);
                let row = self.row(seq);
                row.fate = Fate::Waiting;
                row.replay = true;
            }
        }
    }

    fn save(&mut self) {
        let Letters { parked, revived } = self.lanes.take_letters();
        for letter in parked {
            assert_eq!(letter.attempts, self.rows[&letter.seq].prior);
            self.letters.insert(letter.seq, letter);
        }
        for seq in revived {
            assert!(self.letters.remove(&seq).is_some());
        }
    }

    /// As after a kill: only the progress, the letters and the journal are left.
    fn restart(&mut self) {
        let progress = self.lanes.progress();
        (self.again, self.resyncs) = (BTreeMap::new(), (0, 0, 0));
        self.lanes = Lanes::new(options(self.policy), &progress);
        for row in self.rows.values_mut() {
            row.fate = match row.fate {
                Fate::Flying | Fate::Waiting if row.replay => Fate::Recalled,
                Fate::Flying => Fate::Waiting,
                other => other,
            };
            (row.tries, row.not_before, row.replay) = (0, 0, false);
        }
        for letter in self.letters.values() {
            let of = state(letter.seq, self.rows[&letter.seq].lane);
            self.lanes.hold(letter.seq, of.lane());
            if letter.replaying {
                self.lanes.replay(letter);
                self.rows.get_mut(&letter.seq).unwrap().prior = letter.attempts;
            } else {
                self.lanes.park(letter.seq);
            }
        }
        for seq in holes(&progress) {
            assert_eq!(self.rows[&seq].fate, Fate::Waiting);
            self.lanes.push(state(seq, self.rows[&seq].lane));
        }
        let unread: Vec<(Seq, Row)> =
            self.rows.range(self.lanes.through() + 1..).map(|(s, r)| (*s, *r)).collect();
        for (seq, row) in unread {
            assert_eq!(row.fate, Fate::Waiting, "{seq} is finished and forgotten");
            self.lanes.push(state(seq, row.lane));
        }
    }

    fn check(&self) {
        let count =
            |fates: &[Fate]| self.rows.values().filter(|row| fates.contains(&row.fate)).count() as u64;
        let stats = self.lanes.stats();
        assert_eq!(stats.delivered, count(&[Fate::Delivered]));
        assert_eq!(stats.filtered, count(&[Fate::Filtered]));
        assert_eq!(stats.dead, count(&[Fate::Parked]));
        assert_eq!(stats.waiting, count(&[Fate::Waiting, Fate::Flying, Fate::Recalled]));
        let again = self.again.values().filter(|again| again.is_flying).count() as u64;
        assert_eq!(stats.in_flight, count(&[Fate::Flying]) + again);
        assert_eq!((stats.resynced, stats.resync_skipped, stats.resync_failed), self.resyncs);
        assert_eq!(self.lanes.resync.held, self.again.len());
        assert_eq!(
            stats.retrying,
            self.rows.values().filter(|row| row.tries > 0 && row.fate != Fate::Delivered).count() as u64
        );
        let lanes = &self.lanes;
        assert!(lanes.loaded <= lanes.options.window, "{} states are held", lanes.loaded);
        assert_eq!(lanes.loaded, lanes.lanes.values().map(|lane| lane.loaded).sum::<usize>());

        let progress = lanes.progress();
        let is_open = |row: &Row| matches!(row.fate, Fate::Waiting | Fate::Flying) && !row.replay;
        let first = self.rows.iter().find(|(_, row)| is_open(row)).map(|(seq, _)| *seq);
        assert_eq!(progress.cursor, first.map_or(self.rows.len() as Seq, |seq| seq - 1));
        for (seq, row) in self.rows.range(progress.cursor + 1..) {
            let above = progress.above.iter().any(|(from, to)| (from..=to).contains(&seq));
            assert_eq!(above, !is_open(row), "{seq} {row:?} {:?}", progress.above);
        }
        assert!(progress.above.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", progress.above);
    }

    /// Nothing is lost: with a plugin that answers `done`, everything comes to its end.
    fn drain(&mut self) {
        for _ in 0..1000 {
            self.apply(Op::Replay(0));
            self.apply(Op::Fill(8));
            self.apply(Op::Advance(300));
            self.apply(Op::Take(4));
            for _ in 0..4 {
                self.apply(Op::Done(0));
                self.apply(Op::Resynced(0, Answer::Done));
            }
            let stats = self.lanes.stats();
            if stats.waiting == 0 && stats.dead == 0 && self.again.is_empty() {
                break;
            }
        }
        assert_eq!((self.lanes.stats().waiting, self.lanes.stats().dead), (0, 0));
        assert_eq!(self.lanes.cursor(), self.rows.len() as Seq);
        assert!(self.lanes.lanes.is_empty(), "an empty lane is not kept");
        assert!(self.letters.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_keeps_order_accounts_and_every_state(
        hold in any::<bool>(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut model = Model::new(if hold { OnDeadLetter::Hold } else { OnDeadLetter::Continue });
        for op in ops {
            model.apply(op);
        }
        model.drain();
    }
}
