//! The claims of a receipt: which rows were written with it, so that a verification can look for them.
//!
//! The claims are another row of the receipts' table, under a name that no plugin can have, and are removed
//! with their receipt. They contain keys only of rows that the controller wrote itself: such a row exists
//! from then on, whatever replaces it. A plugin may also delete rows with its own statements; the transaction
//! that does so drops all earlier claims.

use kubewitness_core::document::checksum;
use kubewitness_core::ports::{SqlValue, TableCopy, TableWrite};
use serde::{Deserialize, Serialize};

use crate::receipts::{self, ReceiptMark};
use crate::sql::guard::GuardedStatement;

/// Instead of a plugin's name.
pub const OWNER: &str = "/rows";

/// Keys of one write that are told: of more, some that lie evenly among them. A batch has 64 states
/// unless it was set otherwise.
const KEYS: usize = 64;
/// Bytes of keys that one call tells.
const BYTES: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeyPart {
    Integer(i64),
    Text(String),
}

impl KeyPart {
    /// Other kinds are seldom keys, and not compared the same everywhere.
    fn of(value: &SqlValue) -> Option<Self> {
        match value {
            SqlValue::Integer(number) => Some(Self::Integer(*number)),
            SqlValue::Text(text) => Some(Self::Text(text.clone())),
            _ => None,
        }
    }

    pub fn as_sql_value(&self) -> SqlValue {
        match self {
            Self::Integer(number) => SqlValue::Integer(*number),
            Self::Text(text) => SqlValue::Text(text.clone()),
        }
    }
}

/// The table, the columns and the keys of one write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteClaim {
    pub table: String,
    pub columns: Vec<String>,
    /// No two are equal.
    pub keys: Vec<Vec<KeyPart>>,
}

impl WriteClaim {
    /// `write` may still turn out to be refused.
    pub fn of(write: &TableWrite) -> Self {
        Self::new(&write.table, &write.key, write, write.rows.iter())
    }

    /// Makes the claim for the rows that go to a second table as well.
    pub fn of_copy(copy: &TableCopy, write: &TableWrite) -> Self {
        Self::new(&copy.table, &copy.key, write, copy.copied_rows(write))
    }

    fn new<'w>(
        table: &str,
        key: &[String],
        write: &TableWrite,
        rows: impl Iterator<Item = &'w Vec<SqlValue>>,
    ) -> Self {
        let place = |name: &String| write.columns.iter().position(|column| column == name);
        let places: Vec<usize> = key.iter().filter_map(place).collect();
        let step = write.rows.len().div_ceil(KEYS).max(1);
        let of = |row: &Vec<SqlValue>| places.iter().map(|place| KeyPart::of(row.get(*place)?)).collect();
        let mut keys: Vec<Vec<KeyPart>> = Vec::new();
        for key in rows.step_by(step).filter_map(of) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Self { table: table.to_owned(), columns: key.to_vec(), keys }
    }

    fn key_bytes(&self) -> usize {
        let of = |part: &KeyPart| match part {
            KeyPart::Integer(_) => 8,
            KeyPart::Text(text) => text.len(),
        };
        self.keys.iter().flatten().map(of).sum()
    }
}

/// The recorded changes of one call's transaction.
#[derive(Clone, Debug, Default)]
pub struct TransactionClaims {
    claims: Vec<WriteClaim>,
    bytes: usize,
    /// Rows may have been taken away: nothing is said of any.
    pub takes: bool,
}

#[derive(Serialize, Deserialize)]
struct ClaimRow {
    /// The checksum of the receipt's states.
    sum: u32,
    claims: Vec<WriteClaim>,
}

impl TransactionClaims {
    pub fn note_claim(&mut self, claim: WriteClaim) {
        self.bytes += claim.key_bytes();
        if self.bytes <= BYTES && !claim.keys.is_empty() {
            self.claims.push(claim);
        }
    }

    /// Notes that a statement of the plugin's own ran.
    pub fn note_statement(&mut self, statement: &GuardedStatement<'_>) {
        self.takes |= !statement.only_adds();
    }

    /// `None` where there is nothing to tell.
    pub fn encode(&self, marks: &[ReceiptMark]) -> Option<Vec<u8>> {
        if self.takes || self.claims.is_empty() || marks.is_empty() {
            return None;
        }
        let told = ClaimRow { sum: checksum(&receipts::encode(marks)), claims: self.claims.clone() };
        let text = serde_json::to_vec(&told).ok()?;
        Some([&checksum(&text).to_le_bytes()[..], &text].concat())
    }
}

/// The claims of a receipt with these states; `None` where they are not what was written.
pub fn decode(bytes: &[u8], states: &[u8]) -> Option<Vec<WriteClaim>> {
    let (sum, text) = bytes.split_first_chunk()?;
    if u32::from_le_bytes(*sum) != checksum(text) {
        return None;
    }
    let told: ClaimRow = serde_json::from_slice(text).ok()?;
    (told.sum == checksum(states)).then_some(told.claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::guard::{StatementPurpose, check};
    use kubewitness_core::intents::prints::IdPrint;
    use kubewitness_core::ports::{OnConflict, SqlDialect};

    fn write(rows: Vec<Vec<SqlValue>>) -> TableWrite {
        TableWrite {
            table: "status".into(),
            columns: vec!["phase".into(), "uid".into(), "seq".into()],
            key: vec!["seq".into(), "uid".into()],
            on_conflict: OnConflict::Ignore,
            rows,
        }
    }

    fn row(uid: &str, seq: i64) -> Vec<SqlValue> {
        vec![SqlValue::Text("Running".into()), SqlValue::Text(uid.into()), SqlValue::Integer(seq)]
    }

    #[test]
    fn keys_come_back_and_what_was_changed_does_not() {
        let mut claims = TransactionClaims::default();
        claims.note_claim(WriteClaim::of(&write(vec![row("a", 1), row("b", 2), row("a", 1)])));
        let marks = [ReceiptMark { seq: 1, print: IdPrint::from_short_print(7) }];
        let bytes = claims.encode(&marks).unwrap();
        let told = decode(&bytes, &receipts::encode(&marks)).unwrap();
        let key = |uid: &str, seq| vec![KeyPart::Integer(seq), KeyPart::Text(uid.into())];
        assert_eq!(told[0].keys, [key("a", 1), key("b", 2)]);
        assert_eq!(told[0].columns, ["seq", "uid"]);
        assert_eq!(
            decode(&bytes, &receipts::encode(&[ReceiptMark { seq: 2, print: IdPrint::from_short_print(7) }])),
            None
        );
        for place in 0..bytes.len() {
            let mut other = bytes.clone();
            other[place] ^= 1;
            assert_eq!(decode(&other, &receipts::encode(&marks)), None, "{place}");
        }
    }

    #[test]
    fn of_a_second_table_its_own_keys_are_told_but_not_of_rows_that_it_was_not_given() {
        let written = write(vec![row("a", 1), row("b", 2), row("c", 3)]);
        let copy = TableCopy {
            table: "newest".into(),
            columns: vec!["uid".into(), "seq".into()],
            key: vec!["uid".into()],
            on_conflict: OnConflict::Ignore,
            without: vec![1],
        };
        let claim = WriteClaim::of_copy(&copy, &written);
        let key = |uid: &str| vec![KeyPart::Text(uid.into())];
        assert_eq!((claim.table.as_str(), &claim.columns), ("newest", &vec!["uid".into()]));
        assert_eq!(claim.keys, [key("a"), key("c")]);
    }

    #[test]
    fn of_many_rows_some_are_told_and_of_too_many_bytes_none() {
        let many: Vec<_> = (0..1000).map(|seq| row("a", seq)).collect();
        let claim = WriteClaim::of(&write(many));
        assert!(claim.keys.len() <= KEYS && claim.keys.len() > KEYS / 2, "{}", claim.keys.len());
        let long = "x".repeat(BYTES / 10);
        let mut claims = TransactionClaims::default();
        for seq in 0..20 {
            claims.note_claim(WriteClaim::of(&write(vec![row(&long, seq)])));
        }
        assert!(claims.claims.len() < 10);
    }

    #[test]
    fn only_statements_that_plainly_add_leave_what_was_told() {
        let takes = |statement: &str| {
            let mut claims = TransactionClaims::default();
            claims.note_statement(&check(statement, StatementPurpose::Execute, SqlDialect::Sqlite).unwrap());
            claims.takes
        };
        for adds in [
            "INSERT INTO t (a) VALUES (?)",
            "CREATE TABLE IF NOT EXISTS t (a)",
            "insert into t values (1)",
            "CREATE VIEW v AS SELECT replace(a, 'x', 'y') FROM t",
            "DROP VIEW IF EXISTS v",
            "ALTER TABLE t ADD COLUMN b text",
        ] {
            assert!(!takes(adds), "{adds}");
        }
        for other in [
            "DELETE FROM t",
            "UPDATE t SET a = 1",
            "DROP TABLE t",
            "ALTER TABLE t DROP COLUMN a",
            "ALTER TABLE t RENAME TO u",
            "ALTER TABLE t ADD COLUMN b text, DROP COLUMN a",
            "ALTER TABLE t ADD COLUMN b text, ENGINE = BLACKHOLE",
            "INSERT OR REPLACE INTO t (a) VALUES (?)",
            "REPLACE INTO t (a) VALUES (?)",
            "INSERT INTO t (a) VALUES (?) ON CONFLICT (a) DO UPDATE SET a = 2",
            "CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t WHERE a = 1",
            "WITH x AS (SELECT 1) DELETE FROM t",
        ] {
            // What is refused takes nothing.
            if check(other, StatementPurpose::Execute, SqlDialect::Sqlite).is_ok() {
                assert!(takes(other), "{other}");
            }
        }
    }
}
