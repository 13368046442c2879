//! The result type of a store, and the errors for a damaged state and for JSON that does not decode.

use kubewitness_core::Seq;
use kubewitness_core::ports::JournalError;
use serde::de::DeserializeOwned;

pub(crate) type StoreResult<T> = Result<T, JournalError>;

pub(crate) fn damaged_state(seq: Seq, what: impl std::fmt::Display) -> JournalError {
    JournalError::Fatal(format!("state {seq}: {what}"))
}

/// Decodes a JSON column; `what` is its name in a message.
pub(crate) fn decode_column<T: DeserializeOwned>(
    body: &str,
    what: impl FnOnce() -> String,
) -> StoreResult<T> {
    serde_json::from_str(body)
        .map_err(|error| JournalError::Fatal(format!("{} does not decode: {error}", what())))
}
