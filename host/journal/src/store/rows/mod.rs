//! The rows of a journal, whatever store they lie in: their columns, encodings and checksums. Knows no
//! SQL, no connection and no clock.

mod batch;
pub(crate) mod check;
pub(crate) mod checksum;
mod damage;
pub(crate) mod discrepancies;
mod envelope;
mod key;
mod operator_actions;
pub(crate) mod removal;
mod returned;
pub(crate) mod uid;

pub(crate) use batch::{
    AnchorRow, GapRow, KnownKeys, ObjectOutcome, ObjectRow, PoisonRow, ROW_BYTES, RowBatch, SEGMENT,
    SnapshotRow, StreamRow, parse_status, status_text,
};
pub(crate) use damage::{StoreResult, damaged, decoded};
pub(crate) use envelope::{DocumentEncoding, RowFlags, StateEnvelope, StateRow, both};
pub(crate) use key::StateKey;
pub(crate) use operator_actions::{DROPPED, LetterMarking, OWED_STATE, OperatorAct};
pub(crate) use returned::{
    ChainStep, CurrentRow, DocumentStorage, EndRow, KeptSnapshot, LetterRange, LiveRow, NamedObject,
    ObjectChoice, ObjectEnds, PlacedObject, SourceEpoch, StoredDocument, StoredRow,
};

/// A number as a column takes it.
pub(crate) fn bounded(number: u64) -> i64 {
    number.min(i64::MAX as u64) as i64
}
