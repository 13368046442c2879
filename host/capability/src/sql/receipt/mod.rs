//! The receipt of a call, which commits with its rows, and the row that stores it. Which database stores it is not
//! known here.

pub mod claims;

use self::claims::Claims;
use crate::receipts::Mark;

/// All that is kept, by its place in what [`Row::from`] takes.
pub const KEPT: &str = "SELECT plugin, first, last, states, token FROM kubewitness_receipts";

/// The proof, kept with the rows, that these states were applied.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub plugin: String,
    /// In order of their positions.
    pub marks: Vec<Mark>,
    /// Names this very transaction, so that its fate can be looked up: `PLUGIN.RANDOM`.
    pub token: String,
    pub at_ms: u64,
    /// What is told of the rows that were written with it.
    pub claims: Claims,
}

/// One row of the controller's own table.
#[derive(Debug)]
pub struct Row {
    pub plugin: String,
    pub first: i64,
    pub last: i64,
    pub states: Vec<u8>,
    pub token: String,
}

/// What [`KEPT`] answers with.
pub type Columns = (String, i64, i64, Vec<u8>, String);

impl From<Columns> for Row {
    fn from((plugin, first, last, states, token): Columns) -> Self {
        Self { plugin, first, last, states, token }
    }
}
