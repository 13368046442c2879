//! A journal as lines of JSON: out of one journal, and into an empty one.

pub(crate) mod export;
mod import;

pub use export::{ExportError, ExportQuery, Exported};
pub use import::ImportError;
