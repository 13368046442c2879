//! The bounds of the pipeline that an operator can't set, each with its reason.

use std::time::Duration;

/// The most states in one transaction. A sync takes up to some milliseconds, so many states must share it. A
/// larger batch would hold more documents in memory. Batches grow this large only while states arrive faster
/// than they become durable; a batch never waits to fill up.
pub const APPEND_BATCH: usize = 1024;

/// A larger watch frame is journaled as a poison message without being decoded. etcd refuses objects over 1.5
/// MiB by default; aggregated servers may send more.
pub const FRAME_BYTES: usize = 10 * 1024 * 1024;

/// The most frames between the socket and the journal. It bounds memory while the disk is slow: at this
/// number the socket is no longer read.
pub const FRAMES_IN_FLIGHT: usize = 1024;

/// The most states that one plugin's lanes hold in memory. The rest of the backlog stays in the journal.
pub const LANE_WINDOW: usize = 8192;

/// The most states of the window that one lane may hold. Of further states only the position is kept, and
/// they are read again when their turn comes. So one busy or failing object can't fill the window.
pub const LANE_DEPTH: usize = 64;

/// The most states of which only the position is kept. At this number nothing new is read: each can be a hole
/// in the finished ranges, which every save writes.
pub const LANE_DEFERRED: usize = 32 * 1024;

/// A retry that is so far off does not keep the cursor: the lane's states are owed by rows of the journal. Sooner ones
/// are not worth a row.
pub const OWE_AFTER: Duration = Duration::from_secs(30);

/// The most states that a plugin may be owed by rows of the journal. Each keeps its state from retention. At this number
/// the next one, and its namespace, stay unread.
pub const OWED_ROWS: usize = 1_000_000;

/// The most positions that a plugin may read beyond its saved progress. Retention relies on it: the plugin
/// has never read anything further.
pub const READ_AHEAD: usize = 2 * LANE_WINDOW;

/// The most runs of positions that were skipped because their namespace had used up its share. Each can also
/// be a hole in the finished ranges.
pub const LANE_RUNS: usize = 4096;

/// The most namespaces that may be behind in the journal. At this number nothing new is read, because the
/// query for the other namespaces names each of them.
pub const LANE_BEHIND: usize = 1024;

/// The most objects that are remembered while a backfill runs beside new states, at about 16 bytes each.
pub const PAST_LANES: usize = 2 * 1024 * 1024;

/// How many of a state's newest tries are kept individually. They show whether the error changed.
pub const TRIES_KEPT: usize = 16;

/// The error of each try is cut to this many bytes.
pub const TRY_TEXT: usize = 512;

/// The longest delay that a plugin may request. The controller never uses a guest's number unchecked.
pub const PLUGIN_DELAY: Duration = Duration::from_secs(3600);

/// The most steps from a full document to a version built on it. 32 steps decode in about 5 µs.
pub const DELTA_CHAIN: u32 = 32;

/// The shortest pause between two resyncs of a source. Each resync reads all objects and hands them to every
/// plugin that asks.
pub const RESYNC_LEAST: Duration = Duration::from_secs(10);

/// The shortest pause between two audits of a source. Each audit is a consistent list of all objects.
pub const AUDIT_LEAST: Duration = Duration::from_secs(10);

/// The shortest and the longest pause between two ticks of a plugin. States wait while a tick runs; a schedule of
/// more than a day is a calendar, which the plugin keeps in `kv`.
pub const TICK_LEAST: Duration = Duration::from_secs(1);
pub const TICK_MOST: Duration = Duration::from_hours(24);

/// The default and the maximum duration of a tick. No state is delivered during a tick.
pub const TICK_TIMEOUT: Duration = Duration::from_secs(10);
pub const TICK_TIMEOUT_MOST: Duration = Duration::from_secs(60);

/// The least memory and time of a plugin. A Wasm memory page has 64 KiB, and a call's deadline is in
/// milliseconds.
pub const MEMORY_LEAST: u64 = 64 << 10;
pub const CALL_LEAST: Duration = Duration::from_millis(1);

/// The least that one call to the controller may carry. With less, hardly any statement or record fits.
pub const HOST_BYTES_LEAST: u64 = 1 << 10;

/// The most states in one call: the controller and the plugin hold all of them in memory at once.
pub const BATCH_MOST: u32 = 1024;

/// The most bytes of one plugin's `kv`, keys and values together, unless the host's settings say otherwise.
pub const KV_BYTES: u64 = 4 * 1024 * 1024;

/// The bytes that one plugin may write to its `kv` in a second, on the average, unless the host's settings say otherwise.
pub const KV_RATE: u64 = 1024 * 1024;

/// The most requests of one plugin that are noted and have no verdict: more than the largest call of an
/// ordinary plugin makes. Each takes some hundred bytes in memory and in the journal.
pub const INTENTS: usize = 16 * 1024;

/// The largest body of an answer that is kept for a repeated call. Answers to webhooks are shorter.
pub const ANSWER_KEPT: usize = 16 * 1024;

/// The most bytes of such bodies for one plugin.
pub const ANSWERS_KEPT: usize = 16 * 1024 * 1024;

/// The longest version that every store can index. Kubernetes' own versions have up to 20 digits.
pub const VERSION_BYTES: usize = 1024;

/// The most bytes of a source's name. Every store can index this many.
pub const SOURCE_BYTES: usize = 1024;

/// The greatest position that a reader of a stream accepts. A journal that writes a million states per second
/// reaches it after nine years.
pub const SEQ_MOST: u64 = 1 << 48;

/// The greatest epoch that a journal accepts from elsewhere. An epoch begins when a server's history is
/// replaced, and nobody restores a server a million times. A forged epoch must leave room for the next one.
pub const EPOCH_MOST: u32 = 1 << 20;

/// How long a shutdown waits for calls in progress before it aborts them.
pub const DRAIN: Duration = Duration::from_secs(20);

/// The error text of a dead letter or a status is cut to this many bytes.
pub const ERROR_TEXT: usize = 4096;

/// The most differences from a source's audits that the journal stores for each epoch, for display. A counter
/// includes them all. A difference takes a few hundred bytes. More of them mean an outage, not a lost event.
pub const DISCREPANCIES: usize = 100;

/// The most partitions of a stream. A reader reads each of them separately.
pub const PARTITIONS: u32 = 64;
