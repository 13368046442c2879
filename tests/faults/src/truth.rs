//! The two sides that the judges compare: the history of the server, and the contents of the journal.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kubewitness_core::{Gap, Seq, State};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruthEvent {
    /// Added or changed.
    Written,
    Deleted,
}

/// One version of one object.
#[derive(Clone, Debug)]
pub struct WrittenEntry {
    pub version: u64,
    pub event: TruthEvent,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// Whether the source's selector takes it.
    pub in_scope: bool,
    /// The document that was written, where it is known.
    pub document: Option<Arc<Value>>,
}

/// From this moment on nothing below this version could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruthFloor {
    pub since_ms: u64,
    pub version: u64,
}

/// The course of one resource on a server, up to where another history took its place.
#[derive(Clone, Debug, Default)]
pub struct ResourceHistory {
    /// In order of version.
    pub entries: Vec<WrittenEntry>,
    /// The source's first list of this history was not before this version. What was overwritten
    /// by then nobody can have witnessed, and everything after it must be.
    pub listed: u64,
    /// Its last page was not read after this version: what an earlier version of an object was
    /// overwritten with by then, may have taken its place in the list.
    pub listed_until: u64,
    /// In order of time.
    pub floors: Vec<TruthFloor>,
    /// Another one took its place: it can't be asked any more.
    pub over: bool,
}

impl ResourceHistory {
    pub fn new(entries: Vec<WrittenEntry>, listed: u64) -> Self {
        Self { entries, listed, listed_until: listed, floors: Vec::new(), over: false }
    }

    /// The oldest version that could be read at a moment.
    pub fn floor_at(&self, ms: u64) -> u64 {
        self.floors.iter().filter(|floor| floor.since_ms <= ms).map(|floor| floor.version).max().unwrap_or(0)
    }

    /// uid → version of what is there now.
    pub fn live(&self) -> BTreeMap<String, String> {
        let mut live = BTreeMap::new();
        for entry in &self.entries {
            if entry.event == TruthEvent::Written && entry.in_scope {
                live.insert(entry.uid.to_string(), entry.version.to_string());
            } else {
                live.remove(&*entry.uid);
            }
        }
        live
    }
}

/// The content of the server: one history an epoch, in their order.
#[derive(Clone, Debug, Default)]
pub struct ServerTruth {
    pub histories: Vec<ResourceHistory>,
}

/// The content of the journal.
#[derive(Clone, Debug, Default)]
pub struct JournalRecord {
    /// The states of one source, by position.
    pub states: Vec<Arc<State>>,
    /// The gaps of the source and of its objects.
    pub gaps: Vec<Gap>,
    /// uid and version of what was made unreadable on its way, and found among the poison.
    pub poisoned: HashSet<(String, u64)>,
    /// The objects that are there now, by uid; `None` where that is not asked.
    pub current: Option<BTreeMap<String, String>>,
    /// Documents of states, as far as they are to be compared; `None` is an empty one.
    pub documents: HashMap<Seq, Option<Value>>,
    /// Only what is at or below this version of the last history must be there: the checkpoint of
    /// a journal that was left in the middle.
    pub up_to: Option<u64>,
    /// The process was killed: a life that is found when its outage is looked at once more may be
    /// told after its name's next bearer, from its beginning to its end.
    pub late_allowed: bool,
    /// Holes may be larger than they need be, since what could be read was not, within its budget
    /// or on a server that doesn't read old versions.
    pub unread_allowed: bool,
    /// Events came in the wrong order: a state that says of itself that it is late may be.
    pub unordered: bool,
}
