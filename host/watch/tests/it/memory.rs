//! A journal in memory with the rules of a real one: one transaction for each append, idempotent by id, one
//! checkpoint for each epoch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kubewitness_core::Version;
use kubewitness_core::document::pack_document;
use kubewitness_core::ports::{
    AppendBatch, AppendResult, AuditDifferences, CurrentObject, FormerEnd, FormerVersion, JournalError,
    PoisonMessage, StateWitness, WarmStart, WitnessedState,
};
use kubewitness_core::state::{Change, Gap, ObjectRef};
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::mpsc;

#[derive(Default)]
struct MemoryState {
    epoch: u32,
    checkpoints: BTreeMap<u32, Version>,
    states: Vec<WitnessedState>,
    ids: HashSet<String>,
    current: HashMap<String, CurrentObject>,
    gaps: Vec<Gap>,
    poison: Vec<PoisonMessage>,
    discrepancies: Vec<DiscrepancyView>,
    failures: Vec<JournalError>,
    /// The number of appends before the process dies. The next append is refused for good.
    appends_left: Option<u32>,
    /// An object that the next read gives before it fails.
    torn: Option<CurrentObject>,
    /// Whether another witness writes to it, and since which version that one watches.
    others: Option<Option<Version>>,
    /// The announcements of this witness about its watch, one for each change.
    told: Vec<Option<(u32, String)>>,
}

#[derive(Default)]
pub struct MemoryWitness {
    kept: Mutex<MemoryState>,
    /// No append is done while a test holds it.
    pub gate: tokio::sync::Mutex<()>,
    begun: AtomicUsize,
}

impl MemoryWitness {
    /// The appends that were begun.
    pub fn append_count(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub fn states(&self) -> Vec<WitnessedState> {
        self.kept.lock().unwrap().states.clone()
    }

    /// `change uid version`, in order, without gaps.
    pub fn story(&self) -> Vec<String> {
        let told = |state: &WitnessedState| {
            format!("{} {} {}", state.change.as_str(), state.object.name, state.resource_version)
        };
        self.states().iter().filter(|state| state.change != Change::Gap).map(told).collect()
    }

    pub fn story_of(&self, name: &str) -> Vec<String> {
        self.story().into_iter().filter(|told| told.split(' ').nth(1) == Some(name)).collect()
    }

    /// The gaps of single objects: name and gap.
    pub fn object_gaps(&self) -> Vec<(String, Gap)> {
        let gaps = self.states().into_iter().filter(|state| state.change == Change::Gap);
        gaps.map(|state| (state.object.name.clone(), serde_json::from_slice(&state.document).unwrap()))
            .collect()
    }

    pub fn source_gaps(&self) -> Vec<Gap> {
        self.kept.lock().unwrap().gaps.clone()
    }

    pub fn poison(&self) -> Vec<PoisonMessage> {
        self.kept.lock().unwrap().poison.clone()
    }

    pub fn checkpoint(&self) -> Option<String> {
        let kept = self.kept.lock().unwrap();
        kept.checkpoints.get(&kept.epoch).map(ToString::to_string)
    }

    pub fn set_checkpoint(&self, version: u64) {
        let mut kept = self.kept.lock().unwrap();
        let epoch = kept.epoch;
        kept.checkpoints.insert(epoch, Version::new(&version.to_string()));
    }

    /// The objects that exist now: uid → version.
    pub fn current(&self) -> BTreeMap<String, String> {
        let kept = self.kept.lock().unwrap();
        kept.current.iter().map(|(uid, held)| (uid.clone(), held.resource_version.to_string())).collect()
    }

    pub fn fail_next(&self, failures: Vec<JournalError>) {
        self.kept.lock().unwrap().failures = failures;
    }

    /// The next read gives an object that does not exist, and then fails.
    pub fn tear_next_read(&self) {
        let mut kept = self.kept.lock().unwrap();
        let mut ghost = kept.current.values().next().unwrap().clone();
        ghost.object =
            Arc::new(ObjectRef { name: "ghost".into(), uid: "ghost".into(), ..(*ghost.object).clone() });
        kept.torn = Some(ghost);
    }

    /// Adds another witness; `since` is the version since which it watches.
    pub fn shared_with(&self, since: Option<u64>) {
        let since = since.map(|since| Version::new(&since.to_string()));
        self.kept.lock().unwrap().others = Some(since);
    }

    pub fn told_of_watches(&self) -> Vec<Option<(u32, String)>> {
        self.kept.lock().unwrap().told.clone()
    }

    /// Kills the process after this many appends.
    pub fn die_after(&self, appends: Option<u32>) {
        self.kept.lock().unwrap().appends_left = appends;
    }
}

#[async_trait]
impl StateWitness for MemoryWitness {
    async fn append_batch(&self, append: AppendBatch) -> Result<AppendResult, JournalError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.lock().await;
        let mut kept = self.kept.lock().unwrap();
        if let Some(failure) = kept.failures.pop() {
            return Err(failure);
        }
        if let Some(left) = &mut kept.appends_left {
            *left = left.checked_sub(1).ok_or_else(|| JournalError::Fatal("killed".to_string()))?;
        }
        assert!(append.epoch >= kept.epoch, "an epoch never shrinks");
        let tells_gaps =
            !append.gaps.is_empty() || append.states.iter().any(|state| state.change == Change::Gap);
        let held = kept.checkpoints.get(&append.epoch).filter(|_| tells_gaps && kept.others.is_some());
        if held.zip(append.since.as_ref()).is_some_and(|(held, since)| held.is_newer_than(since)) {
            return Err(JournalError::Overtaken("another witness knows what is a gap".into()));
        }
        kept.epoch = append.epoch;
        let mut appended = AppendResult::default();
        for state in append.states {
            if !kept.ids.insert(state.id.as_str().to_string()) {
                appended.seqs.push(None);
                continue;
            }
            let seq = kept.states.len() as u64 + 1;
            appended.seqs.push(Some(seq));
            let epoch = append.epoch;
            let of = |held: &&WitnessedState| {
                held.object.uid == state.object.uid && held.id.as_str().starts_with(&format!("jobs/{epoch}/"))
            };
            let is_newer = |held: &WitnessedState| {
                held.change != Change::Gap && held.resource_version.is_newer_than(&state.resource_version)
            };
            let is_late = kept.states.iter().filter(of).any(is_newer);
            match state.change {
                Change::Present if is_late => {}
                Change::Present => {
                    let current = CurrentObject {
                        object: state.object.clone(),
                        owner: state.owner.clone(),
                        resource_version: state.resource_version.clone(),
                        status: state.status.clone(),
                        seq,
                        observed_ms: state.observed_ms,
                        packed: pack_document(&state.document),
                    };
                    kept.current.insert(state.object.uid.clone(), current);
                }
                Change::Gone | Change::Left => {
                    kept.current.remove(&state.object.uid);
                }
                Change::Gap => {}
            }
            kept.states.push(state);
        }
        kept.poison.extend(append.poison);
        kept.gaps.extend(append.gaps);
        kept.discrepancies.extend(append.discrepancies);
        if let Some(checkpoint) = append.checkpoint {
            kept.checkpoints.insert(append.epoch, checkpoint);
        }
        appended.newest = kept.states.len() as u64;
        Ok(appended)
    }

    async fn shared_standing(&self, _source: &str) -> Result<Option<(u32, Option<Version>)>, JournalError> {
        let kept = self.kept.lock().unwrap();
        Ok(kept.others.as_ref().map(|_| (kept.epoch, kept.checkpoints.get(&kept.epoch).cloned())))
    }

    fn is_shared(&self) -> bool {
        self.kept.lock().unwrap().others.is_some()
    }

    fn announce_watch(&self, _source: &str, since: Option<(u32, Version)>) {
        let since = since.map(|(epoch, since)| (epoch, since.to_string()));
        let mut kept = self.kept.lock().unwrap();
        if kept.told.last() != Some(&since) {
            kept.told.push(since);
        }
    }

    async fn watched_elsewhere(
        &self,
        _source: &str,
        _epoch: u32,
        before: &Version,
    ) -> Result<Option<String>, JournalError> {
        let kept = self.kept.lock().unwrap();
        let since = kept.others.iter().flatten().any(|since| before.is_newer_than(since));
        Ok(since.then(|| "the other".to_owned()))
    }

    async fn end_of_former(&self, _source: &str, epoch: u32, uid: &str) -> Result<FormerEnd, JournalError> {
        let kept = self.kept.lock().unwrap();
        let of_epoch = |state: &&WitnessedState| state.id.as_str().starts_with(&format!("jobs/{epoch}/"));
        let states = kept.states.iter().filter(of_epoch).filter(|state| state.object.uid == uid);
        Ok(FormerEnd::of(states.map(|state| (state.change, &state.resource_version))))
    }

    async fn newest_version_within(
        &self,
        _source: &str,
        epoch: u32,
        within: RangeInclusive<u64>,
    ) -> Result<Option<FormerVersion>, JournalError> {
        let kept = self.kept.lock().unwrap();
        let of_epoch = |state: &&WitnessedState| state.id.as_str().starts_with(&format!("jobs/{epoch}/"));
        let has_version = |state: &&WitnessedState| matches!(state.change, Change::Present | Change::Left);
        let number = |state: &WitnessedState| state.resource_version.as_number();
        let states = kept.states.iter().filter(of_epoch).filter(has_version);
        let newest = states
            .filter(|state| number(state).is_some_and(|number| within.contains(&number)))
            .max_by_key(|state| number(state));
        let older = |state: &WitnessedState| {
            let of = kept.states.iter().filter(|other| other.object.uid == state.object.uid);
            let older = of.filter(|other| has_version(other) && number(other) < number(state));
            older.max_by_key(|other| number(other)).map(|other| other.document.clone())
        };
        Ok(newest.map(|state| FormerVersion {
            object: ObjectRef::clone(&state.object),
            version: state.resource_version.clone(),
            document: state.document.clone(),
            before: older(state),
        }))
    }

    async fn audit_differences(&self, _source: &str) -> Result<AuditDifferences, JournalError> {
        let kept = self.kept.lock().unwrap();
        let newest = kept.discrepancies.iter().rev().cloned().collect();
        Ok(AuditDifferences { count: kept.discrepancies.len() as u64, newest })
    }

    async fn load_warm_start(&self, _source: &str) -> Result<WarmStart, JournalError> {
        let kept = self.kept.lock().unwrap();
        let checkpoint = kept.checkpoints.get(&kept.epoch).cloned();
        Ok(WarmStart {
            epoch: kept.epoch,
            checkpoint,
            objects: kept.current.values().cloned().collect(),
            ..WarmStart::default()
        })
    }
    async fn warm_by_parts(
        &self,
        source: &str,
        parts: mpsc::Sender<Vec<CurrentObject>>,
    ) -> Result<WarmStart, JournalError> {
        let torn = self.kept.lock().unwrap().torn.take();
        if let Some(ghost) = torn {
            parts.send(vec![ghost]).await.unwrap();
            return Err(JournalError::Unavailable("the disk went away".into()));
        }
        let mut warm = self.load_warm_start(source).await?;
        for object in std::mem::take(&mut warm.objects) {
            parts.send(vec![object]).await.unwrap();
        }
        Ok(warm)
    }
}
