//! Watches the API server: from lists and watches to durable states and a readable cache. No other crate
//! knows `kube`.
//!
//! An informer keeps the newest version of each object and relists after a break, so the versions in between
//! are lost silently. That was rejected. Here `kube` provides only transport, TLS and authentication. Lists
//! and watches are raw requests, so an object that does not decode is kept all the same, and a missed version
//! is read back or recorded as a gap.
//!
//! The cache and the checkpoint never show more than the journal has. The crate knows neither the journal's
//! store nor plugins: it writes through `core::ports::StateWitness`. It returns futures, and the controller
//! spawns them.
//!
//! A folder uses only folders above it in this list:
//!
//! | folder | what it does |
//! |---|---|
//! | `connect` | connects to the API server and sends bounded requests |
//! | `cache` | holds the objects that exist now: one writer, many readers |
//! | `source` | holds what the tasks of one source share: messages, rounds, landmarks, the handle |
//! | `judge` | decides what an event means and which states it makes |
//! | `write` | makes states durable, then shows them in the cache |
//! | `repair` | finds missed versions and reads them back |
//! | `read` | lists and watches; `read/next_action.rs` decides what happens after a 410 |
//! | `run` | wires the tasks of a source |
//! | `cluster` | reads ConfigMaps as configuration, holds the leader's Lease, asks who may see what, and creates Jobs that people submit; uses `connect` alone |
//!
//! ```text
//! read ─▶ lines, items ─▶ write ─▶ journal (`StateWitness`), then cache ─▶ `CacheListers`
//!           repair ─▶ versions that were missed ─▶ write
//! ```

mod cache;
mod cluster;
mod connect;
mod judge;
mod read;
mod repair;
mod run;
mod source;
mod tuning;
mod version;
mod write;

pub use cluster::checkup::{ApiServer, CheckupError, RightsCheckup, RightsOwner};
pub use cluster::configmaps::{self, ConfigMapDoc, ConfigMapSnapshot, ConfigMaps};
pub use cluster::forward::{ForwardError, PodTrust, PortForward};
pub use cluster::jobs::JobClient;
pub use cluster::lease as election;
pub use cluster::reviews::{AUDIENCE, ReviewClient};
pub use connect::client::KeepAlive;
pub use connect::{
    ApiConnection, ConnectError, ConnectOptions, SignedIn, connect_to_server, connect_with, context_namespace,
};
pub use run::{SourceTask, SourceTasks};
pub use source::handle::{SourceHandle, SourceSnapshot};
pub use source::listers::CacheListers;
pub use source::parts::SourceError;
pub use source::repair_budget::RepairBudget;
pub use tuning::{WalkBudget, WatchTuning};
