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

mod appender;
mod audit;
mod backoff;
mod budget;
mod cache;
mod census;
mod checkpoint;
mod common;
mod compare;
pub mod configmaps;
mod connect;
mod course;
mod discovery;
mod document;
mod draft;
pub mod election;
mod elsewhere;
mod exact;
mod fed;
mod frontier;
mod gaplog;
mod handle;
mod hold;
mod input;
mod judge;
mod known;
mod landmark;
mod lifeline;
mod listers;
mod login;
mod maker;
mod mender;
mod owners;
mod reader;
mod relist;
mod request;
mod round;
mod source;
mod spread;
mod stream;
mod streamed;
mod sweep;
mod sweeping;
mod teller;
mod transport;
mod tuning;
mod walkback;
mod walker;
mod warm;
mod writer;

pub use configmaps::{ConfigMapDoc, ConfigMaps, Snapshot};
pub use connect::{ConnectError, ConnectOptions, Connection, connect, connect_with};
pub use handle::{SourceHandle, SourceSnapshot};
pub use listers::Listers;
pub use source::{Source, SourceError, Split};
pub use transport::KeepAlive;
pub use tuning::{Tuning, WalkBudget};
