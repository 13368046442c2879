//! Details of the objects of a page, from their states: times, restarts, and the progress of each plugin. Of one object:
//! why its pods may be missing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kubewitness_capability::{AnswerPatience, RedactionError};
use kubewitness_core::clock::Clock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::events;
use kubewitness_core::kinds::is_event;
use kubewitness_core::ports::PluginProgress;
use kubewitness_core::search::DocumentFacts;
use kubewitness_core::story::outcomes::is_bad_phase;
use kubewitness_core::story::{PhaseTimes, last_work_status};
use kubewitness_core::views::{
    DeliveryMap, DeliveryStage, DetailsView, EventView, ObjectView, PodCoverage, TimelineView, ViewError,
};
use kubewitness_core::{Change, Seq, State};

use super::events::AboutSecrets;
use super::redacted::current_party;
use super::{HostViews, unavailable};

/// How many states of one object a list reads.
const STATES: usize = 256;
/// How many documents of one page are read at the same time: one fewer than the journal's file has readers,
/// so that a page leaves a reader to others. One after another, a page of some hundred rows would wait for as
/// many answers of the store.
pub(super) const READ_AHEAD: usize = 3;
/// How many rows of a page have their documents in memory at the same time.
pub(super) const WINDOW: usize = 64;

impl HostViews {
    /// How far pods are in the story of an object that has failed, as the rights and the settings have it.
    pub(super) fn pod_coverage(&self, timeline: &TimelineView) -> PodCoverage {
        let last = timeline.states.iter().rfind(|state| state.change != Change::Gap);
        let Some(failed) = last.filter(|last| has_bad_end(last)) else { return timeline.pods };
        let sources = self.shared.sources_with_specs();
        let watches = |(spec, _): &(SourceSpec, _)| watches_all_pods_in(spec, &failed.object.namespace);
        // A source that was removed since has left its states.
        let is_known = timeline.explained_states().has_pods() || sources.iter().any(watches);
        match timeline.pods {
            PodCoverage::Whole if !is_known => PodCoverage::Unwatched,
            pods => pods,
        }
    }

    /// Running times are counted up to the requested moment, or up to now.
    pub(super) async fn add_details(
        &self,
        views: &mut [ObjectView],
        at_ms: Option<u64>,
        hides_plugins: bool,
    ) -> Result<(), ViewError> {
        let heads: Vec<Seq> = views.iter().map(|view| view.seq).collect();
        let stories = self.journal.object_histories(&heads, STATES).await.map_err(unavailable)?;
        let deliveries = match hides_plugins {
            true => DeliveryMap::new(),
            false => self.told_of(&stories.values().flatten().cloned().collect::<Vec<_>>()).await?,
        };
        let now_ms = at_ms.unwrap_or_else(|| self.clock.now_ms());
        let (mut patience, mut objects) = (AnswerPatience::of_a_list(), AboutSecrets::new());
        for part in views.chunks_mut(WINDOW) {
            let mut documents = self.cut_documents(part, &stories).await?;
            let events = part.iter().filter_map(|view| {
                newest_event(stories.get(&view.seq)?)?;
                documents.get(&view.seq)
            });
            let events: Vec<&Bytes> = events.collect();
            self.find_objects(events.into_iter(), &mut objects, &mut patience).await?;
            for view in part {
                let Some(states) = stories.get(&view.seq) else { continue };
                let document = documents.remove(&view.seq);
                let (event, about) = match newest_event(states) {
                    Some(last) => self.read_event(last, document, &mut objects, &mut patience).await?,
                    None => (None, self.document_facts(document).await?),
                };
                let times =
                    if event.is_some() { PhaseTimes::default() } else { PhaseTimes::of(states, now_ms) };
                let is_cut =
                    states.len() >= STATES || states.first().is_some_and(|first| first.previous.is_some());
                view.details = Some(DetailsView {
                    created_at: about.created,
                    queued_ms: times.queued_ms,
                    running_ms: times.running_ms,
                    restarts: times.restarts,
                    submitter: about.submitter,
                    cut: is_cut,
                    plugins: worst_stages(&deliveries, states),
                    event,
                });
            }
        }
        Ok(())
    }

    /// The parts of these rows' newest documents that a page shows, by row. A few documents are read at the
    /// same time.
    async fn cut_documents(
        &self,
        rows: &[ObjectView],
        stories: &HashMap<Seq, Vec<Arc<State>>>,
    ) -> Result<HashMap<Seq, Bytes>, ViewError> {
        // Without the key, no Event is shown.
        let is_ready = self.secret_redaction()?.check_ready().is_ok();
        let newest = rows.iter().filter_map(|view| {
            let states = stories.get(&view.seq)?;
            let event = newest_event(states);
            let last = event.or_else(|| states.last())?;
            (is_ready || event.is_none()).then(|| (view.seq, last.clone(), event.is_some()))
        });
        let newest: Vec<_> = newest.collect();
        let read = newest.into_iter().map(|(row, last, is_event)| self.cut_document(row, last, is_event));
        let cut: Vec<_> = stream::iter(read).buffer_unordered(READ_AHEAD).try_collect().await?;
        Ok(cut.into_iter().filter_map(|(row, document)| Some((row, document?))).collect())
    }

    async fn cut_document(
        &self,
        row: Seq,
        last: Arc<State>,
        is_event: bool,
    ) -> Result<(Seq, Option<Bytes>), ViewError> {
        let document = self.last_document(&last).await?;
        let cut = match is_event {
            // Retention may have taken it meanwhile.
            true if document.is_empty() => None,
            true => Some(events::cut_event(&document).unwrap_or(document)),
            // Treated like a state without a document.
            false => DocumentFacts::cut_to_facts(&document),
        };
        Ok((row, cut.map(Bytes::from)))
    }

    /// Reads an Event once, for its facts and for the other parts that a page shows. Without its message, it
    /// has no facts.
    async fn read_event(
        &self,
        last: &State,
        document: Option<Bytes>,
        objects: &mut AboutSecrets,
        patience: &mut AnswerPatience,
    ) -> Result<(Option<EventView>, DocumentFacts), ViewError> {
        let Some(document) = document else { return Ok((None, DocumentFacts::default())) };
        let shown = self.shown_event(document, objects, patience).await?;
        let event = events::read(&shown, &last.object, last.seq, last.observed_ms);
        Ok((event, DocumentFacts::read(&shown)))
    }

    /// Reads the facts of a document that a page of objects shows.
    async fn document_facts(&self, document: Option<Bytes>) -> Result<DocumentFacts, ViewError> {
        let Some(document) = document else { return Ok(DocumentFacts::default()) };
        match self.secret_redaction()?.redact_document(document, &current_party()).await {
            Ok(shown) => Ok(DocumentFacts::read(&shown)),
            Err(RedactionError::Withheld(_)) => Ok(DocumentFacts::default()),
            Err(error @ RedactionError::Key(_)) => Err(unavailable(error)),
        }
    }

    /// The stage of these states in each plugin that runs here.
    pub(super) async fn told_of(&self, states: &[Arc<State>]) -> Result<DeliveryMap, ViewError> {
        let mut seqs: Vec<Seq> = states.iter().map(|state| state.seq).collect();
        seqs.sort_unstable();
        let mut deliveries = DeliveryMap::new();
        for (name, (progress, _)) in self.journal.all_progress().await.map_err(unavailable)? {
            if progress.retired_ms.is_some() || self.shared.plugin(&name).is_none() {
                continue;
            }
            let letters = self.journal.letters_at(&name, &seqs).await.map_err(unavailable)?;
            let stages = states
                .iter()
                .filter_map(|state| Some((state.seq, delivery_stage(&progress, &letters, state)?)));
            let stages: BTreeMap<Seq, DeliveryStage> = stages.collect();
            if !stages.is_empty() {
                deliveries.insert(name, stages);
            }
        }
        Ok(deliveries)
    }
}

/// A source with labels does not prove that a pod was watched.
fn watches_all_pods_in(spec: &SourceSpec, namespace: &str) -> bool {
    let is_within = spec.namespace.as_deref().is_none_or(|watched| watched == namespace);
    spec.api_group().is_empty() && spec.kind == "Pod" && spec.match_labels.is_empty() && is_within
}

fn has_bad_end(last: &State) -> bool {
    is_bad_phase(&last_work_status(last).phase)
}

/// The newest state of an Event that has a document: the document of its end may be empty. `None` for any
/// other object.
fn newest_event(states: &[Arc<State>]) -> Option<&Arc<State>> {
    let last = states.iter().rfind(|state| state.change == Change::Present);
    last.filter(|state| is_event(&state.object.group, &state.object.kind))
}

/// `None` for a state to which the plugin is not subscribed. A letter that is being replayed waits.
fn delivery_stage(
    progress: &PluginProgress,
    letters: &HashMap<Seq, bool>,
    state: &State,
) -> Option<DeliveryStage> {
    if !progress.sources.iter().any(|start| start.covers_state(state)) {
        return None;
    }
    Some(match letters.get(&state.seq) {
        Some(false) => DeliveryStage::Dead,
        Some(true) => DeliveryStage::Waiting,
        None if progress.has_finished(&state.source, state.seq) => DeliveryStage::Delivered,
        None => DeliveryStage::Waiting,
    })
}

/// An object's stage in a plugin is the worst of its states.
fn worst_stages(deliveries: &DeliveryMap, states: &[Arc<State>]) -> BTreeMap<String, String> {
    let of_plugin = |(name, stages): (&String, &BTreeMap<Seq, DeliveryStage>)| {
        let worst = states.iter().filter_map(|state| stages.get(&state.seq)).max()?;
        Some((name.clone(), worst.as_str().to_owned()))
    };
    deliveries.iter().filter_map(of_plugin).collect()
}

#[cfg(test)]
mod tests {
    use kubewitness_core::ports::SourceStart;
    use kubewitness_core::{ObjectRef, StateId, Status, Version};
    use kubewitness_journal::{Journal, PhaseIndex};

    use super::*;
    use crate::controller::mutes::StoryMutes;

    fn state(seq: Seq) -> Arc<State> {
        Arc::new(State {
            id: StateId::parse("x"),
            seq,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            object: Arc::new(ObjectRef::default()),
            owner: None,
            resource_version: Version::new("1"),
            status: Arc::default(),
            previous: None,
            observed_ms: 0,
            late: false,
            quotes_none_under: None,
        })
    }

    #[tokio::test]
    async fn a_failure_is_in_doubt_where_no_source_watches_pods() {
        let folder = tempfile::tempdir().unwrap();
        let options = kubewitness_journal::JournalOptions::default();
        let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
        let redaction = kubewitness_capability::SharedValue::default();
        let mutes = Arc::new(StoryMutes::new(journal.clone(), folder.path(), redaction));
        let phases = PhaseIndex::new(folder.path().join("phases.db"));
        let views = HostViews::new(Arc::default(), journal, None, mutes, phases);
        let with_phase = |seq: Seq, kind: &str, phase: &str| {
            let object = ObjectRef { kind: kind.into(), ..ObjectRef::default() };
            let status = Status { phase: phase.into(), ..Status::default() };
            Arc::new(State { object: Arc::new(object), status: Arc::new(status), ..(*state(seq)).clone() })
        };
        let coverage = |timeline: TimelineView| views.pod_coverage(&timeline);
        let story = |phase: &str| TimelineView {
            states: vec![with_phase(1, "Job", "Running"), with_phase(3, "Job", phase)],
            ..TimelineView::default()
        };
        assert_eq!(coverage(story("Failed")), PodCoverage::Unwatched);
        assert_eq!(coverage(story("Running")), PodCoverage::Whole, "it has not failed");
        let hidden = TimelineView { pods: PodCoverage::Hidden, ..story("Failed") };
        assert_eq!(coverage(hidden), PodCoverage::Hidden);
        // The source was removed since.
        let related = vec![with_phase(2, "Pod", "Running")];
        assert_eq!(coverage(TimelineView { related, ..story("Failed") }), PodCoverage::Whole);
    }

    #[test]
    fn a_source_watches_all_pods_in_its_namespace_unless_labels_choose_them() {
        let watches = |source: serde_json::Value, namespace: &str| {
            watches_all_pods_in(&serde_json::from_value(source).unwrap(), namespace)
        };
        let pods = serde_json::json!({"name": "pods", "apiVersion": "v1", "kind": "Pod"});
        assert!(watches(pods.clone(), "red"));
        let mut of_red = pods.clone();
        of_red["namespace"] = "red".into();
        assert!(watches(of_red.clone(), "red") && !watches(of_red, "blue"));
        let mut of_a_team = pods.clone();
        of_a_team["matchLabels"] = serde_json::json!({"team": "vision"});
        assert!(!watches(of_a_team, "red"));
        let mut jobs = pods;
        jobs["kind"] = "Job".into();
        assert!(!watches(jobs, "red"));
    }

    #[test]
    fn an_object_is_delivered_once_all_of_its_states_are_finished() {
        let start = SourceStart { source: "jobs".into(), after: 2, until: None };
        let progress = PluginProgress {
            cursor: 10,
            above: vec![(12, 13)],
            sources: vec![start],
            ..PluginProgress::default()
        };
        let of = |seqs: &[Seq], letters: &[(Seq, bool)]| {
            let states: Vec<_> = seqs.iter().map(|seq| state(*seq)).collect();
            let letters = letters.iter().copied().collect();
            let stages = states
                .iter()
                .filter_map(|state| Some((state.seq, delivery_stage(&progress, &letters, state)?)));
            let deliveries = DeliveryMap::from([("p".to_owned(), stages.collect())]);
            worst_stages(&deliveries, &states).remove("p")
        };
        let is = |found: Option<String>, word: &str| assert_eq!(found.as_deref(), Some(word));
        is(of(&[3, 10, 12], &[]), "delivered");
        is(of(&[3, 11], &[]), "waiting");
        is(of(&[3, 5], &[(5, true)]), "waiting");
        is(of(&[3, 5, 11], &[(3, false)]), "dead");
        assert_eq!(of(&[1, 2], &[]), None, "from before its subscription");
    }
}
