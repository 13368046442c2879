//! Reads the configuration from a folder, and follows it: ConfigMaps as `kubectl apply` accepts them, or bare
//! documents.
//!
//! File events were rejected: Kubernetes swaps a mounted ConfigMap by links, which events miss. So the folder
//! is read at intervals, and compared with the last content. A file that can't be used must not be ignored
//! silently, so it is named with the reason. A folder that can't be read is reported as a problem, and what
//! runs continues. This module writes nothing.

mod documents;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use kubewitness_core::files;
use ring::digest::{Context, SHA256};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::ConfigSnapshot;
use super::manifest::ManifestProblem;

/// A folder with more files does not contain manifests. Reading it would only take memory.
const FILES: usize = 1000;
/// How many faults are kept: after fixing the first ones, a person sees the rest.
const PROBLEMS: usize = 200;
/// With all other files in the folder.
const ENTRIES: usize = 10_000;
const FILE_BYTES: u64 = 16 << 20;
/// The total size of all manifests: they are in memory, and are read each second.
const FOLDER_BYTES: usize = 64 << 20;

/// The files of a folder, by their purpose.
#[derive(Default)]
struct FolderListing {
    manifests: Vec<PathBuf>,
    components: Vec<PathBuf>,
    others: Vec<(PathBuf, &'static str)>,
}

/// The raw content of a folder. It is not parsed yet, because it usually equals the previous one.
struct FolderSnapshot {
    listing: FolderListing,
    texts: Vec<io::Result<String>>,
    fingerprint: Vec<u8>,
}

/// Reads every `.yaml`, `.yml` and `.json` file directly in the folder. An unreadable file is a problem of
/// its own, and hides none of the others.
pub fn read(folder: &Path) -> Result<ConfigSnapshot, ManifestProblem> {
    let listing = list_folder(folder).map_err(|error| unlisted_problem(folder, &error))?;
    let texts: Vec<_> = listing.manifests.iter().map(|path| files::text(path, FILE_BYTES)).collect();
    Ok(snapshot(&listing, texts))
}

/// Reads the folder this often until `stop`. Polling is used because a mounted ConfigMap is swapped by links,
/// which file events miss. A disk that does not answer is reported, and read again once it does.
pub async fn follow_folder(
    folder: PathBuf,
    every: Duration,
    sender: watch::Sender<Option<ConfigSnapshot>>,
    stop: CancellationToken,
) -> Result<()> {
    let mut seen = None;
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let next = async |interval: &mut tokio::time::Interval| {
        interval.tick().await;
        read_snapshot(&folder).await
    };
    while let Some(looked) = stop.run_until_cancelled(next(&mut interval)).await {
        let found = match looked {
            Ok(look) if seen.as_ref() == Some(&look.fingerprint) => continue,
            Ok(look) => {
                seen = Some(look.fingerprint.clone());
                ConfigSnapshot { fingerprint: Some(look.fingerprint), ..snapshot(&look.listing, look.texts) }
            }
            // It is read again each time, but reported once.
            Err(problem) => {
                seen = None;
                ConfigSnapshot { problems: vec![problem], ..ConfigSnapshot::default() }
            }
        };
        if sender.borrow().as_ref() != Some(&found) {
            sender.send_replace(Some(found));
        }
    }
    Ok(())
}

/// Each file has its own time limit: one that hangs delays the others once, and is skipped after that.
async fn read_snapshot(folder: &Path) -> Result<FolderSnapshot, ManifestProblem> {
    let asked = folder.to_owned();
    let listing = files::run_within_limit(folder, files::ANSWER, move || list_folder(&asked)).await;
    let listing = listing.map_err(|error| unlisted_problem(folder, &error))?;
    let mut print = Context::new(&SHA256);
    // A new build of a component is a change.
    for path in &listing.components {
        let asked = path.clone();
        let stat =
            move || asked.metadata().map(|found| format!("{} {:?}", found.len(), found.modified().ok()));
        let stat = files::run_within_limit(path, files::ANSWER, stat).await;
        print.update(path.as_os_str().as_encoded_bytes());
        print.update(stat.unwrap_or_else(|error| error.to_string()).as_bytes());
    }
    for (path, _) in &listing.others {
        print.update(path.as_os_str().as_encoded_bytes());
    }
    let mut texts = Vec::new();
    for path in &listing.manifests {
        let asked = path.clone();
        let text =
            files::run_within_limit(path, files::ANSWER, move || files::text(&asked, FILE_BYTES)).await;
        print.update(path.as_os_str().as_encoded_bytes());
        match &text {
            Ok(text) => print.update(text.as_bytes()),
            Err(error) => print.update(error.to_string().as_bytes()),
        }
        texts.push(text);
    }
    Ok(FolderSnapshot { listing, texts, fingerprint: print.finish().as_ref().to_vec() })
}

fn list_folder(folder: &Path) -> io::Result<FolderListing> {
    let mut listing = FolderListing::default();
    for (count, entry) in std::fs::read_dir(folder)?.enumerate() {
        let entry = entry?;
        if count >= ENTRIES {
            return Err(io::Error::other(format!(
                "it has more than {ENTRIES} entries: a folder of manifests has fewer"
            )));
        }
        let (path, name) = (entry.path(), entry.file_name());
        // A mounted ConfigMap has links with such names, and editors leave files with such names.
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match path.extension().and_then(|ending| ending.to_str()) {
            _ if entry.file_type()?.is_dir() => {
                listing
                    .others
                    .push((path, "is a folder: only files directly in the configured folder are read"));
            }
            Some("wasm") => listing.components.push(path),
            _ if matches!(
                name.to_str(),
                Some("kustomization.yaml" | "kustomization.yml" | "Kustomization")
            ) =>
            {
                listing.others.push((path, "is for `kubectl apply -k`: its changes are not applied here"));
            }
            Some("yaml" | "yml" | "json") => listing.manifests.push(path),
            _ => {
                listing
                    .others
                    .push((path, "is not named as a manifest: manifests end with .yaml, .yml or .json"));
            }
        }
    }
    if listing.manifests.len() > FILES {
        return Err(io::Error::other(format!("it has more than {FILES} manifests")));
    }
    listing.manifests.sort();
    listing.components.sort();
    listing.others.sort();
    Ok(listing)
}

fn snapshot(listing: &FolderListing, texts: Vec<io::Result<String>>) -> ConfigSnapshot {
    let mut snapshot = ConfigSnapshot::default();
    let mut left = FOLDER_BYTES;
    for (path, text) in listing.manifests.iter().zip(texts) {
        let text = text.and_then(|text| match left.checked_sub(text.len()) {
            Some(rest) => {
                left = rest;
                Ok(text)
            }
            None => Err(io::Error::other(format!("all manifests have more than {} MiB", FOLDER_BYTES >> 20))),
        });
        match text {
            Ok(text) => documents::read(path, &text, &mut snapshot),
            Err(error) => snapshot.problems.push(unread_problem(path, &error)),
        }
    }
    let more = snapshot.problems.len().saturating_sub(PROBLEMS);
    if more > 0 {
        snapshot.problems.truncate(PROBLEMS);
        let message = format!("has {more} more faults than these {PROBLEMS}");
        snapshot.problems.push(ManifestProblem::of("configuration", None, message));
    }
    for (path, why) in &listing.others {
        snapshot.note_passed_over(problem(path, None, (*why).to_owned()));
    }
    snapshot
}

/// The documents of one file, with any extension.
pub fn of_text(path: &Path, text: &str) -> ConfigSnapshot {
    let mut snapshot = ConfigSnapshot::default();
    documents::read(path, text, &mut snapshot);
    snapshot
}

/// The bytes of a file that the command line names, or of a pipe from a shell.
pub fn read_named_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    files::read_from(files::open_command_input(path)?, most)
}

pub fn text(path: &Path) -> Result<String, ManifestProblem> {
    read_named_file(path, FILE_BYTES).and_then(files::into_text).map_err(|error| unread_problem(path, &error))
}

fn unlisted_problem(folder: &Path, error: &io::Error) -> ManifestProblem {
    problem(folder, None, format!("is not a folder that can be read: {error}"))
}

fn unread_problem(path: &Path, error: &io::Error) -> ManifestProblem {
    problem(path, None, format!("can't be read: {error}"))
}

fn problem(path: &Path, line: Option<usize>, message: String) -> ManifestProblem {
    ManifestProblem::of(path.display().to_string(), line, message)
}

#[cfg(test)]
mod tests;
