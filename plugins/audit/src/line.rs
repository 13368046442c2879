//! A line of the trail: one JSON object.
//!
//! ```text
//! {"n":2,"prev":"<hash of line 1>","id":"…",…,"document_sha256":"…","manager":"kubectl","operation":"Apply",
//!  "persons":{"kubewitness.dev/submitter":"<digest>"},"patch_sha256":"…","patch":{…},"hash":"…","signature":"…"}
//! ```
//!
//! `persons` has the host's digests of names, which are stored beside the ledger and can be erased there.
//! Lines of older versions have the names themselves, in `people`.
//!
//! From `manager` on, fields are left out if the configuration does not request them, or the object does not
//! have them.
//!
//! `hash` is SHA-256, in hex, over `prev` and the line's own text without `hash` and `signature`. It covers
//! the exact bytes: a hash of the parsed values would require agreement on how JSON is written. The first
//! line has number 1 and sixty-four zeros as `prev`. `signature` is Ed25519, in hex, over the text of `hash`.

use std::collections::BTreeMap;

use kubewitness_sdk::{Change, Error, State, time};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Everything that is hashed, in this order.
#[derive(Serialize)]
struct Body<'a> {
    n: u64,
    prev: &'a str,
    id: &'a str,
    seq: u64,
    source: &'a str,
    change: &'a str,
    api_group: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    resource_version: &'a str,
    phase: &'a str,
    reason: &'a str,
    observed_at: String,
    document_sha256: Option<&'a str>,
    #[serde(flatten)]
    behind: &'a ChangeCause,
}

/// Who and what caused a change.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct ChangeCause {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub persons: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Value>,
}

#[derive(Deserialize)]
struct LastLine {
    n: u64,
    hash: String,
}

/// The end of the trail, to which lines are added.
#[derive(Debug)]
pub struct LineChain {
    n: u64,
    head: String,
}

impl LineChain {
    pub fn after_last(last: Option<&[u8]>) -> Result<Self, Error> {
        let Some(last) = last else { return Ok(Self { n: 0, head: START.to_string() }) };
        match serde_json::from_slice::<LastLine>(last) {
            Ok(last) if last.hash.len() == START.len() => Ok(Self { n: last.n, head: last.hash }),
            _ => Err(Error::Unavailable("the ledger's last line is not one of a trail".to_string())),
        }
    }

    pub fn head(&self) -> &str {
        &self.head
    }

    pub fn next_line(
        &mut self,
        state: &State,
        document: Option<&str>,
        behind: &ChangeCause,
    ) -> Result<String, Error> {
        let object = &state.object;
        let body = Body {
            n: self.n + 1,
            prev: &self.head,
            id: &state.id,
            seq: state.seq,
            source: &state.source,
            change: change_word(state.change),
            api_group: &object.group,
            kind: &object.kind,
            namespace: &object.namespace,
            name: &object.name,
            uid: &object.uid,
            resource_version: &state.resource_version,
            phase: if state.change == Change::Gone { "Deleted" } else { &state.status.phase },
            reason: &state.status.reason,
            observed_at: time::rfc3339(state.observed_ms),
            document_sha256: document,
            behind,
        };
        let mut text = serde_json::to_string(&body).map_err(|error| Error::Invalid(error.to_string()))?;
        let hash = hex::encode(Sha256::new().chain_update(&self.head).chain_update(&text).finalize());
        text.truncate(text.len() - 1);
        text.push_str(&format!(",\"hash\":\"{hash}\"}}"));
        self.n += 1;
        self.head = hash;
        Ok(text)
    }
}

/// Adds the signature after the hash.
pub fn add_signature(line: &mut String, signature: &[u8]) {
    line.truncate(line.len() - 1);
    line.push_str(&format!(",\"signature\":\"{}\"}}", hex::encode(signature)));
}

fn change_word(change: Change) -> &'static str {
    match change {
        Change::Present => "present",
        Change::Gone => "gone",
        Change::Left => "left",
        Change::Gap => "gap",
    }
}
