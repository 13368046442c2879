//! Explains outcomes once, for lists, filters and metrics. [`kubewitness_core::story::outcomes`] has the
//! reasons for this design.
//!
//! Only the word is stored, so documents are read unredacted: no text of them leaves this module.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::events;
use kubewitness_core::ports::{DocumentReader, JournalError, OutcomeStory};
use kubewitness_core::views::{
    CauseKind, DocumentsBySeq, EventView, ExplainedStates, Outcome, PodCoverage, TimelineQuery, WhyView,
};
use kubewitness_core::{Seq, State};
use kubewitness_journal::{Journal, OpenOutcome, PhaseIndex};
use tracing::{debug, warn};

/// How many outcomes are explained before the journal is read on, so that a burst of failures does not delay
/// lists.
const PART: usize = 16;
/// The most states of an object and the objects that it owns that one explanation reads: a job with the pods
/// of its attempts.
const STATES: usize = 2_000;

/// Explains a part of the due outcomes. Returns `false` if no others are due.
///
/// An outcome whose states can't be read now is postponed, and the part ends there. If the journal can't be
/// read at all, the follower reports that before it requests the next part.
pub(super) async fn explain_some(
    index: &PhaseIndex,
    outcomes: &impl OutcomeReader,
    now_ms: u64,
) -> Result<bool, JournalError> {
    let due = index.due_outcomes(now_ms, PART).await?;
    if due.is_empty() {
        return Ok(false);
    }
    let mut goes_on = due.len() == PART;
    let mut explained: Vec<(OpenOutcome, Option<CauseKind>)> = Vec::with_capacity(due.len());
    for outcome in due {
        let cause = match outcomes.cause_of(&outcome.uid, now_ms).await {
            // A damaged state stays damaged, and waiting for it would stop the index.
            Err(JournalError::Fatal(error)) => {
                warn!(uid = outcome.uid, "an outcome is not explained: {error}");
                Some(CauseKind::Unknown)
            }
            Err(error) if outcome.may_wait() => {
                debug!(uid = outcome.uid, "an outcome is explained later: {error}");
                index.postpone_outcome(outcome, now_ms).await?;
                goes_on = true;
                break;
            }
            Err(error) => {
                warn!(uid = outcome.uid, "an outcome is not explained: {error}");
                Some(CauseKind::Unknown)
            }
            Ok(cause) => cause,
        };
        explained.push((outcome, cause));
        tokio::task::yield_now().await;
    }
    if explained.is_empty() {
        return Ok(goes_on);
    }
    index.keep_causes(explained).await?;
    Ok(goes_on)
}

/// Reads what outcomes need.
pub(super) trait OutcomeReader: Sync {
    /// The cause of one object's outcome; `None` if it has not ended badly.
    fn cause_of(
        &self,
        uid: &str,
        now_ms: u64,
    ) -> impl Future<Output = Result<Option<CauseKind>, JournalError>> + Send;
}

impl OutcomeReader for Journal {
    async fn cause_of(&self, uid: &str, now_ms: u64) -> Result<Option<CauseKind>, JournalError> {
        cause_of(self, uid, now_ms).await
    }
}

/// The states from which an explanation is made.
pub(super) async fn story_of(journal: &Journal, uid: &str) -> Result<OutcomeStory, JournalError> {
    let query = TimelineQuery {
        uid: Some(uid.to_owned()),
        limit: Some(STATES),
        events: true,
        ..TimelineQuery::default()
    };
    let found = journal.object_timeline(&query).await?;
    let is_cut = found.states.len() >= STATES || found.related.len() >= STATES;
    let (states, related, events) = (found.states, found.related, found.events);
    Ok(OutcomeStory { states, related, events, is_cut })
}

async fn cause_of(journal: &Journal, uid: &str, now_ms: u64) -> Result<Option<CauseKind>, JournalError> {
    let OutcomeStory { states, related, events, is_cut } = story_of(journal, uid).await?;
    let events = events_of(journal, &events).await?;
    let story = ExplainedStates {
        states: &states,
        related: &related,
        events: &events,
        preemptors: &[],
        pods: PodCoverage::Whole,
        is_cut,
    };
    let mut documents = DocumentsBySeq::new();
    for seq in story.documents_wanted() {
        documents.extend(document_if_kept(journal, seq).await?.map(|document| (seq, document.into())));
    }
    let why = story.explain_object(&documents, now_ms);
    Ok(cause_word(why, is_cut))
}

/// The word for an explanation. If the story is truncated, another pod may have failed first, which a word
/// can't express.
fn cause_word(why: WhyView, is_cut: bool) -> Option<CauseKind> {
    let is_bad = matches!(why.outcome, Outcome::Failed | Outcome::Deleted);
    let cause = why.cause.filter(|cause| !is_cut || cause.object.is_none());
    is_bad.then(|| cause.map(|cause| cause.kind).unwrap_or_default())
}

async fn events_of(journal: &Journal, states: &[Arc<State>]) -> Result<Vec<EventView>, JournalError> {
    let mut views = Vec::new();
    for state in states.iter().rev() {
        let Some(document) = document_if_kept(journal, state.seq).await? else { continue };
        let document = events::cut_event(&document).map_or(document, Bytes::from);
        views.extend(events::read(&document, &state.object, state.seq, state.observed_ms));
    }
    Ok(events::fold_repeated(views))
}

/// `None` if retention has removed it or it is damaged. The states alone still explain something.
async fn document_if_kept(journal: &Journal, seq: Seq) -> Result<Option<Bytes>, JournalError> {
    match journal.document_at(seq).await {
        Err(JournalError::Fatal(_)) => Ok(None),
        document => document,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
    use kubewitness_core::status::StatusRules;
    use kubewitness_core::story::outcomes::SETTLE_MS;
    use kubewitness_core::views::Cause;
    use kubewitness_core::{Change, ObjectRef, StateId, Version};
    use kubewitness_journal::{CauseQuery, JournalOptions};
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_767_225_700_000;

    /// A version of an object, as a source witnesses it.
    fn witnessed(version: u64, owner: Option<&Arc<ObjectRef>>, document: &Value) -> WitnessedState {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let api_version = text(&document["apiVersion"]);
        let (group, of_group) = api_version.split_once('/').unwrap_or(("", &api_version));
        let object = Arc::new(ObjectRef {
            group: group.into(),
            version: of_group.into(),
            kind: text(&document["kind"]),
            namespace: "team".into(),
            name: text(&document["metadata"]["name"]),
            uid: text(&document["metadata"]["uid"]),
        });
        let bytes = document.to_string().into_bytes();
        let version = Version::new(&version.to_string());
        WitnessedState {
            id: StateId::of("all", 0, &object, Change::Present, &version, None),
            change: Change::Present,
            status: Arc::new(StatusRules::builtin().status_of(&object.group, &object.kind, &bytes)),
            object,
            owner: owner.cloned(),
            controller: None,
            resource_version: version,
            previous: None,
            observed_ms: NOW,
            document: bytes.into(),
            base: None,
            quotes_none_under: None,
        }
    }

    fn failed_job() -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": "uid-job"},
            "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}})
    }

    fn ended_pod(reason: &str, code: i32) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0", "uid": "uid-pod",
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-job"}]},
            "status": {"phase": "Failed", "containerStatuses": [
                {"name": "main", "state": {"terminated": {"reason": reason, "exitCode": code}}}]}})
    }

    /// A journal and its index, in a folder.
    struct Bench {
        _folder: tempfile::TempDir,
        journal: Journal,
        index: PhaseIndex,
    }

    impl Bench {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let options = JournalOptions::default();
            let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
            let index = PhaseIndex::new(folder.path().join("phases.db"));
            Self { _folder: folder, journal, index }
        }

        /// Witnesses states, and explains what is due some seconds later.
        async fn take(&self, states: Vec<WitnessedState>) {
            let append = AppendBatch { source: "all".into(), states, ..AppendBatch::default() };
            self.journal.append_batch(append).await.unwrap();
            while self.index.index_next_part(&self.journal, NOW).await.unwrap() {}
            while explain_some(&self.index, &self.journal, NOW + SETTLE_MS).await.unwrap() {}
        }

        async fn causes(&self) -> BTreeMap<CauseKind, Vec<String>> {
            let mut found = BTreeMap::new();
            for kind in CauseKind::ALL {
                let query = CauseQuery {
                    sources: vec!["all".into()],
                    kind,
                    before: Seq::MAX,
                    limit: 9,
                    ..CauseQuery::default()
                };
                let times = self.index.find_by_cause(query).await.unwrap().times;
                if !times.is_empty() {
                    found.insert(kind, times.into_iter().map(|time| time.name).collect());
                }
            }
            found
        }
    }

    #[tokio::test]
    async fn a_job_that_failed_gets_the_word_that_its_story_has_and_a_pod_gets_none() {
        let bench = Bench::new().await;
        let job = witnessed(2, None, &failed_job());
        let pod = witnessed(1, Some(&job.object), &ended_pod("OOMKilled", 137));
        bench.take(vec![pod, job]).await;
        assert_eq!(bench.causes().await, [(CauseKind::OutOfMemory, vec!["train".to_owned()])].into());
    }

    #[tokio::test]
    async fn a_pod_that_is_witnessed_after_the_explanation_changes_it() {
        let bench = Bench::new().await;
        let job = witnessed(2, None, &failed_job());
        let owner = job.object.clone();
        bench.take(vec![job]).await;
        assert_eq!(bench.causes().await, [(CauseKind::Unknown, vec!["train".to_owned()])].into());
        bench.take(vec![witnessed(1, Some(&owner), &ended_pod("Error", 3))]).await;
        assert_eq!(bench.causes().await, [(CauseKind::ExitCode, vec!["train".to_owned()])].into());
    }

    /// A journal that can't be read for one object.
    struct FailingReader<'a> {
        journal: &'a Journal,
        uid: &'static str,
    }

    impl OutcomeReader for FailingReader<'_> {
        async fn cause_of(&self, uid: &str, now_ms: u64) -> Result<Option<CauseKind>, JournalError> {
            match uid == self.uid {
                true => Err(JournalError::Unavailable("no answer in time".into())),
                false => self.journal.cause_of(uid, now_ms).await,
            }
        }
    }

    fn job_number(number: u64) -> WitnessedState {
        let mut job = failed_job();
        job["metadata"]["uid"] = format!("uid-{number}").into();
        job["metadata"]["name"] = format!("train-{number}").into();
        witnessed(number, None, &job)
    }

    #[tokio::test]
    async fn an_outcome_that_cannot_be_read_now_holds_up_no_other_one_and_ends_as_unknown() {
        let bench = Bench::new().await;
        let states = (1..=3).map(job_number).collect();
        let append = AppendBatch { source: "all".into(), states, ..AppendBatch::default() };
        bench.journal.append_batch(append).await.unwrap();
        while bench.index.index_next_part(&bench.journal, NOW).await.unwrap() {}
        let reader = FailingReader { journal: &bench.journal, uid: "uid-2" };
        let mut now_ms = NOW + SETTLE_MS;
        while explain_some(&bench.index, &reader, now_ms).await.unwrap() {}
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let others = named(&["train-3", "train-1"]);
        assert_eq!(bench.causes().await, [(CauseKind::Unknown, others)].into());
        while let Some(due_ms) = bench.index.next_due_ms().await.unwrap() {
            assert!(due_ms > now_ms, "not at once");
            now_ms = due_ms;
            explain_some(&bench.index, &reader, now_ms).await.unwrap();
        }
        let all = named(&["train-3", "train-2", "train-1"]);
        assert_eq!(bench.causes().await, [(CauseKind::Unknown, all)].into(), "after a bounded time");
    }

    #[test]
    fn a_story_that_is_cut_gives_no_word_for_a_pod() {
        let cause = Cause { kind: CauseKind::Signal, object: Some(ObjectRef::default()), ..Cause::default() };
        let deadline = Cause { kind: CauseKind::Deadline, ..Cause::default() };
        let why = |cause: &Cause| WhyView {
            outcome: Outcome::Failed,
            cause: Some(cause.clone()),
            ..WhyView::default()
        };
        assert_eq!(cause_word(why(&cause), false), Some(CauseKind::Signal));
        assert_eq!(cause_word(why(&cause), true), Some(CauseKind::Unknown), "another may have failed first");
        assert_eq!(cause_word(why(&deadline), true), Some(CauseKind::Deadline), "the object says so itself");
        assert_eq!(cause_word(WhyView { outcome: Outcome::Running, ..why(&cause) }, false), None);
    }

    #[tokio::test]
    async fn a_burst_of_outcomes_is_explained_in_parts_between_which_the_journal_is_read() {
        let bench = Bench::new().await;
        let jobs = (1..=PART as u64 + 1).map(job_number);
        let append = AppendBatch { source: "all".into(), states: jobs.collect(), ..AppendBatch::default() };
        bench.journal.append_batch(append).await.unwrap();
        while bench.index.index_next_part(&bench.journal, NOW).await.unwrap() {}
        let explained = async || explain_some(&bench.index, &bench.journal, NOW + SETTLE_MS).await.unwrap();
        assert!(explained().await, "others are due");
        assert!(bench.index.next_due_ms().await.unwrap().is_some());
        assert!(!explained().await);
        assert_eq!(bench.index.next_due_ms().await.unwrap(), None);
    }
}
