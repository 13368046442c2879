//! The journal in PostgreSQL, MySQL or MariaDB; [`schema`] describes the format. `engine` is below
//! `connect`, `connect` below `statements`, and `writer` and `open` use all of them. Knows nothing of
//! what rows mean.

mod connect;
mod engine;
mod open;
mod schema;
mod statements;
mod writer;

pub use connect::replicas::ReplicaSharing;
pub(super) use connect::server::ServerAddress;
pub(super) use open::{ServerStore, discard, open_to_read};
