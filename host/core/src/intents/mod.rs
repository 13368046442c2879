//! Notes about effects that no transaction can undo, and what a repeated call makes of them. Pure: the
//! controller stores the notes beside the journal.
//!
//! A process can be killed between an effect and the record of it. So the controller notes each effect before
//! it happens, and a repeated call consults the notes. [`requests`] decides whether a request is sent,
//! answered from its note, or in doubt. [`writes`] decides which writes to `kv` count if their transaction
//! may have committed. [`commits`] names the newest commits of a granted database, which may lose them. [`prints`] are
//! short digests of state ids.

pub mod commits;
pub mod prints;
mod record;
pub mod requests;
pub mod writes;

use crate::ports::{KvWrite, NOTE};

/// Numbers have a fixed width, so keys sort as their numbers do.
fn key(kind: &str, number: u64) -> String {
    format!("{NOTE}{kind}/{number:020}")
}

fn note_number(kind: &str, key: &str) -> Option<u64> {
    key.strip_prefix(NOTE)?.strip_prefix(kind)?.strip_prefix('/')?.parse().ok()
}

fn note_removal(kind: &str, number: u64) -> KvWrite {
    KvWrite { key: key(kind, number), value: None }
}
