//! Documents and statuses for people, with secrets hidden. No caller of this module has a right to secrets.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_capability::{AnswerPatience, SecretRedaction, ThreadParty};
use kubewitness_core::order::OrderKey;
use kubewitness_core::ports::{CurrentObject, JournalError, ObjectSelection, RawState, created_ms};
use kubewitness_core::redact::{RedactionRules, SecretDigests};
use kubewitness_core::views::{ManifestView, ObjectQuery, ObjectView, ViewError, Views};
use kubewitness_core::{Seq, State, Status};
use tracing::warn;

use super::shapes::{object_view, selection};
use super::{HostViews, unavailable};

impl HostViews {
    pub(super) fn secret_redaction(&self) -> Result<Arc<SecretRedaction>, ViewError> {
        self.shared.redaction().ok_or_else(|| {
            let why = "what is a secret is not known before the host's settings are taken";
            ViewError::Unavailable(why.into())
        })
    }

    /// The selection of a query. A query whose answer would reveal a secret is refused.
    pub(super) fn safe_selection(&self, query: &ObjectQuery) -> Result<ObjectSelection, ViewError> {
        let selection = selection(query)?;
        if selection.order.is_some_and(|order| order.by == OrderKey::Created) {
            refuse_hidden_creation(&self.secret_redaction()?.redaction_rules())?;
        }
        if selection.labels.is_empty() && selection.index.is_none() && selection.search.is_none() {
            return Ok(selection);
        }
        let rules = self.secret_redaction()?.redaction_rules();
        refuse_hidden_labels(&selection, &rules)?;
        let search = selection.search.map(|search| search.hiding_secrets(rules.clone()));
        Ok(ObjectSelection { search, rules: Some(rules), ..selection })
    }

    /// A configuration that can't be shown without its secrets is not shown.
    pub(super) fn shown_manifest(&self, manifest: &ManifestView) -> Arc<ManifestView> {
        let redaction = self.secret_redaction().ok();
        let shown =
            redaction.zip(manifest.config.as_ref()).and_then(|(it, config)| it.redact_settings(config).ok());
        Arc::new(ManifestView { config: shown, ..manifest.clone() })
    }

    pub(super) async fn shown_object(
        &self,
        source: &str,
        current: CurrentObject,
        patience: &mut AnswerPatience,
    ) -> Result<ObjectView, ViewError> {
        let redaction = self.secret_redaction()?;
        let status = match redaction.redact_current(&current, patience).await {
            Err(_) if redaction.check_ready().is_err() => without_texts(&current.status),
            status => status.map_err(unavailable)?,
        };
        Ok(object_view(source.to_owned(), CurrentObject { status, ..current }))
    }

    pub(super) async fn without_secrets(&self, state: &Arc<State>) -> Result<Arc<State>, ViewError> {
        let redaction = self.secret_redaction()?;
        let shown = redaction.redact_state(&self.journal, state, &current_party()).await;
        or_without_texts(shown, redaction.check_ready().is_ok(), state).map_err(unavailable)
    }

    pub(super) async fn shown_all(&self, states: Vec<RawState>) -> Result<Vec<Arc<State>>, ViewError> {
        let mut shown = Vec::with_capacity(states.len());
        for state in states {
            shown.push(self.redacted_state(state).await?);
        }
        Ok(shown)
    }
}

/// The party on whose behalf documents are redacted.
pub(super) fn current_party() -> ThreadParty {
    kubewitness_portal::current_party().map_or(ThreadParty::Anybody, ThreadParty::Person)
}

/// Handles a document that can't be read. A damaged document stays damaged, and waiting for it would hide
/// everything after it. So its state is shown without texts that may quote its secrets. A document that may
/// become readable later is an error.
fn or_without_texts(
    shown: Result<Arc<State>, JournalError>,
    is_ready: bool,
    state: &Arc<State>,
) -> Result<Arc<State>, JournalError> {
    match shown {
        Err(error) if !is_ready || matches!(error, JournalError::Fatal(_)) => {
            if is_ready {
                warn!(seq = state.seq, %error, "a state is shown without its texts: its document can't be read");
            }
            let (status, previous) =
                (without_texts(&state.status), state.previous.as_ref().map(without_texts));
            Ok(Arc::new(State { status, previous, ..State::clone(state) }))
        }
        shown => shown,
    }
}

/// Handles an unreadable document whose object's age is wanted. A damaged document never shows the age; other
/// documents of the object may.
pub(super) fn or_without_age(
    seq: Seq,
    document: Result<Option<Bytes>, JournalError>,
) -> Result<Option<u64>, JournalError> {
    match document {
        Ok(document) => Ok(document.and_then(|document| created_ms(&document))),
        Err(error @ JournalError::Fatal(_)) => {
            warn!(seq, %error, "how old an object is can't be read from this state's document");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A list without the redaction key: it omits texts that may quote a secret.
fn without_texts(status: &Arc<Status>) -> Arc<Status> {
    SecretDigests::hide_all().hidden_in(status).map_or_else(|| status.clone(), Arc::new)
}

/// Refuses to sort by a hidden value, because the order would reveal it.
fn refuse_hidden_creation(rules: &RedactionRules) -> Result<(), ViewError> {
    match rules.hides_value_at(None, &["metadata", "creationTimestamp"]) {
        false => Ok(()),
        true => Err(ViewError::Invalid(
            "when objects were created is hidden by redaction, so nothing can be ordered by it: choose another `sort`, \
             or ask the operator who keeps `spec.redaction`"
                .into(),
        )),
    }
}

fn refuse_hidden_labels(selection: &ObjectSelection, rules: &RedactionRules) -> Result<(), ViewError> {
    let hidden =
        selection.labels.required_keys().find(|key| rules.hides_value_at(None, &["metadata", "labels", key]));
    match hidden {
        None => Ok(()),
        Some(key) => Err(ViewError::Invalid(format!(
            "the label `{key}` is hidden by redaction, so nothing can be selected by it: select by another label, or \
             ask the operator who keeps `spec.redaction`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::config::{HostSpec, RedactedField, RedactionSpec};
    use kubewitness_core::search::SearchText;
    use kubewitness_core::selector::LabelSelector;
    use kubewitness_core::{Change, ObjectRef, StateId, Version};

    use super::*;

    #[test]
    fn a_state_whose_document_is_damaged_is_shown_without_its_texts_and_one_that_can_not_be_read_now_is_not()
    {
        let status =
            |message: &str| Status { phase: "Failed".into(), message: message.into(), ..Status::default() };
        let (object, version) = (ObjectRef { kind: "Job".into(), ..ObjectRef::default() }, Version::new("7"));
        let state = Arc::new(State {
            id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
            seq: 7,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            object: object.into(),
            owner: None,
            resource_version: version,
            status: status("password=x1y2").into(),
            previous: None,
            observed_ms: 0,
            late: false,
            quotes_none_under: None,
        });
        let damaged = || Err(JournalError::Fatal("state 7: its row differs".into()));
        let shown = or_without_texts(damaged(), true, &state).unwrap();
        assert_eq!((shown.status.phase.as_str(), shown.seq), ("Failed", state.seq));
        assert!(!shown.status.message.contains("x1y2"), "{}", shown.status.message);
        let busy = || Err(JournalError::Unavailable("it is busy".into()));
        assert!(or_without_texts(busy(), true, &state).is_err());
        assert!(or_without_texts(busy(), false, &state).is_ok(), "without a key nothing else can be told");
    }

    #[test]
    fn a_damaged_document_does_not_say_how_old_its_object_is_and_one_that_can_not_be_read_now_is_an_error() {
        let document = Bytes::from_static(br#"{"metadata":{"creationTimestamp":"2026-11-20T13:45:11Z"}}"#);
        assert_eq!(or_without_age(7, Ok(Some(document))).unwrap(), Some(1_795_182_311_000));
        assert_eq!(or_without_age(7, Ok(None)).unwrap(), None);
        let damaged = Err(JournalError::Fatal("state 7: its document differs".into()));
        assert_eq!(or_without_age(7, damaged).unwrap(), None);
        assert!(or_without_age(7, Err(JournalError::Unavailable("it is busy".into()))).is_err());
    }

    #[test]
    fn a_creation_that_is_hidden_orders_nothing() {
        let rules = |pointer: &str| {
            let fields = vec![RedactedField { kind: None, pointer: pointer.into() }];
            let redaction = RedactionSpec { fields, ..RedactionSpec::default() };
            HostSpec { redaction, ..HostSpec::default() }.compile_redaction_rules().unwrap()
        };
        let error = refuse_hidden_creation(&rules("/metadata/creationTimestamp")).unwrap_err().to_string();
        assert!(error.contains("hidden by redaction"), "{error}");
        assert!(refuse_hidden_creation(&rules("/metadata/labels/code")).is_ok());
    }

    #[test]
    fn a_label_that_is_hidden_selects_nothing_in_any_form() {
        let field = |pointer: &str| RedactedField { kind: None, pointer: pointer.into() };
        let redaction =
            RedactionSpec { fields: vec![field("/metadata/labels/code")], ..RedactionSpec::default() };
        let rules = HostSpec { redaction, ..HostSpec::default() }.compile_redaction_rules().unwrap();
        let asked = |text: &str| {
            let labels = LabelSelector::parse(text).unwrap();
            refuse_hidden_labels(&ObjectSelection { labels, ..ObjectSelection::default() }, &rules)
        };
        for text in ["code=a", "team=a,code!=a", "!code", "code", "code in (a,b)"] {
            let error = asked(text).unwrap_err().to_string();
            assert!(error.contains("the label `code` is hidden"), "{error}");
        }
        assert!(asked("team=a").is_ok());
        let document = br#"{"metadata":{"labels":{"code":"hush","team":"vision"}}}"#;
        let finds = |text: &str| {
            SearchText::new(text).unwrap().hiding_secrets(rules.clone().into()).fits_document(document)
        };
        assert!(!finds("hush") && finds("vision"));
    }
}
