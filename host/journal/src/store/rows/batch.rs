//! The rows that one transaction of appends writes.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use kubewitness_core::document::{PackedDocument, checksum};
use kubewitness_core::{Seq, Status};

use super::checksum;
use super::discrepancies::FoundDifferences;
use super::envelope::StateRow;
use super::key::StateKey;

/// How many positions share one row of counts. A range is counted by these rows and not by its states.
pub(crate) const SEGMENT: u64 = 1024;

/// The bytes of a row without its document: its columns and its index entry.
pub(crate) const ROW_BYTES: u64 = 100;

/// The positions of keys that were looked up.
pub(crate) type KnownKeys = HashMap<(i64, StateKey), Seq>;

/// Rows that one transaction writes.
#[derive(Debug, Default)]
pub(crate) struct RowBatch {
    pub streams: Vec<StreamRow>,
    pub kinds: Vec<(i64, String, String, String)>,
    pub objects: Vec<ObjectRow>,
    /// An owner and an owned object.
    pub owned: Vec<(i64, i64)>,
    pub statuses: Vec<(i64, String)>,
    pub anchors: Vec<AnchorRow>,
    pub states: Vec<StateRow>,
    pub outcomes: HashMap<i64, ObjectOutcome>,
    /// By object; an ended object has none.
    pub snapshots: HashMap<i64, SnapshotRow>,
    pub tallies: BTreeMap<(u64, i64), u64>,
    /// The bytes of the states that `tallies` counts, as retention measures them.
    pub sizes: BTreeMap<(u64, i64), u64>,
    pub gaps: Vec<GapRow>,
    pub poison: Vec<PoisonRow>,
    pub differences: Vec<FoundDifferences>,
}

impl RowBatch {
    /// The newest state.
    pub fn newest_position(&self) -> Option<Seq> {
        self.states.last().map(|state| state.envelope.seq)
    }

    /// Whether other processes need not read anything after this batch.
    pub fn is_empty(&self) -> bool {
        let Self { streams, objects, owned, states, outcomes, snapshots, gaps, poison, differences, .. } =
            self;
        // Other rows are written only together with one of these.
        streams.is_empty()
            && objects.is_empty()
            && owned.is_empty()
            && states.is_empty()
            && outcomes.is_empty()
            && snapshots.is_empty()
            && gaps.is_empty()
            && poison.is_empty()
            && differences.is_empty()
    }
}

/// An object, or an owner that was only referred to (`stream` is 0).
#[derive(Clone, Debug)]
pub(crate) struct ObjectRow {
    pub id: i64,
    pub stream: i64,
    pub kind: i64,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub owner: i64,
}

impl ObjectRow {
    /// Covers every column.
    pub fn row_checksum(&self) -> u32 {
        let Self { id, stream, kind, namespace, name, uid, owner } = self;
        checksum(format!("{id}/{stream}/{kind}/{namespace}/{name}/{uid}/{owner}").as_bytes())
    }
}

/// The change of an object's row at the end of a batch.
#[derive(Clone, Debug)]
pub(crate) enum ObjectOutcome {
    Live {
        newest: Seq,
        tail: Seq,
    },
    /// 0 if there is none.
    Ended {
        newest: Seq,
        tail: Seq,
    },
}

/// The whole document of a live object's state.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotRow {
    pub object: i64,
    pub seq: Seq,
    pub packed: PackedDocument,
}

/// The new row of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamRow {
    pub id: i64,
    pub source: String,
    pub epoch: u32,
    pub checkpoint: Option<String>,
    /// The number of states that this batch adds.
    pub states: u64,
    pub last_event_ms: Option<i64>,
}

impl StreamRow {
    pub fn row_checksum(&self) -> i64 {
        let Self { id, source, epoch, checkpoint, last_event_ms, .. } = self;
        checksum::sum_of_stream(*id, source, i64::from(*epoch), checkpoint.as_deref(), *last_event_ms)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct GapRow {
    pub stream: i64,
    /// 0 for a gap of the whole source.
    pub seq: Seq,
    pub key: String,
    pub body: String,
}

impl GapRow {
    pub fn row_checksum(&self) -> i64 {
        checksum::sum_of_gap(self.stream, self.seq as i64, &self.key, &self.body)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PoisonRow {
    pub stream: i64,
    pub digest: i64,
    pub checksum: u32,
    pub raw: Vec<u8>,
    pub error: String,
    pub observed_ms: i64,
}

impl PoisonRow {
    pub fn row_checksum(&self) -> i64 {
        let Self { stream, digest, checksum, observed_ms, error, .. } = self;
        checksum::sum_of_poison(*stream, *digest, i64::from(*checksum), *observed_ms, error)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AnchorRow {
    pub id: i64,
    pub stream: i64,
    pub checksum: u32,
    pub packed: PackedDocument,
}

impl AnchorRow {
    pub fn row_checksum(&self) -> i64 {
        checksum::sum_of_anchor(self.id, self.stream, i64::from(self.checksum))
    }
}

/// The stored form of a status: positions instead of names, because one status is stored for each phase.
pub(crate) fn status_text(status: &Status) -> String {
    let Status { phase, reason, message, attempt, ready, total, exit_code, terminal } = status;
    let parts = (phase, reason, message, attempt, ready, total, exit_code, u8::from(*terminal));
    serde_json::to_string(&parts).expect("strings and numbers always serialize")
}

pub(crate) fn parse_status(text: &str) -> Result<Status, serde_json::Error> {
    type RowParts = (String, String, String, u32, u32, u32, Option<i32>, u8);
    let (phase, reason, message, attempt, ready, total, exit_code, terminal): RowParts =
        serde_json::from_str(text)?;
    Ok(Status { phase, reason, message, attempt, ready, total, exit_code, terminal: terminal != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_comes_back_whole() {
        let status = Status {
            phase: "Failed".into(),
            reason: "BackoffLimitExceeded".into(),
            message: "a \"quoted\" word".into(),
            attempt: 3,
            ready: 1,
            total: 2,
            exit_code: Some(-9),
            terminal: true,
        };
        assert_eq!(parse_status(&status_text(&status)).unwrap(), status);
    }
}
