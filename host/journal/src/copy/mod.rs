//! A journal as lines of JSON: `export` writes them, `import` reads them into an empty journal.
//!
//! Copying a store's files would tie a copy to one store and one format. So both go through the interface
//! that every other caller uses, and know no SQL: an export of SQLite can be imported into PostgreSQL, and
//! every line is checked.

mod export;
mod format;
mod import;

pub use export::{ExportError, ExportQuery, export_journal, export_with, read_states};
pub use format::CopyCounts;
pub use import::ImportError;
