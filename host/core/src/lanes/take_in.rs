//! Takes states into the lanes. It reads the journal in order and leaves what exceeds a namespace's share.
//! Later it goes back for those, and reads states again of which it kept only the position.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use super::lane::{LaneSlot, LetterHistory, SlotOrigin};
use super::positions::OpenPosition;
use super::turns::latest::LatestKey;
use super::{Lanes, ReplayedLetter, SubscriptionFit};
use crate::config::{OnDeadLetter, RateSpec};
use crate::lanes::turns::past::BackfillTurns;
use crate::limits;
use crate::ports::DeadLetter;
use crate::state::{LaneKey, Seq, State};

/// The group that a state is left with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DeferredGroup {
    Namespace(u64),
    /// A past, by its index.
    Past(usize),
}

/// A stretch of the journal where enough was left to make a read worthwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUpRange {
    pub from: Seq,
    pub limit: usize,
}

impl Lanes {
    // ---- what lies unread ----------------------------------------------------------------

    /// Adds states of the subscription that lie between the last counted position and `through`.
    pub fn count(&mut self, through: Seq, states: u64) {
        self.unread += states;
        self.counted = self.counted.max(through);
    }

    /// Tells whether the unread states are exactly those after the reading position.
    pub fn is_countable(&self) -> bool {
        self.unread > 0 && self.positions.is_one_piece()
    }

    /// Sets how many states of the subscription lie between the reading position and `through`. Retention may
    /// have removed some that were counted before. Call it only where [`is_countable`](Self::is_countable)
    /// holds.
    pub fn set_unread_count(&mut self, through: Seq, states: u64) {
        self.unread = states;
        self.counted = self.counted.max(through);
    }

    /// The position up to which the states of the subscription are counted, taken in or not.
    pub fn counted_through(&self) -> Seq {
        self.counted.max(self.positions.last_read())
    }

    /// The number of states that fit for certain, whatever their namespace.
    pub fn room_for_states(&self) -> usize {
        self.shares.room_for_states()
    }

    /// Whether so many runs were left that the lanes must take some in before anything new is read.
    pub fn is_scattered(&self) -> bool {
        self.positions.count_deferred_runs() >= self.options.runs
            || self.shares.count_behind() >= limits::LANE_BEHIND
    }

    /// The namespaces that are behind: something of them was left, so nothing newer of them may be taken in.
    pub fn namespaces_behind(&self) -> Vec<String> {
        self.shares.all_behind().map(|(_, _, name)| name.to_owned()).collect()
    }

    /// Begins a past: what the source has up to `until` is handed over at this rate, beside newer states.
    pub fn begin_past(&mut self, source: &Arc<str>, until: Seq, rate: RateSpec) {
        let next = self.positions.cursor() + 1;
        if until >= next {
            self.pasts.push(BackfillTurns::new(source, next, until, rate));
        }
    }

    /// Whether the reading position is still within a past. Of its states only the lanes are needed.
    pub fn is_in_past(&self) -> bool {
        self.pasts.iter().any(|past| past.until > self.positions.last_read())
    }

    // ---- reading on ----------------------------------------------------------------------

    /// Puts a state at the end of its lane, or leaves it. Positions come in order.
    pub fn push(&mut self, state: Arc<State>, now: Duration) {
        let seq = state.seq;
        self.read(vec![(state, SubscriptionFit::Wanted)], seq, now);
    }

    /// Takes in everything that the journal has up to `through`.
    pub fn read(&mut self, states: Vec<(Arc<State>, SubscriptionFit)>, through: Seq, now: Duration) {
        for (state, fit) in states {
            self.read_one(state, fit, now);
        }
        self.read_to(through);
    }

    /// Does the same with states that exclude the namespaces that are [`namespaces_behind`](Self::namespaces_behind).
    pub fn read_outside(&mut self, states: Vec<(Arc<State>, SubscriptionFit)>, through: Seq, now: Duration) {
        for (state, fit) in states {
            let next = self.positions.last_read() + 1;
            if state.seq > next {
                self.positions.defer_positions(next, state.seq - 1, self.observed_ms);
            }
            self.read_one(state, fit, now);
        }
        let next = self.positions.last_read() + 1;
        if through >= next {
            self.positions.defer_positions(next, through, self.observed_ms);
        }
        self.read_to(through);
    }

    fn read_to(&mut self, seq: Seq) {
        self.positions.read_through(seq);
        self.end_pasts();
        if self.positions.last_read() >= self.counted {
            self.counted = self.positions.last_read();
            // Nothing was left, so nothing is unread, whatever was counted.
            if self.positions.count_deferred_runs() == 0 {
                self.unread = 0;
            }
        }
    }

    fn read_one(&mut self, state: Arc<State>, fit: SubscriptionFit, now: Duration) {
        let seq = state.seq;
        if seq <= self.positions.last_read()
            || self.positions.is_ahead(seq)
            || fit == SubscriptionFit::Foreign
        {
            self.positions.read_through(seq);
            return;
        }
        self.observed_ms = state.observed_ms;
        let group = self.deferred_group_of(&state);
        if self.next_of(group).is_none() && self.has_place(&state, fit) {
            self.unread -= u64::from(seq <= self.counted && self.unread > 0);
            self.take_in(state, fit, now);
            return;
        }
        self.unread += u64::from(seq > self.counted);
        match group {
            DeferredGroup::Past(index) => self.pasts[index].remember_lane(&state),
            DeferredGroup::Namespace(namespace) if self.next_of(group).is_none() => {
                self.shares.set_behind(namespace, &state.object.namespace, seq);
            }
            DeferredGroup::Namespace(_) => {}
        }
        self.positions.defer_positions(seq, seq, state.observed_ms);
    }

    fn deferred_group_of(&self, state: &State) -> DeferredGroup {
        match self.pasts.iter().position(|past| past.is_of_past(state)) {
            Some(index) => DeferredGroup::Past(index),
            None => DeferredGroup::Namespace(state.lane_key().namespace),
        }
    }

    /// The state may be taken in: its namespace has room, and there are not too many rows.
    fn has_place(&mut self, state: &State, fit: SubscriptionFit) -> bool {
        let key = state.lane_key();
        let is_crowded = fit.is_handed_over() && self.is_crowded(key, state.seq);
        if is_crowded {
            self.debts.crowded.insert(key.namespace, (key, state.seq));
        }
        !is_crowded && self.shares.fits_one_more(key.namespace)
    }

    /// The first position that was left of this group.
    fn next_of(&self, group: DeferredGroup) -> Option<Seq> {
        match group {
            DeferredGroup::Namespace(namespace) => self.shares.next(namespace),
            DeferredGroup::Past(index) => Some(self.pasts[index].next),
        }
    }

    fn take_in(&mut self, state: Arc<State>, fit: SubscriptionFit, now: Duration) {
        let seq = state.seq;
        if fit.is_handed_over() {
            self.put_state(state, fit == SubscriptionFit::Latest, now);
        } else {
            self.filtered += 1;
            self.positions.close(seq);
        }
    }

    fn put_state(&mut self, state: Arc<State>, latest: bool, now: Duration) {
        let (seq, key) = (state.seq, state.lane_key());
        self.drop_waiting_resync(key);
        let latest = if latest { LatestKey::of(&state) } else { None };
        if let Some(newer) = latest {
            self.drop_waiting_superseded(key, newer);
        }
        if self.becomes_owed_row(key, seq) {
            return self.make_owed_row(key, seq, state.observed_ms, latest);
        }
        self.positions.open(seq, OpenPosition { lane: key, observed_ms: state.observed_ms });
        let lane = self.lanes.entry(key).or_default();
        // A lane holds the first of its states, so that its head is always among them.
        let follows = lane.loaded == lane.queue.len() && lane.queue.len() < self.options.depth;
        let state = (follows && !lane.is_held_before(seq)).then_some(state);
        match state {
            Some(_) => self.shares.load(key.namespace, 1),
            None => self.shares.defer_positions(key.namespace, 1),
        }
        let is_doubtful = self.debts.is_from_before(seq);
        lane.insert(LaneSlot { latest, is_doubtful, ..LaneSlot::new(seq, state, SlotOrigin::Journal, now) });
        self.meter.adds += 1;
        self.place_lane(key, false);
    }

    // ---- going back ----------------------------------------------------------------------

    /// The stretch to go back to for groups that have room again. What was left first comes first. Once there
    /// are too many runs, only the group that owns the first run goes on.
    pub fn next_behind(&self, now: Duration) -> Option<CatchUpRange> {
        let first = self.positions.first_left()?;
        let is_crowded = self.positions.count_deferred_runs() >= self.options.runs;
        let is_starving = !self.has_ready(now);
        let from = |next: Seq| self.positions.next_left(next).filter(|from| !is_crowded || *from == first);
        let namespaces = self.shares.all_behind().filter(|(namespace, _, _)| {
            let has_room =
                self.shares.has_room(*namespace) || is_starving && self.shares.fits_one_more(*namespace);
            has_room && !self.waits_for_rows(*namespace)
        });
        let namespaces =
            namespaces.filter_map(|(_, next, _)| Some(CatchUpRange { from: from(next)?, limit: usize::MAX }));
        let pasts = self.pasts.iter().filter(|past| {
            let is_stuck =
                |namespace| !self.shares.fits_one_more(namespace) || self.waits_for_rows(namespace);
            !past.waits_for.is_some_and(is_stuck)
                && self.shares.free_slots() > 0
                && past.next_read_at() <= now
        });
        let pasts = pasts
            .filter_map(|past| Some(CatchUpRange { from: from(past.next)?, limit: past.read_limit(now) }));
        namespaces.chain(pasts).min_by_key(|behind| behind.from)
    }

    /// A namespace that has no place for one more row waits until some are finished, or until the lane goes on.
    fn waits_for_rows(&self, namespace: u64) -> bool {
        self.debts.crowded.get(&namespace).is_some_and(|(key, seq)| self.is_crowded(*key, *seq))
    }

    /// When a past that waits for its rate may go on.
    pub fn past_due(&self) -> Option<Duration> {
        let has_left = |past: &&BackfillTurns| self.positions.next_left(past.next).is_some();
        self.pasts.iter().filter(has_left).map(BackfillTurns::next_read_at).min()
    }

    /// Takes in what was left in this stretch, as far as there is room. `states` is all that the journal has
    /// of it.
    pub fn take_in_deferred(
        &mut self,
        from: Seq,
        states: Vec<(Arc<State>, SubscriptionFit)>,
        end: Seq,
        now: Duration,
    ) {
        let end = end.min(self.positions.last_read());
        if self.debts.states < self.options.rows {
            self.debts.crowded.clear();
        }
        self.advance_groups(0, 0, &HashSet::new());
        let mut stretch = self.positions.begin_stretch(from, end);
        let mut stopped = HashSet::new();
        let is_first = self.positions.first_left().is_none_or(|first| first > from);
        for (state, fit) in states {
            let seq = state.seq;
            if seq < from || seq > end || fit == SubscriptionFit::Foreign {
                continue;
            }
            if !stretch.contains(seq) {
                stretch.end_current_run();
                continue;
            }
            let group = self.deferred_group_of(&state);
            let is_crowded =
                self.positions.count_deferred_runs() + stretch.count_kept_runs() >= self.options.runs;
            let splits = stretch.count_kept_runs() > 0 || !is_first;
            // Something of this group that was left before this stretch comes first.
            let is_next = self.next_of(group).is_none_or(|next| next >= from);
            let may = is_next && !stopped.contains(&group) && !(is_crowded && splits);
            if may && self.may_take_in(group, &state, fit, now) {
                stretch.end_current_run();
                self.unread = self.unread.saturating_sub(1);
                self.take_in(state, fit, now);
                continue;
            }
            if is_next && stopped.insert(group) {
                self.defer_group(group, &state);
            }
            stretch.keep_deferred(seq, state.observed_ms);
        }
        self.positions.end_stretch(stretch);
        self.advance_groups(from, end, &stopped);
    }

    fn may_take_in(
        &mut self,
        group: DeferredGroup,
        state: &State,
        fit: SubscriptionFit,
        now: Duration,
    ) -> bool {
        self.has_place(state, fit)
            && match group {
                DeferredGroup::Past(index) if fit != SubscriptionFit::Filtered => {
                    self.pasts[index].try_spend_token(now)
                }
                _ => true,
            }
    }

    /// Notes that this state and all later states of its group stay in this stretch.
    fn defer_group(&mut self, group: DeferredGroup, state: &State) {
        let namespace = state.lane_key().namespace;
        match group {
            DeferredGroup::Namespace(namespace) => {
                self.shares.set_behind(namespace, &state.object.namespace, state.seq);
            }
            DeferredGroup::Past(index) => {
                let waits = !self.shares.fits_one_more(namespace) || self.waits_for_rows(namespace);
                let past = &mut self.pasts[index];
                past.next = state.seq;
                past.waits_for = waits.then_some(namespace);
            }
        }
    }

    /// Moves every group on to its next position that was left. Groups that had their turn and were not
    /// stopped have nothing left between `from` and `end`.
    fn advance_groups(&mut self, from: Seq, end: Seq, stopped: &HashSet<DeferredGroup>) {
        let positions = &self.positions;
        let next_of = |group: DeferredGroup, next: Seq| {
            let is_through = (from..=end).contains(&next) && !stopped.contains(&group);
            positions.next_left(if is_through { end + 1 } else { next })
        };
        self.shares.advance_namespaces(|namespace, next| next_of(DeferredGroup::Namespace(namespace), next));
        let through = positions.last_read();
        for (index, past) in self.pasts.iter_mut().enumerate() {
            let group = DeferredGroup::Past(index);
            if (from..=end).contains(&past.next) && !stopped.contains(&group) {
                past.waits_for = None;
            }
            past.next = next_of(group, past.next).unwrap_or(through + 1);
        }
        self.end_pasts();
    }

    /// Ends each past that is read completely and has nothing left. Newer states no longer wait for it.
    fn end_pasts(&mut self) {
        let positions = &self.positions;
        self.pasts
            .retain(|past| past.until > positions.last_read() || positions.next_left(past.next).is_some());
    }

    // ---- dead letters --------------------------------------------------------------------

    /// Adds a dead letter from before the start. Under `hold`, [`hold_lane_at`](Self::hold_lane_at) names its lane.
    pub fn add_parked(&mut self, seq: Seq) {
        self.parked.insert(seq);
    }

    /// Under `hold`, keeps a lane from passing this position until the position is finished.
    pub fn hold_lane_at(&mut self, seq: Seq, key: LaneKey) {
        if self.options.on_dead_letter == OnDeadLetter::Hold {
            self.lanes.entry(key).or_default().held.insert(seq);
            self.holders.insert(seq, key);
        }
    }

    /// Notes that these letters are durable. They are owed no more, and their lanes go on.
    pub fn letters_saved(&mut self, letters: impl IntoIterator<Item = Seq>) {
        for seq in letters {
            if self.unsaved_letters.contains_key(&seq) {
                self.release_lane(seq);
            }
        }
    }

    /// Notes that an operator dropped a dead letter, now or before the start. The letter stays dead and its
    /// lane goes on.
    pub fn drop_letter(&mut self, seq: Seq) {
        self.parked.remove(&seq);
        self.dropped += 1;
        self.release_lane(seq);
    }

    /// Takes a dead letter back. Its position becomes [`wanted_positions`](Self::wanted_positions), and its state then goes into
    /// its lane in the order of positions.
    pub fn replay_letter(&mut self, letter: &DeadLetter) {
        self.letters_saved([letter.seq]);
        self.parked.remove(&letter.seq);
        let prior = LetterHistory { attempts: letter.attempts, first_ms: letter.first_ms };
        self.replays.insert(letter.seq, ReplayedLetter { prior, tries: letter.tries.clone() });
    }

    // ---- reading again -------------------------------------------------------------------

    /// At most `max` positions whose states are needed now.
    pub fn wanted_positions(&self, max: usize) -> Vec<Seq> {
        let max = max.min(self.shares.free_slots());
        // Thousands of letters that are taken back must share the window with new states.
        let replays = (self.options.window / 4).max(1).saturating_sub(self.replaying).min(max);
        let mut seqs: Vec<Seq> = self.replays.keys().copied().take(replays).collect();
        for key in &self.hungry {
            if seqs.len() >= max {
                break;
            }
            let Some(lane) = self.lanes.get(key) else { continue };
            // A lane without a loaded state may take what it needs to go on.
            if lane.loaded > 0 && !self.shares.fits_one_more(key.namespace) {
                continue;
            }
            let depth = self.options.depth - lane.loaded.min(self.options.depth);
            seqs.extend(lane.unloaded_positions(depth.max(1).min(max - seqs.len())));
        }
        seqs
    }

    /// Takes the states that [`wanted_positions`](Self::wanted_positions) asked for. Returns the positions that the journal no
    /// longer has. They count as finished, but in no figure.
    pub fn fill_wanted(&mut self, asked: &[Seq], states: Vec<Arc<State>>, now: Duration) -> Vec<Seq> {
        let mut found: HashMap<Seq, Arc<State>> =
            states.into_iter().map(|state| (state.seq, state)).collect();
        asked.iter().copied().filter(|&seq| !self.fill_one(seq, found.remove(&seq), now)).collect()
    }

    fn fill_one(&mut self, seq: Seq, state: Option<Arc<State>>, now: Duration) -> bool {
        let known = state.is_some();
        if let Some(recalled) = self.replays.remove(&seq) {
            match state {
                Some(state) => self.take_in_recalled(state, recalled, now),
                None => self.forget_letter(seq),
            }
            return known;
        }
        let Some(OpenPosition { lane: key, .. }) = self.positions.get(seq) else { return true };
        let Some(lane) = self.lanes.get_mut(&key) else { return true };
        match (lane.get_mut(seq), state) {
            (Some(slot), Some(state)) if slot.state.is_none() => {
                slot.state = Some(state);
                lane.loaded += 1;
                self.shares.recall_positions(key.namespace, 1);
                self.shares.load(key.namespace, 1);
            }
            (Some(slot), None) if slot.state.is_none() => {
                lane.remove(seq);
                self.shares.recall_positions(key.namespace, 1);
                self.positions.finish_position(seq);
            }
            _ => return true,
        }
        self.place_lane(key, false);
        known
    }

    /// Forgets a dead letter whose state the journal no longer has: it can't be delivered.
    fn forget_letter(&mut self, seq: Seq) {
        self.letters.revived.push(seq);
        self.release_lane(seq);
    }

    /// Lets the lane go on that this position held.
    pub(super) fn release_lane(&mut self, seq: Seq) {
        let holder = self.holders.remove(&seq);
        if let Some(key) = self.unsaved_letters.remove(&seq).or(holder) {
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.held.remove(&seq);
            }
            self.place_lane(key, false);
        }
    }

    fn take_in_recalled(
        &mut self,
        state: Arc<State>,
        ReplayedLetter { prior, tries }: ReplayedLetter,
        now: Duration,
    ) {
        let (seq, key) = (state.seq, state.lane_key());
        self.drop_waiting_resync(key);
        let lane = self.lanes.entry(key).or_default();
        lane.held.remove(&seq);
        self.holders.remove(&seq);
        lane.insert(LaneSlot { tries, ..LaneSlot::new(seq, Some(state), SlotOrigin::Letter(prior), now) });
        self.shares.load(key.namespace, 1);
        self.replaying += 1;
        self.meter.adds += 1;
        self.place_lane(key, false);
    }
}
