//! Compiled plugins, kept beside the build. A controller keeps compiled code in its data folder, and a test begins
//! with an empty one: each start would compile its plugins again, for seconds of processor time in a debug build. So a
//! new data folder gets links to all code that earlier runs compiled, and the key that authenticates it, as after a
//! restart. When a run ends, what it compiled is copied here.
//!
//! The controller believes this code only as it believes its own: the key is random, this user alone can read it, and
//! each file carries an authentication code for its component and its engine. A file that another build of the
//! controller wrote is refused, compiled again and replaced here.
//!
//! A file's time is when a controller last loaded it, since that marks what the link leads to. The oldest go first.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use ring::rand::{SecureRandom, SystemRandom};

use super::binaries::compiled_folder;

/// Names that the program gives: see `host/sandbox/src/compile/cache.rs`, and `host/src/commands/plugin/subject.rs` for that
/// of an author's folder.
const CACHE: &str = "cache";
const CACHE_OF_AUTHORS: &str = ".kubewitness";
const KEY: &str = "key";
const CODE: &str = "cwasm";
const KEY_BYTES: usize = 32;
/// A file begins with five bytes for its format and the authentication code of all others. Files with the same
/// beginning hold the same code.
const BEGINNING: usize = 5 + 32;
/// The most files that are kept: those that the tests use are about 80. What a build replaced stays until
/// there are more than this.
const MOST_FILES: usize = 256;
/// Half of what a controller keeps of code that it does not use, so that it removes no link.
const MOST_BYTES: u64 = 512 << 20;
/// A copy takes less than this. What is older was left by a run that was killed.
const COPIED_WITHIN: Duration = Duration::from_secs(600);
const UNFINISHED: &str = "tmp";

/// The marker of a playground's data folder, which may hold something before its first start only under this file.
const PLAYGROUND: &str = ".kubewitness-playground";

/// Gives a new data folder all code that was compiled before. A folder that has compiled code is left alone.
pub fn seed(data: &Path) -> Result<()> {
    // Tests of a data folder that can't be used name a file.
    if data.as_os_str().is_empty() || data.is_file() {
        return Ok(());
    }
    CompiledStore::beside_the_build()?.seed(&data.join(CACHE))
}

/// The same for the folder of a plugin's author.
pub fn seed_author(folder: &Path) -> Result<()> {
    CompiledStore::beside_the_build()?.seed(&folder.join(CACHE_OF_AUTHORS))
}

/// The same for the data folder of a playground.
pub fn seed_playground(data: &Path) -> Result<()> {
    fs::create_dir_all(data).with_context(|| format!("making {}", data.display()))?;
    let marker = data.join(PLAYGROUND);
    let marked = File::options().create(true).append(true).open(&marker);
    marked.with_context(|| format!("making {}", marker.display()))?;
    seed(data)
}

/// Keeps what was compiled in a data folder that was [seeded](seed).
pub fn harvest(data: &Path) -> Result<()> {
    CompiledStore::beside_the_build()?.harvest(&data.join(CACHE))
}

/// The same for the folder of a plugin's author.
pub fn harvest_author(folder: &Path) -> Result<()> {
    CompiledStore::beside_the_build()?.harvest(&folder.join(CACHE_OF_AUTHORS))
}

struct CompiledStore {
    folder: PathBuf,
    key: Vec<u8>,
}

impl CompiledStore {
    fn beside_the_build() -> Result<Self> {
        Self::open(&compiled_folder()?)
    }

    fn open(folder: &Path) -> Result<Self> {
        private_folders(folder).with_context(|| format!("making {}", folder.display()))?;
        // Links lead to it from other folders.
        let folder = folder.canonicalize().with_context(|| format!("finding {}", folder.display()))?;
        let path = folder.join(KEY);
        let key = match fs::read(&path) {
            Ok(key) => key,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_key(&folder, &path)?,
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        Ok(Self { folder, key })
    }

    fn seed(&self, cache: &Path) -> Result<()> {
        if let Some(folder) = cache.parent() {
            private_folders(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        match DirBuilder::new().mode(0o700).create(cache) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            made => made.with_context(|| format!("making {}", cache.display()))?,
        }
        write_privately(&cache.join(KEY), &self.key).context("the key of compiled code")?;
        for file in code_files(&self.folder)? {
            let link = cache.join(file.path.file_name().context("code without a name")?);
            symlink(&file.path, &link).with_context(|| format!("making {}", link.display()))?;
        }
        Ok(())
    }

    fn harvest(&self, cache: &Path) -> Result<()> {
        // One that was not seeded, or whose key a test replaced, has code that this key does not prove.
        if fs::read(cache.join(KEY)).ok().as_ref() != Some(&self.key) {
            return Ok(());
        }
        let mut has_more = false;
        for file in code_files(cache)?.into_iter().filter(|file| !file.is_link) {
            let kept = self.folder.join(file.path.file_name().context("code without a name")?);
            let new = beginning(&file.path);
            // A controller that runs may have removed it meanwhile.
            if new.is_none() || new == beginning(&kept) {
                continue;
            }
            self.copy(&file.path, &kept).with_context(|| format!("keeping {}", kept.display()))?;
            has_more = true;
        }
        if has_more { self.trim() } else { Ok(()) }
    }

    /// Others may copy the same file at the same time: the last one wins.
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        static TURN: AtomicU32 = AtomicU32::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(format!("{}-{turn}.{UNFINISHED}", std::process::id()));
        match fs::copy(from, &unfinished) {
            Ok(_) => fs::rename(&unfinished, to),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes what is beyond the bounds, and what killed runs left.
    fn trim(&self) -> Result<()> {
        let now = SystemTime::now();
        let is_left = |file: &StoredFile| now.duration_since(file.used).is_ok_and(|age| age > COPIED_WITHIN);
        let left = files(&self.folder, UNFINISHED)?.into_iter().filter(is_left);
        for file in surplus(code_files(&self.folder)?).into_iter().chain(left) {
            unless_gone(fs::remove_file(&file.path))
                .with_context(|| format!("removing {}", file.path.display()))?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct StoredFile {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
    is_link: bool,
}

fn code_files(folder: &Path) -> Result<Vec<StoredFile>> {
    files(folder, CODE)
}

/// A file that another process removes meanwhile is left out.
fn files(folder: &Path, ending: &str) -> Result<Vec<StoredFile>> {
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|is| is != ending) {
            continue;
        }
        if let Ok(metadata) = path.symlink_metadata() {
            let (used, bytes, is_link) = (metadata.modified()?, metadata.len(), metadata.is_symlink());
            files.push(StoredFile { path, used, bytes, is_link });
        }
    }
    Ok(files)
}

/// The files that were used last stay.
fn surplus(mut files: Vec<StoredFile>) -> Vec<StoredFile> {
    files.sort_by_key(|file| std::cmp::Reverse(file.used));
    let (mut count, mut bytes) = (0, 0);
    let is_surplus = |file: &StoredFile| {
        (count, bytes) = (count + 1, bytes + file.bytes);
        count > MOST_FILES || bytes > MOST_BYTES
    };
    files.into_iter().filter(is_surplus).collect()
}

/// `None` where there is no such file, or where it is too short to be code.
fn beginning(path: &Path) -> Option<[u8; BEGINNING]> {
    let mut bytes = [0; BEGINNING];
    File::open(path).ok()?.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Several processes may do this at once. The first one's key is taken by all.
fn make_key(folder: &Path, path: &Path) -> Result<Vec<u8>> {
    let mut key = vec![0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| anyhow::anyhow!("the system has no random bytes"))?;
    let unfinished = folder.join(format!("{KEY}-{}.{UNFINISHED}", std::process::id()));
    unless_gone(fs::remove_file(&unfinished))?;
    write_privately(&unfinished, &key).context("the key of compiled code")?;
    match fs::hard_link(&unfinished, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        linked => linked.with_context(|| format!("making {}", path.display()))?,
    }
    unless_gone(fs::remove_file(&unfinished))?;
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn private_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn write_privately(path: &Path, bytes: &[u8]) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(byte: u8) -> Vec<u8> {
        vec![byte; 2 * BEGINNING]
    }

    fn store(folder: &Path) -> CompiledStore {
        CompiledStore::open(&folder.join("compiled")).expect("a store")
    }

    #[test]
    fn what_one_run_compiled_the_next_one_finds_and_what_was_compiled_anew_replaces_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = |name: &str| folder.path().join(name);
        store(folder.path()).seed(&data("one").join(CACHE)).expect("seeds");
        let of = |name: &str| data(name).join(CACHE).join("00.cwasm");
        fs::write(of("one"), code(1)).expect("compiles");
        store(folder.path()).harvest(&data("one").join(CACHE)).expect("harvests");
        store(folder.path()).seed(&data("two").join(CACHE)).expect("seeds");
        assert_eq!(fs::read(of("two")).expect("is there"), code(1));
        assert_eq!(
            fs::read(data("two").join("cache/key")).expect("a key"),
            fs::read(folder.path().join("compiled/key")).expect("a key")
        );
        // As a controller of another build does: it gives the name to a new file.
        fs::write(data("two").join("new"), code(2)).expect("compiles");
        fs::rename(data("two").join("new"), of("two")).expect("takes its place");
        store(folder.path()).harvest(&data("two").join(CACHE)).expect("harvests");
        let kept = folder.path().join("compiled/00.cwasm");
        assert_eq!(fs::read(kept).expect("is kept"), code(2));
        assert_eq!(fs::read(of("one")).expect("is its own"), code(1));
    }

    #[test]
    fn a_folder_that_has_code_or_another_key_is_left_alone_and_gives_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("data/cache");
        fs::create_dir_all(&cache).expect("a cache");
        fs::write(cache.join(KEY), [7; KEY_BYTES]).expect("its own key");
        fs::write(cache.join("00.cwasm"), code(1)).expect("its own code");
        let store = store(folder.path());
        store.seed(&cache).expect("does nothing");
        store.harvest(&cache).expect("does nothing");
        assert_eq!(fs::read(cache.join(KEY)).expect("its key"), [7; KEY_BYTES]);
        assert!(code_files(&store.folder).expect("is read").is_empty());
    }

    #[test]
    fn the_code_that_was_used_last_stays_within_the_bounds() {
        let file = |age: u64, bytes| StoredFile {
            path: age.to_string().into(),
            used: SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 20) - Duration::from_secs(age),
            bytes,
            is_link: false,
        };
        let names = |files| surplus(files).into_iter().map(|file| file.path).collect::<Vec<_>>();
        assert_eq!(
            names(vec![file(3, MOST_BYTES / 2), file(1, MOST_BYTES / 2), file(2, 1)]),
            [Path::new("3")]
        );
        let many = (0..MOST_FILES as u64 + 2).map(|age| file(age, 1)).collect();
        assert_eq!(names(many).len(), 2);
    }
}
