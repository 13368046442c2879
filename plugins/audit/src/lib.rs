//! Keeps evidence: one line for each state in an append-only ledger, with the hash of the previous line. A
//! plain log was not enough: anybody with access to the file could edit it unnoticed. Here, changing,
//! removing or moving a line breaks the hash of the next one. The ledger's grant ensures that a call reads
//! the last line and appends its own without another call in between. The plugin sends nothing, and reads no
//! other object.
//!
//! It needs the grant `ledger: [{name: trail, …}]`, and with `sign` also `keys: [{name: trail, …}]`.
//! `kubewitness audit verify` checks the chain. [`line`] describes a line.

mod cause;
mod line;

use kubewitness_sdk::{About, Change, Error, FieldError, Plugin, State, Verdict, documents, ledger};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::line::LineChain;

/// The plugin's name for its ledger and its key. The operator assigns the real ones.
const TRAIL: &str = "trail";
/// The person for whom a job was submitted through the portal, the API or the command line.
const SUBMITTER: &str = "kubewitness.dev/submitter";
/// An object has few names of people, and each line contains all of them.
const PEOPLE: usize = 16;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Keep the SHA-256 of each object: with the grant `documents: digest`, as the API server wrote it. Without it, the
    /// plugin reads every document, without its secrets.
    documents: bool,
    /// Sign the last line of each batch with the key that is granted as `trail`. `audit verify` does not check these
    /// signatures: it checks those of the ledger's `signing` in the host's settings.
    sign: bool,
    /// Keep the field manager and the operation behind each change, if the change names them.
    managers: bool,
    /// Annotations that name a person. Lines have digests of their values, which the host keeps beside the ledger, where
    /// they can be erased.
    #[cfg_attr(test, schemars(length(max = 16), inner(length(min = 1))))]
    people: Vec<String>,
    /// The part of the change itself to keep: nothing, the SHA-256 of its merge patch, or the merge patch
    /// without secrets.
    change: ChangeKept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum ChangeKept {
    #[default]
    None,
    Digest,
    Patch,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            documents: true,
            sign: false,
            managers: true,
            people: vec![SUBMITTER.to_owned()],
            change: ChangeKept::None,
        }
    }
}

pub struct Audit;

impl Plugin for Audit {
    const NAME: &'static str = "audit";
    type Config = Config;

    fn about() -> About {
        About {
            config_schema: include_str!("config.schema.json"),
            needs: vec![format!("ledger:{TRAIL}")],
            needs_with: vec![("sign", vec![format!("key:{TRAIL}")])],
            ..About::default()
        }
    }

    fn check(config: &Config) -> Vec<FieldError> {
        let mut wrong = Vec::new();
        if config.people.len() > PEOPLE {
            wrong.push(FieldError::new("people", format!("has more than {PEOPLE} annotations")));
        }
        if config.people.iter().any(String::is_empty) {
            wrong.push(FieldError::new("people", "has an empty name: write the annotation's whole key"));
        }
        wrong
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        match append(config, states) {
            Ok(verdicts) => verdicts,
            // A chain continues in order or not at all.
            Err(error) => vec![Verdict::retry(error.text()); states.len()],
        }
    }
}

kubewitness_sdk::export!(Audit);

fn append(config: &Config, states: &[State]) -> Result<Vec<Verdict>, Error> {
    // From here until the end of the batch, the host reserves the ledger for this call.
    let last = ledger::last(TRAIL)?;
    let mut chain = LineChain::after_last(last.as_deref())?;
    let mut verdicts = Vec::with_capacity(states.len());
    let mut lines = Vec::with_capacity(states.len());
    for state in states {
        // A state of a resync was witnessed before, so the trail has it already.
        if state.is_resync() {
            verdicts.push(Verdict::Done);
            continue;
        }
        match document_hash(config, state).and_then(|hash| Ok((hash, cause::find_cause(config, state)?))) {
            Ok((document, behind)) => {
                lines.push(chain.next_line(state, document.as_deref(), &behind)?);
                verdicts.push(Verdict::Done);
            }
            Err(error) => verdicts.push(Verdict::retry(error.text())),
        }
    }
    if let Some(last) = lines.last_mut().filter(|_| config.sign) {
        line::add_signature(last, &ledger::sign(TRAIL, chain.head().as_bytes())?);
    }
    if !lines.is_empty() {
        ledger::append(TRAIL, &lines.into_iter().map(String::into_bytes).collect::<Vec<_>>())?;
    }
    Ok(verdicts)
}

/// The host's hash of the original bytes, if the plugin is granted it. Otherwise it is the hash of the
/// document that the plugin may read. Returns `None` if the state has no document, or if it is not text.
fn document_hash(config: &Config, state: &State) -> Result<Option<String>, Error> {
    if !config.documents || state.change == Change::Gap {
        return Ok(None);
    }
    if let Some(digest) = state.document_digest() {
        return Ok(Some(digest.to_owned()));
    }
    match documents::json(state.seq) {
        Ok(document) => Ok(document.map(|text| hex::encode(Sha256::digest(text)))),
        Err(Error::Invalid(_) | Error::TooLarge(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
