//! Decides which objects of an answer may be shown. The caller has asked the API server for the person's
//! rights.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cursor::StoryCursor;
use crate::{Change, ObjectRef, Seq, State, calendar, project};

/// By the name of the source. A source without an entry is not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleObjects {
    pub sources: BTreeMap<String, SourceVisibility>,
}

/// The part of one source that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceVisibility {
    Everything,
    /// These namespaces, and in each the objects that were created at this time or later. An older object
    /// belongs to a former namespace with the same name.
    Namespaces(BTreeMap<String, u64>),
}

impl SourceVisibility {
    /// Whether anything of the source could be shown. If not, nothing is looked up for the person.
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
    /// The plural: as set for the source, otherwise the usual plural of the kind.
    pub resource: String,
}

/// A state before the check whether the person may see it. Only its identity is accessible, because its texts
/// may quote secrets that the views remove. Redaction takes time in proportion to the document, so it runs
/// only after the check.
#[derive(Clone, Debug)]
pub struct RawState(Arc<State>);

impl RawState {
    pub fn seq(&self) -> Seq {
        self.0.seq
    }

    /// Its id, and when it was observed. An id contains nothing from a document.
    pub fn identity(&self) -> (&str, u64) {
        (self.0.id.as_str(), self.0.observed_ms)
    }

    pub fn object(&self) -> &ObjectRef {
        &self.0.object
    }

    pub fn change(&self) -> Change {
        self.0.change
    }

    /// The time at which its object was seen to have ended; `None` if the object exists in this state.
    pub fn ended_ms(&self) -> Option<u64> {
        (self.0.change != Change::Present).then_some(self.0.observed_ms)
    }

    pub fn owner(&self) -> Option<&ObjectRef> {
        self.0.owner.as_deref()
    }

    pub fn without_owner(self) -> Self {
        Self(Arc::new(State { owner: None, ..State::clone(&self.0) }))
    }

    /// The state with its secrets, for the views only.
    pub fn unredacted(self) -> Arc<State> {
        self.0
    }
}

impl From<Arc<State>> for RawState {
    fn from(state: Arc<State>) -> Self {
        Self(state)
    }
}

/// A story before the check of what the person may see. Each list is in order, oldest first.
#[derive(Clone, Debug, Default)]
pub struct RawStory {
    pub states: Vec<RawState>,
    pub related: Vec<RawState>,
    /// The newest state of each Event about these objects.
    pub events: Vec<RawState>,
    /// Whether reports are read too.
    pub reports: bool,
    /// The start of the part with older states.
    pub next: Option<StoryCursor>,
    /// The object owns more objects than `related` covers.
    pub owns_more: bool,
}

/// Ends are seen within this time, including the difference between the clocks of two machines.
const SEEN_WITHIN_MS: u64 = 10_000;
const SECOND_MS: u64 = 1_000;

/// Whether an object is in the namespace that was created at `since_ms`, and not in an earlier namespace with
/// the same name. Kubernetes reports both times in whole seconds. Within that second, all objects of the
/// earlier namespace ended before the later one was created. So an object that lived on belongs to the later
/// one.
pub fn is_of_namespace(created_ms: u64, since_ms: u64, ended_ms: Option<u64>) -> bool {
    match created_ms.cmp(&since_ms) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => {
            ended_ms.is_none_or(|ended_ms| ended_ms > since_ms.saturating_add(SECOND_MS + SEEN_WITHIN_MS))
        }
    }
}

/// The creation time in an object's document. The API server sets it, and nobody can change it. `None` if the
/// document has none, such as that of a gap.
pub fn created_ms(document: &[u8]) -> Option<u64> {
    calendar::parse_rfc3339_ms(&project::creation_time(document)?)
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
