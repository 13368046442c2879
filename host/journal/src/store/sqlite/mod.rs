//! The journal in one SQLite file; [`schema`] describes the format. sqlx reads on its own threads, and
//! rusqlite writes on a thread that may block. Knows nothing of what rows mean.

mod fault;
mod files;
mod migrate;
mod open;
mod schema;
mod statements;
mod writer;
mod writer_thread;

pub(super) use open::{Store, discard, open_to_read};
