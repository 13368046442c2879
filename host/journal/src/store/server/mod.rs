//! The journal in PostgreSQL, MySQL or MariaDB. The format is described in [`schema`].

mod connect;
mod engine;
mod open;
mod schema;
mod statements;
mod writer;

pub use connect::replicas::Sharing;
pub(super) use connect::server::Server;
pub(super) use open::{Store, discard, open_to_read};
