//! Classifies the errors of SQLite: the caller retries, or the process stops.

use kubewitness_core::ports::JournalError;

use crate::report::{DOUBTFUL, RESTORE};

const BUSY: i64 = 5;
const LOCKED: i64 = 6;
const NO_MEMORY: i64 = 7;
const READ_ONLY: i64 = 8;
const INTERRUPT: i64 = 9;
const IO: i64 = 10;
const CORRUPT: i64 = 11;
const FULL: i64 = 13;
const CANT_OPEN: i64 = 14;
const NOT_A_DATABASE: i64 = 26;

/// A write that the system refused, for example because of a quota: nothing was synced, and a rollback undoes
/// it.
const IO_WRITE: i64 = IO | 3 << 8;
/// No room for the shared memory file beside the WAL.
const IO_SHM_SIZE: i64 = IO | 19 << 8;
const IO_NO_MEMORY: i64 = IO | 12 << 8;
/// A read-only connection can't undo an interrupted transaction.
const READ_ONLY_ROLLBACK: i64 = READ_ONLY | 3 << 8;

/// The extended result code, if the error comes from SQLite itself.
pub(super) fn result_code(error: &sqlx::Error) -> Option<i64> {
    error.as_database_error()?.code()?.parse().ok()
}

pub(super) fn is_cut_off(error: &sqlx::Error) -> bool {
    result_code(error) == Some(READ_ONLY_ROLLBACK)
}

pub(crate) fn classify_error(error: sqlx::Error) -> JournalError {
    match (result_code(&error), error) {
        (Some(code), error) => by_code(code, &error),
        (None, error @ (sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed)) => {
            JournalError::Unavailable(error.to_string())
        }
        // A connection that is being opened reports no code for it.
        (None, sqlx::Error::Io(error)) if error.kind() == std::io::ErrorKind::OutOfMemory => {
            JournalError::Unavailable("SQLite has no memory left".into())
        }
        // A worker died, or a row has another format.
        (None, error) => JournalError::Fatal(format!("{error}: {DOUBTFUL}")),
    }
}

/// Classifies an error of a rusqlite connection.
pub(super) fn classify_direct(error: &rusqlite::Error) -> JournalError {
    match error.sqlite_error() {
        Some(failure) => by_code(i64::from(failure.extended_code), error),
        None => JournalError::Fatal(format!("{error}: {DOUBTFUL}")),
    }
}

fn by_code(code: i64, error: &dyn std::fmt::Display) -> JournalError {
    let later = || JournalError::Unavailable(error.to_string());
    match (code, code & 0xFF) {
        (IO_WRITE | IO_SHM_SIZE | IO_NO_MEMORY, _) => later(),
        (_, FULL) => JournalError::Unavailable(format!("the disk is full: {error}")),
        (_, READ_ONLY) => JournalError::Unavailable(format!(
            "{error}: this process's user has no right to write the file, its folder or the files beside it"
        )),
        (_, BUSY | LOCKED | NO_MEMORY | INTERRUPT | CANT_OPEN) => later(),
        (_, CORRUPT | NOT_A_DATABASE) => JournalError::Fatal(format!(
            "{error}: a page of the file differs from what was written: {RESTORE}"
        )),
        (_, IO) => JournalError::Fatal(format!(
            "{error}: the system could not sync or read the file, so the last write is in doubt; check the disk \
             and start again"
        )),
        _ => JournalError::Fatal(format!("{error}: {DOUBTFUL}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_fatal(code: i64) -> bool {
        matches!(by_code(code, &"told"), JournalError::Fatal(_))
    }

    #[test]
    fn a_full_disk_or_a_quota_passes_and_a_failed_sync_does_not() {
        for passes in [READ_ONLY, FULL, IO_WRITE, IO_SHM_SIZE, BUSY, BUSY | 2 << 8, LOCKED] {
            assert!(!is_fatal(passes), "{passes}");
        }
        let (fsync, dir_fsync, read, corrupt_index) =
            (IO | 4 << 8, IO | 5 << 8, IO | 1 << 8, CORRUPT | 3 << 8);
        for stays in [IO, fsync, dir_fsync, read, CORRUPT, corrupt_index, NOT_A_DATABASE, 19] {
            assert!(is_fatal(stays), "{stays}");
        }
    }
}
