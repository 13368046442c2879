//! Shows a running source to the rest of the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kubewitness_core::Seq;
use kubewitness_core::config::IndexSpec;
use kubewitness_core::index::IndexSet;
use kubewitness_core::limits::DISCREPANCIES;
use kubewitness_core::ports::AuditDifferences;
use kubewitness_core::views::{DiscrepancyView, SourceCounts};
use tokio::sync::watch;

use crate::cache::ObjectCache;
use crate::source::landmarks::LandmarkSet;

/// The figures of a source at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceSnapshot {
    pub name: String,
    pub objects: usize,
    /// The version from which a watch would be resumed; empty before the first list.
    pub checkpoint: String,
    pub epoch: u32,
    /// Whether the cache shows what the server has, apart from what is on its way.
    pub synced: bool,
    pub last_event_ms: Option<u64>,
    /// The problem that keeps the source from watching, for people; `None` while it works.
    pub condition: Option<String>,
    /// Why the source takes in no events although the server would send some: the journal can't be written
    /// now.
    pub stalled: Option<String>,
    pub counts: SourceCounts,
    /// The limits of this server, for people; `None` if it has none.
    pub limitation: Option<String>,
    /// The objects whose missed versions are being read back now.
    pub walking: usize,
    pub last_audit_ms: Option<u64>,
    /// The objects that audits found to differ, as the journal counts them.
    pub differed: u64,
    /// Whether audits found a difference and no later audit found none.
    pub disagrees: bool,
    /// The differences that audits found, newest first, as far as they are kept.
    pub discrepancies: Vec<DiscrepancyView>,
}

macro_rules! counters {
    ($($field:ident),*) => {
        #[derive(Default)]
        pub(crate) struct SourceCounters { $(pub $field: AtomicU64),* }
        impl SourceCounters {
            fn read(&self) -> SourceCounts {
                SourceCounts { $($field: read(&self.$field)),* }
            }
        }
    };
}
counters!(
    frames,
    bytes,
    present,
    gone,
    left,
    bookmarks,
    poison,
    duplicates,
    stale,
    gaps,
    watches,
    lists_first,
    lists_expired,
    lists_replaced,
    lists_audit,
    lists_streamed,
    expired,
    epochs,
    discrepancies,
    walk_back_requests,
    walked_back,
    discarded_bytes,
    decode_ns
);

pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[derive(Default)]
pub(crate) struct LiveState {
    pub checkpoint: String,
    pub epoch: u32,
    pub synced: bool,
    pub last_event_ms: Option<u64>,
    pub condition: Option<String>,
    pub stalled: Option<String>,
    pub limitations: BTreeMap<ServerLimit, String>,
    /// The number of objects that are being read back or wait for that: those of the last round, and those
    /// that an event revealed.
    pub walking: usize,
    pub mending: usize,
    pub last_audit_ms: Option<u64>,
    pub differed: u64,
    pub disagrees: bool,
    pub discrepancies: VecDeque<DiscrepancyView>,
}

/// Written by the source and read by the handles. A reader that panics can't leave it half-written, so a
/// poisoned lock is used anyway.
pub(crate) struct SharedState {
    pub name: Arc<str>,
    cache: RwLock<ObjectCache>,
    /// The cache has the source's states up to this position; `None` before it was filled.
    shown: watch::Sender<Option<Seq>>,
    live: Mutex<LiveState>,
    /// The landmarks of this epoch.
    landmarks: Mutex<LandmarkSet>,
    pub counters: SourceCounters,
}

impl SharedState {
    pub fn new(name: &str, indexes: &[IndexSpec]) -> Self {
        Self {
            name: name.into(),
            cache: RwLock::new(ObjectCache::new(IndexSet::new(indexes))),
            shown: watch::Sender::new(None),
            live: Mutex::default(),
            landmarks: Mutex::default(),
            counters: SourceCounters::default(),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, ObjectCache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, ObjectCache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shown_through(&self) -> Option<Seq> {
        *self.shown.borrow()
    }

    pub fn set_shown(&self, through: Seq) {
        self.shown.send_modify(|shown| *shown = (*shown).max(Some(through)));
    }

    /// Waits until the cache has the state at this position.
    pub async fn await_shown(&self, seq: Seq) {
        let mut shown = self.shown.subscribe();
        // This struct holds the sender, so the channel can't be closed.
        shown.wait_for(|shown| shown.is_some_and(|shown| shown >= seq)).await.ok();
    }

    pub fn lock_live(&self) -> MutexGuard<'_, LiveState> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lock_landmarks(&self) -> MutexGuard<'_, LandmarkSet> {
        self.landmarks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the condition, and logs it unless it is the same as before.
    pub fn set_condition(&self, condition: Option<String>) {
        let mut live = self.lock_live();
        if live.condition == condition {
            return;
        }
        match &condition {
            Some(condition) => tracing::warn!(source = %self.name, "{condition}"),
            None => tracing::info!(source = %self.name, "watching again"),
        }
        live.condition = condition;
    }

    /// Notes that the watch delivers readable events: an earlier condition is over.
    pub fn note_life(&self) {
        self.lock_live().synced = true;
        self.set_condition(None);
    }

    /// Takes the differences that audits found before the process started.
    pub fn load_differences(&self, before: AuditDifferences) {
        let mut live = self.lock_live();
        live.differed = before.count;
        live.disagrees = before.count > 0;
        live.discrepancies = before.newest.into();
    }

    /// Takes differences of an audit that are durable.
    pub fn note_differences(&self, found: Vec<DiscrepancyView>) {
        if found.is_empty() {
            return;
        }
        count(&self.counters.discrepancies, found.len() as u64);
        let mut live = self.lock_live();
        live.differed += found.len() as u64;
        live.disagrees = true;
        for view in found {
            live.discrepancies.truncate(DISCREPANCIES - 1);
            live.discrepancies.push_front(view);
        }
    }

    /// Notes that an audit was completed.
    pub fn note_audit(&self, now_ms: u64, agrees: bool) {
        let mut live = self.lock_live();
        live.last_audit_ms = Some(now_ms);
        if agrees && std::mem::take(&mut live.disagrees) {
            tracing::info!(source = %self.name, "the audit finds no difference again: events are complete");
        }
    }

    /// Sets a limitation of the server. It is logged once, and once more when it is gone.
    pub fn set_limitation(&self, limit: ServerLimit, why: Option<&str>) {
        let mut live = self.lock_live();
        let held = live.limitations.contains_key(&limit);
        match why {
            Some(why) if !held => {
                let text = format!("{}: {why}", limit.text());
                tracing::warn!(source = %self.name, "{text}");
                live.limitations.insert(limit, text);
            }
            None if held => {
                tracing::info!(source = %self.name, "resolved: {}", limit.text());
                live.limitations.remove(&limit);
            }
            _ => {}
        }
    }
}

/// A limit of some servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerLimit {
    Exact,
    Counts,
    Order,
    Audits,
}

impl ServerLimit {
    fn text(self) -> &'static str {
        match self {
            Self::Exact => "missed versions can't be read back",
            Self::Counts => "objects that came and went unseen can't be found",
            Self::Order => "missed versions can't be told apart",
            Self::Audits => "audits fail, so losses of the watch are not found",
        }
    }
}

/// A view of one source; cheap to clone.
#[derive(Clone)]
pub struct SourceHandle {
    pub(crate) shared: Arc<SharedState>,
}

impl SourceHandle {
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    pub fn snapshot_view(&self) -> SourceSnapshot {
        let objects = self.shared.read().len();
        let live = self.shared.lock_live();
        SourceSnapshot {
            name: self.shared.name.to_string(),
            objects,
            checkpoint: live.checkpoint.clone(),
            epoch: live.epoch,
            synced: live.synced,
            last_event_ms: live.last_event_ms,
            condition: live.condition.clone(),
            stalled: live.stalled.clone(),
            limitation: (!live.limitations.is_empty())
                .then(|| live.limitations.values().cloned().collect::<Vec<_>>().join("; ")),
            walking: live.walking + live.mending,
            last_audit_ms: live.last_audit_ms,
            differed: live.differed,
            disagrees: live.disagrees,
            discrepancies: live.discrepancies.iter().cloned().collect(),
            counts: self.shared.counters.read(),
        }
    }
}
