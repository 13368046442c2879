//! The cause of a bad end as a field: decides which states end an object badly, so that a word for the cause
//! is stored with the object.
//!
//! A list, a filter and a metric need the causes of thousands of objects at once. Explaining each object at
//! query time was rejected: it would read their pods and documents for each query, and a filter would have to
//! explain every object that ever failed. Explaining each state when it is witnessed would put that work on
//! the hot path. So the follower that maintains the index of phases explains an object once, after its end
//! state, and lists only look up the word. Any other state costs the follower one comparison, and the witness
//! nothing.
//!
//! Pods of a job belong to another source and may be witnessed after the end of the job. So an explanation
//! waits for [`SETTLE_MS`], and a failed pod that is witnessed later causes its owner to be explained again.
//! An object that continues after a failure has no cause any more.
//!
//! Words are not delivered to plugins with the states: a state is delivered at once, and its cause may change
//! some seconds later. A plugin with the grant `outcomes` queries them. The grant is needed because the words
//! reveal facts about pods to which the plugin may have no subscription.
//!
//! Waiting objects have no stored cause, because it changes with each state of their pods. The story explains
//! why they wait.

use super::why::{CauseKind, KUEUE};
use crate::kinds::{ENDING, has_outcome, is_event, is_kind};
use crate::state::{Change, ObjectRef, State, Status};
use crate::status::phase;

/// How long an explanation waits for the states of pods, which another source delivers.
pub const SETTLE_MS: u64 = 2_000;

impl CauseKind {
    pub const ALL: [Self; 14] = [
        Self::ExitCode,
        Self::Signal,
        Self::OutOfMemory,
        Self::Evicted,
        Self::Preempted,
        Self::NodeLost,
        Self::ImagePull,
        Self::Configuration,
        Self::Unschedulable,
        Self::Deadline,
        Self::Quota,
        Self::Suspended,
        Self::Deleted,
        Self::Unknown,
    ];

    /// Parses a word as people type it: the case of letters does not matter, and `_` or a space may replace a
    /// dash.
    pub fn parse(text: &str) -> Option<Self> {
        let word = text.trim().to_ascii_lowercase().replace(['_', ' '], "-");
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The cause in words for people.
    pub fn words(self) -> String {
        self.as_str().replace('-', " ")
    }
}

/// API groups, each with its kinds that have no cause: they run without end, or their owner is explained
/// instead.
const WITHOUT: [(&str, &[&str]); 11] = [
    ("", &["Pod", "Event", "Node", "Service", "ConfigMap", "Namespace", "ReplicationController"]),
    ("", &["Secret", "ServiceAccount", "Endpoints", "LimitRange", "ResourceQuota"]),
    ("events.k8s.io", &["Event"]),
    ("apps", &["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"]),
    ("batch", &["CronJob"]),
    ("apps.kruise.io", &["AdvancedCronJob"]),
    ("keda.sh", &["ScaledJob"]),
    (KUEUE, &["Workload"]),
    ("ray.io", &["RayCluster", "RayService", "RayCronJob"]),
    ("scheduling.volcano.sh", &["PodGroup"]),
    ("argoproj.io", &["CronWorkflow"]),
];

/// Whether objects of this kind, as people type it, may have causes. Objects of an unknown kind may fail.
pub fn may_have_causes(kind: &str) -> bool {
    let is_among = |known: &[(&str, &[&str])]| {
        known.iter().any(|(group, kinds)| kinds.iter().any(|known| is_kind(group, known, kind)))
    };
    is_among(&ENDING) || !is_among(&WITHOUT)
}

/// Whether a phase is a bad end, given that the status is terminal.
pub fn is_bad_phase(phase: &str) -> bool {
    matches!(phase, phase::FAILED | phase::PREEMPTED | phase::CANCELLED)
}

fn has_failed(status: &Status) -> bool {
    status.terminal && is_bad_phase(&status.phase)
}

/// Whether this state is a bad end whose cause is stored. The end of a Pod is explained by the job that owns
/// it.
pub fn is_bad_end(state: &State) -> bool {
    let object = &*state.object;
    match state.change {
        Change::Present => has_failed(&state.status) && !is_part(object),
        Change::Gone => {
            has_outcome(&object.group, &object.kind)
                && state.previous.as_ref().is_some_and(|previous| !previous.terminal)
        }
        Change::Left | Change::Gap => false,
    }
}

/// Whether this state may change the stored cause of its owner.
pub fn bears_on_owner(state: &State) -> bool {
    let is_pod = super::why::is_pod(&state.object);
    is_pod && state.owner.is_some() && state.change == Change::Present && has_failed(&state.status)
}

/// Whether objects of this kind are parts of others: Pods, Kueue's Workloads and Events appear in the stories
/// of the objects that they belong to.
pub fn is_part(object: &ObjectRef) -> bool {
    super::why::is_pod(object) || super::why::is_workload(object) || is_event(&object.group, &object.kind)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::state::StateId;
    use crate::version::Version;

    fn state(group: &str, kind: &str, phase: &str, terminal: bool, change: Change) -> State {
        let status = Status { phase: phase.into(), terminal, ..Status::default() };
        State {
            id: StateId::parse("x"),
            seq: 1,
            source: "jobs".into(),
            epoch: 0,
            change,
            object: Arc::new(ObjectRef { group: group.into(), kind: kind.into(), ..ObjectRef::default() }),
            owner: None,
            resource_version: Version::new("1"),
            previous: (change == Change::Gone).then(|| Arc::new(status.clone())),
            status: Arc::new(status),
            observed_ms: 0,
            late: false,
            quotes_none_under: None,
        }
    }

    #[test]
    fn only_the_bad_end_of_something_that_ends_is_explained() {
        let is = |group: &str, kind: &str, phase: &str, terminal: bool, change: Change| {
            is_bad_end(&state(group, kind, phase, terminal, change))
        };
        assert!(is("batch", "Job", phase::FAILED, true, Change::Present));
        assert!(is("x.example", "Training", phase::FAILED, true, Change::Present), "any kind may fail");
        assert!(!is("batch", "Job", phase::FAILED, false, Change::Present), "it is tried again");
        assert!(!is("batch", "Job", phase::SUCCEEDED, true, Change::Present));
        assert!(!is("batch", "Job", phase::RUNNING, false, Change::Present));
        assert!(!is("", "Pod", phase::FAILED, true, Change::Present), "its job is explained");
        assert!(is("batch", "Job", phase::RUNNING, false, Change::Gone), "deleted before its end");
        assert!(!is("batch", "Job", phase::SUCCEEDED, true, Change::Gone));
        assert!(!is("batch", "CronJob", phase::RUNNING, false, Change::Gone), "it has no end");
        assert!(!is("apps", "Deployment", phase::RUNNING, false, Change::Gone));
        assert!(is("kubeflow.org", "PyTorchJob", phase::RUNNING, false, Change::Gone));
        for (group, kind) in
            [("keda.sh", "ScaledJob"), ("apps.kruise.io", "AdvancedCronJob"), ("ray.io", "RayCronJob")]
        {
            assert!(
                !is(group, kind, phase::RUNNING, false, Change::Gone),
                "{kind} starts jobs and has no end"
            );
        }
    }

    #[test]
    fn a_list_has_causes_unless_nothing_in_it_can_have_one() {
        for kind in ["Job", "jobs.batch", "vcjob", "js", "rayjobs", "TrainJob", "all", "trainings.x.example"]
        {
            assert!(may_have_causes(kind), "{kind}");
        }
        for kind in
            ["po", "events", "workloads", "cj", "deploy", "ScaledJob", "rayclusters", "pg", "cronjobs.batch"]
        {
            assert!(!may_have_causes(kind), "{kind}");
        }
    }

    #[test]
    fn a_cause_is_read_as_people_type_it() {
        for kind in CauseKind::ALL {
            assert_eq!(CauseKind::parse(kind.as_str()), Some(kind));
            assert_eq!(CauseKind::parse(&kind.words().to_uppercase()), Some(kind));
        }
        assert_eq!(CauseKind::parse("oom"), None);
    }
}
