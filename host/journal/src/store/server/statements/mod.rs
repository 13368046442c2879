//! The statements that a server is given. What they mean is decided above.

mod answers;
mod fetch;
pub(super) mod lookup;
mod past;
mod read;
mod remove;
mod save;
mod seals;
mod write;
