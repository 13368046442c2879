//! The handle.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ports::{
    Append, Appended, Backlog, DeadLetter, Documents, JournalError, Progress, Save, Warm, Witness,
};
use kubewitness_core::views::{JournalView, TimelineQuery, TimelineView};
use kubewitness_core::{Gap, Seq, State};
use tokio::sync::watch;

use crate::report::{OpenError, PoisonRecord, ReplayRecord, SourceCounters, VerifyReport};

#[derive(Clone)]
pub struct JournalOptions {
    pub clock: Arc<dyn Clock>,
    /// Connections that read, beside the one that writes.
    pub readers: u32,
    /// States kept in memory, so that dispatchers at the head don't touch the disk.
    pub recent: usize,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock::default()), readers: 4, recent: 16 * 1024 }
    }
}

/// The journal. Clones share one.
#[derive(Clone)]
pub struct Journal {
    newest: watch::Sender<Seq>,
}

fn not_yet<T>() -> Result<T, JournalError> {
    Err(JournalError::Unavailable("the store is not connected".into()))
}

impl Journal {
    pub async fn open(path: &Path, _options: JournalOptions) -> Result<Self, OpenError> {
        Err(OpenError::Unavailable { path: path.to_path_buf(), reason: "the store is not connected".into() })
    }
    pub async fn close(&self) {}
    pub async fn timeline(&self, _query: &TimelineQuery) -> Result<TimelineView, JournalError> {
        not_yet()
    }
    pub async fn stats(&self) -> Result<JournalView, JournalError> {
        not_yet()
    }
    pub async fn gaps(&self) -> Result<Vec<Gap>, JournalError> {
        not_yet()
    }
    pub async fn source_counters(&self) -> Result<Vec<SourceCounters>, JournalError> {
        not_yet()
    }
    pub async fn letters_with_states(
        &self,
        _plugin: Option<&str>,
    ) -> Result<Vec<(DeadLetter, Arc<State>)>, JournalError> {
        not_yet()
    }
    /// Newest first.
    pub async fn poison(
        &self,
        _source: Option<&str>,
        _limit: usize,
    ) -> Result<Vec<PoisonRecord>, JournalError> {
        not_yet()
    }
    pub async fn replays(&self, _plugin: Option<&str>) -> Result<Vec<ReplayRecord>, JournalError> {
        not_yet()
    }
    pub async fn verify(path: &Path) -> Result<VerifyReport, OpenError> {
        Err(OpenError::Unavailable { path: path.to_path_buf(), reason: "the store is not connected".into() })
    }
}

#[async_trait]
impl Witness for Journal {
    async fn append(&self, _append: Append) -> Result<Appended, JournalError> {
        not_yet()
    }
    async fn warm(&self, _source: &str) -> Result<Warm, JournalError> {
        not_yet()
    }
}

#[async_trait]
impl Backlog for Journal {
    fn newest(&self) -> watch::Receiver<Seq> {
        self.newest.subscribe()
    }
    async fn read(&self, _after: Seq, _limit: usize) -> Result<Vec<Arc<State>>, JournalError> {
        not_yet()
    }
    async fn read_at(&self, _seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError> {
        not_yet()
    }
    async fn count(&self, _sources: &[Arc<str>], _after: Seq, _through: Seq) -> Result<u64, JournalError> {
        not_yet()
    }
    async fn progress(&self, _plugin: &str) -> Result<Option<Progress>, JournalError> {
        not_yet()
    }
    async fn save(&self, _plugin: &str, _save: Save) -> Result<(), JournalError> {
        not_yet()
    }
    async fn dead_letters(&self, _plugin: &str) -> Result<Vec<DeadLetter>, JournalError> {
        not_yet()
    }
    async fn mark_replaying(
        &self,
        _plugin: &str,
        _seqs: &[Seq],
        _who: &str,
        _why: &str,
    ) -> Result<(), JournalError> {
        not_yet()
    }
    async fn kv(&self, _plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
        not_yet()
    }
}

#[async_trait]
impl Documents for Journal {
    async fn document(&self, _seq: Seq) -> Result<Option<Bytes>, JournalError> {
        not_yet()
    }
    async fn document_before(&self, _seq: Seq) -> Result<Option<Bytes>, JournalError> {
        not_yet()
    }
}
