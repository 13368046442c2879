//! Removes compiled code that nobody needs any more: of replaced versions, and of builds before an upgrade.
//!
//! A file's modification time is when its code was last needed. Code that this process holds is always kept.
//! Other processes may share the folder, and their code is unknown here, so recently needed code is kept,
//! too. If a needed file is removed all the same, its component is compiled again at the next start.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// The extension of a file of code.
pub const CODE_EXTENSION: &str = "cwasm";
/// Longer than a release is compared, rolled back or taken up again.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// The size of all code that this process does not hold: a few large components, or hundreds of small ones.
const UNUSED_BYTES: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
struct UnusedFile {
    path: PathBuf,
    needed: SystemTime,
    bytes: u64,
}

/// Records that the code was needed now.
pub fn mark_used(path: &Path) -> io::Result<()> {
    fs::File::options().write(true).open(path)?.set_modified(SystemTime::now())
}

/// `is_held` says whether this process holds the code of the component with this digest.
pub fn remove(folder: &Path, is_held: impl Fn(&str) -> bool) -> io::Result<()> {
    let mut others = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != CODE_EXTENSION) {
            continue;
        }
        if path.file_stem().and_then(|digest| digest.to_str()).is_some_and(&is_held) {
            unless_gone(mark_used(&path))?;
            continue;
        }
        match fs::metadata(&path).and_then(|it| Ok((it.modified()?, it.len()))) {
            Ok((needed, bytes)) => others.push(UnusedFile { path, needed, bytes }),
            Err(error) => unless_gone(Err(error))?,
        }
    }
    for path in surplus_files(others, SystemTime::now()) {
        unless_gone(fs::remove_file(&path))?;
        tracing::debug!(path = %path.display(), "compiled code that nobody needed is removed");
    }
    Ok(())
}

/// Another process may have removed the same file.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The most recently needed files are kept first.
fn surplus_files(mut files: Vec<UnusedFile>, now: SystemTime) -> Vec<PathBuf> {
    files.sort_by_key(|file| std::cmp::Reverse(file.needed));
    let mut bytes = 0u64;
    let is_surplus = |file: &UnusedFile| {
        bytes = bytes.saturating_add(file.bytes);
        bytes > UNUSED_BYTES || now.duration_since(file.needed).is_ok_and(|age| age > KEPT_FOR)
    };
    files.into_iter().filter(is_surplus).map(|file| file.path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 100 * KEPT_FOR
    }

    fn file(name: &str, age: Duration, bytes: u64) -> UnusedFile {
        UnusedFile { path: name.into(), needed: now() - age, bytes }
    }

    #[test]
    fn what_was_not_needed_for_long_goes_and_so_does_what_is_beyond_the_bytes() {
        let day = Duration::from_secs(24 * 3600);
        let files = vec![
            file("old", KEPT_FOR + day, 1),
            file("recent", KEPT_FOR - day, 1),
            // A clock that was set back.
            UnusedFile { needed: now() + day, ..file("future", day, 1) },
        ];
        assert_eq!(surplus_files(files, now()), [PathBuf::from("old")]);
        let large = UNUSED_BYTES / 2;
        let files =
            vec![file("third", 3 * day, large), file("first", day, large), file("second", 2 * day, large)];
        assert_eq!(surplus_files(files, now()), [PathBuf::from("third")]);
    }

    #[test]
    fn code_that_is_held_is_kept_whatever_its_age_and_nothing_else_of_the_folder_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        let long_ago = SystemTime::now() - 2 * KEPT_FOR;
        for name in ["held.cwasm", "left.cwasm", "fresh.cwasm", "key", "left.1-0.tmp"] {
            fs::write(of(name), name).unwrap();
            if name != "fresh.cwasm" {
                fs::File::options().write(true).open(of(name)).unwrap().set_modified(long_ago).unwrap();
            }
        }
        remove(folder.path(), |digest| digest == "held").unwrap();
        let is_there = |name: &str| of(name).exists();
        assert!(
            is_there("held.cwasm") && is_there("fresh.cwasm") && is_there("key") && is_there("left.1-0.tmp")
        );
        assert!(!is_there("left.cwasm"));
        remove(folder.path(), |_| false).unwrap();
        assert!(is_there("held.cwasm"), "it counts as needed from when it was held");
    }
}
