//! Simulates a Kubernetes API server: one store with one version counter, which keeps every version for a
//! while.
//!
//! A real server can't be told to compact, to lag, to restore a backup or to cut a stream at a given byte,
//! and it does not record what really happened. So this one does both: see the tables in `hooks` (the store
//! and the servers) and [`faults`] (requests, bodies, events). It answers kube clients and `kubectl` like a
//! real server, as far as this project can tell the difference; [`DIFFERENCES`] lists the rest. It knows
//! nothing of the workload that writes to it.
//!
//! A cluster has one store (`store`) and one or more servers (`cluster/front.rs`). Each server has its own
//! watch cache and connections.
//!
//! A request passes `server/connections.rs` → `server/routes.rs` → `server/failing` → `objects` → `store`.

mod cluster;
mod differences;
pub mod faults;
mod kinds;
mod objects;
mod server;
mod store;
mod values;
mod wire;

#[cfg(test)]
mod tests;

pub use cluster::auth::TokenUser;
pub use cluster::front::WatchDrop;
pub use cluster::options::ApiServerOptions;
pub use cluster::tls::TlsOptions;
pub use cluster::truth::{Epoch, ResourceTruth, TruthEntry};
pub use differences::{DIFFERENCES, KnownDifference};
pub use server::{ApiServer, ApiServerError, HistoryEntry, ServerTask};
pub use store::HistoryLimits;
pub use values::versions::VersionStyle;
