//! Resolves the links of a store's path before the store claims it.

use std::path::{Path, PathBuf};

use kubewitness_core::config::files::{ClaimedPaths, FileStore, StorePathError, without_dot_parts};
use kubewitness_core::files;

/// Why a store can't have its path.
#[derive(Debug)]
pub(crate) enum ClaimFailure {
    /// The settings have to change.
    Taken(StorePathError),
    /// The disk that has to resolve the path did not answer; ask again.
    Unknown(String),
}

/// The paths of a data folder; none is claimed yet.
pub(crate) async fn claimed_paths(data: &Path) -> std::io::Result<ClaimedPaths> {
    Ok(ClaimedPaths::new(resolve_in_time(data.to_path_buf()).await?))
}

/// Claims the resolved path of a store.
pub(crate) async fn claim_store(
    places: &mut ClaimedPaths,
    data: &Path,
    store: &FileStore<'_>,
) -> Result<(), ClaimFailure> {
    let unknown = |error| ClaimFailure::Unknown(format!("`{}`: {error}", store.path));
    let place = resolve_in_time(data.join(store.path)).await.map_err(unknown)?;
    places.claim_path(store, place).map_err(ClaimFailure::Taken)
}

/// Links are resolved on disks that may not answer.
async fn resolve_in_time(path: PathBuf) -> std::io::Result<PathBuf> {
    files::run_within_limit(&path.clone(), files::ANSWER, move || Ok(resolve_path(&path))).await
}

/// Makes the path absolute, without `.` and `..`, and resolves the links of its existing part, so that two
/// names of one file become one path.
fn resolve_path(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let plain = without_dot_parts(&absolute);
    if let Ok(real) = plain.canonicalize() {
        return real;
    }
    match (plain.parent(), plain.file_name()) {
        (Some(parent), Some(name)) => resolve_path(parent).join(name),
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger<'a>(path: &'a str, name: &'a str) -> FileStore<'a> {
        FileStore { list: "ledgers", index: 0, field: "path", path, name }
    }

    #[tokio::test]
    async fn links_lead_neither_to_the_hosts_own_files_nor_to_those_of_another_store() {
        let data = tempfile::tempdir().unwrap();
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(data.path().join(to), data.path().join(name)).unwrap();
        };
        let mut taken = claimed_paths(data.path()).await.unwrap();
        for name in ["journal.db", "a.jsonl"] {
            std::fs::write(data.path().join(name), "").unwrap();
        }
        link("journal.db", "link.db");
        link("a.jsonl", "b.jsonl");
        let own = claim_store(&mut taken, data.path(), &ledger("link.db", "a")).await.unwrap_err();
        assert!(
            matches!(&own, ClaimFailure::Taken(StorePathError::OwnFile(file)) if file == "link.db"),
            "{own:?}"
        );
        claim_store(&mut taken, data.path(), &ledger("a.jsonl", "a")).await.unwrap();
        let other = claim_store(&mut taken, data.path(), &ledger("b.jsonl", "b")).await.unwrap_err();
        let ClaimFailure::Taken(StorePathError::Taken { owner, .. }) = other else { panic!("{other:?}") };
        assert_eq!(owner, "the ledger `a`");
    }
}
