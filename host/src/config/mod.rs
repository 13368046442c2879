//! The configuration: read from a folder or from labelled ConfigMaps, checked, and kept beside the journal
//! once it works.
//!
//! A faulty configuration must never stop what already runs. So reading ends in a snapshot with all faults
//! listed, and the controller decides what to take from it. Folder and cluster yield the same entries.
//! Nothing here starts anything or knows the controller.

pub mod cluster;
pub mod component;
pub mod folder;
pub mod last_good;
pub mod manifest;
pub mod rules;
pub mod tree;

use base64::Engine as _;
use manifest::{ManifestEntry, ManifestProblem};

/// How many skipped files are reported: a folder with other content has thousands.
const PASSED_OVER: usize = 50;

/// Everything that was found at one moment, not yet parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigSnapshot {
    pub hosts: Vec<ManifestEntry>,
    pub plugins: Vec<ManifestEntry>,
    /// Templates of Jobs that people submit.
    pub templates: Vec<ManifestEntry>,
    /// Files that could not be read at all.
    pub problems: Vec<ManifestProblem>,
    /// Documents that are probably meant to be used, but are not.
    pub slips: Vec<ManifestProblem>,
    /// The documents that are not used, and why.
    pub passed_over: Vec<ManifestProblem>,
    pub more_passed_over: usize,
    /// Differs if a component beside the manifests differs.
    pub fingerprint: Option<Vec<u8>>,
}

impl ConfigSnapshot {
    pub fn note_passed_over(&mut self, what: ManifestProblem) {
        match self.passed_over.len() < PASSED_OVER {
            true => self.passed_over.push(what),
            false => self.more_passed_over += 1,
        }
    }

    /// The documents that are not used, each with its reason, for people.
    pub fn unused_documents(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.passed_over.iter().map(ToString::to_string).collect();
        if self.more_passed_over > 0 {
            lines.push(format!("and {} more documents and files that are not taken", self.more_passed_over));
        }
        lines
    }

    /// Whether a document that is absent was really removed. A plugin may still be wanted while a file can't
    /// be read or the host document is missing.
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty() && !self.hosts.is_empty()
    }

    pub fn has_nothing(&self) -> bool {
        let documents = [&self.hosts, &self.plugins, &self.templates];
        documents.iter().all(|list| list.is_empty()) && self.problems.is_empty() && self.slips.is_empty()
    }

    /// Exactly one host document is expected: nobody should have to guess which one counts.
    pub fn only_host(&self) -> Result<&ManifestEntry, ManifestProblem> {
        match self.hosts.as_slice() {
            [host] => Ok(host),
            [] => Err(ManifestProblem::of(
                "configuration",
                None,
                "has no host document: add a ConfigMap labelled `kubewitness.dev/host: \"true\"` \
                 with the key `host.yaml`, or in a folder a document of the kind `Host`",
            )),
            [first, second, ..] => Err(ManifestProblem::of(
                &second.origin.place,
                Some(second.origin.first_line),
                format!("is a second host document; the first is in {}: keep one", first.origin.place),
            )),
        }
    }
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let compact: String = text.split_ascii_whitespace().collect();
    base64::engine::general_purpose::STANDARD.decode(compact).ok()
}
