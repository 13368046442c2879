//! A journal whose process can be killed at one of its writes: before it or after it.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kubewitness_core::ports::{
    AppendBatch, AppendResult, FormerEnd, FormerVersion, JournalError, StateWitness, WarmStart,
};
use kubewitness_journal::Journal;
use tokio::sync::Notify;

/// When the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessDeath {
    /// Writes that still succeed.
    pub writes: u32,
    /// Whether the one after them reaches the disk, although nobody hears of it.
    pub written: bool,
}

pub struct MortalJournal {
    journal: Journal,
    death: Mutex<Option<ProcessDeath>>,
    died: Notify,
}

impl MortalJournal {
    pub fn new(journal: Journal) -> Arc<Self> {
        Arc::new(Self { journal, death: Mutex::default(), died: Notify::new() })
    }

    pub fn dies(&self, death: ProcessDeath) {
        *self.death.lock().unwrap() = Some(death);
    }

    /// Returns once it has died.
    pub async fn died(&self) {
        self.died.notified().await;
    }

    pub async fn close(&self) -> Result<(), JournalError> {
        self.journal.close().await
    }

    /// Whether this write is the last, and if so, whether it reaches the disk.
    fn last(&self) -> Option<bool> {
        let mut death = self.death.lock().unwrap();
        let dying = death.as_mut()?;
        match dying.writes.checked_sub(1) {
            Some(left) => {
                dying.writes = left;
                None
            }
            None => Some(dying.written),
        }
    }
}

#[async_trait]
impl StateWitness for MortalJournal {
    async fn append_batch(&self, append: AppendBatch) -> Result<AppendResult, JournalError> {
        let Some(written) = self.last() else { return self.journal.append_batch(append).await };
        if written {
            self.journal.append_batch(append).await?;
        }
        self.died.notify_one();
        // Nobody ever hears from a dead process.
        std::future::pending().await
    }

    async fn load_warm_start(&self, source: &str) -> Result<WarmStart, JournalError> {
        self.journal.load_warm_start(source).await
    }

    async fn end_of_former(&self, source: &str, epoch: u32, uid: &str) -> Result<FormerEnd, JournalError> {
        self.journal.end_of_former(source, epoch, uid).await
    }

    async fn newest_version_within(
        &self,
        source: &str,
        epoch: u32,
        within: RangeInclusive<u64>,
    ) -> Result<Option<FormerVersion>, JournalError> {
        self.journal.newest_version_within(source, epoch, within).await
    }
}
