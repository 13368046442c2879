//! Owed states that may have been applied: they were handed over, and no answer is known. Only a receipt tells.
//!
//! Receipts are removed up to a position. A state that is applied and not finished, far below the cursor, would keep all
//! receipts above it, for as long as its lane stands still. So its receipt is looked for at once
//! ([`Lanes::doubtful_positions`], [`Lanes::resolve_doubts`]). An applied state is finished, whatever holds its lane: nothing
//! of it is handed over again. Any other state needs no receipt before it is handed over. Until then its lane does not pass
//! it. To remember how far each lane had been handed over was rejected: under another filter, or with states that newer ones
//! replaced, the applied states of a lane are not its first ones.

use std::collections::HashSet;

use super::super::lane::{LetterHistory, SlotOrigin};
use super::super::{Lanes, ReplayedLetter};
use crate::ports::DeadLetter;
use crate::state::{LaneKey, Seq};

impl Lanes {
    /// Notes that states up to here may have been handed over before the start. Comes before anything is added.
    pub fn note_previous_run(&mut self, newest: Seq) {
        self.debts.before_start = newest;
    }

    /// Takes a dead letter back that was being replayed before the start.
    pub fn restore_replay(&mut self, letter: &DeadLetter) {
        let prior = LetterHistory { attempts: letter.attempts, first_ms: letter.first_ms };
        self.doubtful_letters.insert(letter.seq, ReplayedLetter { prior, tries: letter.tries.clone() });
    }

    /// At most `max` positions of states whose receipts are looked for.
    pub fn doubtful_positions(&self, max: usize) -> Vec<Seq> {
        self.doubtful_letters.keys().chain(self.debts.doubts.keys()).copied().take(max).collect()
    }

    /// Takes in which of these states have receipts. Returns how many are finished by that.
    pub fn resolve_doubts(&mut self, asked: &[Seq], applied: &HashSet<Seq>) -> usize {
        asked.iter().filter(|&&seq| self.resolve_one(seq, applied.contains(&seq))).count()
    }

    fn resolve_one(&mut self, seq: Seq, is_applied: bool) -> bool {
        if let Some(letter) = self.doubtful_letters.remove(&seq) {
            if is_applied {
                self.letters.revived.push(seq);
                self.debts.needed_receipts.insert(seq);
                self.release_lane(seq);
            } else {
                self.replays.insert(seq, letter);
            }
        } else if let Some(key) = self.debts.doubts.get(&seq).copied() {
            if is_applied {
                self.finish_row(key, seq);
            }
            self.debts.doubts.remove(&seq);
            self.place_lane(key, false);
        } else {
            // A newer state took its place meanwhile.
            return false;
        }
        self.delivered += u64::from(is_applied);
        is_applied
    }

    /// Notes that a state in flight comes back unanswered. Below the cursor, its receipt is needed from now on: other lanes
    /// may be handed over long before it.
    pub(in crate::lanes) fn keep_receipt_of(&mut self, key: LaneKey, seq: Seq) {
        let slot = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq));
        let is_below = |origin| matches!(origin, SlotOrigin::Owed | SlotOrigin::Letter(_));
        if slot.is_some_and(|slot| is_below(slot.origin)) {
            self.debts.needed_receipts.insert(seq);
        }
    }

    /// Notes that the plugin has refused a state in flight. So nothing of it was applied.
    pub(in crate::lanes) fn note_refusal(&mut self, key: LaneKey, seq: Seq) {
        if let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq)) {
            slot.is_doubtful = false;
            self.debts.needed_receipts.remove(&seq);
        }
    }

    /// A position from which on receipts are needed, however far the cursor is: there lies a state that may have been applied,
    /// and of which the journal does not know that it is finished. States in flight, and the newest that are finished, are
    /// not among these: who removes receipts leaves the newest commits.
    pub fn first_needed_receipt(&self) -> Option<Seq> {
        let letter = self.doubtful_letters.keys().next();
        let row = self.debts.doubts.keys().next();
        letter.into_iter().chain(row).chain(self.debts.needed_receipts.first()).min().copied()
    }
}
