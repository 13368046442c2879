//! The times and sizes of watching, with their reasons. The defaults are for real clusters;
//! tests shorten them.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Tuning {
    /// Objects in one page of a list: what kubectl and client-go ask for.
    pub page: usize,
    /// A watch on which nothing came for this long is given up. Bookmarks come about once a
    /// minute, so that two and a half of them are missing.
    pub idle: Duration,
    /// The server ends a watch after a time between these, so that clients spread out.
    pub watch_seconds: (u64, u64),
    /// Back-off: the first pause and the longest one.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// A checkpoint that moved without states is written this often at most.
    pub checkpoint_every: Duration,
    pub walk: WalkBudget,
    /// Makes jitter repeatable.
    pub seed: Option<u64>,
}

/// What reading missed versions back may cost.
#[derive(Clone, Debug)]
pub struct WalkBudget {
    /// Versions of one object: a Job has a dozen in its life, a busy one a few hundred.
    pub requests_per_object: u32,
    /// Of one list, over all objects.
    pub requests: u32,
    /// Objects at once.
    pub concurrency: usize,
    /// Of one list; compaction removes versions after five minutes anyway.
    pub time: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            page: 500,
            idle: Duration::from_secs(150),
            watch_seconds: (290, 590),
            first_pause: Duration::from_millis(800),
            longest_pause: Duration::from_secs(30),
            checkpoint_every: Duration::from_secs(1),
            walk: WalkBudget::default(),
            seed: None,
        }
    }
}

impl Default for WalkBudget {
    fn default() -> Self {
        Self { requests_per_object: 256, requests: 20_000, concurrency: 8, time: Duration::from_secs(120) }
    }
}
