//! The receipt of a call, which commits with its rows, and the row that stores it. It does not know which
//! database stores it.

pub mod claims;

use kubewitness_core::Seq;

use self::claims::TransactionClaims;
use crate::receipts::ReceiptMark;

/// All that is kept, by its place in what [`ReceiptRow::from`] takes.
pub const KEPT: &str = "SELECT plugin, first, last, states, token, at FROM kubewitness_receipts";

/// Instead of a plugin's name: up to where receipts of a plugin may have been removed.
pub const FLOOR: &str = "/floor";

/// How the token of that row ends.
pub const FLOOR_TOKEN: &str = "./floor";

/// The token of that row.
pub fn floor_token(plugin: &str) -> String {
    format!("{plugin}{FLOOR_TOKEN}")
}

/// How the tokens of ticks begin, behind the plugin's name.
pub const TICK: &str = "tick.";

/// Whether this is the token of a tick. A resync has a receipt without states as well, and no other replaces that.
pub fn is_tick(token: &str) -> bool {
    token.split_once('.').is_some_and(|(_, rest)| rest.starts_with(TICK))
}

/// The proof, kept with the rows, that these states were applied.
#[derive(Clone, Debug)]
pub struct StoredReceipt {
    pub plugin: String,
    /// In order of their positions.
    pub marks: Vec<ReceiptMark>,
    /// Names this very transaction, so that its fate can be looked up: `PLUGIN.RANDOM`, of a tick `PLUGIN.tick.RANDOM`.
    pub token: String,
    /// Where the row stands if the transaction finished no state, as that of a tick: pruning passes it then.
    pub position: Seq,
    /// No later receipt of the plugin has the same or an earlier moment.
    pub at_ms: u64,
    /// The receipts of earlier ticks, which it replaces.
    pub replaces: Vec<String>,
    /// The claims about the rows that were written with it.
    pub claims: TransactionClaims,
}

impl StoredReceipt {
    pub fn is_tick(&self) -> bool {
        is_tick(&self.token)
    }

    /// The first and the last position.
    pub fn position_span(&self) -> (Seq, Seq) {
        match (self.marks.first(), self.marks.last()) {
            (Some(first), Some(last)) => (first.seq, last.seq),
            _ => (self.position, self.position),
        }
    }
}

/// One row of the controller's own table.
#[derive(Debug)]
pub struct ReceiptRow {
    pub plugin: String,
    pub first: i64,
    pub last: i64,
    pub states: Vec<u8>,
    pub token: String,
    pub at: i64,
}

/// The columns of the answer to [`KEPT`].
pub type ReceiptColumns = (String, i64, i64, Vec<u8>, String, i64);

impl From<ReceiptColumns> for ReceiptRow {
    fn from((plugin, first, last, states, token, at): ReceiptColumns) -> Self {
        Self { plugin, first, last, states, token, at }
    }
}

/// The receipt of a call of the plugin `p` in tests.
#[cfg(test)]
pub fn receipt(token: &str, seqs: &[Seq]) -> StoredReceipt {
    use kubewitness_core::intents::prints::IdPrint;

    let marks = seqs.iter().map(|seq| ReceiptMark { seq: *seq, print: IdPrint::of("9") }).collect();
    let claims = TransactionClaims::default();
    let (plugin, token) = ("p".into(), token.into());
    StoredReceipt { plugin, marks, token, position: 0, at_ms: 1, replaces: Vec::new(), claims }
}
