//! Checks that each store of the settings has a file of its own, and none of the host's files.

use std::path::{Component, Path, PathBuf};

use kubewitness_core::files;

/// In the data folder, these are the host's own: a plugin that could write them could unsay what
/// was witnessed.
const OWN: [&str; 3] = ["journal.db", "cache", "last-good"];

pub(crate) struct Places {
    data: PathBuf,
    taken: Vec<(PathBuf, String)>,
}

/// Why a store can't have its place.
#[derive(Debug)]
pub(crate) enum Unclaimed {
    /// The settings have to change.
    Taken(String),
    /// The disk did not say where the path leads: ask again.
    Unknown(String),
}

impl Places {
    pub async fn new(data: &Path) -> std::io::Result<Self> {
        Ok(Self { data: asked(data.to_path_buf()).await?, taken: Vec::new() })
    }

    /// The path of a store, or why it can't be there.
    pub async fn claim(&mut self, path: &str, what: String) -> Result<(), Unclaimed> {
        let unknown = |error| Unclaimed::Unknown(format!("`{path}`: {error}"));
        let place = asked(self.data.join(path)).await.map_err(unknown)?;
        let first = place.strip_prefix(&self.data).ok().and_then(|inside| inside.components().next());
        if let Some(Component::Normal(first)) = first {
            let first = first.to_string_lossy();
            if OWN.iter().any(|own| {
                first == *own
                    || first.starts_with(&format!("{own}-"))
                    || first.starts_with(&format!("{own}."))
            }) {
                return Err(Unclaimed::Taken(format!("`{path}` is the host's own: choose another file")));
            }
        }
        if let Some((_, other)) = self.taken.iter().find(|(taken, _)| *taken == place) {
            return Err(Unclaimed::Taken(format!("`{path}` is {other} already: each has a file of its own")));
        }
        self.taken.push((place, what));
        Ok(())
    }
}

/// Links are followed on disks that may not answer.
async fn asked(path: PathBuf) -> std::io::Result<PathBuf> {
    files::within(&path.clone(), files::ANSWER, move || Ok(resolved(&path))).await
}

/// Absolute, without `.` and `..`, and with the links of what is already there followed, so that
/// two names of one file are one place.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut plain = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    if let Ok(real) = plain.canonicalize() {
        return real;
    }
    match (plain.parent(), plain.file_name()) {
        (Some(parent), Some(name)) => resolved(parent).join(name),
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_hosts_own_files_are_nobodys_database() {
        let data = tempfile::tempdir().unwrap();
        let mut places = Places::new(data.path()).await.unwrap();
        for path in [
            "journal.db",
            "./journal.db",
            "x/../journal.db",
            "journal.db-wal",
            "cache/a",
            "last-good/host.yaml",
        ] {
            assert!(places.claim(path, "the database `a`".into()).await.is_err(), "{path}");
        }
        let absolute = data.path().join("journal.db");
        assert!(places.claim(absolute.to_str().unwrap(), "the database `a`".into()).await.is_err());
        std::fs::write(&absolute, "").unwrap();
        std::os::unix::fs::symlink(&absolute, data.path().join("link.db")).unwrap();
        assert!(places.claim("link.db", "the database `a`".into()).await.is_err());
    }

    #[tokio::test]
    async fn a_file_belongs_to_one_store() {
        let data = tempfile::tempdir().unwrap();
        let mut places = Places::new(data.path()).await.unwrap();
        places.claim("platform.db", "the database `a`".into()).await.unwrap();
        let error = places.claim("./platform.db", "the ledger `b`".into()).await.unwrap_err();
        assert!(matches!(&error, Unclaimed::Taken(told) if told.contains("the database `a`")), "{error:?}");
        places.claim("audit/trail.jsonl", "the ledger `b`".into()).await.unwrap();
    }
}
