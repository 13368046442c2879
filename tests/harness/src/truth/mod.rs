//! Compares what the API server had with what arrived in a plugin's tables. It starts nothing and only reads.

mod platform;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::Deserialize;

pub use platform::{Platform, PlatformRow};

/// How many differences are told; the first ones say enough.
const TOLD: usize = 12;

/// One version, as the API server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TruthEntry {
    #[serde(rename = "type")]
    pub event: String,
    #[serde(rename = "resourceVersion")]
    pub version: String,
    pub object: TruthObject,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TruthObject {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Every version of one resource, oldest first.
#[derive(Clone, Debug, Default)]
pub struct ResourceVersions {
    pub entries: Vec<TruthEntry>,
}

/// The course of one object, in the form in which both sides can be compared: versions, and an end.
type ObjectVersions = Vec<String>;

impl ResourceVersions {
    fn stories(&self) -> BTreeMap<String, ObjectVersions> {
        let mut stories: BTreeMap<String, ObjectVersions> = BTreeMap::new();
        for entry in &self.entries {
            let step = match entry.event.as_str() {
                "DELETED" => format!("gone {}", entry.version),
                _ => entry.version.clone(),
            };
            stories
                .entry(format!("{}/{} {}", entry.object.namespace, entry.object.name, entry.object.uid))
                .or_default()
                .push(step);
        }
        stories
    }
}

fn stories(history: &[PlatformRow]) -> BTreeMap<String, ObjectVersions> {
    let mut stories: BTreeMap<String, ObjectVersions> = BTreeMap::new();
    for row in history {
        let step = match row.change.as_str() {
            "present" => row.resource_version.clone(),
            change => format!("{change} {}", row.resource_version),
        };
        stories.entry(format!("{}/{} {}", row.namespace, row.name, row.uid)).or_default().push(step);
    }
    stories
}

/// Every version that the API server had is in `history` exactly once, in order per object, and
/// nothing else is. `history` holds the rows of one source, by position.
pub fn compare(truth: &ResourceVersions, history: &[PlatformRow]) -> Result<()> {
    let (expected, found) = (truth.stories(), stories(history));
    let mut faults = Vec::new();
    for (object, story) in &expected {
        match found.get(object) {
            None => faults.push(format!("{object}: missing altogether, {story:?}")),
            Some(other) if other != story => faults.push(difference(object, story, other)),
            Some(_) => {}
        }
    }
    for (object, story) in found.iter().filter(|(object, _)| !expected.contains_key(*object)) {
        faults.push(format!("{object}: the API server never had it, {story:?}"));
    }
    let mut ids: Vec<_> = history.iter().map(|row| row.id.as_str()).collect();
    ids.sort_unstable();
    faults.extend(
        ids.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| format!("{} is there twice", pair[0])),
    );
    report_faults(&faults, expected.len())
}

/// `status` has one row per object that `history` knows, and it is the newest.
pub fn compare_newest(history: &[PlatformRow], status: &[PlatformRow]) -> Result<()> {
    let mut newest: BTreeMap<&str, &PlatformRow> = BTreeMap::new();
    for row in history {
        let seen = newest.entry(&row.uid).or_insert(row);
        if row.seq > seen.seq {
            *seen = row;
        }
    }
    let mut faults = Vec::new();
    for row in status {
        match newest.remove(row.uid.as_str()) {
            None => {
                faults
                    .push(format!("{}/{} {} has no history, or two rows", row.namespace, row.name, row.uid));
            }
            Some(last) if last != row => {
                faults.push(format!("{last:?} is newest, but {row:?} is the status"));
            }
            Some(_) => {}
        }
    }
    faults.extend(newest.values().map(|row| format!("{} {} has no status", row.name, row.uid)));
    report_faults(&faults, status.len())
}

fn report_faults(faults: &[String], objects: usize) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let shown = faults.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    bail!("{} differences over {objects} objects:\n  {shown}", faults.len());
}

fn difference(object: &str, expected: &[String], found: &[String]) -> String {
    let at = expected.iter().zip(found).take_while(|(one, other)| one == other).count();
    let from = at.saturating_sub(2);
    let show = |story: &[String]| {
        story[from.min(story.len())..].iter().take(6).cloned().collect::<Vec<_>>().join(", ")
    };
    format!(
        "{object}: from step {at} on [{}] became [{}] ({} steps, {} found)",
        show(expected),
        show(found),
        expected.len(),
        found.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(event: &str, version: u64, uid: &str) -> TruthEntry {
        TruthEntry {
            event: event.into(),
            version: version.to_string(),
            object: TruthObject { namespace: "team".into(), name: "job".into(), uid: uid.into() },
        }
    }

    fn row(seq: i64, change: &str, version: u64, uid: &str) -> PlatformRow {
        PlatformRow {
            id: format!("{uid}/{}", if change == "gone" { "gone".to_owned() } else { version.to_string() }),
            seq,
            change: change.into(),
            resource_version: version.to_string(),
            namespace: "team".into(),
            name: "job".into(),
            uid: uid.into(),
            ..PlatformRow::default()
        }
    }

    fn truth() -> ResourceVersions {
        ResourceVersions {
            entries: vec![entry("ADDED", 1, "u"), entry("MODIFIED", 2, "u"), entry("DELETED", 4, "u")],
        }
    }

    fn rows() -> Vec<PlatformRow> {
        vec![row(1, "present", 1, "u"), row(2, "present", 2, "u"), row(3, "gone", 4, "u")]
    }

    #[test]
    fn the_same_story_is_no_difference() {
        compare(&truth(), &rows()).expect("the same");
        compare_newest(&rows(), &[row(3, "gone", 4, "u")]).expect("the newest");
    }

    #[test]
    fn a_missing_a_repeated_a_swapped_and_an_invented_version_are_each_found() {
        let mut missing = rows();
        missing.remove(1);
        let mut repeated = rows();
        repeated.push(row(4, "present", 2, "u"));
        let mut swapped = rows();
        swapped.swap(0, 1);
        let mut invented = rows();
        invented.push(row(4, "present", 3, "other"));
        let mut gap = rows();
        gap.insert(2, row(3, "gap", 2, "u"));
        for wrong in [missing, repeated, swapped, invented, gap] {
            compare(&truth(), &wrong).expect_err("differs");
        }
    }

    #[test]
    fn a_status_that_moved_back_or_is_missing_or_doubled_is_found() {
        compare_newest(&rows(), &[row(2, "present", 2, "u")]).expect_err("moved back");
        compare_newest(&rows(), &[]).expect_err("missing");
        compare_newest(&rows(), &[row(3, "gone", 4, "u"), row(3, "gone", 4, "u")]).expect_err("doubled");
    }
}
