//! A journal as lines of JSON: `export` writes one, `import` reads one into an empty journal. Uses the
//! journal as every other caller does, and knows no SQL.

mod export;
mod format;
mod import;

pub use export::{ExportError, ExportQuery, export, export_with, read_states};
pub use format::CopyCounts;
pub use import::ImportError;
