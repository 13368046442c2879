//! Locks the data folder for one process. The lock ends with the process, however it ends.

use std::fs::{OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kubewitness_core::files::{self, FileLock};
use tracing::warn;

/// In the data folder. The file stays: only its lock means that a process works there.
const FOLDER_LOCK: &str = "lock";

/// Refuses a data folder in which another process works: caches, keys and ledgers have one writer. A journal
/// in a file has its own lock; replicas with a journal on a server need this one. A file system without locks
/// gives none, with a warning.
pub async fn lock_folder(data: &Path) -> Result<Option<FileLock>> {
    let path = data.join(FOLDER_LOCK);
    let locked = files::run_within_limit(data, files::ANSWER, move || {
        let mut options = OpenOptions::new();
        let file = files::open(&path, options.write(true).create(true).truncate(false).mode(0o600))?;
        Ok(FileLock::try_lock(file))
    });
    match locked.await.with_context(|| format!("locking {}", data.display()))? {
        Ok(lock) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "another process works in {}: give each replica a folder of its own (--data)",
                data.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            warn!(%error, "{} can't be locked: let no other process work in it", data.display());
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_processes_do_not_work_in_one_data_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock_folder(folder.path()).await.unwrap();
        let error = lock_folder(folder.path()).await.unwrap_err().to_string();
        assert!(error.contains("another process works in") && error.contains("--data"), "{error}");
        drop(first);
        lock_folder(folder.path()).await.unwrap();
    }
}
