//! The journal in one SQLite file; [`schema`] describes the format. sqlx reads on its own threads; rusqlite
//! writes, and reads blocks of states, on threads that may block. Knows nothing of what rows mean.

mod block_reader;
mod fault;
mod files;
mod migrate;
mod open;
mod schema;
mod statements;
mod writer;
mod writer_thread;

pub(super) use open::{SqliteStore, discard, open_to_read};
