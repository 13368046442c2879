//! A simulated Kubernetes API server: one store, one version counter, every version kept for a while.
//!
//! It answers kube clients and `kubectl` as a real server does where this project can tell the difference
//! (see [`DIFFERENCES`] for where it does not), and lets tests do what a real one cannot be told to: the tables in
//! `hooks` (the store and the servers) and [`faults`] (requests, bodies, events) say what. It knows nothing of the
//! workload that writes to it.
//!
//! One store (`store`, with everything that follows from a write in `shared`) has one or more servers (`front`),
//! each with a watch cache and connections (`serving`) of its own.
//!
//! The way of a request: `serving` → `routes` → `faults` → `objects` → `writing`/`deleting`/`listing`/`watching`
//! → `store`.

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
pub use cluster::front::Drop as WatchDrop;
pub use cluster::options::ApiServerOptions;
pub use cluster::tls::TlsOptions;
pub use cluster::truth::{Epoch, Truth, TruthEntry};
pub use differences::{DIFFERENCES, Difference};
pub use server::{ApiServer, ApiServerError, HistoryEntry, Serving};
pub use store::HistoryLimits;
pub use values::versions::Versions;
