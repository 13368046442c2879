//! A key that a process generates once and keeps in a file that only its own user can read.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::{look, read};

pub const KEY_BYTES: usize = 32;
/// Only a damaged file is longer, so no more is read.
const MOST: u64 = 4096;
/// The permissions of others. The volume's group is left out because Kubernetes grants it rights of its own.
const OTHERS: u32 = 0o007;

/// The origin of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    Kept,
    Made,
    /// The file had other content, or was accessible to others.
    MadeAnew,
}

pub type OwnKey = ([u8; KEY_BYTES], KeyOrigin);

/// Reads the key in this file. If the file is missing, damaged or readable by others, `random` makes a new
/// key.
pub fn own_key(path: &Path, random: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<OwnKey> {
    let was_there = look(path)?.is_some();
    if let Some(key) = read_kept(path)? {
        return Ok((key, KeyOrigin::Kept));
    }
    let mut key = [0; KEY_BYTES];
    random(&mut key)?;
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            file.write_all(&key)?;
            file.sync_all()?;
            Ok((key, if was_there { KeyOrigin::MadeAnew } else { KeyOrigin::Made }))
        }
        // Another process was faster; its key is in the file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let key = read_kept(path)?;
            key.map(|key| (key, KeyOrigin::Kept))
                .ok_or_else(|| io::Error::other("another process is writing the key"))
        }
        Err(error) => Err(error),
    }
}

fn read_kept(path: &Path) -> io::Result<Option<[u8; KEY_BYTES]>> {
    let Some(file) = look(path)? else { return Ok(None) };
    let key: Option<_> = read(path, MOST)?.try_into().ok();
    if key.is_none() || file.permissions().mode() & OTHERS != 0 {
        std::fs::remove_file(path)?;
        return Ok(None);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(byte: u8) -> impl FnOnce(&mut [u8]) -> io::Result<()> {
        move |key| {
            key.fill(byte);
            Ok(())
        }
    }

    #[test]
    fn a_key_is_made_once_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert_eq!(own_key(&path, random(1)).unwrap(), ([1; 32], KeyOrigin::Made));
        assert_eq!(own_key(&path, random(2)).unwrap(), ([1; 32], KeyOrigin::Kept));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_key_that_is_damaged_or_open_to_others_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "short").unwrap();
        assert_eq!(own_key(&path, random(1)).unwrap(), ([1; 32], KeyOrigin::MadeAnew));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert_eq!(own_key(&path, random(2)).unwrap(), ([2; 32], KeyOrigin::MadeAnew));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(own_key(&path, random(3)).is_err());
    }
}
