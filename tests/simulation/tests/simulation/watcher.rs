//! The watch of one source, as its contract with the journal is: from the checkpoint on, each
//! version in its order; what was compacted meanwhile is compared and becomes gaps; the checkpoint
//! moves when all before it is written.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::ports::{AppendBatch, FormerEnd, JournalError, StateWitness, WitnessedState};
use kubewitness_core::{Change, Gap, StateId, Version};
use kubewitness_faults::{TruthEvent, WrittenEntry};

use crate::journal::store::SimulatedStore;
use crate::steps::StepClock;
use crate::story::{SimulatedCluster, object, status};

const POLL: Duration = Duration::from_millis(7);
const LONGEST_POLL: Duration = Duration::from_millis(56);
const AGAIN: Duration = Duration::from_millis(80);

pub struct SimulatedWatcher {
    pub source: &'static str,
    pub cluster: Arc<Mutex<SimulatedCluster>>,
    pub store: Arc<SimulatedStore>,
    pub steps: Arc<StepClock>,
}

fn version(of: u64) -> Version {
    Version::new(&of.to_string())
}

impl SimulatedWatcher {
    /// Until the journal is in doubt, which ends the process.
    pub async fn run(self) -> JournalError {
        loop {
            match self.follow().await {
                Err(JournalError::Unavailable(_)) => tokio::time::sleep(AGAIN).await,
                Err(JournalError::Overtaken(_)) => {
                    self.steps.marks.when(true, "a relist was overtaken by another witness");
                }
                Err(error) => return error,
                Ok(never) => match never {},
            }
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, JournalError> {
        let warm = self.store.load_warm_start(self.source).await?;
        let checkpoint = warm.checkpoint.and_then(|version| version.as_str().parse().ok());
        let mut at = checkpoint.unwrap_or(0);
        let floor = self.with(|story| story.floor());
        if at < floor {
            self.steps.marks.when(true, "a relist was compared");
            at = self.compare(at, floor).await?;
        } else if self.steps.dice(|dice| dice.one_in(2)) {
            // Another one has told some of it already: an id is the same whoever tells it.
            at = at.saturating_sub(self.steps.dice(|dice| dice.below(6))).max(floor);
        }
        let mut poll = POLL;
        loop {
            let many = self.steps.dice(|dice| dice.between(1, 9)) as usize;
            let next: Vec<WrittenEntry> = self.with(|story| {
                story.entries.iter().filter(|entry| entry.version > at).take(many).cloned().collect()
            });
            let Some(last) = next.last().map(|entry| entry.version) else {
                tokio::time::sleep(poll).await;
                // While a plugin is waited for, hours pass in which nothing comes.
                poll = (poll * 2).min(LONGEST_POLL);
                continue;
            };
            poll = POLL;
            let states = next.iter().map(|entry| self.witnessed(entry)).collect();
            self.append(AppendBatch { checkpoint: Some(version(last)), ..self.of(states) }).await?;
            at = last;
        }
    }

    fn with<T>(&self, look: impl FnOnce(&crate::story::SourceStory) -> T) -> T {
        look(self.cluster.lock().unwrap().stories.entry(self.source).or_default())
    }

    /// Tries until it is durable.
    async fn append(&self, append: AppendBatch) -> Result<(), JournalError> {
        loop {
            match self.store.append_batch(append.clone()).await {
                Err(JournalError::Unavailable(_)) => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(error),
                Ok(_) => return Ok(()),
            }
        }
    }

    fn of(&self, states: Vec<WitnessedState>) -> AppendBatch {
        AppendBatch { source: Arc::from(self.source), states, ..AppendBatch::default() }
    }

    fn witnessed(&self, entry: &WrittenEntry) -> WitnessedState {
        match entry.event {
            TruthEvent::Written => self.state(entry, Change::Present, version(entry.version), None),
            TruthEvent::Deleted => self.state(entry, Change::Gone, version(entry.version), None),
        }
    }

    fn state(
        &self,
        entry: &WrittenEntry,
        change: Change,
        version: Version,
        gap: Option<&Gap>,
    ) -> WitnessedState {
        let object = object(entry);
        let document = gap.map(|gap| serde_json::to_vec(gap).unwrap()).unwrap_or_default();
        WitnessedState {
            id: StateId::of(self.source, 0, &object, change, &version, gap),
            change,
            object,
            owner: None,
            controller: None,
            status: status(entry.version),
            previous: (entry.version > 1).then(|| status(entry.version - 1)),
            resource_version: version,
            observed_ms: self.steps.tick(),
            document: Bytes::from(document),
            base: None,
            quotes_none_under: None,
        }
    }

    // ---- what was missed -----------------------------------------------------------------

    /// Tells, object by object, what can still be read and what can't. Only the last append moves
    /// the checkpoint, so that a death in the middle does all of it again.
    async fn compare(&self, at: u64, floor: u64) -> Result<u64, JournalError> {
        let (entries, upto) = self.with(|story| {
            let upto = story.entries.last().map_or(floor, |last| last.version.max(floor));
            (story.entries.clone(), upto)
        });
        let mut lives: BTreeMap<u64, Vec<WrittenEntry>> = BTreeMap::new();
        let mut born: HashMap<Arc<str>, u64> = HashMap::new();
        for entry in entries.into_iter().filter(|entry| entry.version <= upto) {
            let birth = *born.entry(Arc::clone(&entry.uid)).or_insert(entry.version);
            lives.entry(birth).or_default().push(entry);
        }
        let warm = self.store.load_warm_start(self.source).await?;
        let held: HashMap<String, u64> = warm
            .objects
            .iter()
            .map(|held| (held.object.uid.clone(), held.resource_version.as_str().parse().unwrap()))
            .collect();
        let mut swallowed = false;
        for life in lives.into_values() {
            let Some(last) = life.last() else { continue };
            let known = held.get(&*last.uid).copied();
            if last.version <= at || known == Some(last.version) {
                continue;
            }
            if known.is_none()
                && self.store.end_of_former(self.source, 0, &last.uid).await? == FormerEnd::Ended
            {
                continue;
            }
            match self.rest(&life, known, at, floor) {
                Some(states) => {
                    self.append(AppendBatch { since: Some(version(at.max(1))), ..self.of(states) }).await?;
                }
                None => swallowed = true,
            }
            self.steps.step("relist: an object compared").await;
        }
        let hole = self.gap(None, at, floor + 1);
        let gaps = if swallowed { vec![hole] } else { Vec::new() };
        let (since, checkpoint) = (Some(version(at.max(1))), Some(version(upto)));
        self.append(AppendBatch { gaps, since, checkpoint, ..self.of(Vec::new()) }).await?;
        Ok(upto)
    }

    fn gap(&self, of: Option<&WrittenEntry>, after: u64, before: u64) -> Gap {
        self.steps.marks.when(true, "versions were compacted");
        Gap {
            source: self.source.into(),
            object: of.map(|entry| (*object(entry)).clone()),
            epoch: 0,
            after: after.to_string(),
            before: before.to_string(),
            reason: "Compacted".into(),
            message: "a test".into(),
            recorded_ms: self.steps.tick(),
        }
    }

    /// Returns the states that are to be told of an object; `None` where nothing of it was or can be.
    fn rest(
        &self,
        life: &[WrittenEntry],
        known: Option<u64>,
        at: u64,
        floor: u64,
    ) -> Option<Vec<WitnessedState>> {
        let after = known.unwrap_or(at);
        let new: Vec<&WrittenEntry> = life.iter().filter(|entry| entry.version > after).collect();
        let readable = (0..new.len()).find(|&place| {
            let next = new.get(place + 1).map_or(u64::MAX, |next| next.version);
            new[place].version > floor || (new[place].event == TruthEvent::Written && next > floor)
        });
        let missed = &new[..readable.unwrap_or(new.len())];
        let before = readable.map_or(floor + 1, |place| new[place].version);
        let mut states = Vec::new();
        if let Some(first) = missed.iter().find(|entry| entry.event == TruthEvent::Written) {
            if readable.is_none() && known.is_none() {
                return None;
            }
            let gap = self.gap(Some(first), after, before);
            states.push(self.state(first, Change::Gap, version(first.version), Some(&gap)));
        }
        match readable {
            Some(place) => states.extend(new[place..].iter().map(|entry| self.witnessed(entry))),
            // It was found to be gone by comparison alone.
            None => states.push(self.state(new.last()?, Change::Gone, Version::new(""), None)),
        }
        Some(states)
    }
}
