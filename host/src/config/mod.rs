//! What the operator wants, read from a folder or from labelled ConfigMaps, checked, and kept
//! beside the journal once it worked.

pub mod cluster;
pub mod folder;
pub mod last_good;
pub mod manifest;
pub mod rules;
pub mod tree;

use base64::Engine as _;
use manifest::{Entry, Problem};

/// Everything that was found at one moment, not yet understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub hosts: Vec<Entry>,
    pub plugins: Vec<Entry>,
    /// Files that could not be read at all.
    pub problems: Vec<Problem>,
    /// Differs where a component beside the manifests does.
    pub fingerprint: Option<Vec<u8>>,
}

impl Snapshot {
    /// Exactly one host document is expected; which one would count must never be a guess.
    pub fn host(&self) -> Result<&Entry, Problem> {
        match self.hosts.as_slice() {
            [host] => Ok(host),
            [] => Err(Problem {
                place: "configuration".into(),
                line: None,
                field: String::new(),
                message: "has no host document: add a ConfigMap labelled `kubewitness.dev/host: \"true\"` \
                          with the key `host.yaml`"
                    .into(),
            }),
            [first, second, ..] => Err(Problem {
                place: second.origin.place.clone(),
                line: Some(second.origin.first_line),
                field: String::new(),
                message: format!(
                    "is a second host document; the first is in {}: keep one",
                    first.origin.place
                ),
            }),
        }
    }
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let compact: String = text.split_ascii_whitespace().collect();
    base64::engine::general_purpose::STANDARD.decode(compact).ok()
}
