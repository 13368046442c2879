//! The facts that a plan needs first: whether the journal accepts an append, which objects of a batch to look
//! up, and which of its keys may already exist.

use std::collections::HashSet;

use kubewitness_core::limits::VERSION_BYTES;
use kubewitness_core::ports::{AppendBatch, JournalError, WitnessedState};
use kubewitness_core::{Change, Version};

use crate::store::memory::chain_ends::ObjectMark;
use crate::store::memory::{ObjectIdentity, StoreMemory};
use crate::store::rows::StateKey;

pub(super) fn is_version(change: Change) -> bool {
    matches!(change, Change::Present | Change::Left)
}

/// The part of an id after source, epoch, group, kind and uid; `None` if the id does not belong to this
/// state.
pub(super) fn id_rest<'a>(prefix: &str, state: &'a WitnessedState) -> Option<&'a str> {
    let object = &state.object;
    let rest =
        state.id.as_str().strip_prefix(prefix)?.strip_prefix(object.group.as_str())?.strip_prefix('/')?;
    let rest = rest.strip_prefix(object.kind.as_str())?.strip_prefix('/')?;
    let rest = rest.strip_prefix(object.uid.as_str())?.strip_prefix('/')?;
    let fits = match state.change {
        Change::Present | Change::Left => rest == state.resource_version.as_str(),
        Change::Gone => rest == "gone",
        Change::Gap => rest.starts_with("gap:"),
    };
    fits.then_some(rest)
}

pub(super) fn id_prefix(append: &AppendBatch) -> String {
    format!("{}/{}/", append.source, append.epoch)
}

pub(super) fn key_of(state: &WitnessedState, rest: &str) -> StateKey {
    match state.change {
        Change::Present | Change::Left => StateKey::of_version(&state.resource_version),
        Change::Gone => StateKey::GONE,
        Change::Gap => StateKey::of_gap(rest.strip_prefix("gap:").unwrap_or(rest)),
    }
}

pub(crate) fn epoch_over_error(append: &AppendBatch, epoch: u32) -> JournalError {
    let AppendBatch { source, epoch: old, .. } = append;
    JournalError::Overtaken(format!("epoch {old} of source {source} is over: the journal has {epoch}"))
}

/// Refuses an append that could not be read back under the same id.
pub(crate) fn check(memory: &StoreMemory, append: &AppendBatch) -> Result<(), JournalError> {
    if append.source.is_empty() {
        return Err(JournalError::Invalid("a source has no name".into()));
    }
    let epoch = memory.sources.get(&append.source).and_then(|source| source.newest_epoch());
    if let Some(epoch) = epoch.filter(|epoch| *epoch > append.epoch) {
        return Err(epoch_over_error(append, epoch));
    }
    check_overtaken(memory, append)?;
    let prefix = id_prefix(append);
    for state in &append.states {
        if state.object.uid.is_empty() {
            let object = &state.object;
            let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
            return Err(JournalError::Invalid(format!(
                "{name} has no uid: its states could not be told apart"
            )));
        }
        if state.resource_version.as_str().len() > VERSION_BYTES {
            return Err(JournalError::Invalid(format!(
                "a version of {} has more than {VERSION_BYTES} bytes: no index would hold it",
                state.object.uid
            )));
        }
        if id_rest(&prefix, state).is_none() {
            return Err(JournalError::Invalid(format!(
                "the id {} does not name the state it came with",
                state.id
            )));
        }
    }
    Ok(())
}

/// Refuses a gap if another witness has already stored the versions in it.
fn check_overtaken(memory: &StoreMemory, append: &AppendBatch) -> Result<(), JournalError> {
    let Some(since) = &append.since else { return Ok(()) };
    let source =
        memory.sources.get(&append.source).filter(|source| source.newest_epoch() == Some(append.epoch));
    let held = source.and_then(|source| source.checkpoint.as_deref()).map(Version::new);
    let tells_gaps = !append.gaps.is_empty() || append.states.iter().any(|state| state.change == Change::Gap);
    match held {
        Some(held) if tells_gaps && held.is_newer_than(since) => Err(JournalError::Overtaken(format!(
            "another replica has journaled the source {} since version {since}, up to {held}",
            append.source
        ))),
        _ => Ok(()),
    }
}

/// An append with the marks of its states' objects, which are expensive to compute and used several times.
pub(crate) struct MarkedAppend<'a> {
    pub append: &'a AppendBatch,
    pub marks: Vec<ObjectMark>,
}

impl<'a> MarkedAppend<'a> {
    pub fn of(memory: &StoreMemory, append: &'a AppendBatch) -> Self {
        let mark = |state: &WitnessedState| memory.marks.mark_of(&append.source, &state.object);
        Self { append, marks: append.states.iter().map(mark).collect() }
    }

    pub fn marked_states(&self) -> impl Iterator<Item = (&'a WitnessedState, ObjectMark)> {
        self.append.states.iter().zip(self.marks.iter().copied())
    }
}

/// Objects and owners of a batch that are not in memory.
pub(crate) fn unknown_objects(memory: &StoreMemory, appends: &[MarkedAppend<'_>]) -> Vec<ObjectIdentity> {
    let mut strangers = HashSet::new();
    for marked in appends {
        let append = marked.append;
        for (state, mark) in marked.marked_states() {
            if memory.objects.get(mark).is_none() {
                strangers
                    .insert(ObjectIdentity { source: append.source.clone(), object: state.object.clone() });
            }
            if let Some(owner) = state.owner.as_ref().map(ObjectIdentity::owner)
                && !memory.owners.contains_key(&owner)
            {
                strangers.insert(owner);
            }
        }
    }
    strangers.into_iter().collect()
}

/// The keys of a batch that may already exist. A version that is newer than every version of its object
/// can't.
pub(crate) fn key_questions(memory: &StoreMemory, appends: &[MarkedAppend<'_>]) -> Vec<(i64, StateKey)> {
    let mut questions = Vec::new();
    for marked in appends {
        let append = marked.append;
        let prefix = id_prefix(append);
        let stream = memory.sources.get(&append.source).and_then(|source| source.streams.last());
        for (state, mark) in marked.marked_states() {
            let Some(tail) = memory.objects.get(mark) else { continue };
            let this_epoch = stream.is_some_and(|(epoch, id)| *epoch == append.epoch && *id == tail.stream);
            if !this_epoch || (is_version(state.change) && tail.is_older_than(&state.resource_version)) {
                continue;
            }
            if let Some(rest) = id_rest(&prefix, state) {
                questions.push((tail.object, key_of(state, rest)));
            }
        }
    }
    questions
}
