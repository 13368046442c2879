//! Proves the promises against real API servers. `cargo xtask real` builds the servers and starts this.
//!
//! [`survives_faults`] lets faults happen while Jobs change, and [`PEERS`] says what others miss meanwhile.
//! [`record_histories`] brings Jobs to each kind of end on such servers, and records them as labelled tests. [`play`] shows
//! them in the portal.
//!
//! [`access_holds`] runs the controller as it is shipped, and compares what it may and shows with the API server's own word.
//!
//! The oracle of the promises is etcd: its own history of the keys, read by its own API. Nothing of the controller is used to say what is
//! true, only its command line, its API and the tables of a plugin to say what it witnessed.

mod access;
mod cluster;
mod leftovers;
mod page;
mod peers;
mod promise;
mod record;

pub use access::{AccessReport, access_holds};
pub use cluster::ServerPrograms;
pub use leftovers::LeftoverGuard;
pub use page::{PeerRuns, write_page};
pub use peers::{PEERS, run_peer};
pub use promise::plans::{NO_FAULT, named};
pub use promise::{DATA, PromiseReport, TrialOptions, known_failures, survives_faults};
pub use record::{PlayOptions, needed_operators, play, record_histories};
