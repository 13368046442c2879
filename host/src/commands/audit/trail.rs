//! The records of an audit trail: one chain of hashes through all files, with each state once.
//!
//! A record is one JSON object that ends with `,"hash":"…"}`, or with a signature after the hash. The hash is
//! SHA-256, in hex, over the hash of the previous record and the record's own text without hash and
//! signature. The text also contains its number `n` and the previous hash, `prev`. The first record has
//! number 1 and sixty-four zeros as `prev`.

use std::collections::HashSet;

use ring::digest::{Context, SHA256, digest};
use serde::Deserialize;

use super::BrokenLine;

pub const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// A plugin reads no deeper patch, and a verifier in another language should not need to.
const LEVELS: usize = 128;
const HASH_FIELD: &str = ",\"hash\":\"";
const SIGNATURE_FIELD: &str = ",\"signature\":\"";

#[derive(Deserialize)]
struct TrailLine {
    n: u64,
    prev: String,
    id: String,
}

/// The valid records, from the first given one.
#[derive(Debug)]
pub struct RecordChain {
    /// The hash of the last record; unknown if the first files are missing.
    head: Option<String>,
    next: u64,
    pub records: u64,
    pub signed: u64,
    /// Half of each id's hash: collisions are practically impossible, and a million lines take some 30 MB.
    ids: HashSet<[u8; 16]>,
}

impl RecordChain {
    /// `is_whole` is set if the files begin with the ledger's first.
    pub fn new(is_whole: bool) -> Self {
        let head = is_whole.then(|| START.to_owned());
        Self { head, next: 1, records: 0, signed: 0, ids: HashSet::new() }
    }

    pub fn head_hash(&self) -> &str {
        self.head.as_deref().unwrap_or(START)
    }

    /// The text is without its newline.
    pub fn take_record(&mut self, text: &[u8]) -> Result<(), BrokenLine> {
        let text = std::str::from_utf8(text).map_err(|_| BrokenLine::NotText)?;
        if nesting_depth(text) > LEVELS {
            return Err(BrokenLine::Unreadable(format!("it has more than {LEVELS} levels")));
        }
        let line: TrailLine =
            serde_json::from_str(text).map_err(|error| match error.is_data() && self.records == 0 {
                true => BrokenLine::NoTrail(error.to_string()),
                false => BrokenLine::Unreadable(error.to_string()),
            })?;
        let (body, hash, signed) = split_hash(text).ok_or(BrokenLine::NoHash)?;
        // The number and the link are checked first: they distinguish a missing or moved line from a changed
        // one.
        match &self.head {
            Some(_) if line.n != self.next => return Err(BrokenLine::Number(line.n)),
            Some(head) if line.prev != *head => return Err(BrokenLine::Unlinked),
            _ => {}
        }
        let mut own = Context::new(&SHA256);
        for part in [line.prev.as_str(), body, "}"] {
            own.update(part.as_bytes());
        }
        let own = hex::encode(own.finish());
        if own != hash {
            return Err(BrokenLine::Changed);
        }
        let half = digest(&SHA256, line.id.as_bytes()).as_ref().first_chunk().copied().unwrap_or_default();
        if !self.ids.insert(half) {
            return Err(BrokenLine::Twice(line.id));
        }
        self.next = line.n.checked_add(1).ok_or(BrokenLine::Number(line.n))?;
        self.head = Some(own);
        self.records += 1;
        self.signed += u64::from(signed);
        Ok(())
    }
}

/// The depth of nested values.
fn nesting_depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => depth += 1,
            b']' | b'}' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// The text before the hash, the hash, and whether a signature follows.
fn split_hash(text: &str) -> Option<(&str, &str, bool)> {
    let text = text.strip_suffix("\"}")?;
    // Searched from the end, because values of the object can't come after its last field.
    let (text, signed) = match text.rsplit_once(SIGNATURE_FIELD) {
        Some((text, signature)) if !signature.contains('"') => (text.strip_suffix('"')?, true),
        _ => (text, false),
    };
    let (body, hash) = text.rsplit_once(HASH_FIELD)?;
    (hash.len() == START.len()).then_some((body, hash, signed))
}
