//! Checks that the lines of an export fit each other: positions grow, ids match their states, and each state
//! fits its document and the earlier states of its object and its name. Pure; it keeps about 250 bytes for
//! each object.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::document::checksum;
use kubewitness_core::limits::{EPOCH_MOST, SOURCE_BYTES};
use kubewitness_core::stream::state_check;
use kubewitness_core::{Change, Gap, ObjectRef, Seq, State};

use crate::report::code;
use crate::store::memory::chain_ends::{MarkKeys, ObjectMark};
use crate::verify::story::{self, NameHolders, ObjectLife, StoryContradiction};

/// The history of one object in its newest epoch in the export.
struct ObjectSoFar {
    epoch: u32,
    life: ObjectLife,
    /// A key for namespace, name and API version: an export names an object as the journal does.
    name: u32,
}

/// The history of one source up to the current line.
struct ImportStream {
    epoch: u32,
    /// The greatest numeric version of this epoch; 0 if none is numeric.
    newest: u64,
}

#[derive(Default)]
pub(super) struct ImportStreams {
    marks: MarkKeys,
    objects: HashMap<ObjectMark, ObjectSoFar>,
    holders: NameHolders,
    sources: HashMap<Arc<str>, ImportStream>,
    states: u64,
    last: Seq,
    /// States are missing: a selection left them out, or retention removed them.
    has_holes: bool,
}

impl ImportStreams {
    /// `has_holes` comes from the header.
    pub fn new(has_holes: bool) -> Self {
        Self { has_holes, ..Self::default() }
    }

    /// The number of states that fit.
    pub fn count_states(&self) -> u64 {
        self.states
    }

    /// Takes the next line. Returns whether only the store can decide that it is new.
    pub fn next(&mut self, state: &State, document: &[u8]) -> Result<bool, StoryContradiction> {
        if state.seq <= self.last {
            let text = format!(
                "its position, {}, is not after {}, the position of the line before",
                state.seq, self.last
            );
            return Err(StoryContradiction::new(code::SEQUENCE, text));
        }
        (self.last, self.states) = (state.seq, self.states + 1);
        self.has_holes |= state.seq != self.states;
        let gap = check_identity(state, document)?;
        self.check_source_order(state)?;
        let fresh =
            || ObjectSoFar { epoch: state.epoch, life: ObjectLife::default(), name: name(&state.object) };
        let history =
            self.objects.entry(self.marks.mark_of(&state.source, &state.object)).or_insert_with(fresh);
        if history.epoch != state.epoch {
            *history = fresh();
        }
        if history.name != name(&state.object) {
            let object = &state.object;
            let text = format!("{} was not called {}/{} before", object.uid, object.namespace, object.name);
            return Err(StoryContradiction::new(code::ID, text));
        }
        let needs_lookup = history.life.needs_lookup(state);
        self.holders.next(state, &history.life)?;
        history.life.next(state, !self.has_holes)?;
        gap.map_or(Ok(()), |gap| history.life.note_gap(&gap))?;
        Ok(needs_lookup)
    }

    fn check_source_order(&mut self, state: &State) -> Result<(), StoryContradiction> {
        let fresh = || ImportStream { epoch: state.epoch, newest: 0 };
        let stream = self.sources.entry(state.source.clone()).or_insert_with(fresh);
        match state.epoch.cmp(&stream.epoch) {
            Ordering::Less => return Err(follows_newer_epoch(&state.source, state.epoch, stream.epoch)),
            Ordering::Equal => {}
            Ordering::Greater => *stream = fresh(),
        }
        stream.newest = stream.newest.max(state.resource_version.as_number().unwrap_or_default());
        Ok(())
    }

    /// Whether a watch may resume from here, after all states.
    pub fn check_checkpoint(
        &self,
        source: &str,
        epoch: u32,
        checkpoint: &str,
    ) -> Result<(), StoryContradiction> {
        check_source_name(source)?;
        if epoch > EPOCH_MOST {
            let text = format!("epoch {epoch} of {source} is over {EPOCH_MOST}, the most of a source");
            return Err(StoryContradiction::new(code::ORDER, text));
        }
        let newest = match self.sources.get(source) {
            Some(stream) if epoch < stream.epoch => {
                return Err(follows_newer_epoch(source, epoch, stream.epoch));
            }
            Some(stream) if epoch == stream.epoch => stream.newest,
            _ => 0,
        };
        story::check_checkpoint(source, checkpoint, newest)
    }
}

fn name(object: &ObjectRef) -> u32 {
    let ObjectRef { version, namespace, name, .. } = object;
    checksum(format!("{}/{}/{version}{namespace}{name}", version.len(), namespace.len()).as_bytes())
}

fn follows_newer_epoch(source: &str, epoch: u32, newest: u32) -> StoryContradiction {
    StoryContradiction::new(code::ORDER, format!("epoch {epoch} of {source} follows epoch {newest}"))
}

fn check_source_name(source: &str) -> Result<(), StoryContradiction> {
    match source.is_empty() || source.len() > SOURCE_BYTES {
        true => {
            let text = format!("its source has no name, or one of more than {SOURCE_BYTES} bytes");
            Err(StoryContradiction::new(code::ID, text))
        }
        false => Ok(()),
    }
}

/// Checks that id and document belong to the state, and that a store would accept it. Returns the gap, if it
/// is one.
fn check_identity(state: &State, document: &[u8]) -> Result<Option<Gap>, StoryContradiction> {
    let checked = state_check::check_identity(state);
    checked.map_err(|fault| StoryContradiction::new(code::ID, fault.to_string()))?;
    if state.change == Change::Gap {
        return story::check_gap(state, document).map(Some);
    }
    story::check_document(state, document)?;
    Ok(None)
}
