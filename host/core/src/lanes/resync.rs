//! States that are handed over once more, although they were finished.
//!
//! A resync shows a plugin what is there now. Nobody is owed it: it is in no account, moves no
//! cursor, becomes no dead letter and doesn't survive a restart. So it is taken only into a lane
//! that has nothing else, and while it waits there it is alone: whatever else comes into the lane
//! takes its place, since that is the same state or a newer one. Only one that is in flight lets
//! others wait, for as long as that one call takes.

use std::sync::Arc;
use std::time::Duration;

use super::lane::{Origin, Place, Slot};
use super::{LaneKey, Lanes};
use crate::state::{Seq, State};

#[derive(Debug, Default)]
pub(super) struct Resync {
    /// In lanes now.
    pub held: usize,
    pub delivered: u64,
    pub skipped: u64,
    pub failed: u64,
}

impl Lanes {
    /// How many more states of a resync may be held: they share the window with what is owed.
    pub fn resync_room(&self) -> usize {
        let share = (self.options.window / 4).max(1).saturating_sub(self.resync.held);
        share.min(self.shares.free())
    }

    /// Hands a state over once more, unless it or a newer one of its object is still to be handed
    /// over, or it is parked: then an operator decides about it. Answers whether it was taken.
    ///
    /// It must be the newest of its object that was journaled when everything up to
    /// [`through`](Self::through) had been; then it comes after all that its lane has had.
    pub fn resync(&mut self, state: Arc<State>, now: Duration) -> bool {
        let (seq, key) = (state.seq, state.lane());
        let is_owed = seq > self.positions.through()
            || self.positions.is_left(seq)
            || self.lanes.contains_key(&key)
            || self.parked.contains(&seq)
            || self.replays.contains_key(&seq);
        if is_owed || self.resync_room() == 0 {
            self.resync.skipped += 1;
            return false;
        }
        self.lanes.entry(key).or_default().insert(Slot::new(seq, Some(state), Origin::Resync, now));
        self.shares.load(key.namespace, 1);
        self.meter.adds += 1;
        self.resync.held += 1;
        self.place(key, false);
        true
    }

    /// Before anything is put into a lane: a resync that waits there is not needed any more.
    pub(super) fn supersede(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get(&key).filter(|lane| lane.place != Place::Flying) else { return };
        let waiting = lane.queue.front().filter(|slot| slot.origin == Origin::Resync);
        if let Some(seq) = waiting.map(|slot| slot.seq) {
            self.close(key, seq);
            self.resync.skipped += 1;
        }
    }

    /// A resync that was in flight and isn't done waits no longer where others wait behind it.
    pub(super) fn make_way(&mut self, key: LaneKey, seq: Seq) -> bool {
        let Some(lane) = self.lanes.get_mut(&key).filter(|lane| lane.queue.len() > 1) else { return false };
        if lane.get_mut(seq).is_none_or(|slot| slot.origin != Origin::Resync) {
            return false;
        }
        self.close(key, seq);
        self.resync.skipped += 1;
        true
    }
}
