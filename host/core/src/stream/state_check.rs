//! Checks a single state that another host wrote, before a journal accepts it: whether its id, its document
//! and its bounds fit the state. `journal verify`, an import and the reader of a stream share these rules.
//!
//! No honest writer violates these rules. The journal would refuse such a state forever, or could not read it
//! back.

use thiserror::Error;

use crate::limits::{EPOCH_MOST, SOURCE_BYTES, VERSION_BYTES};
use crate::project::{self, ProjectError};
use crate::state::{Change, Gap, State, StateId};
use crate::version::Version;

/// The most bytes of a gap's reason. A newer program may use words that this one does not know.
const REASON_BYTES: usize = 64;

/// Why a journal does not accept a state, or a reader does not accept a carried one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateFault {
    #[error("it is of another source than `{0}`")]
    OtherSource(String),
    #[error("its object does not belong to partition {0}")]
    OtherPartition(u32),
    #[error("its position is not that of its state, or is beyond what a journal has")]
    OtherPosition,
    #[error("its source has no name, or one of more than {SOURCE_BYTES} bytes")]
    SourceName,
    #[error("its object has no uid")]
    NoUid,
    #[error("its version has more than {VERSION_BYTES} bytes")]
    LongVersion,
    #[error("its epoch is {0}, and no source has more than {EPOCH_MOST}")]
    LateEpoch(u32),
    #[error("its id, {0}, is not that of its version")]
    OtherId(StateId),
    #[error("the gap of {uid} {fault}")]
    Gap { uid: String, fault: GapFault },
    #[error("the document of version {version} of {uid} is no object: {source}")]
    NoObject { version: Version, uid: String, source: ProjectError },
    #[error(
        "the document of version {version} of {uid} has the {field} `{found}`, and its state says `{expected}`"
    )]
    OtherDocument { version: Version, uid: String, field: &'static str, found: String, expected: String },
}

/// How a gap contradicts its state or itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GapFault {
    #[error("does not decode")]
    Unreadable,
    #[error("has other bounds than its state says")]
    OtherBounds,
    #[error("has a bound of more than {VERSION_BYTES} bytes")]
    LongBound,
    #[error("is of another object than its state says")]
    OtherObject,
    #[error("is of another source or epoch than its state says")]
    OtherSource,
    #[error("has no word for a reason")]
    NoReason,
    #[error("has no bounds")]
    NoBounds,
    #[error("ends at {before}, and begins at {after}")]
    Backwards { after: String, before: String },
}

/// Whether a journal accepts a state with this identity, and whether its id matches. Its document is not
/// checked.
pub fn check_identity(state: &State) -> Result<(), StateFault> {
    let State { id, source, epoch, change, object, resource_version: version, .. } = state;
    if source.is_empty() || source.len() > SOURCE_BYTES {
        return Err(StateFault::SourceName);
    }
    if object.uid.is_empty() {
        return Err(StateFault::NoUid);
    }
    if version.as_str().len() > VERSION_BYTES {
        return Err(StateFault::LongVersion);
    }
    if *epoch > EPOCH_MOST {
        return Err(StateFault::LateEpoch(*epoch));
    }
    // The document of a gap has the bounds that its id names.
    if *change != Change::Gap && *id != StateId::of(source, *epoch, object, *change, version, None) {
        return Err(StateFault::OtherId(id.clone()));
    }
    Ok(())
}

/// Checks a state that is a gap.
pub fn check_gap(state: &State, document: &[u8]) -> Result<Gap, StateFault> {
    let wrong = |fault| StateFault::Gap { uid: state.object.uid.clone(), fault };
    let gap: Gap = serde_json::from_slice(document).map_err(|_| wrong(GapFault::Unreadable))?;
    let State { source, epoch, object, change, resource_version: version, .. } = state;
    let id = StateId::of(source, *epoch, object, *change, version, Some(&gap));
    if id != state.id || gap.before != version.as_str() {
        return Err(wrong(GapFault::OtherBounds));
    }
    if gap.after.len().max(gap.before.len()) > VERSION_BYTES {
        return Err(wrong(GapFault::LongBound));
    }
    if gap.object.as_ref() != Some(&**object) {
        return Err(wrong(GapFault::OtherObject));
    }
    if (gap.source.as_str(), gap.epoch) != (&**source, *epoch) {
        return Err(wrong(GapFault::OtherSource));
    }
    if !is_word(&gap.reason) {
        return Err(wrong(GapFault::NoReason));
    }
    if gap.after.is_empty() && gap.before.is_empty() {
        return Err(wrong(GapFault::NoBounds));
    }
    match runs_forward(&gap) {
        true => Ok(gap),
        false => Err(wrong(GapFault::Backwards { after: gap.after, before: gap.before })),
    }
}

/// The form of all words of `gap_reason`, and of those that newer programs may add.
fn is_word(reason: &str) -> bool {
    let begins = reason.bytes().next().is_some_and(|first| first.is_ascii_uppercase());
    begins && reason.len() <= REASON_BYTES && reason.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether anything can be between a gap's bounds, as far as versions show.
fn runs_forward(gap: &Gap) -> bool {
    let (after, before) = (Version::new(&gap.after), Version::new(&gap.before));
    let has_order = after.is_comparable() && before.is_comparable();
    !has_order || before.is_newer_than(&after)
}

/// Whether the document of a state, unless it is a gap, has exactly its version. A deletion that nobody saw
/// has no document.
pub fn check_document(state: &State, document: &[u8]) -> Result<(), StateFault> {
    if state.change == Change::Gone && document.is_empty() {
        return Ok(());
    }
    let (object, version) = (&state.object, &state.resource_version);
    let envelope = project::read_envelope(document).map_err(|source| StateFault::NoObject {
        version: version.clone(),
        uid: object.uid.clone(),
        source,
    })?;
    for (field, found, expected) in [
        ("uid", &envelope.uid, object.uid.as_str()),
        ("namespace", &envelope.namespace, &object.namespace),
        ("name", &envelope.name, &object.name),
        ("resourceVersion", &envelope.resource_version, version.as_str()),
    ] {
        if found != expected {
            return Err(StateFault::OtherDocument {
                version: version.clone(),
                uid: object.uid.clone(),
                field,
                found: found.to_string(),
                expected: expected.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::stream::tests::state;

    #[test]
    fn a_state_that_no_journal_could_keep_is_refused() {
        let fine = state(9, 1, "12");
        assert_eq!(check_identity(&fine), Ok(()));
        let long = "7".repeat(VERSION_BYTES + 1);
        for (wrong, expected) in [
            (State { id: state(9, 1, "13").id, ..fine.clone() }, "is not that of its version"),
            (state(9, 1, &long), "its version has more than 1024 bytes"),
            (state(9, u32::MAX, "12"), "its epoch is 4294967295"),
            (State { object: Arc::default(), ..fine.clone() }, "its object has no uid"),
            (State { source: "".into(), ..fine }, "its source has no name"),
        ] {
            let refused = check_identity(&wrong).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn a_gap_is_refused_if_no_index_holds_its_bounds() {
        let base = state(9, 1, "12");
        let gap_of = |after: String| {
            let object = Some((*base.object).clone());
            let gap = Gap {
                source: "jobs".into(),
                object,
                epoch: 1,
                after,
                before: "12".into(),
                reason: "Compacted".into(),
                message: String::new(),
                recorded_ms: 7,
            };
            let id = StateId::of("jobs", 1, &base.object, Change::Gap, &base.resource_version, Some(&gap));
            let state = State { id, change: Change::Gap, ..base.clone() };
            super::check_gap(&state, &serde_json::to_vec(&gap).unwrap())
        };
        assert!(gap_of("10".into()).is_ok());
        assert!(gap_of("13".into()).unwrap_err().to_string().contains("ends at 12"));
        let long = gap_of("x".repeat(VERSION_BYTES + 1)).unwrap_err().to_string();
        assert!(long.contains("more than 1024 bytes"), "{long}");
    }
}
