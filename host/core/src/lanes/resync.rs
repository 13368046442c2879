//! Resyncs: hands finished states over once more.
//!
//! A resync shows a plugin which objects exist now. It is in no account, moves no cursor, becomes no dead
//! letter and ends with the process. So a state of a resync only enters an empty lane. While it waits there
//! it is alone: any state that enters the lane replaces it, because that is the same state or a newer one. If
//! it is in flight, the others wait for the end of that one call.

use std::sync::Arc;
use std::time::Duration;

use super::lane::{Lane, LanePlace, LaneSlot, SlotOrigin};
use super::{LaneKey, Lanes};
use crate::state::{Seq, State};

#[derive(Debug, Default)]
pub(super) struct ResyncState {
    /// The states of resyncs in lanes now.
    pub held: usize,
    pub delivered: u64,
    pub skipped: u64,
    pub failed: u64,
}

impl Lanes {
    /// The number of states of a resync that may still be held. They share the window with the states that
    /// are owed.
    pub fn resync_room(&self) -> usize {
        let share = (self.options.window / 4).max(1).saturating_sub(self.resync.held);
        share.min(self.shares.free_slots())
    }

    /// Hands a state over once more. It returns `false` if this state or a newer one of its object is still
    /// to be handed over, or if it is parked: then an operator decides about it.
    ///
    /// The state must be the newest of its object among all states up to [`last_read`](Self::last_read). Then it
    /// comes after everything that its lane has had.
    pub fn resync_state(&mut self, state: Arc<State>, now: Duration) -> bool {
        let (seq, key) = (state.seq, state.lane_key());
        let is_owed = seq > self.positions.last_read()
            || self.positions.is_left(seq)
            || self.lanes.contains_key(&key)
            || self.parked.contains(&seq)
            || self.replays.contains_key(&seq)
            || self.doubtful_letters.contains_key(&seq);
        if is_owed || self.resync_room() == 0 {
            self.resync.skipped += 1;
            return false;
        }
        self.lanes.entry(key).or_default().insert(LaneSlot::new(seq, Some(state), SlotOrigin::Resync, now));
        self.shares.load(key.namespace, 1);
        self.meter.adds += 1;
        self.resync.held += 1;
        self.place_lane(key, false);
        true
    }

    /// Drops a waiting resync. Call it before anything is put into the lane.
    pub(super) fn drop_waiting_resync(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get(&key).filter(|lane| lane.place != LanePlace::Flying) else { return };
        let waiting = lane.queue.front().filter(|slot| slot.origin == SlotOrigin::Resync);
        if let Some(seq) = waiting.map(|slot| slot.seq) {
            self.close(key, seq);
            self.resync.skipped += 1;
        }
    }

    /// Drops a resync that was in flight and failed, if other states wait after it.
    pub(super) fn drop_failed_resync(&mut self, key: LaneKey, seq: Seq) -> bool {
        let waits = |lane: &&mut Lane| lane.queue.len() > 1 || lane.debt.rows > 0;
        let Some(lane) = self.lanes.get_mut(&key).filter(waits) else { return false };
        if lane.get_mut(seq).is_none_or(|slot| slot.origin != SlotOrigin::Resync) {
            return false;
        }
        self.close(key, seq);
        self.resync.skipped += 1;
        true
    }
}
