//! The names of people beside a ledger; `kubewitness_core::ledger::persons` describes the format. A name is
//! on disk before its digest is in a record.
//!
//! `kubewitness audit erase` overwrites a name in place, even while the controller runs. So the file is read
//! again after somebody else changed it: an erased name gets a new salt.

use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kubewitness_core::files;
use kubewitness_core::ledger::{PERSON_BYTES, PERSONS, PersonEntry, SALT_BYTES, persons_file};
use ring::rand::{SecureRandom, SystemRandom};

/// A known name is not looked up again within this time. Meanwhile records may get the digest of a name that
/// was just erased, which does no harm.
const KNOWN_FOR: Duration = Duration::from_secs(1);

pub struct PersonsFile {
    pub path: PathBuf,
    open: Mutex<Option<OpenPersons>>,
}

struct OpenPersons {
    file: File,
    /// Device, inode, length and time of change, as they were left.
    left: (u64, u64, u64, i64, i64),
    looked: Instant,
    /// Digests by names.
    known: HashMap<String, String>,
    lines: usize,
    is_full_told: bool,
}

impl PersonsFile {
    pub fn of(ledger: &Path) -> Self {
        Self { path: persons_file(ledger), open: Mutex::new(None) }
    }

    fn open(&self) -> MutexGuard<'_, Option<OpenPersons>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digest of a recently used name. It never waits.
    pub fn recent_digest(&self, name: &str) -> Option<String> {
        let slot = self.open.try_lock().ok()?;
        let open = slot.as_ref().filter(|open| open.looked.elapsed() < KNOWN_FOR)?;
        open.known.get(name).cloned()
    }

    /// The digest of a name. It is on disk when this returns.
    pub fn conceal_name(&self, name: &str) -> io::Result<String> {
        let mut slot = self.open();
        let open = match slot.take() {
            Some(open) if files::look(&self.path)?.as_ref().map(file_identity) == Some(open.left) => {
                OpenPersons { looked: Instant::now(), ..open }
            }
            _ => OpenPersons::read(&self.path)?,
        };
        // If anything below fails, the file is read again.
        let (open, digest) = open.conceal_name(name)?;
        *slot = Some(open);
        Ok(digest)
    }
}

fn file_identity(found: &Metadata) -> (u64, u64, u64, i64, i64) {
    (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec())
}

impl OpenPersons {
    fn read(path: &Path) -> io::Result<Self> {
        let file = files::open(path, OpenOptions::new().read(true).append(true).create(true).mode(0o600))?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        let (mut known, mut lines, mut whole) = (HashMap::new(), 0, 0);
        let mut reader = BufReader::new(&file);
        reader.seek(SeekFrom::Start(0))?;
        let mut line = Vec::new();
        while reader.by_ref().take(PERSON_BYTES as u64).read_until(b'\n', &mut line)? > 0 {
            // The last line can be torn: no record has its digest yet.
            if line.last() != Some(&b'\n') {
                break;
            }
            whole += line.len() as u64;
            lines += 1;
            if let Some(PersonEntry::Named { digest, name, .. }) = PersonEntry::parse(&line) {
                known.insert(name, digest);
            }
            line.clear();
        }
        let found = file.metadata()?;
        if found.len() - whole > PERSON_BYTES as u64 {
            let message =
                format!("{} holds a line that is too long: bring it back as it was", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if whole < found.len() {
            file.set_len(whole)?;
            file.sync_all()?;
        }
        let left = file_identity(&file.metadata()?);
        Ok(Self { file, left, looked: Instant::now(), known, lines, is_full_told: false })
    }

    fn conceal_name(mut self, name: &str) -> io::Result<(Self, String)> {
        if let Some(digest) = self.known.get(name) {
            let digest = digest.clone();
            return Ok((self, digest));
        }
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| io::Error::other("the machine has no randomness"))?;
        let person = PersonEntry::of_name(name, salt);
        let digest = person.digest().to_owned();
        // People who choose names must not be able to block the trail: beyond the limit, names are not
        // stored.
        if self.lines >= PERSONS {
            if !std::mem::replace(&mut self.is_full_told, true) {
                tracing::warn!("a ledger has {PERSONS} names of people: more are not kept beside it");
            }
            return Ok((self, digest));
        }
        self.file.write_all(&person.encode_line()?)?;
        self.file.sync_data()?;
        self.left = file_identity(&self.file.metadata()?);
        self.lines += 1;
        self.known.insert(name.to_owned(), digest.clone());
        Ok((self, digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, PersonsFile) {
        let folder = tempfile::tempdir().unwrap();
        let persons = PersonsFile::of(&folder.path().join("trail.jsonl"));
        (folder, persons)
    }

    fn lines(persons: &PersonsFile) -> Vec<String> {
        std::fs::read_to_string(&persons.path).unwrap().lines().map(str::to_owned).collect()
    }

    /// Simulates the next process of the controller, or the same one after a while.
    fn later(persons: &PersonsFile) -> PersonsFile {
        PersonsFile { path: persons.path.clone(), open: Mutex::new(None) }
    }

    #[test]
    fn a_name_has_one_digest_also_after_a_restart_and_other_ledgers_have_another() {
        let (_folder, persons) = folder();
        let (ada, bob) = (persons.conceal_name("ada").unwrap(), persons.conceal_name("bob").unwrap());
        assert_ne!(ada, bob);
        assert_eq!(
            (persons.conceal_name("ada").unwrap(), later(&persons).conceal_name("bob").unwrap()),
            (ada.clone(), bob)
        );
        assert_eq!(lines(&persons).len(), 2);
        let (_other, other) = self::folder();
        assert_ne!(other.conceal_name("ada").unwrap(), ada);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&persons.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_name_that_was_erased_gets_another_digest() {
        let (_folder, persons) = folder();
        let before = persons.conceal_name("ada").unwrap();
        let line = format!("{}\n", lines(&persons)[0]);
        let erased =
            PersonEntry::parse(line.as_bytes()).unwrap().encode_erased_line("now", line.len()).unwrap();
        let left = file_identity(&std::fs::metadata(&persons.path).unwrap());
        // Times of files are coarse.
        while file_identity(&std::fs::metadata(&persons.path).unwrap()) == left {
            std::fs::write(&persons.path, &erased).unwrap();
        }
        // An unknown name makes the controller read the file at once.
        persons.conceal_name("bob").unwrap();
        let after = persons.conceal_name("ada").unwrap();
        assert_ne!(after, before);
        assert_eq!(persons.recent_digest("ada"), Some(after));
        assert_eq!(lines(&persons).len(), 3);
    }

    #[test]
    fn a_line_that_a_crash_cut_off_is_cut_and_one_of_no_meaning_stays() {
        let (_folder, persons) = folder();
        let ada = persons.conceal_name("ada").unwrap();
        let mut file = OpenOptions::new().append(true).open(&persons.path).unwrap();
        file.write_all(b"what is this\n{\"digest\":\"ab").unwrap();
        let next = later(&persons);
        next.conceal_name("bob").unwrap();
        assert_eq!((lines(&persons).len(), next.conceal_name("ada").unwrap()), (3, ada));
        assert_eq!(lines(&persons)[1], "what is this");
    }

    #[test]
    fn names_over_the_bound_get_a_digest_and_are_not_kept() {
        let (_folder, persons) = folder();
        std::fs::write(&persons.path, "{}\n".repeat(PERSONS - 1)).unwrap();
        persons.conceal_name("the last").unwrap();
        let first = persons.conceal_name("one too many").unwrap();
        assert!(first.len() == 64 && first != persons.conceal_name("one too many").unwrap());
        assert_eq!(lines(&persons).len(), PERSONS);
    }
}
