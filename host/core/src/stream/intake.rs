//! Decides what a reader of a stream does with each message: accept it, skip a repeat, report a gap, or wait
//! for another partition. A pure machine: the reader executes the decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{JournalPosition, PartitionPosition, ReaderPositions};
use crate::state::{Gap, Seq, State, gap_reason};

/// One state on arrival.
#[derive(Clone, Debug)]
pub struct StateArrival {
    pub partition: u32,
    /// The message's number in the stream. A greater number was carried later, in any partition.
    pub sequence: u64,
    pub stood: JournalPosition,
    pub state: State,
}

/// The action for an arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrivalAction {
    /// The state is new and next. A gap before it is reported first.
    New(Option<Box<Gap>>),
    /// The carrier sent it again after its epoch had ended here. It is reported as a gap.
    Over(Box<Gap>),
    /// It comes from another journal, in an epoch that has ended here. None of it can be accepted.
    Foreign,
    /// It repeats a state that was accepted before.
    Repeat,
    /// A state before it is missing. That state may have a sequence number that the reader has already
    /// passed. So the reader reads the partition again from its first message; if the state is still missing
    /// then, it is lost.
    Hole,
    /// It begins an epoch. The reader offers it again once it has read every other partition up to this
    /// sequence number, because those may still have states of the older epoch.
    Waits,
}

#[derive(Clone, Debug)]
pub struct StreamIntake {
    source: Arc<str>,
    stream: String,
    epoch: Option<u32>,
    places: ReaderPositions,
    /// The last sequence number read in each partition. The numbers are valid for one connection only: a
    /// server that forgot its last messages assigns their numbers again.
    read: BTreeMap<u32, u64>,
    /// Partitions that are read again from their first message and have not yet delivered anything new. A
    /// state that is missing there is lost.
    fresh: BTreeSet<u32>,
}

impl StreamIntake {
    /// Begins each partition at its first message.
    pub fn new(
        source: Arc<str>,
        stream: String,
        partitions: &[u32],
        epoch: Option<u32>,
        places: ReaderPositions,
    ) -> Self {
        let read = partitions.iter().map(|partition| (*partition, 0)).collect();
        Self { source, stream, epoch, places, read, fresh: partitions.iter().copied().collect() }
    }

    /// A copy that keeps only the positions: every partition is read again from its first message.
    pub fn with_positions_only(&self) -> Self {
        let partitions: Vec<_> = self.read.keys().copied().collect();
        let (source, stream) = (self.source.clone(), self.stream.clone());
        Self::new(source, stream, &partitions, self.epoch, self.places.clone())
    }

    pub fn reader_positions(&self) -> &ReaderPositions {
        &self.places
    }

    /// The epoch of what is accepted next; 0 if nothing was accepted yet.
    pub fn current_epoch(&self) -> u32 {
        self.epoch.unwrap_or_default()
    }

    /// Notes that everything of a partition up to this sequence has arrived.
    pub fn note_read_through(&mut self, partition: u32, sequence: u64) {
        let read = self.read.entry(partition).or_default();
        *read = sequence.max(*read);
    }

    /// Records that the reader reads this partition again from its first message.
    pub fn reads_again(&mut self, partition: u32) {
        self.read.insert(partition, 0);
        self.fresh.insert(partition);
    }

    pub fn offer_arrival(&mut self, arrival: &StateArrival, now_ms: u64) -> ArrivalAction {
        let StateArrival { partition, sequence, stood, state } = arrival;
        self.note_read_through(*partition, sequence.saturating_sub(1));
        let place = self.places.of.get(partition);
        if place.is_some_and(|place| place.was_accepted(stood)) {
            self.note_read_through(*partition, *sequence);
            return ArrivalAction::Repeat;
        }
        let other = place.filter(|place| place.read_through(stood).is_none());
        let held = place.and_then(|place| place.read_through(stood)).unwrap_or_default();
        let is_hole = stood.before > held;
        if is_hole && other.is_none() && !self.fresh.contains(partition) {
            return ArrivalAction::Hole;
        }
        let is_over = self.epoch.is_some_and(|epoch| state.epoch < epoch);
        let continues = |place: &PartitionPosition| place.read_through(stood).is_some();
        if is_over && !self.places.of.values().any(continues) {
            return ArrivalAction::Foreign;
        }
        let begins = self.epoch.is_none_or(|epoch| state.epoch > epoch);
        let is_behind = |read: &u64| read.saturating_add(1) < *sequence;
        if begins && self.read.iter().any(|(other, read)| other != partition && is_behind(read)) {
            return ArrivalAction::Waits;
        }
        let gap = match other {
            Some(before) => {
                let mut message = new_journal_message(before, stood);
                if is_over {
                    // No state of the new journal was accepted here, and this one can't be accepted either.
                    message += "; ";
                    message += &self.missing_message(arrival, 0, stood.position);
                }
                Some(self.gap_before(arrival, message, now_ms))
            }
            None => {
                let through = if is_over { stood.position } else { stood.before };
                // A new line may carry positions again that were read in the line before.
                let after = if held < through { held } else { stood.before };
                let missing =
                    || self.gap_before(arrival, self.missing_message(arrival, after, through), now_ms);
                (is_hole || is_over).then(missing)
            }
        };
        let gap = gap.map(Box::new);
        let place = PartitionPosition::place_after(place, stood, state.resource_version.as_str());
        self.note_read_through(*partition, *sequence);
        self.fresh.remove(partition);
        self.epoch = self.epoch.max(Some(state.epoch));
        self.places.of.insert(*partition, place);
        match gap {
            Some(gap) if is_over => ArrivalAction::Over(gap),
            gap => ArrivalAction::New(gap),
        }
    }

    fn missing_message(
        &self,
        StateArrival { partition, stood, .. }: &StateArrival,
        after: Seq,
        through: Seq,
    ) -> String {
        format!(
            "the stream `{}` lost states of partition {partition}: those after position {after} and up to \
             {through} of the journal `{}`, from which they come; there, `kubewitness journal export \
             --source {} --after {after} --through {through}` shows them",
            self.stream, stood.line, self.source
        )
    }

    fn gap_before(&self, arrival: &StateArrival, message: String, now_ms: u64) -> Gap {
        let StateArrival { partition, state, .. } = arrival;
        let place = self.places.of.get(partition);
        Gap {
            source: self.source.to_string(),
            object: None,
            epoch: self.epoch.max(Some(state.epoch)).unwrap_or_default(),
            after: place.map(|place| place.version.to_string()).unwrap_or_default(),
            before: state.resource_version.to_string(),
            reason: gap_reason::LOST.into(),
            message,
            recorded_ms: now_ms,
        }
    }
}

/// The text of a gap before a new journal: nobody knows which states the former journal would still have
/// sent.
fn new_journal_message(before: &PartitionPosition, stood: &JournalPosition) -> String {
    format!(
        "the stream now comes from the journal `{}` and no longer from `{}`: states that the former journal \
         had after position {} may be missing",
        stood.line, before.line, before.position
    )
}

#[cfg(test)]
mod tests;
