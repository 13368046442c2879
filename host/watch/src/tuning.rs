//! The times and sizes of watching, with their reasons. The defaults fit real clusters; tests shorten them.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct WatchTuning {
    /// How many objects one page of a list has, as in kubectl and client-go.
    pub page: usize,
    /// Whether lists are first requested as streams. If the server refuses, pages are used.
    pub stream_lists: bool,
    /// If nothing arrives on a streamed list for this long before its end, the server has answered with an
    /// ordinary watch instead.
    pub stream_patience: Duration,
    /// A watch on which nothing arrives for this long is dropped. Bookmarks come about once a minute, so two
    /// and a half of them are missing.
    pub idle: Duration,
    /// The server ends a watch after a time in this range, so that clients spread out.
    pub watch_seconds: (u64, u64),
    /// The time for one object at an old version, from the request to the whole answer. A hanging connection
    /// must leave time for another request within the object's deadline.
    pub one_answer: Duration,
    /// The back-off: the first pause and the longest one.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// The longest pause before the journal is tried again. The journal serves only this process, and every
    /// state waits for it.
    pub journal_pause: Duration,
    /// The longest pause before the server is asked again for a kind that it lacks. So a kind is watched
    /// within seconds after it is installed. The request is one small discovery answer.
    pub lookup: Duration,
    /// The shortest time between two writes of a checkpoint without states.
    pub checkpoint_every: Duration,
    pub walk: WalkBudget,
    /// The number and bytes of events that may wait in memory for objects that are being read back. Beyond
    /// them the watch is not read. They suffice for a minute of a busy cluster.
    pub held_events: usize,
    pub held_bytes: usize,
    /// How long the watch may take to reach the version of an audit's list. Bookmarks come about once a
    /// minute.
    pub audit_grace: Duration,
    /// How often the source looks for another witness that may have seen what could not be read back.
    pub others_every: Duration,
    /// Makes jitter repeatable.
    pub seed: Option<u64>,
}

/// The limits on reading missed versions back.
#[derive(Clone, Debug)]
pub struct WalkBudget {
    /// Requests per second, over all sources of a connection. Each reads a single key of etcd, or counts the
    /// keys of one resource.
    pub rate: u32,
    /// Bytes of answers per second, over all sources of a connection. It is a tenth of what one network card
    /// of a server carries.
    pub bytes_per_second: u64,
    /// Bytes of documents that were read back and are not journaled yet, over all sources of a connection.
    /// They fit into a small container beside the caches.
    pub held_bytes: usize,
    /// How many objects of one source are read back at the same time.
    pub concurrency: usize,
    /// How many versions of one object are read. A Job has a dozen in its life, a busy one a few hundred.
    pub requests_per_object: u32,
    /// How long an object's newer versions wait for its older ones.
    pub time_per_object: Duration,
    /// Requests for one list, over all objects.
    pub requests: u32,
    /// The time of one list. Compaction removes versions after five minutes in any case. The time in which
    /// the server was unreachable does not count.
    pub time: Duration,
    /// Requests for one list's sweep. The search for objects that came and went takes one for each version of
    /// the store that no known object accounts for. An object that was created meanwhile waits for it,
    /// because its name may have had another object before.
    pub sweep_requests: u32,
    pub sweep_time: Duration,
}

impl Default for WatchTuning {
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
            bytes_per_second: 32 << 20,
            held_bytes: 128 << 20,
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
