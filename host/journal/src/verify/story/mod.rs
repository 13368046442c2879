//! Judges whether a state fits the earlier states of its object. Pure: it is given the states of an
//! object in the order of their positions. `journal verify` and an import share it.
//!
//! | rule | because |
//! |---|---|
//! | a version is marked late exactly where a newer one of its object was told before | the writer compares the two, and marks it |
//! | only a version is late | an end and a gap are told where they are found |
//! | nothing follows the end of an object in its epoch but versions below that of the end | nobody comes back under a uid |
//! | an object ends once in its epoch | the id of an end has no version |
//! | a gap is named by its bounds, and its first bound lies below its second | the watch records no empty gap |
//! | a gap leaves the status as it was | nobody saw another one |
//! | the epoch of a source never goes back | the journal refuses a state of an epoch that is over |
//!
//! What is **not** judged, since honest writers tell it too:
//!
//! - Versions without an order (`Version::compare`), of servers that give such.
//! - Times: a clock may be put back.
//! - That no version lies between two. One may have been taken by retention or lie in a gap, or the
//!   object did not have the one that is missing: a dropped state leaves a story that fits.
//! - The status before (`previous`) of a state that is no gap. Replicas with different status rules,
//!   and a stream that lost messages, tell of a status that no state here has.
//! - A version that comes behind a newer one and is marked late: so does one that a watch missed.
//! - A version behind an end without one: the end was found by a comparison, and another replica
//!   may know more.
//! - States of different objects that change places: they were seen in some order, no more.
//!
//! Where the beginning of a story is missing (retention took it, or a selection left it out), a
//! version may be late behind one that is not there.

use std::cmp::Ordering;

use kubewitness_core::{Change, Gap, State, StateId, Version};

use crate::report::code;

/// Two things that were told and can't both be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contradiction {
    pub code: &'static str,
    pub text: String,
}

impl Contradiction {
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// What was told of one object in one epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    newest: Option<Version>,
    /// A state has `newest` as its own version; otherwise it is that of the end alone.
    is_told: bool,
    /// `newest` is the version of its end.
    ends_at_newest: bool,
    is_gone: bool,
}

impl Life {
    /// The newest version that was told for certain.
    pub fn newest(&self) -> Option<&Version> {
        self.newest.as_ref()
    }

    /// Whether only the store can say that this state was not told before: what is newer than all
    /// that was, and a first end, are new.
    pub fn may_be_told(&self, state: &State) -> bool {
        match state.change {
            Change::Gap => true,
            Change::Gone => self.is_gone,
            Change::Present | Change::Left => {
                self.newest.as_ref().is_some_and(|newest| match state.resource_version.compare(newest) {
                    Some(Ordering::Greater) => false,
                    Some(Ordering::Equal) => self.is_told,
                    Some(Ordering::Less) | None => true,
                })
            }
        }
    }

    /// The next state of the object. `is_whole`: nothing of its story is missing before it.
    pub fn next(&mut self, state: &State, is_whole: bool) -> Result<(), Contradiction> {
        let (version, uid) = (&state.resource_version, &state.object.uid);
        let is_version = matches!(state.change, Change::Present | Change::Left);
        let order = self.newest.as_ref().and_then(|newest| version.compare(newest));
        let is_older = order == Some(Ordering::Less);
        let contradiction = |code, text: String| Err(Contradiction::new(code, text));
        let fits = match state.change {
            Change::Present | Change::Left => self.version(state, order, is_whole),
            Change::Gone | Change::Gap if state.late => {
                contradiction(code::ORDER, format!("a state of {uid} is marked late and is no version"))
            }
            Change::Gone if self.is_gone => contradiction(code::ORDER, format!("{uid} ends twice")),
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
        fits
    }

    fn version(&self, state: &State, order: Option<Ordering>, is_whole: bool) -> Result<(), Contradiction> {
        let (version, uid) = (&state.resource_version, &state.object.uid);
        let newest = self.newest.as_ref().map_or("none", Version::as_str);
        let is_older = order == Some(Ordering::Less);
        // What it was later than may be missing.
        if is_older != state.late && (is_whole || !state.late) {
            let marked = if state.late { "is marked late" } else { "is not marked late" };
            let text = format!("version {version} of {uid} {marked}, and the newest before it is {newest}");
            return Err(Contradiction::new(code::ORDER, text));
        }
        if self.ends_at_newest && order == Some(Ordering::Greater) {
            let text = format!("version {version} of {uid} follows its end at version {newest}");
            return Err(Contradiction::new(code::ORDER, text));
        }
        Ok(())
    }
}

/// What the document of a gap says, where it is the gap that the state's id names.
pub(crate) fn gap(state: &State, document: &[u8]) -> Result<Gap, Contradiction> {
    let wrong = |text: &str| Contradiction::new(code::GAP, format!("the gap of {} {text}", state.object.uid));
    let gap: Gap = serde_json::from_slice(document).map_err(|_| wrong("does not decode"))?;
    let id = StateId::of(
        &state.source,
        state.epoch,
        &state.object,
        state.change,
        &state.resource_version,
        Some(&gap),
    );
    let is_of_another = gap.object.as_ref().is_some_and(|object| object.uid != state.object.uid);
    if id != state.id || is_of_another {
        return Err(wrong("has other bounds, or is of another object, than its state says"));
    }
    match runs_forward(&gap) {
        true => Ok(gap),
        false => Err(wrong(&format!("ends at {}, and begins at {}", gap.before, gap.after))),
    }
}

/// Whether something can lie within a gap's bounds, as far as versions tell.
pub(crate) fn runs_forward(gap: &Gap) -> bool {
    let (after, before) = (Version::new(&gap.after), Version::new(&gap.before));
    let has_order = after.is_comparable() && before.is_comparable();
    !has_order || before.is_newer_than(&after)
}

#[cfg(test)]
mod tests;
