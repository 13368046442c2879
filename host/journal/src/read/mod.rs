//! What rows mean to those who read them: states, documents, stories. No SQL.

pub(crate) mod documents;
mod ids;
mod names;
mod reader;
mod story;
mod warm;

pub use ids::{Known, ids_at};
pub(crate) use names::Names;
pub(crate) use reader::Reader;
