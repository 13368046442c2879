//! The rows of a journal, independent of the store: their columns, encodings and checksums.
//!
//! All stores must mean the same by a row, and a row must be provably unchanged. So encodings and checksums
//! are defined here, once, and a store only puts columns into its tables. Each checksum covers the values of
//! a row, and not the bytes of a store. The module knows no SQL, no connection and no clock.

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
pub(crate) use damage::{StoreResult, damaged_state, decode_column};
pub(crate) use envelope::{DocumentEncoding, RowFlags, StateEnvelope, StateRow, join_documents};
pub(crate) use key::StateKey;
pub(crate) use operator_actions::{DROPPED, LetterMarking, MarkedLetter, OWED_STATE, OperatorAct};
pub(crate) use returned::{
    ChainStep, CurrentRow, DocumentRow, DocumentStorage, EndRow, KeptSnapshot, LetterRange, LiveRow,
    NamedObject, ObjectChoice, ObjectEnds, PlacedObject, SourceEpoch, StoredDocument, StoredRow,
};

/// A number in the form of a column.
pub(crate) fn bounded_i64(number: u64) -> i64 {
    number.min(i64::MAX as u64) as i64
}
