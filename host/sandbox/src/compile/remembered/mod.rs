//! Keeps facts about components for the next process, in a file next to the compiled code.
//!
//! Compilation can fail after minutes, or take so much memory that the container is killed. The next process
//! would try the same again, and so on for ever. So refusals and unfinished compilations are written down,
//! and the next process reads them first.
//!
//! The file is valid only for the same version of this program, since another version may succeed. It needs
//! no authentication: somebody who can write it can only keep a plugin from running.

mod marks;
mod refusals;

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use kubewitness_core::files;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use marks::{DEATHS, UseMarks};
pub use refusals::CompileRefusals;

/// How many entries of each sort are kept; the oldest is forgotten first.
const KEPT: usize = 64;
/// The size of all entries at their limits. A larger file was not written here.
const FILE_BYTES: u64 = 1 << 20;

/// A file of entries, the newest last.
struct EntryFile<T> {
    file: Option<PathBuf>,
    /// The version of this program and its engine, on which the result for a component depends.
    program: String,
    /// The consequence if the file can't be read or written, for the log.
    otherwise: &'static str,
    of: PhantomData<fn() -> T>,
}

#[derive(Deserialize, Serialize)]
struct FileContents<T> {
    program: String,
    #[serde(alias = "refusals", alias = "marks")]
    entries: VecDeque<T>,
}

impl<T: DeserializeOwned + Serialize> EntryFile<T> {
    /// The file and its entries. Without a file, the entries end with this process.
    fn open(file: Option<PathBuf>, program: String, otherwise: &'static str) -> (Self, VecDeque<T>) {
        let read = file.as_deref().map(read).transpose();
        let found = read.unwrap_or_else(|error| {
            tracing::warn!(file = ?file, %error, "{otherwise}");
            None
        });
        let same = found.flatten().filter(|found: &FileContents<T>| found.program == program);
        let mut entries = same.map(|same| same.entries).unwrap_or_default();
        entries.truncate(KEPT);
        (Self { file, program, otherwise, of: PhantomData }, entries)
    }

    /// They are durable once this returns.
    fn write(&self, entries: VecDeque<T>) {
        let Some(path) = &self.file else { return };
        let contents = FileContents { program: self.program.clone(), entries };
        let written = serde_json::to_vec(&contents)
            .map_err(io::Error::from)
            .and_then(|text| files::replace_file_atomically(path, &text, 0o600));
        if let Err(error) = written {
            tracing::warn!(file = %path.display(), %error, "{}", self.otherwise);
        }
    }
}

/// Makes room for one more.
fn make_room<T>(entries: &mut VecDeque<T>) {
    if entries.len() == KEPT {
        entries.pop_front();
    }
}

/// `None` if nothing was written yet.
fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<FileContents<T>>> {
    match files::read(path, FILE_BYTES) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
