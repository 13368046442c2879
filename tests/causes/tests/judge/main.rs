//! Judges explanations by histories that real controllers wrote, and writes precision and recall by cause into
//! `docs/reference/causes.md`.
//!
//! Half of the histories is held out: rules are written by looking at the other half. Both halves are judged.

mod details;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kubewitness_causes::{HistoryChange as Recorded, Operation, RecordedHistory, Selection, recorded};
use kubewitness_core::project::{ObjectEnvelope, read_envelope};
use kubewitness_core::status::StatusRules;
use kubewitness_core::story::events;
use kubewitness_core::story::last_work_status;
use kubewitness_core::views::{Cause, DocumentsBySeq, EventView, ExplainedStates, PodCoverage, WhyView};
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Version};
use kubewitness_harness::{GENERATED, cell, reference};

use self::details::FactTable;

/// As many held-out histories as this were right when the rules were last changed.
const HELD_OUT_RIGHT: f64 = 0.97;
/// The least precision of any fact. A Job that its success policy ends is told in an attempt that never began.
const FACTS_RIGHT: f64 = 0.98;
const INTRODUCTION: &str = "\
`kubewitness why`, the first line of an object's page, and the field `why` of `/api/v1/timeline` explain why an object failed,\n\
or what it waits for. This page says how often they are right.\n\n\
`cargo xtask real --record` runs real Jobs against kube-apiserver, kube-controller-manager and kube-scheduler, brings about each\n\
kind of failure, and writes each history with its label into `tests/causes/histories`. The label is what was done, such as\n\
\"the first of four workers runs out of memory\", and never what Kubewitness said. A name decides by its hash whether a history is\n\
held out. Those were not looked at while the rules were written. An explanation is right if its cause and outcome\n\
are those of the label, and so are the pod, container, exit code and node where the label names them. Durations are\n\
not judged. Other facts of a label are judged apart: who acted (`by`), the role of an init container or a sidecar, the\n\
signal, causes of other pods (`also`), and the attempt. The field `also` of an explanation has pods alone, so it lacks a\n\
label's quota and suspension, which the sentence tells. No pod says which taint removed it. Recorded histories are of Jobs,\n\
some made by a CronJob or in a queue of Kueue, of JobSets, of Kubeflow's TrainJobs, and of RayJobs and RayClusters. Kueue, the\n\
controller of JobSets, Kubeflow's Trainer and KubeRay are those of their projects.\n\
The nodes have kubelets written for this: they run no container, and write what a kubelet writes. So no Ray runs, either. A\n\
stand-in for the dashboards of Ray's heads tells KubeRay how each entrypoint goes.\n\n\
No controller of Volcano or of Kubeflow's older PyTorchJobs is recorded here. Their histories are written and labelled by\n\
hand, from the fields that these projects document. The rules were written by looking at them. They are counted in neither of\n\
the first two tables.";

/// A history as the journal would have it.
#[derive(Default)]
struct WitnessedHistory {
    states: Vec<Arc<State>>,
    related: Vec<Arc<State>>,
    events: Vec<EventView>,
    /// Objects that are not of the story.
    others: Vec<ObjectRef>,
    documents: DocumentsBySeq,
    until_ms: u64,
}

impl WitnessedHistory {
    fn of(history: &RecordedHistory) -> Self {
        let (subject, rules) = (&history.header.object, StatusRules::builtin());
        let is_subject = |object: &ObjectRef| object.kind == subject.kind && object.name == subject.name;
        let uids = owned_by_subject(history, is_subject);
        let mut witnessed = Self::default();
        for (change, seq) in history.changes.iter().zip(1..) {
            let bytes = change.document.to_string().into_bytes();
            let object = object_of(&read_envelope(&bytes).expect("an object"));
            witnessed.until_ms = change.at_ms;
            if events::is_event(&object.group, &object.kind) {
                witnessed.event(change, &object, &bytes, seq, &uids);
                continue;
            }
            if !uids.contains(&object.uid) {
                witnessed.others.push(object);
                continue;
            }
            let state = Arc::new(state(change, object, &rules, &bytes, seq));
            witnessed.documents.insert(seq, bytes);
            match is_subject(&state.object) {
                true => witnessed.states.push(state),
                false => witnessed.related.push(state),
            }
        }
        witnessed.events = events::fold_repeated(std::mem::take(&mut witnessed.events));
        witnessed
    }

    fn event(
        &mut self,
        change: &Recorded,
        object: &ObjectRef,
        bytes: &[u8],
        seq: Seq,
        uids: &BTreeSet<String>,
    ) {
        let Some(event) = events::read(bytes, object, seq, change.at_ms) else { return };
        if change.op == Operation::Put && uids.contains(&event.about.uid) {
            // The newest state of an Event has its count.
            self.events.retain(|known| known.object.uid != object.uid);
            self.events.push(event);
        }
    }

    fn why(&self) -> WhyView {
        let Self { states, related, events, others, .. } = self;
        let story = ExplainedStates {
            states,
            related,
            events,
            preemptors: others,
            pods: PodCoverage::Whole,
            is_cut: false,
        };
        let wanted: BTreeSet<_> = story.documents_wanted().into_iter().collect();
        let documents = self.documents.iter().filter(|(seq, _)| wanted.contains(seq));
        story.explain_object(
            &documents.map(|(seq, document)| (*seq, document.clone())).collect(),
            self.until_ms,
        )
    }
}

/// The uids of the object of the label and of all that it owns, however deep.
fn owned_by_subject(history: &RecordedHistory, is_subject: impl Fn(&ObjectRef) -> bool) -> BTreeSet<String> {
    let mut uids = BTreeSet::new();
    for change in &history.changes {
        let bytes = change.document.to_string();
        let envelope = read_envelope(bytes.as_bytes()).expect("an object");
        let is_owned = envelope.owners.iter().any(|owner| uids.contains(&*owner.uid));
        if is_owned || is_subject(&object_of(&envelope)) {
            uids.insert(envelope.uid.into_owned());
        }
    }
    uids
}

fn object_of(envelope: &ObjectEnvelope<'_>) -> ObjectRef {
    let (group, version) = envelope.api_version.split_once('/').unwrap_or(("", &envelope.api_version));
    ObjectRef {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: envelope.kind.to_string(),
        namespace: envelope.namespace.to_string(),
        name: envelope.name.to_string(),
        uid: envelope.uid.to_string(),
    }
}

fn state(change: &Recorded, object: ObjectRef, rules: &StatusRules, bytes: &[u8], seq: Seq) -> State {
    let present = Arc::new(rules.status_of(&object.group, &object.kind, bytes));
    let is_gone = change.op == Operation::Delete;
    State {
        id: StateId::parse("recorded"),
        seq,
        source: "recorded".into(),
        epoch: 0,
        change: if is_gone { Change::Gone } else { Change::Present },
        object: Arc::new(object),
        owner: None,
        resource_version: Version::new("1"),
        status: if is_gone { Arc::new(StatusRules::deleted_status(&present)) } else { present.clone() },
        previous: is_gone.then_some(present),
        observed_ms: change.at_ms,
        late: false,
        quotes_none_under: None,
    }
}

/// Says what an explanation gets wrong about its label.
fn differences(history: &RecordedHistory, why: &WhyView) -> Vec<String> {
    let expected = &history.header.expected;
    let (word, label) = (kind(why), json_word(&expected.cause));
    let mut wrong = Vec::new();
    let mut compare = |what: &str, is: String, should: String| {
        if is != should {
            wrong.push(format!("{what} {is} instead of {should}"));
        }
    };
    compare("cause", word.clone(), label.clone());
    compare("outcome", json_word(&why.outcome), json_word(&expected.outcome));
    let cause = judged_cause(why);
    let container = cause.container.clone();
    if word == label && label != "none" {
        let pod = cause.object.filter(|object| object.kind == "Pod").map(|object| object.name);
        if expected.pod.is_some() {
            compare("pod", format!("{pod:?}"), format!("{:?}", expected.pod));
        }
        if let Some(name) = &expected.container {
            let is = container.as_ref().map(|container| container.name.clone()).unwrap_or_default();
            compare("container", is, name.clone());
        }
        if let Some(code) = expected.exit_code {
            let is = container.as_ref().and_then(|container| container.exit_code);
            compare("exit code", format!("{is:?}"), format!("{:?}", Some(code)));
        }
        if expected.node.is_some() && expected.pod.is_some() {
            compare("node", format!("{:?}", cause.node), format!("{:?}", expected.node));
        }
    }
    wrong
}

/// A deadline is the object's own cause, and the pod that kept it from its end is told besides.
fn judged_cause(why: &WhyView) -> Cause {
    let mut causes = why.cause.iter().chain(&why.also);
    let of_pod = causes.find(|cause| cause.object.is_some());
    of_pod.or(why.cause.as_ref()).cloned().unwrap_or_default()
}

fn kind(why: &WhyView) -> String {
    why.cause.as_ref().map_or("none", |cause| cause.kind.as_str()).to_owned()
}

fn json_word<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

#[derive(Default)]
struct CauseCounts {
    right: u32,
    said: u32,
    labelled: u32,
}

/// The judgement on the histories of one half.
#[derive(Default)]
struct HalfJudgement {
    table: BTreeMap<String, CauseCounts>,
    facts: FactTable,
    /// Each history with a fact that is missing or wrong.
    wrong_facts: Vec<String>,
    /// The name of each history, what was done, the sentence, and what is wrong with the explanation.
    cases: Vec<[String; 4]>,
    right: usize,
}

impl HalfJudgement {
    fn of(selection: Selection) -> Self {
        let histories = recorded(selection).expect("recorded histories");
        let mut judgement = Self::default();
        for history in &histories {
            let witnessed = WitnessedHistory::of(history);
            let why = witnessed.why();
            let status = witnessed.states.last().map(|state| last_work_status(state)).unwrap_or_default();
            let facts = judgement.facts.add(&history.header.expected, &why, &judged_cause(&why), &status);
            let name = &history.header.name;
            judgement.wrong_facts.extend(facts.iter().map(|fact| format!("{name}: {fact}")));
            let (said, labelled) = (kind(&why), json_word(&history.header.expected.cause));
            let wrong = differences(history, &why);
            judgement.table.entry(said).or_default().said += 1;
            let counts = judgement.table.entry(labelled).or_default();
            counts.labelled += 1;
            counts.right += u32::from(wrong.is_empty());
            judgement.right += usize::from(wrong.is_empty());
            let header = &history.header;
            judgement.cases.push([
                header.name.clone(),
                header.scenario.clone(),
                why.sentence,
                wrong.join(", "),
            ]);
        }
        judgement
    }

    fn assert_judged_right(&self) {
        let wrong: Vec<_> = self.cases.iter().filter(|[.., wrong]| !wrong.is_empty()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Returns a line for each history with the sentence about it.
    fn sentences(&self) -> String {
        let cases = self.cases.iter().map(|[name, scenario, sentence, _]| {
            format!("| {name} | {} | {}. |", cell(scenario), cell(sentence))
        });
        cases.collect::<Vec<_>>().join("\n")
    }

    fn share(&self) -> f64 {
        let count = |count: usize| f64::from(u32::try_from(count).expect("a few"));
        count(self.right) / count(self.cases.len())
    }

    /// Precision: of the explanations with this cause, how many are right. Recall: of the histories with it.
    fn markdown(&self) -> String {
        let mut lines =
            vec!["| cause | histories | precision | recall |".to_owned(), "|---|---|---|---|".to_owned()];
        for (cause, CauseCounts { right, said, labelled }) in &self.table {
            let share = |of: u32| match of {
                0 => "–".to_owned(),
                of => format!("{:.2}", f64::from(*right) / f64::from(of)),
            };
            lines.push(format!("| {cause} | {labelled} | {} | {} |", share(*said), share(*labelled)));
        }
        lines.push(format!("\n{} of {} are right.\n", self.right, self.cases.len()));
        lines.push(self.facts.markdown());
        lines.join("\n")
    }
}

#[test]
fn causes_of_histories_that_real_controllers_wrote_are_right() {
    HalfJudgement::of(Selection::Open).assert_judged_right();
}

#[test]
fn causes_of_histories_that_were_written_by_hand_are_right() {
    HalfJudgement::of(Selection::ByHand).assert_judged_right();
}

#[test]
fn each_claim_of_a_sentence_rests_on_states_of_its_history() {
    for selection in [Selection::Open, Selection::HeldOut, Selection::ByHand] {
        for history in recorded(selection).expect("recorded histories") {
            let witnessed = WitnessedHistory::of(&history);
            let states = witnessed.states.iter().chain(&witnessed.related).map(|state| state.seq);
            let known: BTreeSet<_> = states.chain(witnessed.events.iter().map(|event| event.seq)).collect();
            let why = witnessed.why();
            for claim in &why.claims {
                let is_of_history = claim.seqs.iter().all(|seq| known.contains(seq));
                assert!(is_of_history && !claim.seqs.is_empty(), "{}: {claim:?}", history.header.name);
            }
        }
    }
}

/// A fact that is not told misleads nobody, and its recall is in the reference.
#[test]
fn facts_beside_the_cause_are_told_rightly_or_not_at_all() {
    let open = HalfJudgement::of(Selection::Open);
    let precision = open.facts.least_precision();
    assert!(precision >= FACTS_RIGHT, "only {precision:.2} are right: {:#?}", open.wrong_facts);
    let held_out = HalfJudgement::of(Selection::HeldOut).facts.least_precision();
    assert!(held_out >= FACTS_RIGHT, "only {held_out:.2} of those that were held out are right");
}

/// Its cases are not named, so that nobody writes rules for them.
#[test]
fn most_causes_of_held_out_histories_are_right() {
    let share = HalfJudgement::of(Selection::HeldOut).share();
    assert!(share >= HELD_OUT_RIGHT, "only {share:.2} are right");
}

#[test]
fn the_reference_says_how_often_causes_are_right() {
    let [open, held_out, by_hand] =
        [Selection::Open, Selection::HeldOut, Selection::ByHand].map(HalfJudgement::of);
    const HEAD: &str = "| history | what happened | what is said |\n|---|---|---|";
    let page = format!(
        "{GENERATED}# How often causes are right\n\n{INTRODUCTION}\n\n## Histories that rules were written by\n\n{}\n\
         ## Histories that were held out\n\n{}\n## Histories that were written by hand\n\n{}\n{HEAD}\n{}\n\n\
         ## Each open history\n\n{HEAD}\n{}\n",
        open.markdown(),
        held_out.markdown(),
        by_hand.markdown(),
        by_hand.sentences(),
        open.sentences(),
    );
    reference("causes.md", &page);
}
