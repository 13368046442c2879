//! Why an import ends before the end of its file, and what to do then.

use kubewitness_core::ports::JournalError;
use thiserror::Error;

/// A line that cannot be taken in, and what to do.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("line {line}: {reason}; nothing behind it was taken in: {hint}")]
    Line { line: u64, reason: String, hint: &'static str },
    #[error("reading line {line}: {error}; {GO_ON}")]
    Read { line: u64, error: std::io::Error },
    #[error("line {line}: {error}; {GO_ON}")]
    Journal { line: u64, error: JournalError },
    #[error(
        "there are {0} states in this journal already, and no import that has yet to come to its end: import into an \
         empty data folder or database"
    )]
    NotEmpty(u64),
}

const GO_ON: &str = "once that is mended, `journal import` of the same file with --continue goes on";
pub(super) const AGAIN: &str = "go on with --continue and an unchanged copy of the file, or throw away what was taken in with \
                     `journal import --discard`, export again, and begin anew";
pub(super) const DOCUMENTS: &str = "export with --documents, and begin again";
pub(super) const OTHER: &str = "name a file that `kubewitness journal export` wrote";
pub(super) const SAME: &str = "go on with the very file that the import began with, or throw away what was taken in with \
                    `journal import --discard`";
