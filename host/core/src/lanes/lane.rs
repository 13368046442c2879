//! The queue of one object's states for one plugin.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::turns::debts::LaneDebt;
use super::turns::latest::LatestKey;
use crate::limits;
use crate::ports::Try;
use crate::state::{Seq, State};

/// A state that waits in its lane.
#[derive(Debug)]
pub(super) struct LaneSlot {
    pub seq: Seq,
    /// `None`: only the position is known, and the state must be read again.
    pub state: Option<Arc<State>>,
    pub failed: Option<FailedTries>,
    /// The state is not handed over before this moment.
    pub not_before: Duration,
    /// Since when the lane allows that the state is handed over.
    pub since: Duration,
    pub origin: SlotOrigin,
    /// The object of a state under `latest`.
    pub latest: Option<LatestKey>,
    /// The failed tries, also those before the state was parked.
    pub tries: Vec<Try>,
    /// The state may have been applied: it was handed over, perhaps before the start, and no answer is known.
    pub is_doubtful: bool,
}

/// Why a state is in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotOrigin {
    /// The state comes from the journal. Its position is open until it is finished.
    Journal,
    /// A row of the journal says that the state is owed. Its position is finished.
    Owed,
    /// The state is a dead letter that was taken back.
    Letter(LetterHistory),
    /// The state comes from a resync. The lanes owe it to nobody.
    Resync,
}

/// The failed tries of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedTries {
    pub tries: u32,
    pub first_ms: u64,
}

/// The history of a dead letter before it was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LetterHistory {
    pub attempts: u32,
    pub first_ms: u64,
}

/// Where a lane is kept. A lane is in one place at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LanePlace {
    /// The lane has nothing to hand over: it is empty or held, or its head must be read again.
    #[default]
    Idle,
    Ready,
    Delayed(Duration),
    Flying,
}

/// The reason that keeps the head of a lane from being handed over, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneHead {
    Nothing,
    Held,
    Unloaded,
    Later(Duration),
    Ready,
}

impl LaneSlot {
    pub fn new(seq: Seq, state: Option<Arc<State>>, origin: SlotOrigin, since: Duration) -> Self {
        Self {
            seq,
            state,
            failed: None,
            not_before: Duration::ZERO,
            since,
            origin,
            latest: None,
            tries: Vec::new(),
            is_doubtful: false,
        }
    }

    pub fn push_try(&mut self, tried: Try) {
        if self.tries.len() >= limits::TRIES_KEPT {
            self.tries.remove(0);
        }
        self.tries.push(tried);
    }

    /// The number of tries, also before the state was parked.
    pub fn count_attempts(&self) -> u32 {
        let before = if let SlotOrigin::Letter(prior) = self.origin { prior.attempts } else { 0 };
        before + self.failed.map_or(0, |failed| failed.tries)
    }
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// In the order of positions.
    pub queue: VecDeque<LaneSlot>,
    /// The number of slots that hold their state.
    pub loaded: usize,
    /// Positions of parked states that later states must not overtake.
    pub held: BTreeSet<Seq>,
    pub place: LanePlace,
    /// States that only rows of the journal know.
    pub debt: LaneDebt,
}

impl Lane {
    pub fn is_held_before(&self, seq: Seq) -> bool {
        self.held.first().is_some_and(|held| *held < seq)
    }

    pub fn is_spent(&self) -> bool {
        self.queue.is_empty() && self.held.is_empty() && self.debt.rows == 0 && self.place == LanePlace::Idle
    }

    pub fn head(&self) -> LaneHead {
        let Some(slot) = self.queue.front() else { return LaneHead::Nothing };
        // An operator who takes a letter back wants it handed over, whatever else is parked in its lane.
        if !matches!(slot.origin, SlotOrigin::Letter(_))
            && self.held.first().is_some_and(|held| *held < slot.seq)
        {
            LaneHead::Held
        } else if slot.state.is_none() {
            LaneHead::Unloaded
        } else if slot.not_before > Duration::ZERO {
            LaneHead::Later(slot.not_before)
        } else {
            LaneHead::Ready
        }
    }

    pub fn index_of(&self, seq: Seq) -> Option<usize> {
        self.queue.binary_search_by_key(&seq, |slot| slot.seq).ok()
    }

    pub fn get_mut(&mut self, seq: Seq) -> Option<&mut LaneSlot> {
        let index = self.index_of(seq)?;
        self.queue.get_mut(index)
    }

    pub fn insert(&mut self, slot: LaneSlot) {
        self.loaded += usize::from(slot.state.is_some());
        let index = self.queue.partition_point(|other| other.seq < slot.seq);
        self.queue.insert(index, slot);
    }

    pub fn remove(&mut self, seq: Seq) -> Option<LaneSlot> {
        let slot = self.index_of(seq).and_then(|index| self.queue.remove(index))?;
        self.loaded -= usize::from(slot.state.is_some());
        Some(slot)
    }

    /// The head and its state, which is handed over now.
    pub fn hand_over_head(&mut self) -> Option<(&LaneSlot, Arc<State>)> {
        let slot = self.queue.front_mut()?;
        let state = slot.state.clone()?;
        slot.is_doubtful = true;
        Some((slot, state))
    }

    /// The positions to read again, in order.
    pub fn unloaded_positions(&self, limit: usize) -> impl Iterator<Item = Seq> + '_ {
        let unloaded = self.queue.iter().filter(|slot| slot.state.is_none()).map(|slot| slot.seq);
        unloaded.take_while(|seq| !self.is_held_before(*seq)).take(limit)
    }
}
