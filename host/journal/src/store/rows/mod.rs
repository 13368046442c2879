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
    AnchorRow, GapRow, Known, ObjectRow, Outcome, PoisonRow, ROW_BYTES, Rows, SEGMENT, SnapshotRow,
    StreamRow, parse_status, status_text,
};
pub(crate) use damage::{Answer, damaged, decoded};
pub(crate) use envelope::{Encoding, Envelope, Flags, StateRow, both};
pub(crate) use key::Key;
pub(crate) use operator_actions::{Act, Replay};
pub(crate) use returned::{
    CurrentRow, EndRow, Ends, Kept, KeptSnapshot, LetterRange, LiveRow, Named, Placed, Step, StoredDocument,
    StoredRow, Stream, Which,
};

/// A number as a column takes it.
pub(crate) fn bounded(number: u64) -> i64 {
    number.min(i64::MAX as u64) as i64
}
