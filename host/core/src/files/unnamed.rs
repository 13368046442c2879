//! A file without a name: nobody else can open it, and it disappears when its last handle is closed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many leftover names are tolerated. A process that is killed while it makes such a file leaves one.
const TRIES: u32 = 100;

/// The file has a name for a moment. Meanwhile only its owner may open it.
pub fn open_unnamed_file(folder: &Path) -> io::Result<File> {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let mut tries = 0;
    loop {
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("unnamed.{}-{turn}.tmp", process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn a_file_without_a_name_is_in_no_folder_and_what_was_left_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        for turn in 0..20 {
            fs::write(folder.path().join(format!("unnamed.{}-{turn}.tmp", process::id())), b"left").unwrap();
        }
        let mut file = open_unnamed_file(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 20);
        file.write_all(b"text").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert!(open_unnamed_file(&folder.path().join("gone")).is_err());
    }
}
