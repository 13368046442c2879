//! What a row that is not what was written means to whoever reads it.

use kubewitness_core::Seq;
use kubewitness_core::ports::JournalError;

pub(crate) type Answer<T> = Result<T, JournalError>;

pub(crate) fn damaged(seq: Seq, what: impl std::fmt::Display) -> JournalError {
    JournalError::Fatal(format!("state {seq}: {what}"))
}
