//! Locks a file for one process.

use std::fs::{File, TryLockError};
use std::io;

/// The lock on a file. It ends when this is dropped, and with the process, however that ends.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks the file, or fails at once if somebody else has locked it.
    pub fn try_lock(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }

    /// Unlocks the file before this is dropped, for callers that must know that it was unlocked.
    pub fn release(&self) -> io::Result<()> {
        self.0.unlock()
    }
}

impl Drop for FileLock {
    /// Unlocks explicitly. Closing the file is not enough: a child process that is just starting inherits the
    /// open file, and would keep it locked until its program begins.
    fn drop(&mut self) {
        // If it fails, closing the file unlocks it.
        drop(self.release());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_process_that_is_just_starting_keeps_no_file_locked() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::create(folder.path().join("lock")).unwrap();
        let lock = FileLock::try_lock(open()).unwrap();
        assert!(matches!(FileLock::try_lock(open()), Err(TryLockError::WouldBlock)));
        let inherited = lock.0.try_clone().unwrap();
        drop(lock);
        FileLock::try_lock(open()).unwrap();
        drop(inherited);
    }
}
