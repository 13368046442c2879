//! Carriers, copies of their journal and a reader, compared with a model of the stream under faults: kills,
//! standbys that lack commits, expired claims, messages that are forgotten, removed or forged, and servers of a cluster that
//! restart. Each state in the last carrier's journal arrives, or a gap says that it may be missing. Where nothing can be
//! missing, there is no gap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kubewitness_harness::{Dice, seed};

use super::tests::state;
use super::*;

const PARTITIONS: u32 = 2;
/// The kinds of steps, with their weights.
const STEPS: u64 = 43;
/// Steps without a renewal after which a claim may be taken.
const LAPSE: u64 = 6;
/// Versions of servers in a cluster, and whether a restart repeats a purge as one of the whole stream.
const SERVERS: [(&str, bool); 4] = [("2.9.10", true), ("2.9.17", true), ("2.9.18", false), ("2.15.2", false)];
/// The number of lines that may begin while a reader still knows the line before them.
const REMEMBERED: u64 = 4;

/// A promise of the protocol that carriers or readers have broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokenPromise {
    TwoCarriers,
    ReaderWaits,
    /// A state is lost without a gap.
    LostState {
        position: Seq,
        partition: u32,
    },
    /// A gap is reported although no state is missing.
    NeedlessGap((u32, Seq, Seq)),
}

/// Faults that the model must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedFault {
    None,
    /// A carrier keeps its line whatever its journal may have lost.
    KeepsLine,
    /// Every claim counts as lapsed at once.
    IgnoresInstance,
    /// Messages are accepted whoever signed them.
    IgnoresKey,
    /// The reader does not notice missing states before a message.
    IgnoresHoles,
    /// A new line does not name the lines that it continues.
    NamesNoLine,
    /// The reader purges whatever the server's version.
    PurgesAlways,
    /// A carrier that stops forgets what it sent over an earlier connection.
    ReleasesAtCursor,
}

#[derive(Clone, Copy, Debug)]
struct JournalEntry {
    id: u64,
    position: Seq,
    partition: u32,
    epoch: u32,
}

/// A journal with the carrier's progress. A copy is a clone.
#[derive(Clone, Debug)]
struct JournalModel {
    entries: Vec<JournalEntry>,
    cursor: Seq,
    lineage: JournalLineage,
    is_new: bool,
    /// The last number in the stream and the position that was acknowledged with it, by the stream's creation.
    marks: Vec<(u64, u64, Seq)>,
}

impl JournalModel {
    fn newest(&self) -> Seq {
        self.entries.last().map_or(0, |entry| entry.position)
    }

    fn before(&self, entry: &JournalEntry) -> Seq {
        let earlier = self.entries.iter().filter(|other| other.partition == entry.partition);
        earlier.map(|other| other.position).filter(|position| *position < entry.position).max().unwrap_or(0)
    }

    /// Forgets the newest messages, also those that were acknowledged.
    fn go_back(&mut self, made: u64, last: u64) {
        let lost = |mark: &(u64, u64, Seq)| mark.0 != made || mark.1 > last;
        if self.marks.iter().any(lost) {
            self.marks.retain(|mark| !lost(mark));
            self.cursor = self.cursor.min(self.marks.last().map_or(0, |mark| mark.2));
        }
    }
}

#[derive(Clone, Debug)]
struct StreamMessage {
    entry: JournalEntry,
    stood: JournalPosition,
    is_signed: bool,
}

#[derive(Default)]
struct StreamModel {
    messages: BTreeMap<u64, StreamMessage>,
    made: u64,
    last: u64,
    /// The server, by its place among [`SERVERS`], and its last number at the last purge.
    server: usize,
    last_at_purge: u64,
}

impl StreamModel {
    fn push(&mut self, message: StreamMessage) {
        self.last += 1;
        self.messages.insert(self.last, message);
    }

    /// A server that was killed and started again leads.
    fn restart_server(&mut self) {
        let (_, repeats_whole_purge) = SERVERS[self.server];
        if repeats_whole_purge {
            let last = self.last_at_purge;
            self.messages.retain(|sequence, _| *sequence > last);
        }
    }
}

/// A process that carries.
struct CarrierProcess {
    instance: Arc<str>,
    claim: CarrierClaim,
    /// The last position that was sent; its journal learns it later.
    sent: Seq,
    /// The last position that was sent in this line over any connection.
    furthest: Seq,
    /// The stream's last number, as far as it knows.
    last: u64,
    /// Whether it has no connection and renews nothing.
    is_cut: bool,
}

struct ReaderModel {
    intake: StreamIntake,
    durable: StreamIntake,
    came: BTreeMap<u32, u64>,
    stash: BTreeMap<u32, StateArrival>,
    /// The ids and gaps (partition and bounds) that were accepted since the last save, and the saved ones.
    taken: BTreeSet<u64>,
    gaps: Vec<(u32, Seq, Seq)>,
    saved: (BTreeSet<u64>, Vec<(u32, Seq, Seq)>),
    is_stuck: bool,
}

impl ReaderModel {
    fn new() -> Self {
        let partitions: Vec<_> = (0..PARTITIONS).collect();
        let intake = StreamIntake::new(
            "jobs".into(),
            "platform".into(),
            &partitions,
            None,
            ReaderPositions::default(),
        );
        Self {
            durable: intake.clone(),
            intake,
            came: BTreeMap::new(),
            stash: BTreeMap::new(),
            taken: BTreeSet::new(),
            gaps: Vec::new(),
            saved: Default::default(),
            is_stuck: false,
        }
    }

    fn crash(&mut self) {
        (self.taken, self.gaps) = self.saved.clone();
        self.intake = self.durable.with_positions_only();
        self.came.clear();
        self.stash.clear();
    }

    fn save(&mut self, stream: &mut StreamModel, fault: PlantedFault) {
        self.saved = (self.taken.clone(), self.gaps.clone());
        self.durable = self.intake.clone();
        for partition in 0..PARTITIONS {
            let came = self.came.get(&partition).copied().unwrap_or_default();
            let through = self.stash.get(&partition).map_or(came, |waits| waits.sequence - 1);
            stream
                .messages
                .retain(|sequence, message| message.entry.partition != partition || *sequence > through);
        }
        let removal = MessageRemoval::for_server(SERVERS[stream.server].0, 3);
        if removal == MessageRemoval::Purge || fault == PlantedFault::PurgesAlways {
            stream.last_at_purge = stream.last;
        }
    }

    /// Reads one message of a partition; returns whether anything changed.
    fn read(&mut self, stream: &StreamModel, partition: u32, fault: PlantedFault) -> bool {
        let came = self.came.get(&partition).copied().unwrap_or_default();
        let stashed = self.stash.remove(&partition);
        let was_stashed = stashed.is_some();
        let arrival = match stashed {
            Some(arrival) => arrival,
            None => {
                let mut rest = stream.messages.range(came + 1..);
                let Some((sequence, message)) =
                    rest.find(|(_, message)| message.entry.partition == partition)
                else {
                    self.intake.note_read_through(partition, stream.last);
                    return false;
                };
                self.came.insert(partition, *sequence);
                if !message.is_signed && fault != PlantedFault::IgnoresKey {
                    self.intake.note_read_through(partition, *sequence);
                    return true;
                }
                let JournalEntry { id, position, epoch, .. } = message.entry;
                let mut stood = message.stood.clone();
                match fault {
                    PlantedFault::IgnoresHoles => stood.before = 0,
                    PlantedFault::NamesNoLine => stood.before_lines.clear(),
                    _ => {}
                }
                let state = state(position, epoch, &id.to_string());
                StateArrival { partition, sequence: *sequence, stood, state }
            }
        };
        let gap = match self.intake.offer_arrival(&arrival, 1) {
            ArrivalAction::Repeat => None,
            ArrivalAction::Waits => {
                self.stash.insert(partition, arrival);
                return !was_stashed;
            }
            ArrivalAction::Hole => {
                self.intake.reads_again(partition);
                self.came.insert(partition, 0);
                None
            }
            ArrivalAction::Foreign => {
                self.is_stuck = true;
                None
            }
            ArrivalAction::Over(gap) => Some(gap),
            ArrivalAction::New(gap) => {
                self.taken.insert(arrival.state.resource_version.as_str().parse().unwrap());
                gap
            }
        };
        if let Some(gap) = gap {
            let bound = |flag: &str| {
                let rest = gap.message.split(flag).nth(1)?;
                rest.trim().split([' ', '`']).next()?.parse().ok()
            };
            let after = bound("--after").unwrap_or(0);
            let through = bound("--through").unwrap_or(arrival.stood.position - 1);
            self.gaps.push((partition, after, through));
        }
        true
    }
}

struct FaultWorld {
    fault: PlantedFault,
    /// The journal in use, and a copy of it.
    journals: [JournalModel; 2],
    standby: JournalModel,
    processes: [Option<CarrierProcess>; 2],
    claim: Option<CarrierClaim>,
    renewed: u64,
    now: u64,
    ids: u64,
    epoch: u32,
    stream: StreamModel,
    reader: ReaderModel,
    /// The journal that was carried last.
    holder: usize,
    /// The lines that were begun, and those of them that were begun when the standby was copied.
    lines: u64,
    lines_of_standby: u64,
    /// Whether a fault occurred that justifies a gap.
    may_have_gaps: bool,
}

impl FaultWorld {
    fn new(fault: PlantedFault) -> Self {
        let journal = JournalModel {
            entries: Vec::new(),
            cursor: 0,
            lineage: JournalLineage::new("line-0".into()),
            is_new: true,
            marks: Vec::new(),
        };
        Self {
            fault,
            journals: [journal.clone(), journal.clone()],
            standby: journal,
            processes: [None, None],
            claim: None,
            renewed: 0,
            now: 0,
            ids: 0,
            epoch: 0,
            stream: StreamModel::default(),
            reader: ReaderModel::new(),
            holder: 0,
            lines: 0,
            lines_of_standby: 0,
            may_have_gaps: false,
        }
    }

    fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn append(&mut self, journal: usize, partition: u32) {
        let (id, epoch) = (self.id(), self.epoch);
        let position = self.journals[journal].newest() + 1;
        self.journals[journal].entries.push(JournalEntry { id, position, partition, epoch });
    }

    fn start(
        &mut self,
        place: usize,
        instance: Arc<str>,
        is_told: bool,
        dies: bool,
    ) -> Result<(), BrokenPromise> {
        let has_lapsed = self.now - self.renewed > LAPSE || self.fault == PlantedFault::IgnoresInstance;
        let journal = &self.journals[place];
        let take_over = self.claim.as_ref().filter(|_| is_told).map(|claim| claim.line.to_string());
        let candidate = CarrierCandidate {
            lineage: &journal.lineage,
            is_new: journal.is_new,
            cursor: journal.cursor,
            instance: &instance,
            take_over: take_over.as_deref(),
        };
        let begun = match candidate.start(self.claim.as_ref(), has_lapsed) {
            CarrierStart::HeldByInstance | CarrierStart::HeldByJournal => return Ok(()),
            CarrierStart::BeginLine if self.fault != PlantedFault::KeepsLine => {
                Some(journal.lineage.begin_line(format!("line-{}", self.ids + 1).into(), journal.cursor))
            }
            _ => None,
        };
        let other = self.processes[1 - place].as_ref();
        if !is_told && other.is_some_and(|other| !other.is_cut && self.holds(other)) {
            return Err(BrokenPromise::TwoCarriers);
        }
        self.ids += 1;
        self.may_have_gaps |= place != self.holder || is_told;
        self.holder = place;
        let claim = CarrierClaim {
            line: begun.as_ref().unwrap_or(&journal.lineage).current_line().clone(),
            former: begun.as_ref().unwrap_or(&journal.lineage).former_lines().cloned().collect(),
            sources: Vec::new(),
            position: journal.cursor,
            instance: Some(instance.clone()),
        };
        (self.claim, self.renewed) = (Some(claim.clone()), self.now);
        if dies {
            return Ok(());
        }
        let journal = &mut self.journals[place];
        journal.is_new = false;
        if let Some(begun) = begun {
            journal.lineage = begun;
            self.lines += 1;
        }
        journal.go_back(self.stream.made, self.stream.last);
        let (sent, last) = (journal.cursor, self.stream.last);
        self.processes[place] =
            Some(CarrierProcess { instance, claim, sent, furthest: sent, last, is_cut: false });
        Ok(())
    }

    fn holds(&self, process: &CarrierProcess) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.instance.as_ref() == Some(&process.instance))
    }

    /// Sends some states. The stream refuses states after a message that the carrier does not know.
    fn carry_states(&mut self, place: usize, count: u64) -> Result<(), BrokenPromise> {
        let Some(mut process) = self.processes[place].take() else { return Ok(()) };
        if process.is_cut {
            self.processes[place] = Some(process);
            return Ok(());
        }
        if process.last != self.stream.last || !self.holds(&process) {
            let (line, furthest) = (process.claim.line, process.furthest);
            self.start(place, process.instance, false, false)?;
            if let Some(again) = self.processes[place].as_mut().filter(|again| again.claim.line == line) {
                again.furthest = furthest;
            }
            return Ok(());
        }
        let journal = &self.journals[place];
        let sent = process.sent;
        let next = journal.entries.iter().filter(|entry| entry.position > sent);
        for entry in next.take(count as usize) {
            let stood = journal.lineage.journal_position(entry.position, journal.before(entry));
            self.stream.push(StreamMessage { entry: *entry, stood, is_signed: true });
            (process.sent, process.last) = (entry.position, self.stream.last);
            process.furthest = process.furthest.max(process.sent);
        }
        self.processes[place] = Some(process);
        Ok(())
    }

    fn save(&mut self, place: usize) {
        let Some(process) = &self.processes[place] else { return };
        let journal = &mut self.journals[place];
        journal.cursor = process.sent;
        journal.marks.push((self.stream.made, process.last, process.sent));
    }

    fn stop(&mut self, place: usize) {
        self.save(place);
        let Some(process) = self.processes[place].take() else { return };
        if !process.is_cut && self.holds(&process) {
            let cursor = self.journals[place].cursor;
            let position = match self.fault {
                PlantedFault::ReleasesAtCursor => cursor,
                _ => cursor.max(process.furthest),
            };
            self.claim = Some(CarrierClaim { position, instance: None, ..process.claim });
        }
    }

    fn forget(&mut self, count: u64, is_made_anew: bool) {
        if is_made_anew {
            let (made, server) = (self.stream.made + 1, self.stream.server);
            self.stream = StreamModel { made, server, ..StreamModel::default() };
        } else {
            self.stream.last = self.stream.last.saturating_sub(count);
            let last = self.stream.last;
            self.stream.messages.retain(|sequence, _| *sequence <= last);
        }
        self.may_have_gaps = true;
        self.reader.crash();
        // Every connected process looks at the stream again.
        for process in self.processes.iter_mut().flatten() {
            process.last = u64::MAX;
        }
    }

    fn forge(&mut self, partition: u32) {
        let (id, position) = (self.id(), 1 << 40);
        let entry = JournalEntry { id, position, partition, epoch: self.epoch };
        let stood = JournalPosition {
            before_lines: Vec::new(),
            ..self.journals[0].lineage.journal_position(position, 0)
        };
        self.stream.push(StreamMessage { entry, stood, is_signed: false });
    }

    fn step(&mut self, step: u64, count: u64) -> Result<(), BrokenPromise> {
        self.now += 1;
        let holds = self.processes.iter().flatten().any(|process| !process.is_cut && self.holds(process));
        if holds {
            self.renewed = self.now;
        }
        let (partition, copy) = (count as u32 % PARTITIONS, usize::from(count.is_multiple_of(4)));
        let name: Arc<str> = format!("process-{}", self.ids).into();
        match step {
            0..=5 => self.append(copy, partition),
            6..=9 => self.carry_states(copy, count)?,
            10 | 11 => self.save(0),
            12 => self.save(1),
            13 => self.stop(copy),
            14 | 15 => self.processes[0] = None,
            16 => self.processes[1] = None,
            17..=20 => self.start(0, name, count == 7, count == 6)?,
            21 => self.start(1, name, count == 7, count == 6)?,
            22 => (self.standby, self.lines_of_standby) = (self.journals[0].clone(), self.lines),
            23 => {
                self.processes[0] = None;
                // A reader remembers few lines, and a copy may be older than all of them.
                self.may_have_gaps |= self.lines - self.lines_of_standby > REMEMBERED;
                self.journals[0] = self.standby.clone();
            }
            24 => {
                self.processes[1] = None;
                self.journals[1] = self.journals[0].clone();
            }
            25 => {
                if let Some(process) = &mut self.processes[copy] {
                    process.is_cut = !process.is_cut;
                }
            }
            26 => self.forget(count, count == 7),
            27 => {
                self.stream.messages.clear();
                self.may_have_gaps = true;
            }
            28 => self.forge(partition),
            29 if count == 7 => {
                self.epoch += 1;
                // A state of an ended epoch can't be taken any more, so a gap is reported for it.
                self.may_have_gaps = true;
            }
            30 => self.reader.crash(),
            31 | 32 => self.reader.save(&mut self.stream, self.fault),
            33..=35 => self.stream.restart_server(),
            _ => {
                self.reader.read(&self.stream, partition, self.fault);
            }
        }
        Ok(())
    }

    /// Lets the last carrier send everything and the reader read everything, and compares.
    fn judge_outcome(mut self) -> Result<(), BrokenPromise> {
        self.processes = [None, None];
        self.now += 2 * LAPSE;
        let place = self.holder;
        self.start(place, "last".into(), false, false)?;
        if self.processes[place].is_none() {
            self.start(place, "last".into(), true, false)?;
        }
        for partition in 0..PARTITIONS {
            self.append(place, partition);
        }
        let sent = self.journals[place].entries.len() as u64;
        for _ in 0..2 {
            self.carry_states(place, sent)?;
        }
        let mut moved = true;
        while moved && !self.reader.is_stuck {
            let fault = self.fault;
            let each: Vec<_> =
                (0..PARTITIONS).map(|partition| self.reader.read(&self.stream, partition, fault)).collect();
            moved = each.contains(&true);
        }
        let ReaderModel { taken, gaps, is_stuck, .. } = &self.reader;
        if *is_stuck {
            // At this point the reader asks a person to empty its data folder.
            return if self.may_have_gaps { Ok(()) } else { Err(BrokenPromise::ReaderWaits) };
        }
        for JournalEntry { id, position, partition, .. } in &self.journals[place].entries {
            let covers = |(other, after, through): &(u32, Seq, Seq)| {
                other == partition && after < position && position <= through
            };
            if !taken.contains(id) && !gaps.iter().any(covers) {
                return Err(BrokenPromise::LostState { position: *position, partition: *partition });
            }
        }
        match gaps.first().filter(|_| !self.may_have_gaps) {
            Some(gap) => Err(BrokenPromise::NeedlessGap(*gap)),
            None => Ok(()),
        }
    }
}

fn run(steps: &[(u64, u64)], fault: PlantedFault) -> Result<(), BrokenPromise> {
    let mut world = FaultWorld::new(fault);
    world.stream.server = steps.len() % SERVERS.len();
    world.start(0, "first".into(), false, false)?;
    for (step, count) in steps {
        world.step(*step, *count)?;
    }
    world.judge_outcome()
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(5000))]
    #[test]
    fn each_state_of_the_last_carrier_arrives_or_is_told_as_missing(
        steps in proptest::collection::vec((0..STEPS, 0u64..8), 0..160),
    ) {
        let done = run(&steps, PlantedFault::None);
        proptest::prop_assert_eq!(done, Ok(()));
    }
}

/// The carrier sends over one connection, stops over the next one, and its journal is put back to an empty standby.
const STOPPED_AFTER_RECONNECT: [(u64, u64); 7] = [(0, 1), (0, 1), (6, 2), (26, 0), (6, 1), (13, 1), (23, 0)];

#[test]
fn a_carrier_that_stops_before_it_has_sent_again_tells_how_far_it_came() {
    assert_eq!(run(&STOPPED_AFTER_RECONNECT, PlantedFault::None), Ok(()));
    let found = run(&STOPPED_AFTER_RECONNECT, PlantedFault::ReleasesAtCursor);
    assert!(matches!(found, Err(BrokenPromise::LostState { .. })), "{found:?}");
}

#[test]
fn planted_faults_of_carriers_and_readers_are_found() {
    for (fault, failure) in [
        (PlantedFault::KeepsLine, "LostState"),
        (PlantedFault::IgnoresInstance, "TwoCarriers"),
        (PlantedFault::IgnoresKey, "LostState"),
        (PlantedFault::IgnoresHoles, "LostState"),
        (PlantedFault::NamesNoLine, "NeedlessGap"),
        (PlantedFault::PurgesAlways, "NeedlessGap"),
    ] {
        let mut dice = Dice::new(seed());
        let mut try_once = || {
            let length = dice.between(20, 120);
            let steps: Vec<_> = (0..length).map(|_| (dice.below(STEPS), dice.below(8))).collect();
            run(&steps, fault).is_err_and(|found| format!("{found:?}").starts_with(failure))
        };
        assert!((0..40_000).any(|_| try_once()), "{fault:?} is not found");
    }
}
