//! The progress of a long reading of a journal. The caller can look at it at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::StoreReader;
use crate::store::rows::StoreResult;

/// In states. The whole is not known before the journal is open.
#[derive(Debug, Default)]
pub struct OpeningProgress {
    done: AtomicU64,
    all: AtomicU64,
}

impl OpeningProgress {
    /// So many of so many states; the second is 0 while it is not known.
    pub fn now(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    pub(crate) fn is_at(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// Takes the journal's own counters for the whole, without what retention took.
    pub(crate) async fn begin(&self, rows: &mut dyn StoreReader) -> StoreResult<()> {
        let counted: u64 = rows.streams().await?.iter().map(|stream| stream.states).sum();
        let taken: u64 = rows.retention_reader().taken_of_streams().await?.values().sum();
        self.all.store(counted.saturating_sub(taken), Ordering::Relaxed);
        Ok(())
    }
}
