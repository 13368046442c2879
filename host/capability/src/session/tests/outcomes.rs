//! Tests of outcomes: which plugins get them, and what is hidden.

use std::collections::BTreeMap;

use kubewitness_core::Status;
use kubewitness_core::ports::{
    ChangeQuestion, ChangedOutcome, ExplainedOutcome, KeptOutcome, OutcomeChanges, OutcomeFinder,
    OutcomePlace, OutcomeStory,
};
use kubewitness_core::status::StatusRules;
use kubewitness_core::views::CauseKind;

use super::*;

const SECRET: &str = "hf_4711aAbBcCdDeEfFgGhH";

/// A Job that failed because its pod did. The explanation quotes a secret of the Job.
#[derive(Clone)]
struct FailedJob {
    states: Vec<Arc<State>>,
    documents: BTreeMap<Seq, serde_json::Value>,
    kept: KeptOutcome,
}

fn state(seq: Seq, document: &serde_json::Value, owner: Option<Arc<ObjectRef>>) -> Arc<State> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&document["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let object = ObjectRef {
        group: group.into(),
        version: version.into(),
        kind: text(&document["kind"]),
        namespace: "team".into(),
        name: text(&document["metadata"]["name"]),
        uid: text(&document["metadata"]["uid"]),
    };
    let status =
        StatusRules::builtin().status_of(&object.group, &object.kind, document.to_string().as_bytes());
    Arc::new(State {
        seq,
        object: object.into(),
        owner,
        status: Arc::<Status>::new(status),
        observed_ms: 1_000 * seq,
        ..(*delivery(seq, &format!("id-{seq}")).state).clone()
    })
}

impl FailedJob {
    fn new(kept: KeptOutcome) -> Self {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0", "uid": "uid-pod"},
            "spec": {"containers": [{"name": "main", "env": [{"name": "HF_TOKEN", "value": SECRET}]}]},
            "status": {"phase": "Failed", "containerStatuses": [{"name": "main", "state":
                {"terminated": {"reason": "Error", "exitCode": 3, "message": format!("no access with {SECRET}")}}}]}});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": "uid-job"},
            "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}});
        let ended = state(2, &job, None);
        let states = vec![state(1, &pod, Some(ended.object.clone())), ended];
        Self { states, documents: [(1, pod), (2, job)].into(), kept }
    }

    async fn granted(&self, spec: serde_json::Value) -> (SessionWorld, Arc<dyn GrantProvider>) {
        let world = SessionWorld::new();
        let this = Arc::new(self.clone());
        let backing = PluginServices { documents: this.clone(), outcomes: this, ..backing(0) };
        let granted = world.open().await.grant_plugin("p", &plugin(spec), backing).await.unwrap();
        (world, granted)
    }

    async fn explained(&self, spec: serde_json::Value) -> ExplainedOutcome {
        let (_world, granted) = self.granted(spec).await;
        let mut session = granted.open(&[]).await.unwrap();
        match session.find_outcome("jobs", "uid-job").await.unwrap() {
            OutcomeFinding::Explained(explanation) => *explanation,
            other => panic!("{other:?}"),
        }
    }
}

#[async_trait]
impl DocumentReader for FailedJob {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(self.documents.get(&seq).map(|document| document.to_string().into()))
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn newest_of(&self, _: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl OutcomeFinder for FailedJob {
    async fn outcome_changes(&self, question: ChangeQuestion) -> Result<OutcomeChanges, JournalError> {
        let changed = ChangedOutcome {
            source: question.sources.into_iter().next().unwrap_or_default(),
            kind: Some(CauseKind::ExitCode),
            ..ChangedOutcome::default()
        };
        let next = OutcomePlace { line: "abc".into(), number: 7 };
        let is_restarted = question.after != Some(next.clone());
        Ok(OutcomeChanges { outcomes: vec![changed], next, has_more: false, is_restarted })
    }

    async fn kept_outcome(&self, _: &str, _: &str) -> Result<KeptOutcome, JournalError> {
        Ok(self.kept)
    }

    async fn outcome_story(&self, uid: &str) -> Result<OutcomeStory, JournalError> {
        let (states, related) = self.states.iter().cloned().partition(|state| state.object.uid == uid);
        Ok(OutcomeStory { states, related, ..OutcomeStory::default() })
    }
}

fn exit_code() -> KeptOutcome {
    KeptOutcome::Explained { seq: 2, kind: CauseKind::ExitCode }
}

#[tokio::test]
async fn an_outcome_names_the_container_and_hides_the_secrets_of_its_pod() {
    let job = FailedJob::new(exit_code());
    let outcome = job.explained(json!({"outcomes": ["jobs"]})).await;
    assert!(
        outcome.headline.starts_with("Failed: container main of pod train-0 exited with 3"),
        "{outcome:?}"
    );
    assert_eq!((outcome.object.name.as_str(), outcome.seq, outcome.ended_ms), ("train", 2, 2_000));
    assert_eq!((outcome.cause.kind, outcome.cause.seq), (CauseKind::ExitCode, 1));
    assert!(outcome.cause.message.contains("redacted:"), "{outcome:?}");
    assert!(!format!("{outcome:?}").contains(SECRET), "{outcome:?}");
    let raw = job.explained(json!({"outcomes": ["jobs"], "documents": "raw"})).await;
    assert!(raw.cause.message.contains(SECRET), "{raw:?}");
}

#[tokio::test]
async fn outcomes_are_those_of_granted_sources_and_each_question_is_counted() {
    let job = FailedJob::new(exit_code());
    let (_world, granted) = job.granted(json!({"lister": ["jobs"]})).await;
    let mut session = granted.open(&[]).await.unwrap();
    for refused in [
        session.find_outcome("jobs", "uid-job").await.map(drop),
        session.outcome_changes("", 9).await.map(drop),
    ] {
        assert!(
            matches!(&refused, Err(GrantError::Denied(why)) if why.contains("spec.grants.outcomes")),
            "{refused:?}"
        );
    }
    let (_world, granted) = job.granted(json!({"outcomes": ["jobs"]})).await;
    let mut session = granted.open(&[]).await.unwrap();
    assert!(matches!(session.find_outcome("pods", "uid-pod").await, Err(GrantError::Denied(_))));
    for (kept, expected) in
        [(KeptOutcome::Pending, OutcomeFinding::Pending), (KeptOutcome::Nothing, OutcomeFinding::Nothing)]
    {
        let (_world, granted) = FailedJob::new(kept).granted(json!({"outcomes": ["jobs"]})).await;
        assert_eq!(granted.open(&[]).await.unwrap().find_outcome("jobs", "uid-job").await, Ok(expected));
    }
}

#[tokio::test]
async fn a_place_holds_for_the_sources_that_were_granted_then() {
    let job = FailedJob::new(exit_code());
    let page = async |sources: &[&str], after: &str| {
        let world = SessionWorld::new();
        let this = Arc::new(job.clone());
        let backing = PluginServices { documents: this.clone(), outcomes: this, ..backing(0) };
        let mut host = world.settings();
        let another = json!({"name": "sets", "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"});
        host.sources.push(serde_json::from_value(another).unwrap());
        let open = OpenCapabilities::open(&host, world.folder.path()).await.unwrap();
        let granted = open.grant_plugin("p", &plugin(json!({"outcomes": sources})), backing).await.unwrap();
        granted.open(&[]).await.unwrap().outcome_changes(after, 9).await.unwrap()
    };
    let first = page(&["jobs"], "").await;
    assert!(first.is_restarted);
    assert!(!page(&["jobs"], &first.next).await.is_restarted);
    assert!(page(&["jobs", "sets"], &first.next).await.is_restarted, "another source was added");
    assert!(page(&["jobs"], "nonsense").await.is_restarted);
}

#[tokio::test]
async fn the_word_that_is_kept_stays_where_the_journal_has_lost_what_it_was_found_in() {
    let job = FailedJob::new(KeptOutcome::Explained { seq: 2, kind: CauseKind::OutOfMemory });
    let lost = FailedJob { states: job.states[1..].to_vec(), ..job };
    let outcome = lost.explained(json!({"outcomes": ["jobs"]})).await;
    assert_eq!(
        (outcome.cause.kind, outcome.headline.as_str()),
        (CauseKind::OutOfMemory, "Failed: out of memory")
    );
    assert!(outcome.doubt.contains("no longer has"), "{outcome:?}");
    let gone = FailedJob { states: Vec::new(), ..lost };
    let (_world, granted) = gone.granted(json!({"outcomes": ["jobs"]})).await;
    let found = granted.open(&[]).await.unwrap().find_outcome("jobs", "uid-job").await;
    assert_eq!(found, Ok(OutcomeFinding::Nothing));
}
