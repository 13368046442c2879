//! Seals of a ledger: which lines the controller writes between a plugin's records, and when. No I/O and no key.
//!
//! A ledger is a numbered series of files. Each line is a record of a plugin, or a statement of the controller:
//!
//! ```text
//! {"kubewitness.dev/ledger":"head","ledger":"<id>","file":2,"previous":"<hash>","records":981,"at":"…"}
//! {"kubewitness.dev/ledger":"root","ledger":"<id>","file":2,"previous":"<hash>","lines":41,"records":1021,"root":"<hash>","at":"…","key":"<id>","signature":"…"}
//! {"kubewitness.dev/ledger":"seal", … the same …}
//! ```
//!
//! - Every file but the first begins with a `head`. Every closed file ends with a `seal`. A `root` may stand anywhere.
//! - `ledger` is a random id, made with the ledger. `file` counts from 1.
//! - `previous` is SHA-256 over the last line of the file before, without its end; zeros in the first file.
//! - `lines` are the lines of this file before this one, `records` the records of the whole ledger so far.
//! - `root` is the root of the Merkle tree over those lines, as RFC 6962 defines it: each line, without its end, is a
//!   leaf.
//! - `adopted` is there if the controller took over so many lines of the file: it did not see how they came.
//! - `key` and `signature` are there if the ledger is signed. The signature is Ed25519, in hex, over [`CONTEXT`] and the
//!   line's own text before `,"signature"`.

mod merkle;
mod names;
mod persons;
mod schedule;
mod statement;
mod tally;

pub use merkle::{MerkleHash, MerkleTree, sha256};
pub use names::{closed_file, closed_number, is_closed_file};
pub use persons::{NAME_BYTES, PERSON_BYTES, PERSONS, PersonEntry, SALT_BYTES, persons_file};
pub use schedule::{DueWrite, FileRotation, LedgerSchedule, SigningInterval};
pub use statement::{CONTEXT, LedgerStatement, StatementKind, is_statement, key_id};
pub use tally::{LedgerProgress, LedgerTally};

/// The digest in place of the file before the first.
pub const NO_FILE: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// A statement is shorter.
pub const STATEMENT_BYTES: usize = 1024;
