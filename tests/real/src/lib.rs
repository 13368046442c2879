//! Proves the promises against real API servers. `cargo xtask real` builds the servers and starts this.
//!
//! [`survives_faults`] lets faults happen while Jobs change, and [`PEERS`] says what others miss meanwhile.
//! [`record_histories`] brings Jobs to each kind of end on such servers, and records them as labelled tests.
//!
//! The oracle is etcd: its own history of the keys, read by its own API. Nothing of the controller is used to say what is
//! true, only its command line, its API and the tables of a plugin to say what it witnessed.

mod cluster;
mod page;
mod peers;
mod promise;
mod record;

pub use cluster::ServerPrograms;
pub use page::{PeerRuns, write_page};
pub use peers::{PEERS, run_peer};
pub use promise::plans::{NO_FAULT, named};
pub use promise::{PromiseReport, TrialOptions, known_failures, survives_faults};
pub use record::record_histories;
