//! Checks the files of the configured stores: each store has its own files, and none is a file of the
//! controller.

use std::path::{Component, Path, PathBuf};

use thiserror::Error;

use crate::model::fault::{ManifestFault, fault};

/// The controller's own files in the data folder. A plugin that could write them could rewrite what was
/// witnessed.
const OWN: [&str; 4] = ["journal.db", "cache", "last-good", "trial"];
/// Further files of the controller, which have no companion files. A plugin that could write them could sign
/// in as anybody.
const OWN_FILES: [&str; 4] = ["ended-sessions", "mutes", "redaction.key", "session.key"];
/// Extensions of the companion files of a ledger.
const BESIDE: [&str; 3] = ["receipts", "shipped", "persons"];

/// A configured store with the file that it uses.
pub struct FileStore<'a> {
    pub list: &'static str,
    pub index: usize,
    /// The name of the field.
    pub field: &'static str,
    pub path: &'a str,
    pub name: &'a str,
}

impl FileStore<'_> {
    fn describe_store(&self) -> String {
        let kind = if self.list == "ledgers" { "ledger" } else { "database" };
        format!("the {kind} `{}`", self.name)
    }

    pub fn fault_at_store(&self, message: String) -> ManifestFault {
        fault(format!("spec.{}[{}].{}", self.list, self.index, self.field), message)
    }
}

/// Why a store can't have its path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StorePathError {
    #[error("`{0}` is the controller's own: choose another file")]
    OwnFile(String),
    #[error("`{path}`: {file} is of {owner} already: each has files of its own")]
    Taken { path: String, file: String, owner: String },
    #[error("names a folder: name the file of the ledger, such as audit/ledger.jsonl")]
    Folder,
    #[error("ends with .{0}, which is kept for the file beside it")]
    KeptEnding(String),
}

/// The paths that are in use.
pub struct ClaimedPaths {
    data: PathBuf,
    taken: Vec<(PathBuf, String)>,
}

impl ClaimedPaths {
    pub fn new(data: PathBuf) -> Self {
        Self { data, taken: Vec::new() }
    }

    /// Claims the resolved path of a store, or explains why the store can't be there.
    pub fn claim_path(&mut self, store: &FileStore<'_>, place: PathBuf) -> Result<(), StorePathError> {
        let path = store.path.to_owned();
        let first = place.strip_prefix(&self.data).ok().and_then(|inside| inside.components().next());
        if let Some(Component::Normal(first)) = first {
            let first = first.to_string_lossy();
            let is_own = |own: &&str| {
                first.strip_prefix(*own).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
            };
            if OWN.iter().any(is_own) || OWN_FILES.contains(&&*first) {
                return Err(StorePathError::OwnFile(path));
            }
        }
        // Two ledgers whose names differ only in the extension would share one file of receipts.
        let beside = (store.list == "ledgers").then(|| place.with_extension(BESIDE[0]));
        let places: Vec<_> = [Some(place), beside].into_iter().flatten().collect();
        if let Some((taken, other)) = self.taken.iter().find(|(taken, _)| places.contains(taken)) {
            let file = taken.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(StorePathError::Taken { path, file, owner: other.clone() });
        }
        self.taken.extend(places.into_iter().map(|place| (place, store.describe_store())));
        Ok(())
    }
}

/// Checks the paths as written. It does not look at the disk, where links may lead elsewhere.
pub(in crate::config) fn check<'a>(
    stores: impl Iterator<Item = FileStore<'a>>,
    faults: &mut Vec<ManifestFault>,
) {
    let data = Path::new("/data");
    let mut places = ClaimedPaths::new(data.to_owned());
    for store in stores {
        let wrong = match store.list {
            "ledgers" => no_ledger(store.path),
            _ => None,
        };
        let wrong =
            wrong.map_or_else(|| places.claim_path(&store, without_dot_parts(&data.join(store.path))), Err);
        faults.extend(wrong.err().map(|error| store.fault_at_store(error.to_string())));
    }
}

fn no_ledger(path: &str) -> Option<StorePathError> {
    if path.is_empty() || path.ends_with('/') {
        return Some(StorePathError::Folder);
    }
    let ending = Path::new(path).extension()?.to_str()?;
    BESIDE.contains(&ending).then(|| StorePathError::KeptEnding(ending.to_owned()))
}

/// Resolves `.` and `..` in the path, without looking at the disk.
pub fn without_dot_parts(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::HostSpec;

    fn faults(database: &str, ledgers: &[&str]) -> Vec<String> {
        let ledgers: Vec<_> = ledgers
            .iter()
            .enumerate()
            .map(|(index, path)| json!({"name": format!("l{index}"), "path": path}))
            .collect();
        let host: HostSpec = serde_json::from_value(json!({
            "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
            "databases": [{"name": "platform", "sqlite": {"path": database}}],
            "ledgers": ledgers,
        }))
        .unwrap();
        host.check().iter().map(|fault| format!("{} {}", fault.field, fault.message)).collect()
    }

    #[test]
    fn each_store_has_files_of_its_own_and_none_of_the_hosts() {
        assert_eq!(faults("platform.db", &["a.jsonl", "b/a.jsonl", "journal"]), [""; 0]);
        for (path, expected) in [
            ("journal.db", "is the controller's own"),
            ("x/../journal.db-wal", "is the controller's own"),
            ("/data/../data/cache/a", "is the controller's own"),
            ("last-good/host.yaml", "is the controller's own"),
            ("trial/a.db", "is the controller's own"),
            ("session.key", "is the controller's own"),
            ("audit/../mutes", "is the controller's own"),
            ("./platform.db", "platform.db is of the database `platform` already"),
            ("", "names a folder"),
            ("audit/", "names a folder"),
            ("x.receipts", "ends with .receipts"),
            ("x.shipped", "ends with .shipped"),
        ] {
            let messages = faults("platform.db", &[path]);
            assert!(
                messages.len() == 1 && messages[0].starts_with("spec.ledgers[0].path "),
                "{path}: {messages:?}"
            );
            assert!(messages[0].contains(expected), "{path}: {messages:?}");
        }
        let messages = faults("cache/a.db", &[]);
        assert!(
            messages[0].starts_with("spec.databases[0].sqlite.path `cache/a.db` is the controller's own"),
            "{messages:?}"
        );
    }

    #[test]
    fn two_ledgers_do_not_share_their_receipts() {
        for other in ["a.log", "./a.jsonl", "a", "b/../a.txt"] {
            let messages = faults("platform.db", &["a.jsonl", other]);
            assert!(
                messages.len() == 1 && messages[0].starts_with("spec.ledgers[1].path "),
                "{other}: {messages:?}"
            );
            assert!(messages[0].contains("is of the ledger `l0` already"), "{other}: {messages:?}");
        }
        assert!(faults("a.receipts", &["a.jsonl"])[0].contains("a.receipts is of the database"));
    }
}
