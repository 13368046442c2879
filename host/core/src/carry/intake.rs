//! What a reader makes of what comes: what is new, what came before, what is missing, and what has to
//! wait for another partition. A pure machine: the reader does what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Place, Places, Stood};
use crate::state::{Gap, Seq, State};

/// One state as it came.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub partition: u32,
    /// Where it is in the stream. Greater ones were carried later, whatever their partition.
    pub sequence: u64,
    pub stood: Stood,
    pub state: State,
}

/// What to do with an arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is new and next; what is missing in front of it, first.
    New(Option<Box<Gap>>),
    /// It was handed over again after its epoch had ended here: it is told as missing.
    Over(Box<Gap>),
    /// It comes from another journal, in an epoch that is over here: nothing of it can be taken.
    Foreign,
    /// It was taken before.
    Repeat,
    /// Something is missing in front of it. It may have come under a number that was passed over, so
    /// the partition is read again from the first that is there; what is missing then is lost.
    Hole,
    /// An epoch begins with it: it is offered again once every other partition was read up to its
    /// sequence, since what is older may still be there.
    Waits,
}

#[derive(Clone, Debug)]
pub struct Intake {
    source: Arc<str>,
    stream: String,
    epoch: Option<u32>,
    places: Places,
    /// Up to where each partition was read since it is read, in the stream's numbers. They are good for
    /// nothing longer: a server that forgot its last messages gives their numbers to others.
    read: BTreeMap<u32, u64>,
    /// Of those nothing new has come since they are read from the first that is there: what is missing
    /// then is nowhere.
    fresh: BTreeSet<u32>,
}

impl Intake {
    /// Each partition is read from the first that is there.
    pub fn new(
        source: Arc<str>,
        stream: String,
        partitions: &[u32],
        epoch: Option<u32>,
        places: Places,
    ) -> Self {
        let read = partitions.iter().map(|partition| (*partition, 0)).collect();
        Self { source, stream, epoch, places, read, fresh: partitions.iter().copied().collect() }
    }

    /// The same, as it is after everything was lost but what was taken.
    pub fn anew(&self) -> Self {
        let partitions: Vec<_> = self.read.keys().copied().collect();
        let (source, stream) = (self.source.clone(), self.stream.clone());
        Self::new(source, stream, &partitions, self.epoch, self.places.clone())
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    /// What is taken next is of this epoch; 0 where nothing was taken yet.
    pub fn epoch(&self) -> u32 {
        self.epoch.unwrap_or_default()
    }

    /// Everything of a partition up to this sequence has come.
    pub fn is_read_through(&mut self, partition: u32, sequence: u64) {
        let read = self.read.entry(partition).or_default();
        *read = sequence.max(*read);
    }

    /// A partition is read from the first that is there.
    pub fn reads_again(&mut self, partition: u32) {
        self.read.insert(partition, 0);
        self.fresh.insert(partition);
    }

    pub fn offer(&mut self, arrival: &Arrival, now_ms: u64) -> Taken {
        let Arrival { partition, sequence, stood, state } = arrival;
        self.is_read_through(*partition, sequence.saturating_sub(1));
        let place = self.places.of.get(partition);
        if place.is_some_and(|place| place.has(stood)) {
            self.is_read_through(*partition, *sequence);
            return Taken::Repeat;
        }
        let changed = place.filter(|place| place.line != stood.line);
        let held = place.filter(|_| changed.is_none()).map_or(0, |place| place.position);
        let is_hole = stood.before > held;
        if is_hole && changed.is_none() && !self.fresh.contains(partition) {
            return Taken::Hole;
        }
        let is_over = self.epoch.is_some_and(|epoch| state.epoch < epoch);
        if is_over && !self.places.of.values().any(|place| place.line == stood.line) {
            return Taken::Foreign;
        }
        let begins = self.epoch.is_none_or(|epoch| state.epoch > epoch);
        if begins && self.read.iter().any(|(other, read)| other != partition && read + 1 < *sequence) {
            return Taken::Waits;
        }
        let gap = match changed {
            Some(before) => Some(self.gap(arrival, begun_anew(before, stood), now_ms)),
            None => {
                let through = if is_over { stood.position } else { stood.before };
                let missing = || self.gap(arrival, self.missing(arrival, held.min(through), through), now_ms);
                (is_hole || is_over).then(missing)
            }
        };
        let gap = gap.map(Box::new);
        let former = match changed {
            Some(place) => Some((place.line.clone(), place.position)),
            None => place.and_then(|place| place.former.clone()),
        };
        let version = state.resource_version.as_str().into();
        let place = Place { line: stood.line.clone(), position: stood.position, version, former };
        self.is_read_through(*partition, *sequence);
        self.fresh.remove(partition);
        self.epoch = self.epoch.max(Some(state.epoch));
        self.places.of.insert(*partition, place);
        match gap {
            Some(gap) if is_over => Taken::Over(gap),
            gap => Taken::New(gap),
        }
    }

    fn missing(&self, Arrival { partition, stood, .. }: &Arrival, after: Seq, through: Seq) -> String {
        format!(
            "the stream `{}` no longer has what stood behind position {after} and up to {through} of partition \
             {partition} in the journal `{}`, from which it comes; there, `kubewitness journal export --source {} \
             --after {after} --through {through}` shows it",
            self.stream, stood.line, self.source
        )
    }

    fn gap(&self, arrival: &Arrival, message: String, now_ms: u64) -> Gap {
        let Arrival { partition, state, .. } = arrival;
        let place = self.places.of.get(partition);
        Gap {
            source: self.source.to_string(),
            object: None,
            epoch: self.epoch.max(Some(state.epoch)).unwrap_or_default(),
            after: place.map(|place| place.version.to_string()).unwrap_or_default(),
            before: state.resource_version.to_string(),
            reason: "LostOnTheWay".into(),
            message,
            recorded_ms: now_ms,
        }
    }
}

/// Nobody knows what the journal before had still to say.
fn begun_anew(before: &Place, stood: &Stood) -> String {
    format!(
        "what is carried comes from another journal now, `{}` and no longer `{}`: what that had behind its position \
         {} may be missing",
        stood.line, before.line, before.position
    )
}

#[cfg(test)]
mod tests;
