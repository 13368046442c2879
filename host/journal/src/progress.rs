//! The progress of a long read of a journal. The caller can query it at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::StoreReader;
use crate::store::rows::StoreResult;

/// The progress of a read, in states. The total is unknown until the journal is open.
#[derive(Debug, Default)]
pub struct OpeningProgress {
    done: AtomicU64,
    all: AtomicU64,
}

impl OpeningProgress {
    /// The number of states read and the total, which is 0 while unknown.
    pub fn now(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    pub(crate) fn set_done(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// Sets the total from the journal's own counters, without what retention removed.
    pub(crate) async fn begin_counting(&self, rows: &mut dyn StoreReader) -> StoreResult<()> {
        let counted: u64 = rows.source_streams().await?.iter().map(|stream| stream.states).sum();
        let taken: u64 = rows.retention_reader().taken_of_streams().await?.values().sum();
        self.all.store(counted.saturating_sub(taken), Ordering::Relaxed);
        Ok(())
    }
}
