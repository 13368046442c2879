//! The journal in PostgreSQL, MySQL or MariaDB; [`schema`] describes the format.
//!
//! A server may lose its newest commits in a failover, keep a dead client's transaction alive, or hide behind
//! a pooler. So every write transaction compares who writes and what was committed, instead of trusting the
//! connection. `engine` is below `connect`, `connect` below `statements`, and `writer` and `open` use all of
//! them. It does not know what rows mean.

mod connect;
mod engine;
mod open;
mod schema;
mod statements;
mod writer;

pub use connect::replicas::ReplicaSharing;
pub(super) use connect::server::ServerAddress;
pub use connect::server::ServerAddressError;
pub(super) use open::{ServerStore, discard_unfinished_import, open_to_read};
