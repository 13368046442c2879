//! Owed states: what waits in a lane that does not move for long, so that the cursor passes it.
//!
//! A lane stands still behind a dead letter that holds it, or behind a retry that is far off. Its positions would keep the
//! cursor, and with it the receipts of everything that was finished since; each would be a hole in the finished ranges,
//! which every save writes whole. So a row of the journal says of each such state that it is owed. Its position then
//! counts as finished, as a parked letter's does, and the lane forgets the state but for the number of its rows and
//! the first of them. Once the lane moves, its rows are read in order ([`Lanes::next_owed`], [`Lanes::return_owed`]).
//! As long as it has rows, newer states of the lane become rows as well, and no older one of it is without a row: after a
//! restart, rows come before what is read. So an object's states stay in order.
//!
//! A range of positions for each lane was rejected: who finds out whether a position is finished (retention, receipts,
//! `verify`) would have to know its lane, and the journal has no index from a name to positions.
//!
//! A row whose state may have been applied is not handed over before its receipt was looked for ([`doubts`]).

mod doubts;

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;

use super::lane::{Lane, LaneSlot, SlotOrigin};
use super::turns::debts::OwedStates;
use super::turns::latest::LatestKey;
use super::{Lanes, SubscriptionFit};
use crate::config::OnDeadLetter;
use crate::state::{LaneKey, Seq, State};

impl Lane {
    /// Whether a head that is owed keeps the lane from moving.
    fn is_put_aside(&self) -> bool {
        self.queue.front().is_some_and(|head| {
            head.not_before > Duration::ZERO
                && matches!(head.origin, SlotOrigin::Owed | SlotOrigin::Letter(_))
        })
    }
}

impl Lanes {
    /// Whether the next state of this lane becomes a row.
    pub(super) fn becomes_owed_row(&self, key: LaneKey, seq: Seq) -> bool {
        // Nearly always nothing is owed and no lane is held: then no lane is looked for.
        if self.debts.states == 0 && self.replaying == 0 && self.holders.is_empty() {
            return false;
        }
        let holds = self.options.on_dead_letter == OnDeadLetter::Hold;
        self.lanes.get(&key).is_some_and(|lane| {
            lane.debt.rows > 0 || lane.is_put_aside() || (holds && lane.is_held_before(seq))
        })
    }

    /// There are so many rows that this state stays in the journal, and its namespace with it.
    pub(super) fn is_crowded(&self, key: LaneKey, seq: Seq) -> bool {
        self.debts.states >= self.options.rows && self.becomes_owed_row(key, seq)
    }

    /// Makes a row of a state that was just read.
    pub(super) fn make_owed_row(
        &mut self,
        key: LaneKey,
        seq: Seq,
        observed_ms: u64,
        latest: Option<LatestKey>,
    ) {
        self.owe_whole_lane(key);
        self.positions.close(seq);
        if let Some(newer) = latest {
            self.supersede_last_row(key, newer);
        }
        self.note_owed(key, seq);
        if self.debts.is_from_before(seq) {
            self.debts.doubts.insert(seq, key);
        }
        let lane = self.lanes.entry(key).or_default();
        lane.debt.add(seq, observed_ms, latest);
        lane.debt.unsaved += 1;
        self.place_lane(key, false);
    }

    /// Otherwise an object under `latest` would have a row for each state.
    fn supersede_last_row(&mut self, key: LaneKey, newer: LatestKey) {
        let superseded = self.lanes.get(&key).and_then(|lane| lane.debt.find_superseded(newer));
        if let Some(seq) = superseded {
            self.finish_row(key, seq);
            self.filtered += 1;
            self.superseded += 1;
        }
    }

    /// Finishes a row whose state is in no queue.
    fn finish_row(&mut self, key: LaneKey, seq: Seq) {
        let Some(debt) = self.lanes.get_mut(&key).map(|lane| &mut lane.debt) else { return };
        debt.rows -= 1;
        debt.last.take_if(|(last, _)| *last == seq);
        if self.debts.unsaved.remove(&seq).is_some() {
            debt.unsaved -= 1;
        }
        self.debts.states -= 1;
        if self.debts.doubts.remove(&seq).is_some() {
            self.debts.needed_receipts.insert(seq);
        }
        self.note_finished_row(seq);
    }

    fn note_owed(&mut self, key: LaneKey, seq: Seq) {
        self.letters.owed.push(seq);
        self.debts.unsaved.insert(seq, key);
        self.debts.states += 1;
    }

    /// Notes that a row is finished. The journal has it until the next save.
    pub(super) fn note_finished_row(&mut self, seq: Seq) {
        self.debts.finished.insert(seq);
        self.letters.revived.push(seq);
    }

    /// Makes rows of what waits in a lane after this position. The lane does not move for long. A state in flight stays:
    /// a letter that is replayed may lie before it.
    pub(super) fn owe_lane_after(&mut self, key: LaneKey, after: Seq) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let flying = &self.flying;
        let waits = |slot: &LaneSlot| {
            slot.seq > after
                && matches!(slot.origin, SlotOrigin::Journal | SlotOrigin::Owed)
                && !flying.contains(slot.seq)
        };
        let (rows, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut lane.queue).into_iter().partition(waits);
        lane.queue = stay.into();
        // From the last to the first, so that `observed_ms` is the first one's.
        for slot in rows.into_iter().rev() {
            let observed_ms = self.observed_ms_of(&slot);
            self.forget_slot(key, &slot);
            match slot.origin {
                SlotOrigin::Journal => {
                    self.positions.finish_position(slot.seq);
                    self.note_owed(key, slot.seq);
                }
                _ => drop(self.debts.needed_receipts.remove(&slot.seq)),
            }
            if slot.is_doubtful {
                self.debts.doubts.insert(slot.seq, key);
            }
            let is_unsaved = self.debts.unsaved.contains_key(&slot.seq);
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.debt.add(slot.seq, observed_ms, slot.latest);
                lane.debt.unsaved += usize::from(is_unsaved);
            }
        }
    }

    fn observed_ms_of(&self, slot: &LaneSlot) -> u64 {
        let known = slot.state.as_ref().map(|state| state.observed_ms);
        known.or_else(|| Some(self.positions.get(slot.seq)?.observed_ms)).unwrap_or(self.observed_ms)
    }

    /// Takes a slot that has left its queue out of the figures of the window.
    fn forget_slot(&mut self, key: LaneKey, slot: &LaneSlot) {
        match slot.state {
            Some(_) => {
                if let Some(lane) = self.lanes.get_mut(&key) {
                    lane.loaded -= 1;
                }
                self.shares.unload_states(key.namespace, 1);
            }
            None => self.shares.recall_positions(key.namespace, 1),
        }
        self.retrying -= u64::from(slot.failed.is_some());
    }

    /// Makes rows of all that a lane has. Its head stays there, with its tries, unless it may have been applied; and so does
    /// a state in flight.
    pub(super) fn owe_whole_lane(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get(&key) else { return };
        let Some(head) = lane.queue.front() else { return };
        let behind = if head.state.is_some() && !head.is_doubtful { head.seq } else { 0 };
        self.owe_lane_after(key, behind);
        let stay = self.lanes.get_mut(&key).into_iter().flat_map(|lane| &mut lane.queue);
        let journal = stay.filter(|slot| slot.origin == SlotOrigin::Journal);
        let rows: Vec<(Seq, bool)> = journal
            .map(|slot| {
                slot.origin = SlotOrigin::Owed;
                (slot.seq, slot.is_doubtful)
            })
            .collect();
        for (seq, is_doubtful) in rows {
            self.positions.finish_position(seq);
            self.note_owed(key, seq);
            if is_doubtful {
                self.debts.needed_receipts.insert(seq);
            }
        }
    }

    /// Adds a row from before the start, after the letters that hold lanes. Rows come in order.
    pub fn restore_owed_row(&mut self, state: &State) {
        let key = state.lane_key();
        self.debts.states += 1;
        self.debts.doubts.insert(state.seq, key);
        self.lanes.entry(key).or_default().debt.add(state.seq, state.observed_ms, None);
        self.place_lane(key, false);
    }

    /// Notes that these rows are durable, and that the journal no longer has those of dead letters and of finished states.
    /// While an answer is awaited that [`return_owed`](Self::return_owed) gets, the caller waits with that: the answer may be
    /// older than the save.
    pub fn note_saved_rows(
        &mut self,
        rows: impl IntoIterator<Item = Seq>,
        letters: impl IntoIterator<Item = Seq>,
        finished: impl IntoIterator<Item = Seq>,
    ) {
        // Nothing of a refused state was applied. A receipt that is needed now is of its replay, which may have ended
        // unanswered before this save was known.
        for seq in letters {
            self.debts.finished.remove(&seq);
        }
        for seq in finished {
            self.debts.finished.remove(&seq);
            self.debts.needed_receipts.remove(&seq);
        }
        for seq in rows {
            let Some(key) = self.debts.unsaved.remove(&seq) else { continue };
            if let Some(debt) = self.lanes.get_mut(&key).map(|lane| &mut lane.debt)
                && debt.rows > 0
                && seq >= debt.next
            {
                debt.unsaved = debt.unsaved.saturating_sub(1);
            }
            self.place_lane(key, false);
        }
    }

    /// Whether rows are to be saved.
    pub fn has_unsaved_owed(&self) -> bool {
        !self.letters.owed.is_empty()
    }

    /// Tells whether so many rows, new or finished, wait for a save that nothing more is read before.
    pub fn owes_too_much(&self) -> bool {
        let OwedStates { unsaved, finished, .. } = &self.debts;
        unsaved.len().max(finished.len()) >= self.options.window
    }

    /// Reading waits for a save, so one is due at once.
    pub fn needs_save(&self) -> bool {
        self.owes_too_much() && !(self.letters.owed.is_empty() && self.letters.revived.is_empty())
    }

    /// The position from which rows are read again, if a lane that moves has room for them.
    pub fn next_owed(&self) -> Option<Seq> {
        self.debts.returning.first_where(|namespace| self.shares.fits_one_more(namespace))
    }

    /// Lists the lane where its rows are looked for. Called after every change to the lane.
    pub(super) fn list_debt(&mut self, key: LaneKey) {
        if self.debts.is_clear() {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let debt = &lane.debt;
        let is_still = lane.is_put_aside()
            || lane.is_held_before(debt.next)
            || self.debts.doubts.contains_key(&debt.next);
        // A head that may fail once more would send the rows back.
        let is_safe =
            |head: &LaneSlot| head.failed.is_none() && !matches!(head.origin, SlotOrigin::Letter(_));
        let goes_on = debt.rows > debt.unsaved
            && !is_still
            && lane.queue.front().is_none_or(is_safe)
            && lane.queue.len() <= self.options.depth / 2;
        let listed = goes_on.then_some(debt.next);
        let head = lane.queue.front().filter(|head| head.origin == SlotOrigin::Owed);
        let head = head.and_then(|head| Some(head.state.as_ref()?.observed_ms));
        let oldest_ms = head.or_else(|| (debt.rows > 0).then_some(debt.observed_ms));
        let before = (debt.listed, debt.oldest_ms);
        (lane.debt.listed, lane.debt.oldest_ms) = (listed, oldest_ms);
        if before.0 != listed {
            self.debts.returning.relist(before.0, listed, key);
        }
        if before.1 != oldest_ms {
            self.debts.relist_oldest(before.1, oldest_ms, key);
        }
    }

    /// Puts rows back into lanes that move, as far as there is room. `states` is what the journal had from `from` on, up
    /// to `end`, or all if that is `None`. Returns how many rows the journal no longer has.
    pub fn return_owed(
        &mut self,
        from: Seq,
        states: Vec<(Arc<State>, SubscriptionFit)>,
        end: Option<Seq>,
        now: Duration,
    ) -> usize {
        let mut stopped = HashSet::new();
        for (state, fit) in states {
            let (seq, key) = (state.seq, state.lane_key());
            let Some(lane) = self.lanes.get(&key) else { continue };
            // Rows of this lane that lie before the answer come first.
            let is_next = lane.debt.rows > 0 && (from..=seq).contains(&lane.debt.next);
            if !is_next || self.debts.finished.contains(&seq) || stopped.contains(&key) {
                continue;
            }
            let is_still =
                lane.is_put_aside() || lane.is_held_before(state.seq) || self.debts.doubts.contains_key(&seq);
            let is_full = lane.queue.len() >= self.options.depth || !self.shares.fits_one_more(key.namespace);
            match is_still || is_full {
                true => self.stop_at_row(key, seq, &mut stopped),
                false => self.return_one(key, state, fit, now),
            }
        }
        self.note_missing(from, end, &stopped)
    }

    /// Notes that a lane takes no more rows now, and which is its first.
    fn stop_at_row(&mut self, key: LaneKey, seq: Seq, stopped: &mut HashSet<LaneKey>) {
        stopped.insert(key);
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.debt.next = seq;
        }
        self.place_lane(key, false);
    }

    /// Lanes that were looked for from this position on, and of which nothing came up to the end, go on behind it. At the
    /// end of all rows, what is durable and did not come will not come: it is counted.
    fn note_missing(&mut self, from: Seq, end: Option<Seq>, stopped: &HashSet<LaneKey>) -> usize {
        let through = end.unwrap_or(Seq::MAX);
        let before_end = end.into_iter().flat_map(|end| self.debts.unsaved.range(..=end));
        let unsaved: HashSet<LaneKey> = before_end.map(|(_, key)| *key).collect();
        let mut missing = 0;
        for key in self.debts.returning.listed_within(from, through) {
            let Some(debt) = self.lanes.get_mut(&key).map(|lane| &mut lane.debt) else { continue };
            match end {
                _ if stopped.contains(&key) => continue,
                Some(end) if !unsaved.contains(&key) => debt.next = end + 1,
                Some(_) => continue,
                None => {
                    missing += debt.rows - debt.unsaved;
                    debt.rows = debt.unsaved;
                }
            }
            self.place_lane(key, false);
        }
        self.debts.states -= missing;
        missing
    }

    fn return_one(&mut self, key: LaneKey, state: Arc<State>, fit: SubscriptionFit, now: Duration) {
        let (seq, observed_ms) = (state.seq, state.observed_ms);
        let is_unsaved = self.debts.unsaved.contains_key(&seq);
        if let Some(debt) = self.lanes.get_mut(&key).map(|lane| &mut lane.debt) {
            (debt.next, debt.observed_ms) = (seq + 1, observed_ms);
            debt.rows -= 1;
            debt.unsaved -= usize::from(is_unsaved);
        }
        if !fit.is_handed_over() {
            self.filtered += 1;
            self.debts.states -= 1;
            self.debts.unsaved.remove(&seq);
            self.note_finished_row(seq);
            return self.place_lane(key, false);
        }
        self.drop_waiting_resync(key);
        let latest = if fit == SubscriptionFit::Latest { LatestKey::of(&state) } else { None };
        if let Some(newer) = latest {
            self.drop_waiting_superseded(key, newer);
        }
        self.shares.load(key.namespace, 1);
        let slot = LaneSlot { latest, ..LaneSlot::new(seq, Some(state), SlotOrigin::Owed, now) };
        self.lanes.entry(key).or_default().insert(slot);
        self.meter.adds += 1;
        self.place_lane(key, false);
    }
}
