//! The journal in one SQLite file. The format is described in [`schema`].

mod fault;
mod files;
mod migrate;
mod open;
mod schema;
mod scribe;
mod statements;
mod writer;

pub(super) use open::{Store, discard, open_to_read};
