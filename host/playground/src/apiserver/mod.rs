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

mod access;
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

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use access::auth::TokenUser;
pub use differences::{DIFFERENCES, Difference};
pub use objects::watch::Drop as WatchDrop;
pub use server::options::ApiServerOptions;
pub use server::tls::TlsOptions;
pub use server::truth::{Epoch, Truth, TruthEntry};
pub use server::{ApiServer, ApiServerError, HistoryEntry, Serving};
pub use store::HistoryLimits;
pub use values::versions::Versions;

use server::shared::Shared;

/// Takes a lock whose holders never leave half a change behind, so that a panic elsewhere is no reason to stop.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
