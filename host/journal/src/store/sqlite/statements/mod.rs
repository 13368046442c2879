//! The statements that the file is given. What they mean is decided above.

mod backlog;
pub(super) mod fetch;
mod findings;
pub(super) mod lookup;
mod past;
mod proof;
mod query;
mod read;
pub(super) mod remove;
pub(super) mod seals;
pub(super) mod write;
