//! The receipt of a call, which commits with its rows, and the row that stores it. It does not know which
//! database stores it.

pub mod claims;

use self::claims::TransactionClaims;
use crate::receipts::ReceiptMark;

/// All that is kept, by its place in what [`ReceiptRow::from`] takes.
pub const KEPT: &str = "SELECT plugin, first, last, states, token FROM kubewitness_receipts";

/// The proof, kept with the rows, that these states were applied.
#[derive(Clone, Debug)]
pub struct StoredReceipt {
    pub plugin: String,
    /// In order of their positions.
    pub marks: Vec<ReceiptMark>,
    /// Names this very transaction, so that its fate can be looked up: `PLUGIN.RANDOM`.
    pub token: String,
    pub at_ms: u64,
    /// The claims about the rows that were written with it.
    pub claims: TransactionClaims,
}

/// One row of the controller's own table.
#[derive(Debug)]
pub struct ReceiptRow {
    pub plugin: String,
    pub first: i64,
    pub last: i64,
    pub states: Vec<u8>,
    pub token: String,
}

/// The columns of the answer to [`KEPT`].
pub type ReceiptColumns = (String, i64, i64, Vec<u8>, String);

impl From<ReceiptColumns> for ReceiptRow {
    fn from((plugin, first, last, states, token): ReceiptColumns) -> Self {
        Self { plugin, first, last, states, token }
    }
}

/// The receipt of a call of the plugin `p` in tests.
#[cfg(test)]
pub fn receipt(token: &str, seqs: &[kubewitness_core::Seq]) -> StoredReceipt {
    use kubewitness_core::intents::prints::IdPrint;

    let marks = seqs.iter().map(|seq| ReceiptMark { seq: *seq, print: IdPrint::of("9") }).collect();
    let claims = TransactionClaims::default();
    StoredReceipt { plugin: "p".into(), marks, token: token.into(), at_ms: 1, claims }
}
