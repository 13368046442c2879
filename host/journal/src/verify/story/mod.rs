//! Checks whether a state fits its document and the earlier states of its object and of its name. Pure: it
//! gets the states in the order of their positions. `journal verify` and an import share it.
//!
//! | rule | because |
//! |---|---|
//! | a version is marked late if and only if a newer one of its object came before it | the writer compares the two, and marks it |
//! | only a version is late | an end and a gap are recorded where they are found |
//! | after the end of an object, its epoch has only versions of it below that of the end | no object returns under its uid |
//! | an object ends once in its epoch, and not below a version that it had | the id of an end has no version; the watch treats an older end as stale |
//! | a number that is not late is not below an earlier one, even if a version without an order is between the two | versions of an object grow |
//! | a name does not return to an object that had it before another one | one object has a name at a time |
//! | the document of a version has the same uid, name, namespace and version | the state was read from it |
//! | a gap is identified by its bounds; at least one of them is known, and the first is below the second | the watch records no empty gap |
//! | the document of a gap has the same source, epoch and object, and its reason is a word | the watch writes both at once |
//! | a gap that begins at a version of its object contains none of the object's last versions | the watch knew these when it wrote the gap |
//! | a gap does not change the status | nobody saw another status |
//! | the epoch of a source never goes back | the journal refuses a state of an epoch that has ended |
//!
//! The following is **not** checked, because honest writers produce it as well:
//!
//! - Versions without an order (`Version::compare_to`), which some servers give, and versions beyond 64 bits in
//!   a rule about numbers.
//! - One version of two objects. Some servers count the versions of each object separately, and comparing
//!   each state with all others would cost memory for each state, not for each object.
//! - Times: a clock may be set back.
//! - Missing versions. Retention may have removed one, it may be in a gap, or the object never had it: a
//!   dropped state leaves a consistent story.
//! - The status before (`previous`) of a state that is no gap. Replicas with different status rules, and a
//!   stream that lost messages, record a status that no state here has.
//! - A version after a newer one that is marked late: a version that a watch missed looks the same.
//! - A version after an end without a version: a relist found the end, and another replica may know more.
//! - The order of states of different objects: they were seen in some order, no more.
//!
//! If the beginning of a story is missing (retention removed it, or a selection left it out), a version may
//! be marked late although the newer one is absent.

mod name_holders;

use std::cmp::Ordering;

use kubewitness_core::limits::VERSION_BYTES;
use kubewitness_core::stream::{ReaderPositions, state_check};
use kubewitness_core::{Change, Gap, State, Version};

pub(crate) use self::name_holders::NameHolders;
use crate::report::code;

/// With how many versions of an object a gap is compared: its two bounds and one in between. More would cost
/// memory for each state.
const LAST: usize = 3;

/// How far the checkpoint of a source may be ahead of its states: its objects may be quiet while others
/// change. A server that writes 10,000 times a second needs more than a year for so many versions.
const AHEAD: u64 = 500_000_000_000;

/// A contradiction between two records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoryContradiction {
    pub code: &'static str,
    pub text: String,
}

impl StoryContradiction {
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// The recorded history of one object in one epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectLife {
    newest: Option<Version>,
    /// Whether a state has `newest` as its own version; otherwise only the end has it.
    is_told: bool,
    /// Whether `newest` is the version of its end.
    ends_at_newest: bool,
    is_gone: bool,
    /// Its own newest numeric versions that were recorded in order, the newest first; 0 if none.
    numbers: [u64; LAST],
}

impl ObjectLife {
    /// The newest version that is certain.
    pub fn newest_version(&self) -> Option<&Version> {
        self.newest.as_ref()
    }

    /// Its own newest numeric version that was recorded in order.
    pub fn newest_number(&self) -> Option<u64> {
        self.numbers.first().copied().filter(|number| *number != 0)
    }

    /// Takes a gap of the object: versions are missing there.
    pub fn note_gap(&self, gap: &Gap) -> Result<(), StoryContradiction> {
        let (Some(after), Some(before)) =
            (Version::new(&gap.after).as_number(), Version::new(&gap.before).as_number())
        else {
            return Ok(());
        };
        let version = self.numbers.iter().find(|version| after < **version && **version < before);
        match version.filter(|_| self.numbers.contains(&after)) {
            None => Ok(()),
            Some(version) => {
                let text = format!(
                    "version {version} lies in a gap from {after} to {before} and was told before it"
                );
                Err(StoryContradiction::new(code::GAP, text))
            }
        }
    }

    /// Whether only the store can decide if this state is new. A version that is newer than all before, and a
    /// first end, are certainly new.
    pub fn needs_lookup(&self, state: &State) -> bool {
        match state.change {
            Change::Gap => true,
            Change::Gone => self.is_gone,
            Change::Present | Change::Left => {
                self.newest.as_ref().is_some_and(|newest| match state.resource_version.compare_to(newest) {
                    Some(Ordering::Greater) => false,
                    Some(Ordering::Equal) => self.is_told,
                    Some(Ordering::Less) | None => true,
                })
            }
        }
    }

    /// Takes the next state of the object. `is_whole` is set if nothing of its story is missing before it.
    pub fn next(&mut self, state: &State, is_whole: bool) -> Result<(), StoryContradiction> {
        let (version, uid) = (&state.resource_version, &state.object.uid);
        let is_version = matches!(state.change, Change::Present | Change::Left);
        let order = self.newest.as_ref().and_then(|newest| version.compare_to(newest));
        let is_older = order == Some(Ordering::Less);
        let contradiction = |code, text: String| Err(StoryContradiction::new(code, text));
        let fits = match state.change {
            Change::Present | Change::Left => self.check_version(state, order, is_whole),
            Change::Gone | Change::Gap if state.late => {
                contradiction(code::ORDER, format!("a state of {uid} is marked late and is no version"))
            }
            Change::Gone if self.is_gone => contradiction(code::ORDER, format!("{uid} ends twice")),
            Change::Gone if is_older || self.is_behind(version) => contradiction(
                code::ORDER,
                format!("{uid} ends at version {version}, below a version that it had"),
            ),
            Change::Gap if state.previous.as_ref().is_some_and(|previous| *previous != state.status) => {
                contradiction(code::GAP, format!("a gap changes the status of {uid}"))
            }
            Change::Gone | Change::Gap => Ok(()),
        };
        self.is_gone |= state.change == Change::Gone;
        let is_certain = state.change != Change::Gap && !state.late;
        if is_certain && !is_older && (is_version || !version.as_str().is_empty()) {
            self.is_told = is_version || (self.is_told && order == Some(Ordering::Equal));
            self.ends_at_newest = !is_version || (self.ends_at_newest && order == Some(Ordering::Equal));
            self.newest = Some(version.clone());
        }
        if let Some(number) = version.as_number().filter(|_| is_certain && is_version && !is_older) {
            self.note_number(number);
        }
        fits
    }

    fn note_number(&mut self, number: u64) {
        if self.numbers.first().is_some_and(|newest| *newest < number) {
            self.numbers.rotate_right(1);
            self.numbers[0] = number;
        }
    }

    /// Whether a version is below an earlier version of the object, with versions without an order in
    /// between.
    fn is_behind(&self, version: &Version) -> bool {
        let has_order = self.newest.as_ref().is_some_and(|newest| version.compare_to(newest).is_some());
        !has_order && version.as_number().is_some_and(|number| number < self.numbers[0])
    }

    fn check_version(
        &self,
        state: &State,
        order: Option<Ordering>,
        is_whole: bool,
    ) -> Result<(), StoryContradiction> {
        let (version, uid) = (&state.resource_version, &state.object.uid);
        let newest = self.newest.as_ref().map_or("none", Version::as_str);
        let is_older = order == Some(Ordering::Less);
        // The newer version may be missing.
        if is_older != state.late && (is_whole || !state.late) {
            let marked = if state.late { "is marked late" } else { "is not marked late" };
            let text = format!("version {version} of {uid} {marked}, and the newest before it is {newest}");
            return Err(StoryContradiction::new(code::ORDER, text));
        }
        if !state.late && self.is_behind(version) {
            let text = format!("version {version} of {uid} follows version {}", self.numbers[0]);
            return Err(StoryContradiction::new(code::ORDER, text));
        }
        if self.ends_at_newest && order == Some(Ordering::Greater) {
            let text = format!("version {version} of {uid} follows its end at version {newest}");
            return Err(StoryContradiction::new(code::ORDER, text));
        }
        Ok(())
    }
}

/// Decodes the document of a gap, if it is the gap that the state's id names.
pub(crate) fn check_gap(state: &State, document: &[u8]) -> Result<Gap, StoryContradiction> {
    state_check::check_gap(state, document)
        .map_err(|fault| StoryContradiction::new(code::GAP, fault.to_string()))
}

/// Checks that the document of a state, unless it is a gap, has exactly its version. An end that nobody saw
/// has no document.
pub(crate) fn check_document(state: &State, document: &[u8]) -> Result<(), StoryContradiction> {
    let checked = state_check::check_document(state, document);
    checked.map_err(|fault| StoryContradiction::new(code::DOCUMENT, fault.to_string()))
}

/// Whether a watch may resume from a checkpoint. `newest` is the greatest numeric version of its source; 0 if
/// none is numeric.
pub(crate) fn check_checkpoint(
    source: &str,
    checkpoint: &str,
    newest: u64,
) -> Result<(), StoryContradiction> {
    // The checkpoint of a source that arrives over a stream is the offset of each partition.
    if ReaderPositions::parse(checkpoint).is_ok() {
        return Ok(());
    }
    let version = Version::new(checkpoint);
    let is_malformed = checkpoint.is_empty() || (newest != 0 && !version.is_comparable());
    // The maximum for a number beyond 64 bits.
    let number = version.as_number().unwrap_or(u64::MAX);
    let text = match () {
        () if checkpoint.len() > VERSION_BYTES => format!("has more than {VERSION_BYTES} bytes"),
        () if is_malformed => format!("is no version: `{checkpoint}`"),
        // Versions may be times. A distance that is large for a counter is small for these.
        () if newest != 0 && number / 2 > newest && number - newest > AHEAD => {
            format!("is {checkpoint}, and its newest version is {newest}: no server gets so far ahead")
        }
        () => return Ok(()),
    };
    Err(StoryContradiction::new(code::CHECKPOINT, format!("the checkpoint of {source} {text}")))
}

#[cfg(test)]
mod tests;
