//! Reads recorded histories.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Expected;
use crate::merge_patch;

/// The first line of a file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryHeader {
    pub name: String,
    /// The version of the servers. One that was written by hand says so.
    pub kubernetes: String,
    pub object: LabelSubject,
    pub held_out: bool,
    /// The recorder's acts, in a sentence for readers.
    pub scenario: String,
    pub expected: Expected,
}

/// The object that the label is about.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSubject {
    pub kind: String,
    pub group: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Put,
    Delete,
}

/// A line as it stands in the file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryLine {
    pub op: Operation,
    /// The resource and the name, such as `pods/team/train-x` or `nodes/gpu-1`.
    pub key: String,
    /// When the recorder read it from etcd, in milliseconds since 1970.
    pub at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Value>,
}

/// A put or a delete.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryChange {
    pub op: Operation,
    pub key: String,
    pub at_ms: u64,
    /// The whole object that was put. Of a delete: the last version before it.
    pub document: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecordedHistory {
    pub header: HistoryHeader,
    pub changes: Vec<HistoryChange>,
}

/// Which of the recorded histories a test reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those that an author of rules may look at.
    Open,
    HeldOut,
    All,
    /// Those that nobody recorded: written by hand from documented fields, and not held out.
    ByHand,
}

/// Whether a history of this name is held out: the FNV-1a hash of its name is even. The name alone decides, so that
/// nobody chooses.
pub fn is_held_out(name: &str) -> bool {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.is_multiple_of(2)
}

/// The histories of this repository, by name.
pub fn recorded(selection: Selection) -> Result<Vec<RecordedHistory>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories");
    let folder = if selection == Selection::ByHand { folder.join("by-hand") } else { folder };
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    files.sort();
    let mut histories = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "jsonl")) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let is_wanted = match selection {
            Selection::Open => !is_held_out(&name),
            Selection::HeldOut => is_held_out(&name),
            Selection::All | Selection::ByHand => true,
        };
        if is_wanted {
            histories.push(RecordedHistory::read(file)?);
        }
    }
    Ok(histories)
}

impl RecordedHistory {
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let history = Self::parse(&text).with_context(|| format!("in {}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        ensure!(history.header.name == name, "{} is named {}", file.display(), history.header.name);
        Ok(history)
    }

    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let header: HistoryHeader =
            serde_json::from_str(lines.next().context("an empty file")?).context("the header")?;
        ensure!(header.held_out == is_held_out(&header.name), "`held_out` does not follow from the name");
        let mut newest = HashMap::new();
        let mut changes = Vec::new();
        for (at, line) in lines.enumerate() {
            let place = || format!("line {}", at + 2);
            let line: HistoryLine = serde_json::from_str(line).with_context(place)?;
            changes.push(change(line, &mut newest).with_context(place)?);
        }
        Ok(Self { header, changes })
    }
}

/// The change of a line, given the newest version of each object before it.
fn change(line: HistoryLine, newest: &mut HashMap<String, Value>) -> Result<HistoryChange> {
    let HistoryLine { op, key, at_ms, object, patch, .. } = line;
    let document = match (op, object, patch) {
        (Operation::Put, Some(object), None) => {
            ensure!(!newest.contains_key(&key), "{key} exists already, so a patch is due");
            object
        }
        (Operation::Put, None, Some(patch)) => {
            let mut document =
                newest.remove(&key).with_context(|| format!("no version of {key} is known"))?;
            merge_patch::apply(&mut document, &patch);
            document
        }
        (Operation::Delete, None, None) => {
            newest.remove(&key).with_context(|| format!("no version of {key} is known"))?
        }
        _ => bail!("a put has an object or a patch, a delete has neither"),
    };
    if op == Operation::Put {
        newest.insert(key.clone(), document.clone());
    }
    Ok(HistoryChange { op, key, at_ms, document })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Cause, Outcome, write_history};

    fn change(op: Operation, key: &str, at_ms: u64, document: Value) -> HistoryChange {
        HistoryChange { op, key: key.into(), at_ms, document }
    }

    fn example() -> RecordedHistory {
        let header = HistoryHeader {
            name: "example".into(),
            kubernetes: "1.36.3".into(),
            object: LabelSubject {
                kind: "Job".into(),
                group: "batch".into(),
                namespace: "a".into(),
                name: "b".into(),
            },
            held_out: is_held_out("example"),
            scenario: "A test.".into(),
            expected: Expected::new(Cause::None, Outcome::Running),
        };
        let first = json!({"kind": "Job", "spec": {"parallelism": 1}});
        let second = json!({"kind": "Job", "spec": {"parallelism": 1}, "status": {"active": 1}});
        let changes = vec![
            change(Operation::Put, "jobs/a/b", 5, first.clone()),
            change(Operation::Put, "pods/a/b-x", 6, json!({"kind": "Pod"})),
            change(Operation::Put, "jobs/a/b", 7, second.clone()),
            change(Operation::Delete, "jobs/a/b", 8, second),
            change(Operation::Put, "jobs/a/b", 9, first),
        ];
        RecordedHistory { header, changes }
    }

    #[test]
    fn a_history_that_was_written_is_read_as_it_was() {
        let text = write_history(&example()).expect("text");
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.contains(r#""patch":{"status":{"active":1}}"#), "{text}");
        assert_eq!(RecordedHistory::parse(&text).expect("a history"), example());
    }

    #[test]
    fn a_line_that_does_not_follow_from_the_ones_before_is_refused() {
        let header = write_history(&RecordedHistory { changes: Vec::new(), ..example() }).expect("text");
        for line in [
            r#"{"op": "put", "key": "pods/a/b", "at_ms": 1, "patch": {}}"#,
            r#"{"op": "delete", "key": "pods/a/b", "at_ms": 1}"#,
            r#"{"op": "put", "key": "pods/a/b", "at_ms": 1}"#,
            r#"{"op": "moved", "key": "pods/a/b", "at_ms": 1}"#,
        ] {
            let told = RecordedHistory::parse(&format!("{header}{line}\n")).expect_err(line);
            assert!(format!("{told:#}").contains("line 2"), "{told:#}");
        }
    }

    #[test]
    fn about_half_of_all_names_are_held_out() {
        let count = (0..1000).filter(|number| is_held_out(&format!("case-{number}"))).count();
        assert!((400..600).contains(&count), "{count}");
    }
}
