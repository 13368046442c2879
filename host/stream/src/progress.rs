//! Keeps a carrier's progress in the journal, like a plugin's progress and its `kv`.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use kubewitness_core::config::StreamSpec;
use kubewitness_core::ports::{Backlog, JournalError, KvWrite, PluginProgress, ProgressSave, SourceStart};
use kubewitness_core::stream::{JournalLineage, partition_of};
use kubewitness_core::{Seq, State};

use crate::acknowledged::AckTracker;

/// The lines of this journal, and the states that the server may forget.
const LINE: &str = "line";
const ACKED: &str = "acked";
/// How far back the predecessor of a position is searched for, in states of one read.
const BACK: usize = 1024;
const BACK_PAGES: usize = 64;

/// The name under which the journal keeps the carrier's progress for a stream. No plugin can have it.
pub fn progress_name(stream: &str) -> String {
    format!("stream/{stream}")
}

/// A random name, which no two journals, readers or processes of one stream share.
pub fn new_name() -> Arc<str> {
    format!("{:016x}", RandomState::new().hash_one(0_u8)).into()
}

pub(crate) struct CarrierProgress {
    backlog: Arc<dyn Backlog>,
    name: String,
    partitions: u32,
    pub progress: PluginProgress,
    pub lineage: JournalLineage,
    /// Whether the journal had no line before.
    pub is_new: bool,
    pub acked: AckTracker,
    /// The last carried position in each partition.
    before: HashMap<(Arc<str>, u32), Seq>,
}

impl CarrierProgress {
    /// Loads the progress. A newly carried source begins here; a source that is no longer carried ends here.
    pub async fn load(backlog: &Arc<dyn Backlog>, spec: &StreamSpec) -> Result<Self, JournalError> {
        let (backlog, name) = (backlog.clone(), progress_name(&spec.name));
        backlog.await_earlier_writes().await?;
        let found = backlog.plugin_progress(&name).await?;
        let kv: HashMap<_, _> = backlog.plugin_kv(&name).await?.into_iter().collect();
        let text = |value: &Vec<u8>| String::from_utf8_lossy(value).into_owned();
        let lineage = kv.get(LINE).map(|lines| JournalLineage::parse(&text(lines))).transpose();
        let lineage = lineage.map_err(|error| JournalError::Fatal(format!("`{name}` in `kv`: {error}")))?;
        let acked = kv.get(ACKED).and_then(|acked| AckTracker::parse(&text(acked))).unwrap_or_default();
        let entry = |(key, value): (&String, &Vec<u8>)| {
            let (source, partition) = key.rsplit_once('/')?;
            Some(((Arc::from(source), partition.parse().ok()?), text(value).parse().ok()?))
        };
        let before = kv.iter().filter_map(entry).collect();
        let is_new = found.is_none() || lineage.is_none();
        let progress = subscribe_sources(found.clone().unwrap_or_default(), &spec.carry);
        let lineage = lineage.unwrap_or_else(|| JournalLineage::new(new_name()));
        let partitions = spec.partitions;
        let kept = Self { backlog, name, partitions, progress, lineage, is_new, acked, before };
        if is_new || found.as_ref() != Some(&kept.progress) {
            kept.save(vec![kept.line_write()]).await?;
        }
        Ok(kept)
    }

    pub fn carries_state(&self, state: &State) -> bool {
        self.progress.sources.iter().any(|start| start.until.is_none() && start.covers_state(state))
    }

    pub fn partition_of(&self, state: &State) -> u32 {
        partition_of(&state.object, self.partitions)
    }

    /// The position of the previous state in the partition. Readers lack the states before a source's
    /// beginning, and learn of them as a gap.
    pub fn previous_position(&self, source: &Arc<str>, partition: u32) -> Seq {
        let begins = self.progress.sources.iter().filter(|start| start.source == *source);
        let begins = begins.map(|start| start.after).max().unwrap_or_default();
        self.before.get(&(source.clone(), partition)).copied().unwrap_or_default().max(begins)
    }

    /// Records that the server has everything up to `through`. `states` are the carried ones.
    pub async fn add(&mut self, states: &[&Arc<State>], through: Seq) -> Result<(), JournalError> {
        let last: BTreeMap<_, _> = states
            .iter()
            .map(|state| ((state.source.clone(), self.partition_of(state)), state.seq))
            .collect();
        let mut kv: Vec<_> = last.iter().map(|(of, seq)| before_write(of, Some(*seq))).collect();
        kv.push(self.acked_write());
        self.progress.cursor = through;
        self.progress.delivered += states.len() as u64;
        self.save(kv).await?;
        self.before.extend(last);
        Ok(())
    }

    /// Goes back: states after the position are carried again. Returns their number.
    pub async fn move_back_to(&mut self, position: Seq) -> Result<u64, JournalError> {
        let starts = self.progress.sources.iter().filter(|start| start.until.is_none());
        let sources: Vec<_> = starts.map(|start| start.source.clone()).collect();
        let cursor = self.progress.cursor;
        let again = self.backlog.count(&sources, position, cursor).await?;
        self.progress.cursor = position.min(cursor);
        self.progress.delivered = self.progress.delivered.saturating_sub(again);
        let old = std::mem::take(&mut self.before);
        self.before = self.stood_before(position, sources.len() * self.partitions as usize).await?;
        let mut kv: Vec<_> = old.keys().map(|of| before_write(of, self.before.get(of).copied())).collect();
        kv.push(self.acked_write());
        self.save(kv).await?;
        Ok(again)
    }

    /// The last position of each partition up to a position. A state that is too far back is not found. Then
    /// nothing is said about missing states before the next state of its partition.
    async fn stood_before(
        &self,
        position: Seq,
        all: usize,
    ) -> Result<HashMap<(Arc<str>, u32), Seq>, JournalError> {
        let mut stood = HashMap::new();
        let mut through = position;
        for _ in 0..BACK_PAGES {
            if through == 0 || stood.len() >= all {
                break;
            }
            let after = through.saturating_sub(BACK as Seq);
            let mut states = self.backlog.read(after, BACK).await?;
            states.retain(|state| state.seq <= through && self.carries_state(state));
            for state in states.iter().rev() {
                stood.entry((state.source.clone(), self.partition_of(state))).or_insert(state.seq);
            }
            through = after;
        }
        Ok(stood)
    }

    /// Continues in another line. The server already knows it from the claim.
    pub async fn begin_line(&mut self, lineage: JournalLineage) -> Result<(), JournalError> {
        self.lineage = lineage;
        self.save(vec![self.line_write()]).await
    }

    fn line_write(&self) -> KvWrite {
        KvWrite { key: LINE.into(), value: Some(self.lineage.to_string().into_bytes()) }
    }

    fn acked_write(&self) -> KvWrite {
        KvWrite { key: ACKED.into(), value: Some(self.acked.text().into_bytes()) }
    }

    async fn save(&self, kv: Vec<KvWrite>) -> Result<(), JournalError> {
        self.backlog
            .save(&self.name, ProgressSave { progress: self.progress.clone(), kv, ..ProgressSave::default() })
            .await
    }
}

fn before_write((source, partition): &(Arc<str>, u32), seq: Option<Seq>) -> KvWrite {
    KvWrite { key: format!("{source}/{partition}"), value: seq.map(|seq| seq.to_string().into_bytes()) }
}

fn subscribe_sources(found: PluginProgress, carry: &[String]) -> PluginProgress {
    let mut progress = PluginProgress { retired_ms: None, ..found };
    let cursor = progress.cursor;
    for start in progress.sources.iter_mut().filter(|start| start.until.is_none()) {
        if !carry.iter().any(|name| **name == *start.source) {
            start.until = Some(cursor);
        }
    }
    for source in carry {
        if !progress.sources.iter().any(|start| *start.source == **source && start.until.is_none()) {
            progress.sources.push(SourceStart { source: source.as_str().into(), after: cursor, until: None });
        }
    }
    progress
}
