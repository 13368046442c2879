//! Counts connections and live streams, and how connections end, for the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The traffic of both listeners. Clone freely: all clones share the counts.
#[derive(Clone, Default)]
pub struct ListenerTraffic {
    pub(crate) portal: Arc<TrafficCounts>,
    pub(crate) health: Arc<TrafficCounts>,
}

#[derive(Default)]
pub(crate) struct TrafficCounts {
    open: AtomicU64,
    refused: AtomicU64,
    crowded_out: AtomicU64,
    headerless: AtomicU64,
    stalled: AtomicU64,
    streams: AtomicU64,
}

impl TrafficCounts {
    pub(crate) fn set_open(&self, open: usize) {
        self.open.store(open as u64, Ordering::Relaxed);
    }

    /// No place was free for it.
    pub(crate) fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// It was idle, and another one needed its place.
    pub(crate) fn crowded_out(&self) {
        self.crowded_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Its first request did not come in time.
    pub(crate) fn note_headerless(&self) {
        self.headerless.fetch_add(1, Ordering::Relaxed);
    }

    /// It did not read its answer.
    pub(crate) fn note_stalled(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_began(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_ended(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count_streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn all_refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// By the reason for closing them.
    pub(crate) fn closed_by_reason(&self) -> [(&'static str, u64); 3] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("crowded", read(&self.crowded_out)),
            ("header", read(&self.headerless)),
            ("stalled", read(&self.stalled)),
        ]
    }
}
