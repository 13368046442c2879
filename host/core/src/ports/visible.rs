//! Which objects of an answer may be shown. The caller has asked the API server and decides.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cursor::StoryCursor;
use crate::{Change, ObjectRef, Seq, State, calendar, project};

/// By the name of the source. What is not here is not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleObjects {
    pub sources: BTreeMap<String, SourceVisibility>,
}

/// The part of one source that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceVisibility {
    Everything,
    /// These namespaces, and of each the objects that were created at this moment or later: an older
    /// object belongs to a namespace that had the name before.
    Namespaces(BTreeMap<String, u64>),
}

impl SourceVisibility {
    /// Whether anything of the source could be shown. Nothing is looked up for those to whom it can't.
    pub fn is_something(&self) -> bool {
        !matches!(self, Self::Namespaces(none) if none.is_empty())
    }
}

/// A resource that a source witnesses, as rules of RBAC name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedResource {
    pub source: String,
    pub group: String,
    pub kind: String,
    /// The plural: as the source's settings say, or else as kinds usually form it.
    pub resource: String,
}

/// A state before it is known whether somebody may see it. Whose it is may be asked; what it says may quote secrets, and
/// only the views take them out. That takes time that grows with the document: it is not spent for those who may not see it.
#[derive(Clone, Debug)]
pub struct RawState(Arc<State>);

impl RawState {
    pub fn seq(&self) -> Seq {
        self.0.seq
    }

    /// Its id, and when it was observed. An id quotes nothing of a document.
    pub fn identity(&self) -> (&str, u64) {
        (self.0.id.as_str(), self.0.observed_ms)
    }

    pub fn object(&self) -> &ObjectRef {
        &self.0.object
    }

    pub fn change(&self) -> Change {
        self.0.change
    }

    /// When its object was seen to have ended; `None` if this state says that it is there.
    pub fn ended_ms(&self) -> Option<u64> {
        (self.0.change != Change::Present).then_some(self.0.observed_ms)
    }

    pub fn owner(&self) -> Option<&ObjectRef> {
        self.0.owner.as_deref()
    }

    pub fn without_owner(self) -> Self {
        Self(Arc::new(State { owner: None, ..State::clone(&self.0) }))
    }

    /// With its secrets: for the views alone.
    pub fn unredacted(self) -> Arc<State> {
        self.0
    }
}

impl From<Arc<State>> for RawState {
    fn from(state: Arc<State>) -> Self {
        Self(state)
    }
}

/// A story before it is known what of it somebody may see. Each list has the oldest first.
#[derive(Clone, Debug, Default)]
pub struct RawStory {
    pub states: Vec<RawState>,
    pub related: Vec<RawState>,
    /// The newest state of each Event about these objects.
    pub events: Vec<RawState>,
    /// Whether reports are read as well.
    pub reports: bool,
    /// Where the part with older states begins.
    pub next: Option<StoryCursor>,
    /// It owns more objects than `related` is about.
    pub owns_more: bool,
}

/// Ends are seen within this time, clocks of two machines included.
const SEEN_WITHIN_MS: u64 = 10_000;
const SECOND_MS: u64 = 1_000;

/// Whether an object lies in the namespace that was made at `since_ms`, and not in one that had the name before. Kubernetes
/// tells both moments in whole seconds. In the same second all objects of the earlier namespace had ended before the
/// later one was made: so one that lived on is of the later one.
pub fn is_of_namespace(created_ms: u64, since_ms: u64, ended_ms: Option<u64>) -> bool {
    match created_ms.cmp(&since_ms) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => {
            ended_ms.is_none_or(|ended_ms| ended_ms > since_ms.saturating_add(SECOND_MS + SEEN_WITHIN_MS))
        }
    }
}

/// When an object was created, by its document. The API server sets it, and nobody can change it.
/// `None` for a document that does not say so, such as that of a gap.
pub fn created_ms(document: &[u8]) -> Option<u64> {
    calendar::moment(&project::created(document)?)
}

#[cfg(test)]
mod tests {
    use super::{created_ms, is_of_namespace};

    #[test]
    fn what_ended_within_the_second_of_its_namespace_may_be_of_the_one_before_and_what_lived_on_is_not() {
        let made = 1_000_000;
        assert!(is_of_namespace(made + 1_000, made, Some(made)), "it is younger");
        assert!(!is_of_namespace(made - 1_000, made, None), "it is older");
        assert!(is_of_namespace(made, made, None), "it is there");
        assert!(is_of_namespace(made, made, Some(made + 11_001)), "it lived on");
        for ended in [0, made - 1, made, made + 999, made + 11_000] {
            assert!(!is_of_namespace(made, made, Some(ended)), "{ended}");
        }
    }

    #[test]
    fn only_a_document_that_says_when_its_object_was_created_has_an_age() {
        let document = br#"{"spec":{},"metadata":{"name":"a","creationTimestamp":"2026-11-20T13:45:11Z"}}"#;
        assert_eq!(created_ms(document), Some(1_795_182_311_000));
        for other in [
            &b""[..],
            b"{}",
            br#"{"metadata":{"creationTimestamp":null}}"#,
            br#"{"metadata":{"creationTimestamp":"yesterday"}}"#,
            br#"{"source":"jobs","reason":"Compacted"}"#,
            br#"{"metadata":{"creationTimestamp":"1969-11-20T13:45:11Z"}}"#,
        ] {
            assert_eq!(created_ms(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
