//! A statement: a line that the controller writes into a ledger, and the bytes that are signed.

use serde::{Deserialize, Serialize};

use super::sha256;

/// The prefix of each signed text. A signature for another purpose can't pass for one of a ledger.
pub const CONTEXT: &str = "kubewitness ledger statement, version 1\n";
/// The prefix of every statement. No record begins with it.
const START: &[u8] = b"{\"kubewitness.dev/ledger\":\"";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatementKind {
    Head,
    Root,
    Seal,
}

/// The fields are written in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerStatement {
    #[serde(rename = "kubewitness.dev/ledger")]
    pub kind: StatementKind,
    pub ledger: String,
    pub file: u64,
    pub previous: String,
    /// Absent in a head, as `root` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    pub records: u64,
    /// Lines of this file that the controller took over. It did not see who wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Whether the controller wrote this line. A plugin's record may not look like this.
pub fn is_statement(line: &[u8]) -> bool {
    line.starts_with(START)
}

/// The id by which statements refer to the key that signed them.
pub fn key_id(public: &[u8]) -> String {
    hex::encode(&sha256(public)[..8])
}

/// Signs bytes.
pub type StatementSigner<'a> = dyn Fn(&[u8]) -> Vec<u8> + 'a;

impl LedgerStatement {
    /// `None` if the line is a record, or a statement that this version does not know.
    pub fn parse(line: &[u8]) -> Option<Self> {
        is_statement(line).then(|| serde_json::from_slice(line).ok()).flatten()
    }

    /// The line without its end. `sign` gets the bytes that are signed.
    pub fn encode_line(&self, sign: Option<&StatementSigner<'_>>) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = serde_json::to_vec(self)?;
        if let Some(sign) = sign {
            text.truncate(text.len() - 1);
            let signature = sign(&[CONTEXT.as_bytes(), &text].concat());
            text.extend_from_slice(format!(",\"signature\":\"{}\"}}", hex::encode(signature)).as_bytes());
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{NO_FILE, STATEMENT_BYTES};

    fn seal() -> LedgerStatement {
        LedgerStatement {
            kind: StatementKind::Seal,
            ledger: "ab".repeat(16),
            file: u64::MAX,
            previous: NO_FILE.to_owned(),
            lines: Some(u64::MAX),
            records: u64::MAX,
            adopted: Some(u64::MAX),
            root: Some(NO_FILE.to_owned()),
            at: "2026-11-25T21:00:00.000Z".to_owned(),
            key: Some(key_id(b"public")),
        }
    }

    #[test]
    fn a_signed_statement_is_read_back_and_its_signature_covers_the_text_before_it() {
        let sign = |bytes: &[u8]| sha256(bytes).to_vec();
        let line = seal().encode_line(Some(&sign)).unwrap();
        let text = String::from_utf8(line.clone()).unwrap();
        let (signed, rest) = text.split_once(",\"signature\":\"").unwrap();
        assert_eq!(rest, format!("{}\"}}", hex::encode(sha256(format!("{CONTEXT}{signed}").as_bytes()))));
        assert_eq!(LedgerStatement::parse(&line), Some(seal()));
    }

    #[test]
    fn the_longest_statement_has_no_more_bytes_than_its_bound() {
        let line = seal().encode_line(Some(&|_| vec![0; 64])).unwrap();
        assert!(line.len() < STATEMENT_BYTES, "{}", line.len());
    }

    #[test]
    fn a_record_is_no_statement() {
        for record in
            ["", "{}", "{\"n\":1,\"kubewitness.dev/ledger\":\"root\"}", " {\"kubewitness.dev/ledger\":\""]
        {
            assert!(!is_statement(record.as_bytes()) && LedgerStatement::parse(record.as_bytes()).is_none());
        }
        let unknown = b"{\"kubewitness.dev/ledger\":\"later\"}";
        assert!(is_statement(unknown) && LedgerStatement::parse(unknown).is_none());
    }
}
