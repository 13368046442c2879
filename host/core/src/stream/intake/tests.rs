//! Tests of single cases, and tests against a model of a stream that forgets and repeats messages.

use std::collections::BTreeMap;

use super::*;
use crate::stream::JournalLineage;
use crate::stream::tests::state;

fn intake(partitions: &[u32]) -> StreamIntake {
    StreamIntake::new("jobs".into(), "platform".into(), partitions, None, ReaderPositions::default())
}

fn arrival(partition: u32, sequence: u64, position: Seq, before: Seq, epoch: u32) -> StateArrival {
    let stood = JournalPosition { line: "a".into(), position, before, before_lines: Vec::new() };
    StateArrival {
        partition,
        sequence,
        stood,
        state: state(position, epoch, &(u128::from(position) * 10).to_string()),
    }
}

#[test]
fn what_comes_twice_is_taken_once_however_late() {
    let mut intake = intake(&[0]);
    assert_eq!(intake.offer_arrival(&arrival(0, 1, 5, 0, 0), 1), ArrivalAction::New(None));
    assert_eq!(intake.offer_arrival(&arrival(0, 2, 6, 5, 0), 1), ArrivalAction::New(None));
    for sequence in [3, 400] {
        assert_eq!(intake.offer_arrival(&arrival(0, sequence, 5, 0, 0), 1), ArrivalAction::Repeat);
    }
    let mut anew = intake.with_positions_only();
    assert_eq!(
        anew.offer_arrival(&arrival(0, 1, 6, 5, 0), 1),
        ArrivalAction::Repeat,
        "whatever its number is now"
    );
    let places = ReaderPositions::parse(&intake.reader_positions().to_string()).unwrap();
    let mut later = StreamIntake::new("jobs".into(), "platform".into(), &[0], Some(0), places);
    assert_eq!(
        later.offer_arrival(&arrival(0, 401, 6, 5, 0), 1),
        ArrivalAction::Repeat,
        "after a restart, too"
    );
    assert_eq!(later.offer_arrival(&arrival(0, 402, 9, 6, 0), 1), ArrivalAction::New(None));
}

#[test]
fn a_hole_is_looked_for_again_before_it_is_a_gap_with_its_bounds() {
    let mut intake = intake(&[0]);
    intake.offer_arrival(&arrival(0, 1, 5, 0, 0), 1);
    assert_eq!(intake.offer_arrival(&arrival(0, 9, 8, 7, 0), 1), ArrivalAction::Hole);
    intake.reads_again(0);
    // The stream had the state under a number that the server assigned twice.
    assert_eq!(intake.offer_arrival(&arrival(0, 1, 7, 5, 0), 1), ArrivalAction::New(None));
    assert_eq!(intake.offer_arrival(&arrival(0, 9, 8, 7, 0), 1), ArrivalAction::New(None));
    assert_eq!(intake.offer_arrival(&arrival(0, 10, 12, 11, 0), 1), ArrivalAction::Hole);
    intake.reads_again(0);
    let ArrivalAction::New(Some(gap)) = intake.offer_arrival(&arrival(0, 10, 12, 11, 0), 3) else {
        panic!("it is lost")
    };
    assert_eq!((&*gap.after, &*gap.before, &*gap.reason), ("80", "120", "LostOnTheWay"));
    assert!(gap.message.contains("--after 8 --through 11"), "{}", gap.message);
}

#[test]
fn numbers_at_the_end_of_their_range_are_compared_too() {
    let mut intake = intake(&[0, 1]);
    intake.note_read_through(1, u64::MAX);
    assert_eq!(
        intake.offer_arrival(&arrival(0, u64::MAX, u64::MAX, 0, u32::MAX), 1),
        ArrivalAction::New(None)
    );
}

#[test]
fn who_begins_behind_the_beginning_has_a_gap_at_once() {
    let ArrivalAction::New(Some(gap)) = intake(&[0]).offer_arrival(&arrival(0, 70, 12, 11, 0), 3) else {
        panic!("no gap")
    };
    assert_eq!((&*gap.after, &*gap.before), ("", "120"));
}

/// The line of an earlier version names only the oldest line that has the previous state.
#[test]
fn after_two_kills_around_an_epoch_a_line_still_continues_what_was_read() {
    let mut intake = intake(&[0]);
    let mut offer = |sequence, (line, position): (&str, Seq), before_line: Option<&str>, epoch| {
        let mut arrival = arrival(0, sequence, position, position - 1, epoch);
        arrival.stood.line = line.into();
        arrival.stood.before_lines = before_line.into_iter().map(Into::into).collect();
        intake.offer_arrival(&arrival, 1)
    };
    offer(1, ("a", 60), None, 0);
    assert_eq!(offer(2, ("b", 61), Some("a"), 0), ArrivalAction::New(None));
    assert_eq!(offer(3, ("b", 62), None, 1), ArrivalAction::New(None));
    assert!(
        matches!(offer(4, ("c", 61), Some("a"), 0), ArrivalAction::Over(_)),
        "of one journal, though its epoch is over"
    );
    assert_eq!(offer(5, ("c", 62), None, 1), ArrivalAction::New(None));
    assert_eq!(offer(6, ("d", 63), None, 0), ArrivalAction::Foreign);
}

/// Nothing of the partition was sent in the first line. The state of the second line comes again in each
/// later line, because a carrier that is killed at once after each start saves nothing.
#[test]
fn a_partition_that_was_empty_before_a_kill_is_read_on_in_the_line_after_the_next_kill_without_a_gap() {
    let mut lineage = JournalLineage::new("a".into());
    let mut intake = intake(&[0]);
    for (sequence, line) in (1..).zip(["b", "c", "d", "e", "f", "g", "h"]) {
        lineage = lineage.begin_line(line.into(), 11);
        let mut arrival = arrival(0, sequence, 12, 0, 0);
        arrival.stood = lineage.journal_position(12, 0);
        assert_eq!(intake.offer_arrival(&arrival, 1), ArrivalAction::New(None), "{line}");
    }
    for (position, before) in [(12, 0), (13, 12)] {
        let mut arrival = arrival(0, 8, position, before, 0);
        arrival.stood = lineage.journal_position(position, before);
        let action = if position == 12 { ArrivalAction::Repeat } else { ArrivalAction::New(None) };
        assert_eq!(intake.offer_arrival(&arrival, 1), action);
    }
}

/// The journal is restored to its first line, which had no state of this partition.
#[test]
fn a_journal_that_is_put_back_before_the_line_of_a_partitions_first_state_continues_without_a_gap() {
    let first = JournalLineage::new("a".into());
    let mut intake = intake(&[0]);
    for (sequence, line, position) in [(1, "b", 1), (2, "c", 2)] {
        let mut arrival = arrival(0, sequence, position, 0, 0);
        arrival.stood = first.begin_line(line.into(), 0).journal_position(position, 0);
        assert_eq!(intake.offer_arrival(&arrival, 1), ArrivalAction::New(None), "{line}");
    }
}

/// The reader is killed after three kills of the carrier: its saved states come again, in lines that are
/// over.
#[test]
fn messages_of_lines_that_are_over_are_repeats_after_a_restart() {
    let (mut lineage, mut intake) = (JournalLineage::new("a".into()), intake(&[0]));
    let mut sent = Vec::new();
    for (line, position) in [("a", 5), ("b", 6), ("c", 7), ("d", 8)] {
        if line != "a" {
            lineage = lineage.begin_line(line.into(), position - 1);
        }
        let mut arrival = arrival(0, position, position, position - 1, 0);
        arrival.stood = lineage.journal_position(position, if position == 5 { 0 } else { position - 1 });
        assert_eq!(intake.offer_arrival(&arrival, 1), ArrivalAction::New(None), "{line}");
        sent.push(arrival);
    }
    let places = ReaderPositions::parse(&intake.reader_positions().to_string()).unwrap();
    let mut later = StreamIntake::new("jobs".into(), "platform".into(), &[0], Some(0), places);
    for arrival in &sent {
        assert_eq!(later.offer_arrival(arrival, 1), ArrivalAction::Repeat, "{}", arrival.stood.line);
    }
}

#[test]
fn a_journal_that_was_begun_anew_is_another_line_and_counts_from_its_beginning() {
    let mut intake = intake(&[0]);
    intake.offer_arrival(&arrival(0, 1, 500, 0, 0), 1);
    let mut anew = arrival(0, 2, 1, 0, 0);
    anew.stood.line = "b".into();
    let ArrivalAction::New(Some(gap)) = intake.offer_arrival(&anew, 1) else {
        panic!("nothing is said of it")
    };
    assert!(gap.message.contains("`b` and no longer from `a`"), "{}", gap.message);
    assert_eq!(intake.reader_positions().of[&0].position, 1);
    let mut later =
        StreamIntake::new("jobs".into(), "platform".into(), &[0], Some(0), intake.reader_positions().clone());
    for (position, before) in [(400, 0), (500, 400)] {
        assert_eq!(
            later.offer_arrival(&arrival(0, 1, position, before, 0), 1),
            ArrivalAction::Repeat,
            "of the line before"
        );
    }
    anew.stood = JournalPosition { line: "b".into(), position: 2, before: 1, before_lines: Vec::new() };
    assert_eq!(later.offer_arrival(&anew, 1), ArrivalAction::New(None));
}

#[test]
fn an_epoch_begins_when_nothing_older_can_come_from_any_partition() {
    let mut intake = intake(&[0, 1]);
    assert_eq!(
        intake.offer_arrival(&arrival(0, 3, 5, 0, 0), 1),
        ArrivalAction::Waits,
        "the other may have older ones"
    );
    intake.note_read_through(1, 2);
    assert_eq!(intake.offer_arrival(&arrival(0, 3, 5, 0, 0), 1), ArrivalAction::New(None));
    assert_eq!(intake.offer_arrival(&arrival(0, 6, 7, 5, 1), 1), ArrivalAction::Waits);
    assert_eq!(intake.offer_arrival(&arrival(1, 4, 6, 0, 0), 1), ArrivalAction::New(None));
    assert_eq!(intake.offer_arrival(&arrival(0, 6, 7, 5, 1), 1), ArrivalAction::Waits);
    // The partition's next state also belongs to the new epoch, so nothing before it is missing.
    assert_eq!(intake.offer_arrival(&arrival(1, 8, 9, 6, 1), 1), ArrivalAction::Waits);
    assert_eq!(intake.offer_arrival(&arrival(0, 6, 7, 5, 1), 1), ArrivalAction::New(None));
    assert_eq!(intake.current_epoch(), 1);
    let mut anew = arrival(1, 9, 8, 0, 0);
    anew.stood.line = "b".into();
    assert_eq!(intake.offer_arrival(&anew, 1), ArrivalAction::Foreign, "what began anew can't go on here");
    let ArrivalAction::Over(gap) = intake.offer_arrival(&arrival(1, 9, 8, 6, 0), 1) else {
        panic!("it is over")
    };
    assert!(gap.message.contains("--after 6 --through 8"), "{}", gap.message);
}

#[test]
fn a_state_of_an_ended_epoch_that_comes_from_a_new_journal_is_named_in_the_gap() {
    let mut intake = intake(&[0, 1]);
    let anew = |partition, sequence, position, epoch| {
        let mut arrival = arrival(partition, sequence, position, 0, epoch);
        arrival.stood.line = "b".into();
        arrival
    };
    assert_eq!(intake.offer_arrival(&arrival(0, 1, 4, 0, 1), 1), ArrivalAction::New(None));
    assert_eq!(intake.offer_arrival(&anew(1, 3, 2, 1), 1), ArrivalAction::New(None));
    let ArrivalAction::Over(gap) = intake.offer_arrival(&anew(0, 2, 1, 0), 1) else { panic!("it is over") };
    assert!(gap.message.contains("no longer from `a`"), "{}", gap.message);
    assert!(gap.message.contains("--after 0 --through 1"), "{}", gap.message);
}

// ---- against a model ---------------------------------------------------------------------

const PARTITIONS: u32 = 3;

/// An entry of the journal that everything comes from: its position, partition and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SourceEntry {
    position: Seq,
    partition: u32,
    epoch: u32,
    before: Seq,
}

/// A stream that forgets messages, and whose carrier repeats them.
#[derive(Default)]
struct LossyStream {
    messages: BTreeMap<u64, SourceEntry>,
    last: u64,
    carried: usize,
}

impl LossyStream {
    fn carry(&mut self, log: &[SourceEntry], count: usize) {
        for entry in log.iter().skip(self.carried).take(count) {
            self.last += 1;
            self.messages.insert(self.last, *entry);
            self.carried += 1;
        }
    }

    fn forget(&mut self, count: u64) {
        self.last = self.last.saturating_sub(count);
        let last = self.last;
        self.messages.retain(|sequence, _| *sequence <= last);
    }

    fn next(&self, partition: u32, after: u64) -> Option<StateArrival> {
        let mut behind = self.messages.range(after + 1..);
        let (sequence, entry) = behind.find(|(_, entry)| entry.partition == partition)?;
        Some(arrival(partition, *sequence, entry.position, entry.before, entry.epoch))
    }
}

/// The states that the intake took, and the gaps that it reported: the partition, and the bounds of the gap.
#[derive(Clone, Default, Debug)]
struct IntakeLog {
    taken: Vec<(u32, Seq, u32)>,
    missing: Vec<(u32, Seq, Seq)>,
}

struct IntakeModel {
    intake: StreamIntake,
    came: BTreeMap<u32, u64>,
    stash: BTreeMap<u32, StateArrival>,
    log: IntakeLog,
    durable: (StreamIntake, IntakeLog),
}

impl IntakeModel {
    fn new() -> Self {
        let intake = intake(&(0..PARTITIONS).collect::<Vec<_>>());
        let durable = (intake.clone(), IntakeLog::default());
        Self { intake, came: BTreeMap::new(), stash: BTreeMap::new(), log: IntakeLog::default(), durable }
    }

    fn crash(&mut self) {
        let (intake, log) = self.durable.clone();
        *self = Self { intake: intake.with_positions_only(), log, ..Self::new() };
        self.durable = (intake, self.log.clone());
    }

    fn keep(&mut self, stream: &mut LossyStream) {
        self.durable = (self.intake.clone(), self.log.clone());
        for partition in 0..PARTITIONS {
            let came = self.came.get(&partition).copied().unwrap_or_default();
            let through = self.stash.get(&partition).map_or(came, |waits| waits.sequence - 1);
            stream.messages.retain(|sequence, entry| entry.partition != partition || *sequence > through);
        }
    }

    /// Reads a partition; returns whether anything arrived or changed.
    fn read(&mut self, stream: &LossyStream, partition: u32) -> bool {
        let came = self.came.get(&partition).copied().unwrap_or_default();
        let waits = self.stash.remove(&partition);
        let is_old = waits.is_some();
        let Some(arrival) = waits.or_else(|| stream.next(partition, came)) else {
            self.intake.note_read_through(partition, stream.last);
            return false;
        };
        self.came.insert(partition, arrival.sequence);
        let gap = match self.intake.offer_arrival(&arrival, 1) {
            ArrivalAction::Repeat => return true,
            ArrivalAction::Waits => {
                self.stash.insert(partition, arrival);
                return !is_old;
            }
            ArrivalAction::Hole => {
                self.intake.reads_again(partition);
                self.came.insert(partition, 0);
                return true;
            }
            ArrivalAction::Over(gap) => Some(gap),
            ArrivalAction::Foreign => panic!("it is one journal"),
            ArrivalAction::New(gap) => {
                self.log.taken.push((partition, arrival.stood.position, arrival.state.epoch));
                gap
            }
        };
        if let Some(gap) = gap {
            let bound = |flag: &str| {
                let rest = gap.message.split(flag).nth(1).unwrap();
                rest.trim().split([' ', '`']).next().unwrap().parse().unwrap()
            };
            self.log.missing.push((partition, bound("--after"), bound("--through")));
        }
        true
    }
}

fn log(steps: &[(u32, u32)]) -> Vec<SourceEntry> {
    let (mut before, mut epoch) = (BTreeMap::new(), 0);
    let entry = |(place, (partition, begins)): (usize, &(u32, u32))| {
        let position = place as Seq * 2 + 1;
        epoch += u32::from(*begins == 0);
        let before = before.insert(*partition, position).unwrap_or_default();
        SourceEntry { position, partition: *partition, epoch, before }
    };
    steps.iter().enumerate().map(entry).collect()
}

fn judge(sent: &[SourceEntry], log: &IntakeLog, may_miss: bool) {
    let taken: Vec<_> = log.taken.iter().map(|(_, position, _)| *position).collect();
    for entry in sent {
        let count = taken.iter().filter(|position| **position == entry.position).count();
        let is_missing = log.missing.iter().any(|(partition, after, through)| {
            *partition == entry.partition && *after < entry.position && entry.position <= *through
        });
        assert_eq!(count + usize::from(is_missing), 1, "{entry:?} of {log:?}");
    }
    for partition in 0..PARTITIONS {
        let of = log.taken.iter().filter(|(other, ..)| *other == partition).map(|(_, position, _)| *position);
        assert!(of.is_sorted(), "{log:?}");
    }
    assert!(log.taken.iter().map(|(.., epoch)| *epoch).is_sorted(), "an older epoch came later: {log:?}");
    assert!(may_miss || log.missing.is_empty(), "nothing was forgotten: {log:?}");
}

proptest::proptest! {
    #[test]
    fn each_state_is_taken_once_in_order_or_told_as_missing_whatever_the_stream_and_the_hosts_do(
        entries in proptest::collection::vec((0..PARTITIONS, 0u32..12), 1..60),
        steps in proptest::collection::vec((0u8..7, 1u64..8), 0..80),
    ) {
        let log = log(&entries);
        let (mut stream, mut model, mut forgot) = (LossyStream::default(), IntakeModel::new(), false);
        for (step, count) in steps {
            match step {
                0 | 1 => stream.carry(&log, count as usize),
                // The carrier begins again at its saved place.
                2 => stream.carried = stream.carried.saturating_sub(count as usize),
                3 => {
                    forgot |= stream.messages.len() as u64 > 0;
                    stream.forget(count);
                    // The reader notices, because its consumers are lost as well.
                    model.crash();
                }
                4 => { model.read(&stream, count as u32 % PARTITIONS); }
                5 => model.keep(&mut stream),
                _ => model.crash(),
            }
        }
        stream.carry(&log, log.len());
        // The reader can't miss a state after the last message of a partition, because only a later message
        // would show the hole.
        let last = log.last().map_or(0, |entry| entry.epoch);
        let mut whole = log.clone();
        for partition in 0..PARTITIONS {
            let before = whole.iter().filter(|entry| entry.partition == partition).map(|entry| entry.position).max();
            let position = whole.len() as Seq * 2 + 101;
            whole.push(SourceEntry { position, partition, epoch: last, before: before.unwrap_or_default() });
        }
        stream.carry(&whole, PARTITIONS as usize);
        let mut moved = true;
        while moved || !model.stash.is_empty() {
            let each: Vec<_> = (0..PARTITIONS).map(|partition| model.read(&stream, partition)).collect();
            moved = each.contains(&true);
        }
        judge(&whole, &model.log, forgot);
    }
}
