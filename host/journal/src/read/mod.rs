//! What rows mean to those who read them: states, documents, stories. No SQL.

pub(crate) mod documents;
mod names;
mod reader;
mod story;
mod warm;

pub(crate) use names::{Names, at};
pub(crate) use reader::Reader;
