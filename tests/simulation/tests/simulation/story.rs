//! The events in the cluster, whether anybody watches or not.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubewitness_core::{ObjectRef, Status};
use kubewitness_faults::{Dice, ResourceHistory, TruthEvent, TruthFloor, WrittenEntry};

pub const SOURCES: [&str; 3] = ["jobs", "pods", "nodes"];

const NAMES: u64 = 5;
const NAMESPACES: [&str; 2] = ["vision", "speech"];

/// One source's objects and all that they went through.
#[derive(Default)]
pub struct SourceStory {
    pub entries: Vec<WrittenEntry>,
    pub floors: Vec<TruthFloor>,
    live: BTreeMap<(String, String), String>,
    born: u64,
}

/// Versions are counted over all sources, as etcd does.
#[derive(Default)]
pub struct SimulatedCluster {
    pub version: u64,
    pub stories: BTreeMap<&'static str, SourceStory>,
}

impl SourceStory {
    pub fn floor(&self) -> u64 {
        self.floors.last().map_or(0, |floor| floor.version)
    }

    pub fn history(&self) -> ResourceHistory {
        ResourceHistory { floors: self.floors.clone(), ..ResourceHistory::new(self.entries.clone(), 0) }
    }
}

impl SimulatedCluster {
    /// One object is created, changed or deleted.
    pub fn happens(&mut self, dice: &mut Dice) {
        let source = SOURCES[[0, 0, 0, 1, 1, 2][dice.below(6) as usize]];
        let namespace = NAMESPACES[dice.below(2) as usize];
        let name = format!("{source}-{}", dice.below(NAMES));
        let ends = dice.one_in(6);
        self.write(source, namespace, &name, ends);
    }

    pub fn write(&mut self, source: &'static str, namespace: &str, name: &str, ends: bool) {
        self.version += 1;
        let story = self.stories.entry(source).or_default();
        let key = (namespace.to_owned(), name.to_owned());
        let (event, uid) = match story.live.get(&key) {
            Some(uid) if ends => (TruthEvent::Deleted, uid.clone()),
            Some(uid) => (TruthEvent::Written, uid.clone()),
            None => {
                story.born += 1;
                (TruthEvent::Written, format!("{source}-uid-{}", story.born))
            }
        };
        match event {
            TruthEvent::Deleted => story.live.remove(&key),
            TruthEvent::Written => story.live.insert(key, uid.clone()),
        };
        story.entries.push(WrittenEntry {
            version: self.version,
            event,
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
            in_scope: true,
            document: None,
        });
    }

    /// Nothing below a version can be read any more.
    pub fn compact(&mut self, since_ms: u64, version: u64) {
        for story in self.stories.values_mut() {
            let version = version.max(story.floor());
            story.floors.push(TruthFloor { since_ms, version });
        }
    }
}

pub fn object(entry: &WrittenEntry) -> Arc<ObjectRef> {
    Arc::new(ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: entry.namespace.to_string(),
        name: entry.name.to_string(),
        uid: entry.uid.to_string(),
    })
}

/// A function of the version alone, so that a version always has the same.
pub fn status(version: u64) -> Arc<Status> {
    let phase = if (version / 2).is_multiple_of(2) { "Running" } else { "Pending" };
    Arc::new(Status { phase: phase.into(), ..Status::default() })
}
