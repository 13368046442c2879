//! The statements of the journal. They know tables and columns, but no files, no locks, and not what rows
//! mean.
//!
//! A limit that is bound is written `+?` where a statement runs often. SQLite looks at the value of a bare one, and plans
//! the statement anew whenever another is bound.

mod backlog;
pub(super) mod checksums;
pub(super) mod fetch;
mod findings;
pub(super) mod lookup;
mod past;
mod proof;
mod query;
mod read;
pub(super) mod remove;
pub(super) mod write;

#[cfg(test)]
pub(super) use read::CHAIN;
