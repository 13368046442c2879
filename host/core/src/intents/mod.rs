//! What the controller notes of a plugin's call before the call has an effect that no transaction undoes, and what a
//! repeat of the call makes of it. Pure: the controller keeps the notes beside the journal and does the rest.
//!
//! [`prints`] stand for the ids of states. [`requests`] decides whether a request is sent, answered with what is kept, or in doubt. [`writes`] decides which
//! writes to `kv` count whose transaction may have been committed.

pub mod prints;
mod record;
pub mod requests;
pub mod writes;

use crate::ports::{KvWrite, NOTE};

/// Numbers have a fixed width, so that the order of keys is that of numbers.
fn key(kind: &str, number: u64) -> String {
    format!("{NOTE}{kind}/{number:020}")
}

fn number(kind: &str, key: &str) -> Option<u64> {
    key.strip_prefix(NOTE)?.strip_prefix(kind)?.strip_prefix('/')?.parse().ok()
}

fn removal(kind: &str, number: u64) -> KvWrite {
    KvWrite { key: key(kind, number), value: None }
}
