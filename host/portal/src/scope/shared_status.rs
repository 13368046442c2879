//! One count of the figures for all who look at them at the same time.
//!
//! Pages of figures are requested every second by each open tab, and a count reads tables of the journal. So
//! one request counts, and all that wait meanwhile take its result. The result has everything, as the
//! controller sees it: each viewer gets a copy, and `status` removes from it what the viewer may not see. So
//! it does not matter for whom it was counted.
//!
//! A page accepts figures that are up to [`RECENT`] old, unless somebody has changed something through this
//! portal since: whoever pauses a plugin sees it paused. Scripts compare figures with what they did a moment
//! ago, so the API accepts only a count that began after its request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kubewitness_core::views::{StatusView, ViewError, Views};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// A page follows within a second, also if it gets figures of this age.
const RECENT: Duration = Duration::from_millis(500);

pub(crate) struct SharedStatus {
    views: Arc<dyn Views>,
    /// Held during a count, so that one runs at a time.
    last: Mutex<Option<StatusCount>>,
    requests: AtomicU64,
    changes: AtomicU64,
}

struct StatusCount {
    began: Instant,
    /// How many requests and changes came before it began.
    requests: u64,
    changes: u64,
    result: Result<Arc<StatusView>, ViewError>,
}

impl SharedStatus {
    pub(crate) fn new(views: Arc<dyn Views>) -> Self {
        Self { views, last: Mutex::default(), requests: AtomicU64::new(0), changes: AtomicU64::new(0) }
    }

    /// Figures that were counted after this call.
    pub(super) async fn count_anew(&self) -> Result<Arc<StatusView>, ViewError> {
        let request = self.requests.fetch_add(1, Ordering::SeqCst);
        self.read_if(|count| count.requests > request).await
    }

    /// Figures that are not older than a page may show.
    pub(crate) async fn recent_figures(&self) -> Result<Arc<StatusView>, ViewError> {
        let changes = self.changes.load(Ordering::SeqCst);
        self.read_if(|count| count.changes >= changes && count.began.elapsed() < RECENT).await
    }

    /// Somebody has changed something: counts that began before do not show it.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// A failed count is shared as well: a journal that fails slowly would otherwise be asked by each tab in
    /// turn.
    async fn read_if(
        &self,
        is_new_enough: impl Fn(&StatusCount) -> bool,
    ) -> Result<Arc<StatusView>, ViewError> {
        let mut last = self.last.lock().await;
        if let Some(count) = last.as_ref().filter(|count| is_new_enough(count)) {
            return count.result.clone();
        }
        let (requests, changes) = (self.requests.load(Ordering::SeqCst), self.changes.load(Ordering::SeqCst));
        let began = Instant::now();
        let result = self.views.status_view().await.map(Arc::new);
        *last = Some(StatusCount { began, requests, changes, result: result.clone() });
        result
    }
}
