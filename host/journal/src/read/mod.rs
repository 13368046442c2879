//! Makes states, documents and timelines of rows. Writes nothing, and knows no SQL: it reads through
//! the traits of `store`.

pub(crate) mod documents;
mod ids;
mod names;
mod reader;
mod story;
mod warm;

pub use ids::{Known, ids_at};
pub(crate) use names::Names;
pub(crate) use reader::Reader;
