//! The data folder of the playground. A simulated cluster ends with its process, so the folder is cleared at
//! startup: its content describes a cluster that no longer exists.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::files::FileLock;

use super::write;
use crate::commands::new_key;
use crate::journal_place::PLAYGROUND_MARKER as MARKER;

/// The files that a playground creates in its data folder and clears again. Compiled plugins stay: they
/// contain nothing of a cluster, and compiling them again takes seconds.
const MADE: [&str; 11] = [
    "audit",
    "ended-sessions",
    "kubeconfig",
    "kubewitness.log",
    "last-good",
    "mutes",
    "notifications.jsonl",
    "redaction.key",
    "session.key",
    KEY,
    PUBLIC_KEY,
];
/// The same for files with companion files.
const DATABASES: [&str; 2] = ["journal.db", "platform.db"];
const BESIDE: [&str; 5] = ["", "-journal", "-shm", "-wal", ".lock"];
const PLUGINS: &str = include_str!("../../../deploy/kustomize/plugins.yaml");
const HOST: &str = include_str!("../../../deploy/kustomize/host.yaml");
const TEMPLATES: &str = include_str!("../../../deploy/examples/submit/templates.yaml");
/// The label of Jobs from these templates. The workload drives them.
pub const QUEUE: &str = "platform.example.com/queue=shared";
/// The receiver in the cluster's settings, which the playground replaces by its own.
const RECEIVER: &str = "http://notifications.kubewitness.svc:8080";

/// The ledger in the cluster's settings, which has no key there.
const LEDGER: &str = "{name: trail, path: audit/trail.jsonl}";
/// In the data folder: the key that signs the trail, and its public part.
const KEY: &str = "trail.key";
pub const PUBLIC_KEY: &str = "trail.pub";

const ABOUT: &str = "This folder belongs to `kubewitness playground`. At its start it removes its journal, database, trail and log, and\n\
     writes `config/host.yaml`, `templates.yaml` and `plugins.yaml` again. Other files stay.\n";

/// A data folder that belongs to one playground until this is dropped.
pub struct FolderClaim {
    data: PathBuf,
    _lock: FileLock,
}

impl FolderClaim {
    /// Creates the folder if it is missing. A folder with other data is refused, and so is one in which a
    /// playground runs; no file in it is touched.
    pub fn new(data: &Path) -> Result<Self> {
        std::fs::create_dir_all(data).with_context(|| format!("making {}", data.display()))?;
        let marker = data.join(MARKER);
        // Checked again after reading the folder: a playground that started meanwhile created its marker
        // first.
        if !marker.is_file() && !folder_entries(data)?.is_empty() && !marker.is_file() {
            bail!(
                "{} holds data that is not a playground's; name an empty or new folder with --data",
                data.display()
            );
        }
        let file = File::options().create(true).truncate(false).write(true).open(&marker);
        let file = file.with_context(|| format!("opening {}", marker.display()))?;
        match FileLock::try_lock(file) {
            Ok(lock) => Ok(Self { data: data.to_path_buf(), _lock: lock }),
            Err(TryLockError::WouldBlock) => bail!(
                "another playground runs in {}; end it, or name another folder with --data",
                data.display()
            ),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", marker.display()))
            }
        }
    }

    /// Removes what an earlier playground left, and nothing that somebody else put there.
    pub fn clear(&self) -> Result<()> {
        for path in folder_entries(&self.data)?.into_iter().filter(|path| is_made(path)) {
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed
                .with_context(|| format!("clearing {}, which an earlier playground left", path.display()))?;
        }
        write(&self.data.join(MARKER), ABOUT)
    }
}

fn is_made(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return false };
    let is_beside = |database: &str| name.strip_prefix(database).is_some_and(|rest| BESIDE.contains(&rest));
    MADE.contains(&name) || DATABASES.iter().any(|database| is_beside(database))
}

fn folder_entries(data: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(data)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
    entries.with_context(|| format!("reading {}", data.display()))
}

/// Writes the manifests that a cluster gets, with the playground's own receiver.
///
/// People submit under their own identity if they sign in.
pub fn write_manifests(data: &Path, receiver: &str, signs_in: bool) -> Result<()> {
    let config = data.join("config");
    std::fs::create_dir_all(&config).with_context(|| format!("making {}", config.display()))?;
    let host = replaced(HOST, RECEIVER, receiver)?;
    let host = replaced(&host, "rate: 50", "rate: 5000")?;
    let host = replaced(&host, LEDGER, &signed_ledger(data)?)?;
    let credentials = if signs_in { "token" } else { "controller" };
    write(&config.join("host.yaml"), &format!("{host}      submit: {{credentials: {credentials}}}\n"))?;
    write(&config.join("templates.yaml"), TEMPLATES)?;
    // Its jobs end within seconds, and so do people's visits.
    let plugins = replaced(PLUGINS, "start: now", "start: beginning")?;
    let plugins = replaced(&plugins, "settle: 10s", "settle: 2s")?;
    let plugins = replaced(&plugins, "tick: {every: 10s}", "tick: {every: 3s}")?;
    write(&config.join("plugins.yaml"), &plugins)
}

/// The manifest with another setting. Fails if the manifest no longer has the setting, which the playground would
/// otherwise run with unnoticed.
fn replaced(manifest: &str, setting: &str, by: &str) -> Result<String> {
    ensure!(
        manifest.contains(setting),
        "the shipped manifest has no `{setting}` for the playground to replace"
    );
    Ok(manifest.replace(setting, by))
}

/// Creates a key, and sets in the settings that it signs the trail.
fn signed_ledger(data: &Path) -> Result<String> {
    let data = std::path::absolute(data).with_context(|| format!("finding {}", data.display()))?;
    let key = data.join(KEY);
    write(&data.join(PUBLIC_KEY), &new_key(&key)?)?;
    let key = serde_json::to_string(&key).context("writing the name of the key's file")?;
    Ok(format!(
        "{{name: trail, path: audit/trail.jsonl, signing: {{key: trail, every: 2s}}}}\n      keys:\n        \
         - {{name: trail, valueFrom: {{file: {key}}}}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_somebodys_data_is_refused_and_left_alone() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("thesis.txt");
        std::fs::write(&path, "years").unwrap();
        assert!(FolderClaim::new(data.path()).err().unwrap().to_string().contains("--data"));
        assert_eq!(std::fs::read_to_string(path).unwrap(), "years");
        assert_eq!(folder_entries(data.path()).unwrap().len(), 1, "no marker either");
    }

    #[test]
    fn a_playgrounds_own_folder_is_cleared_of_what_it_made_and_of_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        FolderClaim::new(data.path()).unwrap().clear().unwrap();
        let made = ["journal.db-wal", "platform.db", "trail.key", "mutes"];
        let others =
            ["mine.txt", "audit-notes.txt", "journal.db.copy", "config/shout.wasm", "cache/compiled"];
        for folder in ["config", "cache", "audit"] {
            std::fs::create_dir(data.path().join(folder)).unwrap();
        }
        for name in made.iter().chain(&others) {
            std::fs::write(data.path().join(name), "old").unwrap();
        }
        FolderClaim::new(data.path()).unwrap().clear().unwrap();
        assert!(made.iter().chain(&["audit"]).all(|name| !data.path().join(name).exists()));
        assert!(others.iter().all(|name| data.path().join(name).exists()));
    }

    #[test]
    fn a_folder_in_which_a_playground_runs_is_refused_and_left_alone() {
        let data = tempfile::tempdir().unwrap();
        let claim = FolderClaim::new(data.path()).unwrap();
        std::fs::write(data.path().join("journal.db"), "new").unwrap();
        let error = FolderClaim::new(data.path()).err().unwrap().to_string();
        assert!(error.contains("another playground runs in"), "{error}");
        assert!(data.path().join("journal.db").exists());
        drop(claim);
        FolderClaim::new(data.path()).unwrap();
    }

    #[test]
    fn a_playgrounds_folder_is_refused_for_data_that_is_to_stay() {
        let data = tempfile::tempdir().unwrap();
        crate::journal_place::refuse_a_playgrounds(data.path()).unwrap();
        drop(FolderClaim::new(data.path()).unwrap());
        let error = crate::journal_place::refuse_a_playgrounds(data.path()).unwrap_err().to_string();
        assert!(error.contains("--data"), "{error}");
    }

    #[test]
    fn the_receivers_address_and_a_key_are_in_the_settings() {
        let data = tempfile::tempdir().unwrap();
        write_manifests(data.path(), "http://127.0.0.1:4711", false).unwrap();
        let host = std::fs::read_to_string(data.path().join("config/host.yaml")).unwrap();
        assert!(host.contains("http://127.0.0.1:4711") && !host.contains(RECEIVER));
        assert!(host.contains("signing: {key: trail") && host.contains("/trail.key\"}}"), "{host}");
        let public = std::fs::read_to_string(data.path().join(PUBLIC_KEY)).unwrap();
        assert!(public.contains("BEGIN PUBLIC KEY"), "{public}");
    }
}
