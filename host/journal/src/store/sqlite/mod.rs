//! The journal in one SQLite file; [`schema`] describes the format.
//!
//! One process writes, so a commit is visible at once and no lock has to be negotiated. sqlx reads on its own
//! threads. rusqlite writes, and reads blocks of states, on threads that may block: a transaction over sqlx
//! would switch threads for each statement. Before each transaction the writer checks that the file is still
//! the one that it opened. It does not know what rows mean.

mod block_reader;
mod fault;
mod files;
mod migrate;
mod open;
mod schema;
mod statements;
mod writer;
mod writer_thread;

pub(super) use open::{SqliteStore, discard_unfinished_import, open_to_read};
