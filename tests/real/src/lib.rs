//! Proves the promises against real API servers. `cargo xtask real` builds the servers and starts this.
//!
//! [`record_histories`] brings Jobs to each kind of end on such servers, and records them as labelled tests.
//!
//! The oracle is etcd: its own history of the keys, read by its own API. Nothing of the controller is used to say what is
//! true, only its command line and the tables of a plugin to say what it witnessed.

mod cluster;
mod etcd;
mod history;
mod promise;
mod record;
mod workload;

pub use cluster::ServerPrograms;
pub use promise::{PromiseReport, survives_kills};
pub use record::record_histories;
