//! `outcomes`: explains why objects of granted sources ended badly, with secrets hidden as in documents.
//!
//! The host stores one word for each outcome. The sentence is made when a plugin asks, from states and
//! documents as this plugin may see them. A stored sentence would either contain secrets, or hide them by
//! outdated rules. If retention has removed the states that the sentence needs, only the word remains.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::clock::Clock;
use kubewitness_core::events;
use kubewitness_core::ports::{
    ChangeQuestion, DocumentReader, ExplainedOutcome, GrantError, JournalError, KeptOutcome, OutcomeFinder,
    OutcomeFinding, OutcomePage, OutcomePlace, OutcomeStory,
};
use kubewitness_core::redact::SecretDigests;
use kubewitness_core::views::{
    Cause, CauseKind, DocumentsBySeq, EventView, ExplainedStates, PodCoverage, WhyView,
};
use kubewitness_core::{Seq, State, Status};

use super::documents;
use crate::secrets::redaction::{AnswerPatience, RedactedDocuments};

/// The most outcomes of one page.
const PAGE: usize = 1_000;
/// The doubt that is reported if the journal no longer has the states from which the word was found.
const TAKEN: &str = "the journal no longer has the states that say more";

pub struct GrantedOutcomes {
    finder: Arc<dyn OutcomeFinder>,
    documents: Arc<dyn DocumentReader>,
    sources: BTreeSet<String>,
    /// None for a plugin that may see secrets.
    redaction: Option<RedactedDocuments>,
    clock: Arc<dyn Clock>,
}

impl GrantedOutcomes {
    pub fn new(
        finder: Arc<dyn OutcomeFinder>,
        documents: Arc<dyn DocumentReader>,
        sources: &[String],
        redaction: Option<RedactedDocuments>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { finder, documents, sources: sources.iter().cloned().collect(), redaction, clock }
    }

    pub fn granted_sources(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(String::as_str)
    }

    pub async fn changes_after(&self, after: &str, limit: usize) -> Result<OutcomePage, GrantError> {
        if self.sources.is_empty() {
            return Err(GrantError::Denied(
                "outcomes were not granted: add a source to spec.grants.outcomes".into(),
            ));
        }
        let question = ChangeQuestion {
            sources: self.sources.clone(),
            after: self.parse_place(after),
            limit: limit.min(PAGE),
        };
        let changes = self.finder.outcome_changes(question).await.map_err(|error| refusal_of(&error))?;
        Ok(OutcomePage {
            outcomes: changes.outcomes,
            next: self.text(&changes.next),
            has_more: changes.has_more,
            is_restarted: changes.is_restarted,
        })
    }

    /// The text of a position also identifies the granted sources: outcomes of a source that is granted later
    /// would otherwise be skipped.
    fn text(&self, place: &OutcomePlace) -> String {
        format!("{}.{}.{}", place.line, self.sources_digest(), place.number)
    }

    fn parse_place(&self, text: &str) -> Option<OutcomePlace> {
        let mut parts = text.split('.');
        let (line, print, number) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        (print == self.sources_digest()).then(|| OutcomePlace { line: line.to_owned(), number })
    }

    fn sources_digest(&self) -> String {
        let names: Vec<_> = self.granted_sources().collect();
        let digest = ring::digest::digest(&ring::digest::SHA256, names.join("\n").as_bytes());
        hex::encode(&digest.as_ref()[..8])
    }

    pub async fn explain_outcome(&self, source: &str, uid: &str) -> Result<OutcomeFinding, GrantError> {
        if !self.sources.contains(source) {
            return Err(crate::denied_error("source", source, "spec.grants.outcomes"));
        }
        match self.finder.kept_outcome(source, uid).await.map_err(|error| refusal_of(&error))? {
            KeptOutcome::Nothing => Ok(OutcomeFinding::Nothing),
            KeptOutcome::Pending => Ok(OutcomeFinding::Pending),
            KeptOutcome::Explained { seq, kind } => {
                let explained =
                    self.explained_outcome(uid, seq, kind).await.map_err(|error| refusal_of(&error))?;
                Ok(explained.map_or(OutcomeFinding::Nothing, |explained| {
                    OutcomeFinding::Explained(Box::new(explained))
                }))
            }
        }
    }

    /// `None` if the journal no longer has any state of the object.
    async fn explained_outcome(
        &self,
        uid: &str,
        seq: Seq,
        kind: CauseKind,
    ) -> Result<Option<ExplainedOutcome>, JournalError> {
        let OutcomeStory { states, related, events, is_cut } = match self.finder.outcome_story(uid).await {
            // Damage is permanent. An error here would block the outcomes of all other objects for ever.
            Err(JournalError::Fatal(_)) => return Ok(None),
            story => story?,
        };
        let (states, related) = (self.show_states(states).await?, self.show_states(related).await?);
        let events = self.event_views(events).await?;
        let story = ExplainedStates {
            states: &states,
            related: &related,
            events: &events,
            preemptors: &[],
            pods: PodCoverage::Whole,
            is_cut,
        };
        let mut read = DocumentsBySeq::new();
        for wanted in story.documents_wanted() {
            read.extend(self.document_if_kept(wanted).await?.map(|document| (wanted, document.into())));
        }
        let Some(end) = states.iter().rfind(|state| state.seq <= seq).or(states.last()) else {
            return Ok(None);
        };
        let why = story.explain_object(&read, self.clock.now_ms());
        let outcome = ExplainedOutcome {
            object: (*end.object).clone(),
            seq,
            ended_ms: end.observed_ms,
            headline: story.headline_text(&why),
            ..ExplainedOutcome::default()
        };
        Ok(Some(with_word(outcome, why, kind)))
    }

    async fn show_states(&self, states: Vec<Arc<State>>) -> Result<Vec<Arc<State>>, JournalError> {
        let Some(RedactedDocuments { redaction, party, .. }) = &self.redaction else { return Ok(states) };
        let mut shown = Vec::with_capacity(states.len());
        for state in states {
            shown.push(match redaction.redact_state(&*self.documents, &state, party).await {
                // The document is damaged for good, and the texts of the state may quote a secret from it.
                Err(JournalError::Fatal(_)) => without_texts(&state),
                other => other?,
            });
        }
        Ok(shown)
    }

    async fn event_views(&self, states: Vec<Arc<State>>) -> Result<Vec<EventView>, JournalError> {
        let (mut views, mut objects) = (Vec::new(), HashMap::new());
        let patience = &mut AnswerPatience::of_a_request();
        for state in states.into_iter().rev() {
            let document = match self.documents.document_at(state.seq).await {
                Err(JournalError::Fatal(_)) | Ok(None) => continue,
                Ok(Some(document)) => events::cut_event(&document).map_or(document, Bytes::from),
                Err(error) => return Err(error),
            };
            let document = match &self.redaction {
                Some(RedactedDocuments { redaction, party, .. }) => {
                    let redacted = redaction
                        .redact_event(&*self.documents, document, &mut objects, party, patience)
                        .await;
                    match redacted {
                        // The object's own document is damaged, so it is unknown which of its secrets the
                        // Event quotes.
                        Err(JournalError::Fatal(_) | JournalError::Invalid(_)) => continue,
                        shown => shown?,
                    }
                }
                None => document,
            };
            views.extend(events::read(&document, &state.object, state.seq, state.observed_ms));
        }
        Ok(events::fold_repeated(views))
    }

    /// `None` if retention has removed the document, or if it is damaged or withheld. The states alone still
    /// explain something.
    async fn document_if_kept(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        let read = match &self.redaction {
            Some(redacted) => redacted.document_at(seq).await,
            None => self.documents.document_at(seq).await,
        };
        match read {
            Err(JournalError::Fatal(_) | JournalError::Invalid(_)) => Ok(None),
            document => document,
        }
    }
}

/// Makes the stored word the cause. If the journal now has fewer states than when the word was found, the
/// doubt says so.
fn with_word(outcome: ExplainedOutcome, why: WhyView, kind: CauseKind) -> ExplainedOutcome {
    let WhyView { sentence, cause, doubt, .. } = why;
    let cause = cause.unwrap_or_default();
    if cause.kind == kind {
        return ExplainedOutcome { sentence, doubt, cause, ..outcome };
    }
    let word = Cause { kind, at_ms: outcome.ended_ms, seq: outcome.seq, ..Cause::default() };
    // An incomplete story may name a pod, but another pod may have failed before it.
    if kind == CauseKind::Unknown {
        let headline = format!("{} ({doubt})", outcome.headline);
        return ExplainedOutcome { headline, sentence, doubt, cause: word, ..outcome };
    }
    let headline = format!("Failed: {}", kind.words());
    let (sentence, doubt) = (format!("{headline} ({TAKEN})"), TAKEN.to_owned());
    ExplainedOutcome { headline, sentence, doubt, cause: word, ..outcome }
}

fn without_texts(state: &Arc<State>) -> Arc<State> {
    let hidden = |status: &Arc<Status>| {
        SecretDigests::hide_all().hidden_in(status).map_or_else(|| status.clone(), Arc::new)
    };
    let (status, previous) = (hidden(&state.status), state.previous.as_ref().map(hidden));
    Arc::new(State { status, previous, ..State::clone(state) })
}

fn refusal_of(error: &JournalError) -> GrantError {
    match error {
        JournalError::Unavailable(_) => {
            tracing::debug!(%error, "an outcome can't be explained for a plugin now");
            GrantError::Unavailable("the outcome can't be read now".into())
        }
        _ => documents::refusal_of(error),
    }
}
