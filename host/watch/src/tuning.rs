//! The times and sizes of watching, with their reasons. The defaults are for real clusters;
//! tests shorten them.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Tuning {
    /// Objects in one page of a list: what kubectl and client-go ask for.
    pub page: usize,
    /// Whether lists are first asked for as streams; pages are asked for where the server refuses.
    pub stream_lists: bool,
    /// A streamed list on which nothing came for this long before its end is none: the server
    /// has answered with an ordinary watch.
    pub stream_patience: Duration,
    /// A watch on which nothing came for this long is given up. Bookmarks come about once a
    /// minute, so that two and a half of them are missing.
    pub idle: Duration,
    /// The server ends a watch after a time between these, so that clients spread out.
    pub watch_seconds: (u64, u64),
    /// From asking for one object at an old version to the whole answer. A connection that hangs
    /// must leave time to ask again within the time that an object has.
    pub one_answer: Duration,
    /// Back-off: the first pause and the longest one.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// The longest pause before the journal is asked again: it serves nobody but us, and each state
    /// waits for it.
    pub journal_pause: Duration,
    /// A kind that the server doesn't have is looked up again after this long at most, so that one
    /// that is installed is watched within seconds. It is one small answer of discovery.
    pub lookup: Duration,
    /// A checkpoint that moved without states is written this often at most.
    pub checkpoint_every: Duration,
    pub walk: WalkBudget,
    /// Events of objects that are still read back wait in memory, up to this many and this many
    /// bytes; then the watch is not read further. A minute of a busy cluster.
    pub held_events: usize,
    pub held_bytes: usize,
    /// After an audit's list the watch has this long to come to the list's version. Bookmarks
    /// come about once a minute.
    pub audit_grace: Duration,
    /// While what could not be read back is left to another witness, it is looked for that one this often.
    pub others_every: Duration,
    /// Makes jitter repeatable.
    pub seed: Option<u64>,
}

/// What reading missed versions back may cost.
#[derive(Clone, Debug)]
pub struct WalkBudget {
    /// Requests a second. One reads a single key of etcd, or counts the keys of one resource.
    pub rate: u32,
    /// Objects at once.
    pub concurrency: usize,
    /// Versions of one object: a Job has a dozen in its life, a busy one a few hundred.
    pub requests_per_object: u32,
    /// An object's newer versions wait for its older ones at most this long.
    pub time_per_object: Duration,
    /// Of one list, over all objects.
    pub requests: u32,
    /// Of one list; compaction removes versions after five minutes anyway. The time in which the
    /// server was away doesn't count.
    pub time: Duration,
    /// Of one list: looking for objects that were created and deleted while nobody looked takes
    /// one for each version of the store that is not accounted for. Who is created meanwhile waits
    /// for it, since somebody may be found who had the name before.
    pub sweep_requests: u32,
    pub sweep_time: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            page: 500,
            stream_lists: true,
            stream_patience: Duration::from_secs(30),
            idle: Duration::from_secs(150),
            watch_seconds: (290, 590),
            one_answer: Duration::from_secs(8),
            first_pause: Duration::from_millis(800),
            longest_pause: Duration::from_secs(30),
            journal_pause: Duration::from_secs(3),
            lookup: Duration::from_secs(5),
            checkpoint_every: Duration::from_secs(1),
            walk: WalkBudget::default(),
            held_events: 16 * 1024,
            held_bytes: 64 * 1024 * 1024,
            audit_grace: Duration::from_secs(75),
            others_every: Duration::from_secs(1),
            seed: None,
        }
    }
}

impl Default for WalkBudget {
    fn default() -> Self {
        Self {
            rate: 200,
            concurrency: 8,
            requests_per_object: 256,
            time_per_object: Duration::from_secs(30),
            requests: 20_000,
            time: Duration::from_secs(120),
            sweep_requests: 20_000,
            sweep_time: Duration::from_secs(60),
        }
    }
}
