//! The closed files of a ledger in their folder, and the notes beside shipped ones. `trail-000001.jsonl` has
//! its note in `trail-000001.shipped`. Without a note, a file is shipped again and found in the bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use kubewitness_core::files;
use kubewitness_core::ledger::{closed_file, closed_number};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::bucket::FileContent;

/// Hundreds of years of daily files. `audit verify` takes as many.
const FILES: usize = 100_000;
const NOTE_BYTES: u64 = 4096;
const CHUNK: usize = 256 * 1024;

/// The note about a file that is in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShippedNote {
    /// The address of the bucket and the name in it.
    pub place: String,
    pub bytes: u64,
    pub sha256: String,
    pub shipped_ms: u64,
}

impl ShippedNote {
    pub fn path(open: &Path, number: u64) -> PathBuf {
        closed_file(open, number).with_extension("shipped")
    }

    /// `None` if it is missing or unreadable.
    pub fn read(open: &Path, number: u64) -> io::Result<Option<Self>> {
        let path = Self::path(open, number);
        if files::look(&path)?.is_none() {
            return Ok(None);
        }
        Ok(serde_json::from_slice(&files::read(&path, NOTE_BYTES)?).ok())
    }

    pub fn write(&self, open: &Path, number: u64) -> io::Result<()> {
        files::replace_file_atomically(&Self::path(open, number), &serde_json::to_vec(self)?, 0o600)
    }

    pub fn is_of(&self, content: &FileContent) -> bool {
        self.bytes == content.bytes && self.sha256 == hex::encode(content.sha256)
    }
}

/// The closed files of the folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClosedFiles {
    /// By number, when each file was shipped to the place.
    pub shipped: BTreeMap<u64, u64>,
    /// By number, when each of the other files was closed.
    pub waiting: BTreeMap<u64, u64>,
}

/// `known` are files whose notes need not be read again.
pub fn find_closed_files(
    open: &Path,
    place_of: impl Fn(u64) -> String,
    known: &BTreeMap<u64, u64>,
) -> io::Result<ClosedFiles> {
    let mut found = ClosedFiles::default();
    // Before the next file exists, the closed one may still be needed.
    if files::look(open)?.is_none() {
        return Ok(found);
    }
    for number in file_numbers(open)? {
        if let Some(shipped_ms) = known.get(&number) {
            found.shipped.insert(number, *shipped_ms);
            continue;
        }
        match ShippedNote::read(open, number)?.filter(|note| note.place == place_of(number)) {
            Some(note) => found.shipped.insert(number, note.shipped_ms),
            None => found.waiting.insert(number, changed_ms(&closed_file(open, number))?),
        };
    }
    Ok(found)
}

fn file_numbers(open: &Path) -> io::Result<BTreeSet<u64>> {
    let folder = open.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        if let Some(number) = closed_number(open, &folder.join(entry?.file_name())) {
            numbers.insert(number);
        }
        if numbers.len() > FILES {
            let message = format!("{} has more than {FILES} closed files: move some away", folder.display());
            return Err(io::Error::other(message));
        }
    }
    Ok(numbers)
}

fn changed_ms(path: &Path) -> io::Result<u64> {
    let Some(found) = files::look(path)? else { return Ok(0) };
    let since = found.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

pub fn open(path: &Path) -> io::Result<File> {
    files::open(path, OpenOptions::new().read(true))
}

/// Measures and hashes the first `most` bytes of a file.
pub fn file_content(path: &Path, most: u64) -> io::Result<FileContent> {
    let (mut file, mut context, mut bytes) = (open(path)?.take(most), Context::new(&SHA256), 0);
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            let sha256 = context.finish().as_ref().try_into().map_err(io::Error::other)?;
            return Ok(FileContent { bytes, sha256 });
        }
        context.update(&chunk[..read]);
        bytes += read as u64;
    }
}

/// The note is removed first: a file without one is examined again.
pub fn remove(open: &Path, number: u64) -> io::Result<()> {
    let closed = closed_file(open, number);
    std::fs::remove_file(ShippedNote::path(open, number))?;
    std::fs::remove_file(&closed)?;
    File::open(closed.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
        .sync_all()
}
