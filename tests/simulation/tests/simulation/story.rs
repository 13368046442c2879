//! What happens in the cluster, whether anybody watches or not.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubewitness_core::{ObjectRef, Status};
use kubewitness_faults::{Dice, Entry, Event, Floor, History};

pub const SOURCES: [&str; 3] = ["jobs", "pods", "nodes"];

const NAMES: u64 = 5;
const NAMESPACES: [&str; 2] = ["vision", "speech"];

/// One source's objects and all that they went through.
#[derive(Default)]
pub struct Story {
    pub entries: Vec<Entry>,
    pub floors: Vec<Floor>,
    live: BTreeMap<(String, String), String>,
    born: u64,
}

/// Versions are counted over all sources, as etcd does.
#[derive(Default)]
pub struct Cluster {
    pub version: u64,
    pub stories: BTreeMap<&'static str, Story>,
}

impl Story {
    pub fn floor(&self) -> u64 {
        self.floors.last().map_or(0, |floor| floor.version)
    }

    pub fn history(&self) -> History {
        History { floors: self.floors.clone(), ..History::new(self.entries.clone(), 0) }
    }
}

impl Cluster {
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
            Some(uid) if ends => (Event::Deleted, uid.clone()),
            Some(uid) => (Event::Written, uid.clone()),
            None => {
                story.born += 1;
                (Event::Written, format!("{source}-uid-{}", story.born))
            }
        };
        match event {
            Event::Deleted => story.live.remove(&key),
            Event::Written => story.live.insert(key, uid.clone()),
        };
        story.entries.push(Entry {
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
            story.floors.push(Floor { since_ms, version });
        }
    }
}

pub fn object(entry: &Entry) -> Arc<ObjectRef> {
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
