//! A temporary folder for one test, kept when the test fails.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kubewitness_chance::{repeat_command, seed};
use tempfile::TempDir;

/// Removed when it is dropped, unless the test is failing: then its place is told.
pub struct Scratch {
    folder: Option<TempDir>,
}

impl Scratch {
    pub fn new(name: &str) -> Result<Self> {
        let prefix = format!("kubewitness-{name}-");
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir().context("a temporary folder")?;
        Ok(Self { folder: Some(folder) })
    }

    pub fn path(&self) -> &Path {
        self.folder.as_ref().map(TempDir::path).expect("taken away only by drop")
    }

    /// A new folder in it.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(folder) = self.folder.take()
        {
            eprintln!("what the test left is in {}", folder.keep().display());
        }
    }
}

/// Runs a test in a folder of its own. An error fails the test, with all that is known of it and the seed of the run, and
/// the folder stays.
pub async fn in_scratch(name: &str, test: impl AsyncFnOnce(&Scratch) -> Result<()>) {
    let scratch = Scratch::new(name).expect("a folder");
    if let Err(error) = test(&scratch).await {
        // The cause comes first: what follows may hold whole logs, of which a reader sees the beginning.
        panic!("{}\n{}\n{error:#}", error.root_cause(), repeat_command(seed()));
    }
}
