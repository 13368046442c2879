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
        // The cause comes first, and what each program warned of: what follows may hold whole logs, of which a reader sees
        // the beginning.
        let (cause, warnings) = (error.root_cause(), last_warnings(scratch.path()));
        panic!("{cause}\n{}\n{warnings}{error:#}", repeat_command(seed()));
    }
}

/// The last warning in the log of each program that ran in the folder.
fn last_warnings(folder: &Path) -> String {
    let logs = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut logs: Vec<_> = logs.filter(|path| path.extension().is_some_and(|end| end == "err")).collect();
    logs.sort();
    let last_of = |path: &PathBuf| {
        let text = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
        let is_warning =
            |line: &&str| line.contains(" WARN ") || line.contains("ERROR ") || line.contains("panicked");
        // Each says at its start that its timers are those of tests.
        let line =
            text.lines().rev().find(|line| is_warning(line) && !line.contains("KUBEWITNESS_TEST_TIMERS"))?;
        Some(format!("{}: {line}\n", path.file_stem()?.to_string_lossy()))
    };
    logs.iter().filter_map(last_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_warning_of_each_program_is_found() {
        let scratch = Scratch::new("warnings").expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(scratch.path().join(name), text).expect("a log");
        write("one.err", "a WARN first\nb WARN last\nc INFO later\n");
        write("quiet.err", "a WARN KUBEWITNESS_TEST_TIMERS: short\n");
        write("one.out", "d WARN not a log\n");
        assert_eq!(last_warnings(scratch.path()), "one: b WARN last\n");
    }
}
