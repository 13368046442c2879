//! Reports what really happened, for the checks of tests: every version of every object over all histories,
//! when each was compacted, and what could be read.

use serde_json::{Value, json};

use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::store::StoreEvent;
pub use crate::apiserver::store::{EpochStart as Epoch, ReadableFloor};

/// One version of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruthEntry {
    /// ADDED, MODIFIED or DELETED.
    pub event: &'static str,
    /// How often the history was replaced before.
    pub epoch: u32,
    pub version: u64,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// When it was written, in milliseconds since 1970.
    pub at: u64,
    /// The time since which no exact list can show it; `None` while one can. No list ever shows a deletion.
    pub unreadable_since: Option<u64>,
}

/// The record of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceTruth {
    /// In the order of the writes.
    pub entries: Vec<TruthEntry>,
    /// The histories: the first one, and one for each restore.
    pub epochs: Vec<Epoch>,
    /// When each version was compacted.
    pub floors: Vec<ReadableFloor>,
    /// The number of older entries that were dropped.
    pub dropped: u64,
    /// The present history, its newest version, and the oldest version that can be listed.
    pub epoch: u32,
    pub version: u64,
    pub floor: u64,
    /// Milliseconds since 1970.
    pub now: u64,
}

impl TruthEntry {
    /// Whether an exact list could show it at a moment, in milliseconds since 1970.
    pub fn was_readable_at(&self, moment: u64) -> bool {
        self.at <= moment && self.unreadable_since.is_none_or(|since| moment < since)
    }

    pub fn is_deletion(&self) -> bool {
        self.event == StoreEvent::Deleted.as_str()
    }
}

impl ResourceTruth {
    pub fn of(shared: &SharedCluster, group: &str, resource: &str) -> Self {
        let Ok(place) = shared.place(group, resource, "") else {
            // The kind may have disappeared with its definition, but its record stays.
            let name = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
            return ResourceTruth::of_table(shared, &name);
        };
        ResourceTruth::of_table(shared, &place.kind.group_resource())
    }

    fn of_table(shared: &SharedCluster, name: &str) -> Self {
        let account = shared.store.account(Some(shared.store.table(name)));
        let entries = account.entries.into_iter().map(|entry| TruthEntry {
            event: entry.event.as_str(),
            epoch: entry.epoch,
            version: entry.version,
            namespace: entry.namespace.to_string(),
            name: entry.name.to_string(),
            uid: entry.uid.to_string(),
            at: entry.at,
            unreadable_since: entry.unreadable_since,
        });
        ResourceTruth {
            entries: entries.collect(),
            epochs: account.epochs,
            floors: account.floors,
            dropped: account.dropped,
            epoch: account.epoch,
            version: account.version,
            floor: account.floor,
            now: account.now,
        }
    }

    /// The record as the hook returns it.
    pub fn to_value(&self) -> Value {
        let entries = self.entries.iter().map(|entry| {
            json!({
                "type": entry.event, "epoch": entry.epoch, "resourceVersion": entry.version.to_string(),
                "namespace": entry.namespace, "name": entry.name, "uid": entry.uid, "at": entry.at,
                "unreadableSince": entry.unreadable_since,
            })
        });
        let epochs = self.epochs.iter().map(|epoch| {
            let parent = epoch.parent.map(|(number, version)| json!({"epoch": number, "version": version}));
            json!({"number": epoch.number, "at": epoch.at, "parent": parent, "version": epoch.version})
        });
        let floors = self
            .floors
            .iter()
            .map(|floor| json!({"at": floor.at, "epoch": floor.epoch, "floor": floor.floor}));
        json!({
            "epoch": self.epoch, "version": self.version, "floor": self.floor, "now": self.now,
            "dropped": self.dropped, "entries": entries.collect::<Value>(),
            "epochs": epochs.collect::<Value>(), "floors": floors.collect::<Value>(),
        })
    }
}
