//! The files of one journal: their names and sizes, and the check that each is a regular file or missing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kubewitness_core::files;

use crate::report::OpenError;

pub(super) fn path_with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Identifies the file behind a name as SQLite does; `None` if no file has the name. The file is not opened:
/// closing it would release all locks that SQLite holds on it.
pub(super) fn file_id(path: &Path) -> std::io::Result<Option<u64>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(found.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn wal_bytes(path: &Path) -> u64 {
    file_bytes(&path_with_suffix(path, "-wal"))
}

/// The bytes of the file and of its WAL.
pub(super) fn file_and_wal_bytes(path: &Path) -> (u64, u64) {
    (file_bytes(path), wal_bytes(path))
}

pub(super) fn unavailable_error(path: &Path, reason: impl std::fmt::Display) -> OpenError {
    OpenError::Unavailable { path: path.to_path_buf(), reason: reason.to_string() }
}

/// Checks that every file that SQLite would open under these names is regular or missing, on a disk that
/// answers.
pub(super) async fn expect_files(path: &Path) -> Result<(), OpenError> {
    for suffix in ["", ".lock", "-wal", "-shm", "-journal"] {
        let name = path_with_suffix(path, suffix);
        let asked = name.clone();
        let looked = files::run_within_limit(&name, files::ANSWER, move || files::look(&asked)).await;
        looked.map_err(|error| unavailable_error(&name, error))?;
    }
    Ok(())
}
