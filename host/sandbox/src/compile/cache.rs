//! Compiled code on disk. Loading a file runs its code. So a file is trusted only if its authentication code,
//! made with a key of this folder, proves that this program wrote it for this component and this engine.
//! Everything else is recompiled. A plain checksum was rejected: whoever can write the file could write the
//! checksum, too.
//!
//! ```text
//! FOLDER/key              32 random bytes, readable by the owner alone
//! FOLDER/refusals.json    refused components: see `remembered`
//! FOLDER/compiling.json   components that are expensive to compile: see `remembered`
//! FOLDER/DIGEST.cwasm     "kwcw1" · HMAC-SHA256(key, digest · engine · code), 32 bytes · code
//! ```
//!
//! A cache that can't be read or written only costs time: it is reported and not fatal. [`unused`] removes
//! code that nobody needs.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use kubewitness_core::files;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::mapped::{PrivateCopy, deserialize_component};
use super::unused::{self, CODE_EXTENSION};

const MAGIC: &[u8; 5] = b"kwcw1";
const TAG: usize = 32;
const UNFINISHED: &str = ".tmp";

/// A compiled plugin has a few megabytes, and `limits.components.code` limits it. A larger file was not
/// written here.
const FILE_BYTES: u64 = 512 << 20;
/// How many bytes are checked at once.
const PIECE: usize = 64 << 10;

/// Why no code could be loaded.
#[derive(Debug, thiserror::Error)]
enum NotLoaded {
    #[error("can't be read: {0}")]
    Unread(#[from] io::Error),
    #[error("is not what was written")]
    Untrusted,
    #[error("doesn't load: {0:#}")]
    Unfit(wasmtime::Error),
}

pub struct CodeCache {
    folder: PathBuf,
    key: hmac::Key,
    /// The settings of the engine that the code depends on.
    engine: [u8; 8],
}

impl CodeCache {
    pub fn open(folder: &Path, engine: &Engine) -> io::Result<Self> {
        create_folder(folder)?;
        remove_unfinished(folder)?;
        let key = own_key(&folder.join("key"))?;
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        env!("CARGO_PKG_VERSION").hash(&mut hasher);
        Ok(Self {
            folder: folder.to_path_buf(),
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            engine: hasher.finish().to_le_bytes(),
        })
    }

    /// The version of this program, and everything of its engine that the code depends on.
    pub fn program_version(&self) -> String {
        hex::encode(self.engine)
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{digest}.{CODE_EXTENSION}"))
    }

    /// The authenticated message without its end, the code.
    fn start_message(&self, digest: &str) -> hmac::Context {
        let mut message = hmac::Context::with_key(&self.key);
        // Both have a fixed length, so two different messages never have the same bytes.
        message.update(digest.as_bytes());
        message.update(&self.engine);
        message
    }

    /// The compiled component, if a trusted one exists.
    pub fn load(&self, engine: &Engine, digest: &str) -> Option<Component> {
        let path = self.path(digest);
        match self.read(engine, digest, &path) {
            Ok(component) => {
                if let Err(error) = unused::mark_used(&path) {
                    tracing::warn!(path = %path.display(), %error, "compiled code can't be marked as needed");
                }
                Some(component)
            }
            Err(NotLoaded::Unread(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), "compiled code {error}: compiling again");
                None
            }
        }
    }

    fn read(&self, engine: &Engine, digest: &str, path: &Path) -> Result<Component, NotLoaded> {
        let mut file = files::open(path, fs::OpenOptions::new().read(true))?;
        let copied = PrivateCopy::begin_copy(&self.folder).and_then(|mut copy| {
            let is_trusted = self.verify_code(digest, &mut file, &mut copy)?;
            Ok((copy, is_trusted))
        });
        let loaded = match copied {
            Ok((_, false)) => return Err(NotLoaded::Untrusted),
            Ok((copy, true)) => copy.load(engine),
            Err(error) => {
                tracing::debug!(%error, "compiled code can't be copied: it is read into memory");
                let mut code = Vec::new();
                file.rewind()?;
                if !self.verify_code(digest, &mut file, &mut code)? {
                    return Err(NotLoaded::Untrusted);
                }
                deserialize_component(engine, &code)
            }
        };
        loaded.map_err(NotLoaded::Unfit)
    }

    /// Whether the code is unchanged since it was written. It is read in pieces, and `code` gets exactly the
    /// checked bytes.
    fn verify_code(&self, digest: &str, file: &mut fs::File, code: &mut impl Write) -> io::Result<bool> {
        let (mut magic, mut tag) = ([0; MAGIC.len()], [0; TAG]);
        let begins = file.read_exact(&mut magic).and_then(|()| file.read_exact(&mut tag));
        match begins {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            begins => begins?,
        }
        if magic != *MAGIC {
            return Ok(false);
        }
        let (mut message, mut piece, mut left) = (self.start_message(digest), vec![0; PIECE], FILE_BYTES);
        loop {
            let length = file.read(&mut piece)?;
            if length == 0 {
                break;
            }
            left = match left.checked_sub(length as u64) {
                Some(left) => left,
                None => return Ok(false),
            };
            message.update(&piece[..length]);
            code.write_all(&piece[..length])?;
        }
        let expected = message.sign();
        // A comparison in constant time.
        let differs = expected.as_ref().iter().zip(tag).fold(0, |all, (a, b)| all | (a ^ b));
        Ok(std::hint::black_box(differs) == 0)
    }

    pub fn store_component(&self, digest: &str, component: &Component) {
        let written =
            component.serialize().map_err(|error| io::Error::other(error.to_string())).and_then(|code| {
                let mut entry = self.begin_entry(digest)?;
                entry.write(&code)?;
                entry.finish_entry()
            });
        if let Err(error) = written {
            self.warn_of_unkept(&error);
        }
    }

    /// Removes code that this process does not hold and nobody has needed lately.
    pub fn remove_unused(&self, is_held: impl Fn(&str) -> bool) {
        if let Err(error) = unused::remove(&self.folder, is_held) {
            tracing::warn!(folder = %self.folder.display(), %error, "compiled code that nobody needs can't be removed");
        }
    }

    pub fn warn_of_unkept(&self, error: &io::Error) {
        tracing::warn!(folder = %self.folder.display(), %error, "compiled code can't be kept");
    }

    /// Begins an entry whose code comes in pieces. Others can't see it until it is finished.
    pub fn begin_entry(&self, digest: &str) -> io::Result<CacheEntry> {
        static TURN: AtomicU64 = AtomicU64::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(format!("{digest}.{}-{turn}{UNFINISHED}", std::process::id()));
        let file = private_file(&unfinished)?;
        let mut entry =
            CacheEntry { file, unfinished, path: self.path(digest), message: self.start_message(digest) };
        entry.file.write_all(MAGIC)?;
        // Reserves room for the tag, which is known at the end.
        entry.file.write_all(&[0; TAG])?;
        Ok(entry)
    }
}

/// A file that is being written. If it is dropped before its end, it is removed.
pub struct CacheEntry {
    file: fs::File,
    unfinished: PathBuf,
    path: PathBuf,
    message: hmac::Context,
}

impl CacheEntry {
    pub fn write(&mut self, code: &[u8]) -> io::Result<()> {
        self.message.update(code);
        self.file.write_all(code)
    }

    pub fn finish_entry(mut self) -> io::Result<()> {
        let tag = self.message.clone().sign();
        self.file.seek(SeekFrom::Start(MAGIC.len() as u64))?;
        self.file.write_all(tag.as_ref())?;
        fs::rename(&self.unfinished, &self.path)
    }
}

impl Drop for CacheEntry {
    fn drop(&mut self) {
        // A finished file has another name. If the removal fails, the file is removed when the cache is
        // opened again.
        drop(fs::remove_file(&self.unfinished));
    }
}

/// Loads code that a child process of this one compiled, as it came through their pipe. It needs no
/// authentication code, because that only protects a file against later changes. Here no file exists, and
/// nobody else has an end of the pipe.
pub fn from_own_child(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    deserialize_component(engine, code)
}

/// Removes the files of a process that ended while it wrote. Only one process uses the folder.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_str().is_some_and(|path| path.ends_with(UNFINISHED)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The key of this folder, which no other user may read. Kubernetes gives the volume's group rights to each
/// file, so the group is ignored.
fn own_key(path: &Path) -> io::Result<[u8; files::KEY_BYTES]> {
    let random =
        |key: &mut [u8]| SystemRandom::new().fill(key).map_err(|_| io::Error::other("no random bytes"));
    let (key, origin) = files::own_key(path, random)?;
    if origin == files::KeyOrigin::MadeAnew {
        tracing::warn!(path = %path.display(), "the cache's key was damaged or open to others: a new one is made");
    }
    Ok(key)
}

#[cfg(unix)]
fn create_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(unix)]
fn private_file(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn create_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

#[cfg(not(unix))]
fn private_file(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest possible component.
    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";
    const DIGEST: &str = "0123";

    struct CacheBench {
        folder: tempfile::TempDir,
        engine: Engine,
    }

    impl CacheBench {
        fn with_one_kept() -> Self {
            let bench = Self { folder: tempfile::tempdir().unwrap(), engine: Engine::default() };
            bench.cache().store_component(DIGEST, &Component::from_binary(&bench.engine, EMPTY).unwrap());
            bench
        }

        fn cache(&self) -> CodeCache {
            CodeCache::open(self.folder.path(), &self.engine).unwrap()
        }

        fn is_trusted(&self, digest: &str) -> bool {
            self.cache().load(&self.engine, digest).is_some()
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join(format!("{DIGEST}.cwasm"))
        }
    }

    #[test]
    fn a_pipe_in_the_place_of_the_key_or_of_code_is_not_waited_for() {
        let bench = CacheBench::with_one_kept();
        let make = |path: &Path| {
            fs::remove_file(path).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        };
        make(&bench.file());
        assert!(!bench.is_trusted(DIGEST));
        make(&bench.folder.path().join("key"));
        let error = CodeCache::open(bench.folder.path(), &bench.engine).err().unwrap().to_string();
        assert!(error.contains("it is a pipe"), "{error}");
    }

    #[test]
    fn what_was_kept_is_trusted_after_a_restart() {
        let bench = CacheBench::with_one_kept();
        assert!(bench.is_trusted(DIGEST));
        assert!(!bench.is_trusted("4567"));
        assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 2, "the key and the code");
    }

    #[test]
    fn a_single_bit_anywhere_makes_it_untrusted() {
        let bench = CacheBench::with_one_kept();
        let good = fs::read(bench.file()).unwrap();
        for place in [0, MAGIC.len(), MAGIC.len() + TAG - 1, MAGIC.len() + TAG, good.len() - 1] {
            let mut bad = good.clone();
            bad[place] ^= 0x10;
            fs::write(bench.file(), &bad).unwrap();
            assert!(!bench.is_trusted(DIGEST), "byte {place}");
        }
        for length in [0, MAGIC.len(), MAGIC.len() + TAG, good.len() - 1] {
            fs::write(bench.file(), &good[..length]).unwrap();
            assert!(!bench.is_trusted(DIGEST), "{length} bytes");
        }
        fs::write(bench.file(), &good).unwrap();
        assert!(bench.is_trusted(DIGEST));
    }

    #[test]
    fn what_was_not_finished_is_nothing_and_is_removed() {
        let bench = CacheBench::with_one_kept();
        let names = || fs::read_dir(bench.folder.path()).unwrap().count();
        let cache = bench.cache();
        let mut entry = cache.begin_entry("4567").unwrap();
        entry.write(b"the first half").unwrap();
        assert_eq!(names(), 3);
        // As after a kill, when nothing is dropped.
        std::mem::forget(entry);
        assert!(!bench.is_trusted("4567"), "opening the cache anew has removed it");
        assert_eq!(names(), 2);
        drop(cache.begin_entry("4567").unwrap());
        assert_eq!(names(), 2);
    }

    #[test]
    fn code_of_one_component_is_not_taken_for_another() {
        let bench = CacheBench::with_one_kept();
        fs::copy(bench.file(), bench.folder.path().join("4567.cwasm")).unwrap();
        assert!(!bench.is_trusted("4567"));
    }

    #[test]
    fn code_for_another_engine_is_not_loaded() {
        let mut bench = CacheBench::with_one_kept();
        bench.engine = Engine::new(wasmtime::Config::new().epoch_interruption(true)).unwrap();
        assert!(!bench.is_trusted(DIGEST));
    }

    #[test]
    fn a_new_key_trusts_nothing_of_the_old_one() {
        let bench = CacheBench::with_one_kept();
        fs::remove_file(bench.folder.path().join("key")).unwrap();
        assert!(!bench.is_trusted(DIGEST));
        fs::write(bench.folder.path().join("key"), "short").unwrap();
        assert!(!bench.is_trusted(DIGEST));
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_could_read_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let bench = CacheBench::with_one_kept();
        let key = bench.folder.path().join("key");
        let mode = || fs::metadata(&key).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(!bench.is_trusted(DIGEST));
        assert_eq!(mode(), 0o600);
    }

    #[cfg(unix)]
    #[test]
    fn a_key_to_which_kubernetes_gave_the_group_of_the_volume_keeps_what_was_compiled() {
        use std::os::unix::fs::PermissionsExt;
        let bench = CacheBench::with_one_kept();
        // `fsGroup` adds these rights at each mount.
        let key = bench.folder.path().join("key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o660)).unwrap();
        assert!(bench.is_trusted(DIGEST));
    }
}
