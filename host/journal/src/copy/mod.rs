//! A journal as lines of JSON: out of one journal, and into an empty one.

mod export;
mod format;
mod import;

pub use export::{ExportError, ExportQuery, export};
pub use format::Exported;
pub use import::ImportError;
