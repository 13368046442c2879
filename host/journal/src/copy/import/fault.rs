//! The errors of an import, and what to do about each.

use kubewitness_core::ports::JournalError;
use thiserror::Error;

/// A line that can't be imported, and what to do about it.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("line {line}: {reason}; nothing after this line was taken in: {hint}")]
    Line { line: u64, reason: String, hint: &'static str },
    #[error("reading line {line}: {error}; {GO_ON}")]
    Read { line: u64, error: std::io::Error },
    #[error("line {line}: {error}; {GO_ON}")]
    Journal { line: u64, error: JournalError },
    #[error(
        "this journal has {0} states already, and no unfinished import: import into an empty data folder or database"
    )]
    NotEmpty(u64),
}

const GO_ON: &str = "once you have repaired that, run `journal import` with the same file and --continue";
pub(super) const AGAIN: &str = "go on with --continue and an unchanged copy of the file; or throw the import away \
                     with `journal import --discard`, export again, and begin anew";
pub(super) const DOCUMENTS: &str = "export with --documents, and begin again";
pub(super) const OTHER: &str = "name a file that `kubewitness journal export` wrote";
pub(super) const SAME: &str = "go on with the file that the import began with, or throw the import away with \
                    `journal import --discard`";
