//! Every bound of the pipeline that is not an operator's to choose, with its reason.

use std::time::Duration;

/// States appended in one transaction at most. A sync takes up to some milliseconds, which many
/// states have to share; a larger batch would hold more documents in memory at once. It is only
/// reached while states come faster than they are made durable: nothing ever waits for more.
pub const APPEND_BATCH: usize = 1024;

/// A watch frame larger than this is journaled as poison without being decoded. etcd refuses
/// objects over 1.5 MiB by default, aggregated servers may send more.
pub const FRAME_BYTES: usize = 10 * 1024 * 1024;

/// Frames between the socket and the journal. Bounds memory while the disk is slow; the socket
/// is not read when it is full.
pub const FRAMES_IN_FLIGHT: usize = 1024;

/// States that one plugin's lanes hold in memory; the rest of the backlog stays in the journal.
pub const LANE_WINDOW: usize = 8192;

/// Of the window, what one lane may take; what lies deeper is known by position only and read
/// again when its turn comes. So one busy or failing object can't fill the window for the others.
pub const LANE_DEPTH: usize = 64;

/// States that are known by position only. Beyond it nothing new is read: each of them can be a
/// hole in the finished ranges, which are written with every save.
pub const LANE_DEFERRED: usize = 32 * 1024;

/// Positions that a plugin may have read beyond those of which it is saved what became of them.
/// Retention that was told to go past cursors relies on it: what lies further was never read.
pub const READ_AHEAD: usize = 2 * LANE_WINDOW;

/// Runs of positions that were read past, since their namespace has its share of the window
/// already. Each can be a hole in the finished ranges as well.
pub const LANE_RUNS: usize = 4096;

/// Namespaces that are behind others in the journal. Beyond it nothing new is read: each is named
/// in the question for what is of no such namespace.
pub const LANE_BEHIND: usize = 1024;

/// Objects of the time before a subscription that are remembered while it is handed over beside
/// what is new, at about 16 bytes each.
pub const PAST_LANES: usize = 2 * 1024 * 1024;

/// The tries of a state that are kept one by one, the newest of them: what shows whether the
/// error changed.
pub const TRIES_KEPT: usize = 16;

/// The error of each of them is cut to this many bytes.
pub const TRY_TEXT: usize = 512;

/// The longest pause that a plugin may ask for. A guest's number is never taken as it is.
pub const PLUGIN_DELAY: Duration = Duration::from_secs(3600);

/// Steps from a full document to any version built on it. 32 steps decode in about 5 µs.
pub const DELTA_CHAIN: u32 = 32;

/// The shortest pause between two resyncs of a source. Each is a reading of all its objects and a
/// call for all of them, for every plugin that asks.
pub const RESYNC_LEAST: Duration = Duration::from_secs(10);

/// The shortest pause between two audits of a source. Each is a consistent list of all its objects.
pub const AUDIT_LEAST: Duration = Duration::from_secs(10);

/// Bytes of one plugin's `kv`, keys and values together.
pub const KV_BYTES: usize = 1024 * 1024;

/// Bytes of a version: what an index of every store holds. Kubernetes' own have up to 20 digits.
pub const VERSION_BYTES: usize = 1024;

/// Shut-down waits this long for calls in progress before it stops them.
pub const DRAIN: Duration = Duration::from_secs(20);

/// An error text that is kept (dead letters, status) is cut to this many bytes.
pub const ERROR_TEXT: usize = 4096;

/// Differences that the journal keeps of a source's audits, of each epoch, to be shown: its counter
/// has them all. One is a few hundred bytes; more of them are an outage, and not a lost event.
pub const DISCREPANCIES: usize = 100;
