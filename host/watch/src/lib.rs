//! The only crate that knows `kube`: from an API server to durable states and a readable cache.
//!
//! `kube` gives transport, TLS and authentication. Lists and watches are raw requests, so that an object that
//! does not decode is kept all the same.
//!
//! A folder is a room, and a room uses only rooms that stand above it in this list:
//!
//! | room | what it does |
//! |---|---|
//! | `connect` | from a kubeconfig to answered requests |
//! | `cache` | what is there now: one writer, many readers |
//! | `source` | what the tasks of one source share: messages, jobs, figures, the handle |
//! | `judge` | what an event means, and which states it makes |
//! | `write` | makes states durable, then shows them in the cache |
//! | `repair` | finds what was missed, and reads it back |
//! | `read` | lists and watches; `read/next_action.rs` decides what follows a 410 |
//! | `run` | wires the tasks of a source |
//! | `cluster` | ConfigMaps as configuration, the Lease of the leader, who may see what; uses `connect` alone |
//!
//! ```text
//! read ─▶ lines, items ─▶ write ─▶ journal (`Witness`), then cache ─▶ `Listers`
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

pub use cluster::configmaps::{self, ConfigMapDoc, ConfigMaps, Snapshot};
pub use cluster::forward::{Forward, ForwardError};
pub use cluster::lease as election;
pub use cluster::reviews::{AUDIENCE, Reviews};
pub use connect::client::KeepAlive;
pub use connect::{ConnectError, ConnectOptions, Connection, SignedIn, connect, connect_with};
pub use run::{Source, Split};
pub use source::handle::{SourceHandle, SourceSnapshot};
pub use source::listers::Listers;
pub use source::parts::SourceError;
pub use tuning::{Tuning, WalkBudget};
