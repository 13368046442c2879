//! The controller's statements in a ledger: which lines it writes between a plugin's records, and when. Pure:
//! no I/O and no key.
//!
//! A ledger is a numbered series of files. Each line is a record of a plugin, or a statement of the
//! controller:
//!
//! ```text
//! {"kubewitness.dev/ledger":"head","ledger":"<id>","file":2,"previous":"<hash>","records":981,"at":"…"}
//! {"kubewitness.dev/ledger":"root","ledger":"<id>","file":2,"previous":"<hash>","lines":41,"records":1021,"root":"<hash>","at":"…","key":"<id>","signature":"…"}
//! {"kubewitness.dev/ledger":"seal", … the same …}
//! ```
//!
//! - Every file but the first begins with a `head`. Every closed file ends with a `seal`. A `root` may stand
//!   anywhere.
//! - `ledger` is a random id, made with the ledger. `file` counts from 1.
//! - `previous` is SHA-256 over the last line of the previous file, without its newline; zeros in the first
//!   file.
//! - `lines` counts the earlier lines of this file, `records` the records of the whole ledger so far.
//! - `root` is the root of the Merkle tree over those lines, as RFC 6962 defines it. Each line, without its
//!   newline, is a leaf.
//! - `adopted` counts lines that were in the file before the controller took it over. It did not see who
//!   wrote them.
//! - `key` and `signature` exist if the ledger is signed. The signature is Ed25519, in hex, over [`CONTEXT`]
//!   and the line's own text before `,"signature"`.

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

/// Stands for the digest of the file before the first one.
pub const NO_FILE: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Every statement is shorter.
pub const STATEMENT_BYTES: usize = 1024;
