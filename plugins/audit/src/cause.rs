//! Determines who and what caused a change, from the object itself: a watch does not report the user.

use std::collections::BTreeMap;

use kubewitness_sdk::{Change, Error, State, documents, persons};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::line::ChangeCause;
use crate::{ChangeKept, Config, TRAIL};

/// A longer name does not belong to a person, and a record is limited in size.
const NAME_BYTES: usize = 256;
/// A longer patch is stored as its digest: a record of the ledger has at most 256 KiB.
const PATCH_BYTES: usize = 64 * 1024;

/// The part of a change that is read: the managers that it touches, and the beginning of a deletion.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TouchedFields {
    metadata: Option<Metadata>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    deletion_timestamp: Option<String>,
    managed_fields: Option<Vec<ManagedFields>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ManagedFields {
    manager: String,
    operation: String,
    time: String,
}

/// A deletion leaves the object as the last writer wrote it, so nothing in it names who deleted it.
pub fn find_cause(config: &Config, state: &State) -> Result<ChangeCause, Error> {
    if state.change != Change::Present {
        return Ok(ChangeCause::default());
    }
    let mut behind = ChangeCause { persons: concealed_names(config, state.seq)?, ..ChangeCause::default() };
    if !config.managers && config.change == ChangeKept::None {
        return Ok(behind);
    }
    let Some(patch) = none_if_unreadable(documents::patch(state.seq))? else { return Ok(behind) };
    if let Some(writer) = newest_writer(&patch).filter(|_| config.managers) {
        behind.manager = Some(bound_name(writer.manager));
        behind.operation = Some(bound_name(writer.operation));
    }
    if config.change != ChangeKept::None {
        let patch = without_people(config, patch)?;
        behind.patch_sha256 = Some(hex::encode(Sha256::digest(&patch)));
        let is_kept = config.change == ChangeKept::Patch && patch.len() <= PATCH_BYTES;
        behind.patch = is_kept.then(|| serde_json::from_str(&patch).ok()).flatten();
    }
    Ok(behind)
}

/// The manager with the newest entry, if the change touches the entries. If it does not, the author is
/// unknown. The same holds for a change that begins a deletion, because the server records no manager of it.
///
/// Times have a resolution of one second: among entries with the same time, the server has written the later
/// entry last.
fn newest_writer(patch: &str) -> Option<ManagedFields> {
    let Metadata { deletion_timestamp, managed_fields } =
        serde_json::from_str::<TouchedFields>(patch).ok()?.metadata?;
    let entries = managed_fields.filter(|_| deletion_timestamp.is_none())?;
    entries.into_iter().max_by(|one, other| one.time.cmp(&other.time))
}

fn concealed_names(config: &Config, seq: u64) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    for annotation in &config.people {
        let pointer = format!("/metadata/annotations/{}", annotation.replace('~', "~0").replace('/', "~1"));
        let name = none_if_unreadable(documents::value::<String>(seq, &pointer))?;
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            found.insert(annotation.clone(), persons::conceal(TRAIL, &bound_name(name))?);
        }
    }
    Ok(found)
}

/// How many different names are concealed in one patch, and the replacement for further ones.
const NAMES: usize = 8;
const MORE: &str = "a name (not recorded: the patch has more than 8)";

/// The patch with digests in place of names. Its own digest is computed from that: with a digest of the
/// original patch, somebody could try all names that they know.
fn without_people(config: &Config, patch: String) -> Result<String, Error> {
    let mut value: Value = match serde_json::from_str(&patch) {
        Ok(value) if !config.people.is_empty() => value,
        _ => return Ok(patch),
    };
    let has_names = conceal_below(config, &mut value, false, &mut BTreeMap::new())?;
    Ok(if has_names { value.to_string() } else { patch })
}

/// Templates have annotations, too, at any depth. Returns whether it found names. `known` has the digests of
/// earlier names: each is a call to the host, and an object may have thousands.
fn conceal_below(
    config: &Config,
    value: &mut Value,
    are_annotations: bool,
    known: &mut BTreeMap<String, String>,
) -> Result<bool, Error> {
    let mut has_names = false;
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                has_names |= match value {
                    Value::String(name)
                        if are_annotations && config.people.contains(field) && !name.is_empty() =>
                    {
                        *name = match known.get(name.as_str()) {
                            Some(digest) => digest.clone(),
                            None if known.len() >= NAMES => MORE.to_owned(),
                            None => {
                                let digest = persons::conceal(TRAIL, &bound_name(name.clone()))?;
                                known.insert(std::mem::take(name), digest.clone());
                                digest
                            }
                        };
                        true
                    }
                    other => conceal_below(config, other, field == "annotations", known)?,
                };
            }
        }
        Value::Array(values) => {
            for value in values {
                has_names |= conceal_below(config, value, false, known)?;
            }
        }
        _ => {}
    }
    Ok(has_names)
}

/// A document that is not text, too large, or of another shape yields nothing. A document that is unavailable
/// now is retried.
fn none_if_unreadable<T>(read: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match read {
        Err(Error::Invalid(_) | Error::TooLarge(_)) => Ok(None),
        other => other,
    }
}

fn bound_name(mut name: String) -> String {
    let end = (0..=NAME_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name.truncate(end);
    name
}
