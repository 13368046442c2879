//! The only crate that knows `kube`: from an API server to durable states and a readable cache.
//!
//! `kube` gives transport, TLS and authentication; list and watch are made of raw requests, so
//! that nothing is lost because it doesn't decode. Decisions are pure modules (`course`, `judge`,
//! `checkpoint`, `walkback`); around them are a reader, which talks to the server, and a
//! writer, which makes durable what the reader gives it and then shows it in the cache.
//!
//! ```text
//! reader ─▶ lines, items ─▶ writer ─▶ journal (`Witness`), then cache ─▶ `Listers`
//!             what another host carried ─▶ fed ─▶ the same
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
mod write;

pub use cluster::configmaps::{self, ConfigMapDoc, ConfigMaps, Snapshot};
pub use cluster::lease as election;
pub use connect::client::KeepAlive;
pub use connect::{ConnectError, ConnectOptions, Connection, connect, connect_with};
pub use run::{Source, SourceError, Split};
pub use source::handle::{SourceHandle, SourceSnapshot};
pub use source::listers::Listers;
pub use tuning::{Tuning, WalkBudget};
