//! The statements of the journal, in texts that every server understands. They know tables and columns, but
//! no locks, no seats, and not what rows mean.

mod checksums;
mod fetch;
pub(super) mod lookup;
mod moments;
mod past;
mod read;
mod remove;
mod save;
mod saved;
mod story;
mod write;
