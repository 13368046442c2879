//! The statements of the journal. They know tables and columns, but no files, no locks, and not what rows
//! mean.

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
