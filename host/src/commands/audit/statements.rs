//! Verifies what the controller has written between the records of a ledger: heads, signed roots and seals.
//! It reads the format as `docs/concepts/ledger.md` describes it, and shares no code with the controller that
//! writes it.

use std::collections::BTreeMap;

use ring::signature::{ED25519, UnparsedPublicKey};
use serde::Deserialize;

use super::BrokenLine;
use super::merkle::{MerkleCounter, sha256};

const START: &[u8] = b"{\"kubewitness.dev/ledger\":\"";
const SIGNATURE: &str = ",\"signature\":\"";
const CONTEXT: &str = "kubewitness ledger statement, version 1\n";
const NO_FILE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Public keys, by the ids in statements.
pub type PublicKeys = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedStatement {
    #[serde(rename = "kubewitness.dev/ledger")]
    kind: String,
    pub ledger: String,
    pub file: u64,
    previous: String,
    #[serde(default)]
    pub lines: u64,
    records: u64,
    #[serde(default)]
    adopted: Option<u64>,
    #[serde(default)]
    pub root: String,
    pub at: String,
    #[serde(default)]
    pub key: Option<String>,
    #[serde(default)]
    signature: Option<String>,
}

impl SignedStatement {
    pub fn is_head(&self) -> bool {
        self.kind == "head"
    }

    fn head_after(&self, line: &[u8]) -> String {
        let Self { ledger, file, records, at, .. } = self;
        let (next, previous) = (file.saturating_add(1), hex::encode(sha256(&[line])));
        format!(
            "{{\"kubewitness.dev/ledger\":\"head\",\"ledger\":\"{ledger}\",\"file\":{next},\"previous\":\"{previous}\",\
             \"records\":{records},\"at\":\"{at}\"}}"
        )
    }
}

pub fn is_statement(line: &[u8]) -> bool {
    line.starts_with(START)
}

pub fn read(line: &[u8]) -> Result<SignedStatement, BrokenLine> {
    let statement: SignedStatement =
        serde_json::from_slice(line).map_err(|error| BrokenLine::Unreadable(error.to_string()))?;
    match statement.kind.as_str() {
        "head" | "root" | "seal" => Ok(statement),
        other => Err(BrokenLine::Unreadable(format!("`{other}` is no kind of statement"))),
    }
}

/// The state of the ledger after the lines that were read.
#[derive(Debug, Default)]
pub struct LedgerState {
    pub id: Option<String>,
    pub file: u64,
    /// The hash of the last line of the previous file; unknown if that file was not given.
    previous: Option<String>,
    last_line: Option<String>,
    /// The head of the file after a seal, byte for byte: it contains nothing new.
    next_head: Option<String>,
    tree: MerkleCounter,
    pub lines: u64,
    /// The records of the whole ledger; unknown if the first given file is not the ledger's first.
    records: Option<u64>,
    pub is_sealed: bool,
    pub seals: u64,
    pub roots: u64,
    /// The roots with valid signatures.
    pub signed_roots: u64,
    pub newest: Option<SignedStatement>,
    /// Records after the newest root.
    pub open: u64,
    /// The most records between two roots with valid signatures.
    pub widest: u64,
    /// Lines that the controller took over.
    pub adopted: u64,
}

impl LedgerState {
    /// Must be called before the first line of each file.
    pub fn begin_file(&mut self, file: u64) {
        self.previous = match self.file {
            0 if file == 1 => Some(NO_FILE.to_owned()),
            0 => None,
            _ => self.last_line.take(),
        };
        if self.file == 0 && file == 1 {
            self.records = Some(0);
        }
        (self.file, self.lines, self.is_sealed, self.tree) = (file, 0, false, MerkleCounter::default());
    }

    pub fn take_record(&mut self, line: &[u8]) -> Result<(), BrokenLine> {
        if self.lines == 0 && self.file > 1 {
            return Err(BrokenLine::NoHead);
        }
        self.open += 1;
        if let Some(records) = &mut self.records {
            *records = records.checked_add(1).ok_or(BrokenLine::Miscounted)?;
        }
        self.count(line)
    }

    pub fn take_statement(&mut self, line: &[u8], keys: &PublicKeys) -> Result<(), BrokenLine> {
        let statement = read(line)?;
        if self.id.as_ref().is_some_and(|id| *id != statement.ledger) {
            return Err(BrokenLine::OtherLedger(statement.ledger));
        }
        if statement.file != self.file {
            return Err(BrokenLine::OtherFile(statement.file));
        }
        if *self.previous.get_or_insert_with(|| statement.previous.clone()) != statement.previous {
            return Err(BrokenLine::OtherPrevious);
        }
        if statement.is_head() != (self.lines == 0 && self.file > 1) {
            return Err(BrokenLine::NoHead);
        }
        if *self.records.get_or_insert(statement.records) != statement.records {
            return Err(BrokenLine::Miscounted);
        }
        if !statement.is_head() {
            if (statement.lines, &statement.root) != (self.lines, &self.tree.root()) {
                return Err(BrokenLine::OtherRoot);
            }
            self.check_signature(line, &statement, keys)?;
            self.roots += 1;
            self.open = 0;
        }
        let next_head = self.next_head.take().filter(|_| statement.is_head());
        if next_head.is_some_and(|head| head.as_bytes() != line) {
            return Err(BrokenLine::OtherPrevious);
        }
        let is_seal = statement.kind == "seal";
        if is_seal {
            self.next_head = Some(statement.head_after(line));
        }
        self.adopted = self.adopted.saturating_add(statement.adopted.unwrap_or_default());
        self.id = Some(statement.ledger.clone());
        if !statement.is_head() {
            self.newest = Some(statement);
        }
        self.count(line)?;
        self.is_sealed = is_seal;
        self.seals += u64::from(is_seal);
        Ok(())
    }

    /// Without keys, signatures can't be verified. Statements from before the ledger was signed have none:
    /// the first signature covers them as it covers records.
    fn check_signature(
        &mut self,
        line: &[u8],
        said: &SignedStatement,
        keys: &PublicKeys,
    ) -> Result<(), BrokenLine> {
        let is_before = self.signed_roots == 0 && said.key.is_none() && said.signature.is_none();
        if keys.is_empty() || is_before {
            return Ok(());
        }
        check_signature(line, said, keys)?;
        // The first one may cover what existed before the ledger was signed.
        if self.signed_roots > 0 {
            self.widest = self.widest.max(self.open);
        }
        self.signed_roots += 1;
        Ok(())
    }

    fn count(&mut self, line: &[u8]) -> Result<(), BrokenLine> {
        if self.is_sealed {
            return Err(BrokenLine::BehindSeal);
        }
        self.tree.add(line);
        self.lines += 1;
        self.last_line = Some(hex::encode(sha256(&[line])));
        Ok(())
    }

    pub fn root_so_far(&self) -> String {
        self.tree.root()
    }
}

fn check_signature(line: &[u8], said: &SignedStatement, keys: &PublicKeys) -> Result<(), BrokenLine> {
    let (Some(key), Some(signature)) = (&said.key, &said.signature) else { return Err(BrokenLine::Unsigned) };
    let public = keys.get(key).ok_or_else(|| BrokenLine::UnknownKey(key.clone()))?;
    // The line must end exactly so. Otherwise some bits of the signature's text would not be checked.
    let end = format!("{SIGNATURE}{signature}\"}}");
    let signed = line.strip_suffix(end.as_bytes()).ok_or(BrokenLine::Forged)?;
    let bytes = hex::decode(signature).ok().filter(|bytes| hex::encode(bytes) == *signature);
    let text = [CONTEXT.as_bytes(), signed].concat();
    let verified = UnparsedPublicKey::new(&ED25519, public).verify(&text, &bytes.ok_or(BrokenLine::Forged)?);
    verified.map_err(|_| BrokenLine::Forged)
}
