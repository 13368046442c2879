//! The facts that a history must show if its label is true. The check reads the label and looks for its
//! facts; it never finds a cause.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{Cause, Expected, Operation, Outcome, RecordedHistory, attempt_of};

/// Fails if a fact that the label names is not in the history.
pub fn check_label(history: &RecordedHistory) -> Result<()> {
    let expected = &history.header.expected;
    let facts = LabelFacts { history };
    facts.outcome(expected)?;
    facts.attempts(expected)?;
    facts.termination(expected)?;
    if let Some(node) = &expected.node {
        let pod = expected.pod.as_deref().context("a node is that of a pod")?;
        ensure!(
            facts.pod(pod).any(|pod| pod["spec"]["nodeName"] == node.as_str()),
            "{pod} was never on {node}"
        );
    }
    for cause in expected.also.iter().chain([&expected.cause]) {
        ensure!(facts.shows(*cause, expected), "nothing in the history shows {cause:?}");
    }
    if let Some(actor) = &expected.by {
        let is_named =
            history.changes.iter().any(|change| change.document.to_string().contains(actor.as_str()));
        ensure!(is_named, "nothing in the history names {actor}");
    }
    Ok(())
}

/// Why a container can't be made as its pod describes it.
const NOT_CONFIGURED: [&str; 4] =
    ["CreateContainerConfigError", "CreateContainerError", "InvalidImageName", "RunContainerError"];

struct LabelFacts<'a> {
    history: &'a RecordedHistory,
}

impl<'a> LabelFacts<'a> {
    fn subject_key(&self) -> String {
        let subject = &self.history.header.object;
        format!("{}s/{}/{}", subject.kind.to_lowercase(), subject.namespace, subject.name)
    }

    /// The last version of the object in question, and whether it was deleted.
    fn subject(&self) -> Result<(&'a Value, bool)> {
        let key = self.subject_key();
        let last = self.history.changes.iter().rfind(|change| change.key == key);
        let last = last.with_context(|| format!("{key} is not in the history"))?;
        Ok((&last.document, last.op == Operation::Delete))
    }

    fn documents(&self, resource: &'a str) -> impl Iterator<Item = &'a Value> {
        let of_resource =
            move |key: &str| key.strip_prefix(resource).is_some_and(|rest| rest.starts_with('/'));
        self.history.changes.iter().filter(move |it| of_resource(&it.key)).map(|it| &it.document)
    }

    fn pods(&self) -> impl Iterator<Item = &'a Value> {
        self.documents("pods")
    }

    fn pod(&self, name: &str) -> impl Iterator<Item = &'a Value> {
        self.pods().filter(move |pod| pod["metadata"]["name"] == name)
    }

    fn outcome(&self, expected: &Expected) -> Result<()> {
        let (subject, is_deleted) = self.subject()?;
        let is_true = |kind: &str| {
            list(&subject["status"]["conditions"]).any(|it| it["type"] == kind && it["status"] == "True")
        };
        let (is_complete, is_failed) = (
            ["Complete", "Completed", "Succeeded"].into_iter().any(is_true)
                || has_succeeded_without_condition(&subject["status"]),
            is_true("Failed") || has_failed_without_condition(&subject["status"]),
        );
        let is_finished = is_complete || is_failed;
        let is_running = match self.history.header.object.kind.as_str() {
            // The head runs before the others do, and the submitter after them.
            "RayJob" => subject["status"]["jobStatus"] == "RUNNING",
            "RayCluster" => is_true("HeadPodReady") && is_true("RayClusterProvisioned"),
            _ => self.ready_pods() > 0,
        };
        let is_so = match expected.outcome {
            Outcome::Succeeded => is_complete,
            Outcome::Failed => is_failed,
            Outcome::Running => !is_finished && !is_deleted && is_running,
            Outcome::Waiting => !is_finished && !is_deleted && !is_running,
            Outcome::Deleted => is_deleted && !is_finished,
        };
        ensure!(is_so, "the outcome is not {:?}: {}", expected.outcome, subject["status"]);
        Ok(())
    }

    /// Pods of the object that are ready at the end, and are not being deleted.
    fn ready_pods(&self) -> usize {
        let changes = &self.history.changes;
        let is_newest = |at: usize| !changes[at + 1..].iter().any(|later| later.key == changes[at].key);
        let subject = &self.history.header.object;
        // What makes Jobs gives them its own name and more.
        let is_of_subject = |job: &str| match job.strip_prefix(subject.name.as_str()) {
            Some(rest) => rest.is_empty() || subject.kind != "Job" && rest.starts_with('-'),
            None => false,
        };
        let is_ready = |pod: &Value| {
            pod["metadata"]["labels"]["job-name"].as_str().is_some_and(is_of_subject)
                && pod["status"]["phase"] == "Running"
                && pod["metadata"]["deletionTimestamp"].is_null()
                && list(&pod["status"]["conditions"])
                    .any(|it| it["type"] == "Ready" && it["status"] == "True")
        };
        let puts = changes
            .iter()
            .enumerate()
            .filter(|(_, it)| it.key.starts_with("pods/") && it.op == Operation::Put);
        puts.filter(|(at, it)| is_newest(*at) && is_ready(&it.document)).count()
    }

    fn attempts(&self, expected: &Expected) -> Result<()> {
        let subject = self.subject()?.0;
        if subject["kind"] == "Job" {
            let failed = subject["status"]["failed"].as_u64().unwrap_or_default();
            ensure!(failed == expected.attempts, "{failed} pods failed, not {}", expected.attempts);
        }
        if expected.attempt.is_some() {
            let counted = attempt_of(&self.history.header.object, &self.history.changes);
            ensure!(counted == expected.attempt, "the attempt is {counted:?}, not {:?}", expected.attempt);
        }
        Ok(())
    }

    /// The container of the pod ended so, and no other pod had failed before.
    fn termination(&self, expected: &Expected) -> Result<()> {
        let Some(name) = expected.pod.as_deref() else {
            let is_told =
                expected.exit_code.is_none_or(|code| self.subject_told(&format!("exit code {code}")));
            ensure!(is_told, "an exit code is that of a pod, or in the object's message");
            return Ok(());
        };
        ensure!(self.pod(name).next().is_some(), "there is no pod {name}");
        let Some(code) = expected.exit_code else { return Ok(()) };
        ensure!(expected.signal.is_none_or(|signal| code == 128 + signal), "{code} is not of the signal");
        let container = expected.container.as_deref().context("an exit code is that of a container")?;
        let is_init = expected.init || expected.sidecar;
        let statuses = if is_init { "initContainerStatuses" } else { "containerStatuses" };
        let ends = self.pod(name).flat_map(|pod| list(&pod["status"][statuses]));
        let ends: Vec<_> = ends.filter(|it| it["name"] == container).flat_map(terminations).collect();
        let end = ends.iter().find(|end| end["exitCode"] == code);
        let end = end.with_context(|| format!("{container} of {name} did not end with {code}"))?;
        self.nothing_failed_before(name, end, expected)
    }

    fn nothing_failed_before(&self, name: &str, end: &Value, expected: &Expected) -> Result<()> {
        // A sidecar's end is no failure of its pod, and what is alive has not failed. What makes Jobs may have failed
        // before, and tried again with other ones.
        let is_job = self.history.header.object.kind == "Job";
        if expected.sidecar || expected.outcome == Outcome::Succeeded || !is_job {
            return Ok(());
        }
        let finished = end["finishedAt"].as_str().context("an end has a time")?;
        for other in self.pods().filter(|pod| pod["metadata"]["name"] != name) {
            // Another Job may share the namespace, such as one that preempts.
            if other["metadata"]["labels"]["job-name"] != self.history.header.object.name.as_str() {
                continue;
            }
            // Somebody ended it: its queue took it back, for example.
            if other["metadata"]["deletionTimestamp"].is_string() {
                continue;
            }
            for status in list(&other["status"]["containerStatuses"]) {
                for earlier in terminations(status).filter(|it| it["exitCode"] != 0) {
                    let at = earlier["finishedAt"].as_str().unwrap_or(finished);
                    // RFC 3339 in UTC with whole seconds sorts as text.
                    ensure!(at >= finished, "{} failed before {name}", other["metadata"]["name"]);
                }
            }
        }
        Ok(())
    }

    /// Whether the history has the mark that this cause leaves.
    fn shows(&self, cause: Cause, expected: &Expected) -> bool {
        let of_pods = |is_mark: &dyn Fn(&Value) -> bool| self.pods().any(is_mark);
        match cause {
            Cause::None => true,
            Cause::ExitCode => {
                of_pods(&|pod| any_end(pod, |end| end["exitCode"] != 0)) || self.subject_told("exit code ")
            }
            Cause::Signal => of_pods(&|pod| any_end(pod, |end| end["exitCode"].as_i64() > Some(128))),
            Cause::OutOfMemory => of_pods(&|pod| any_end(pod, |end| end["reason"] == "OOMKilled")),
            Cause::Evicted => of_pods(&|pod| {
                pod["status"]["reason"] == "Evicted"
                    || ["EvictionByEvictionAPI", "DeletionByTaintManager", "TerminationByKubelet"]
                        .iter()
                        .any(|reason| is_disrupted(pod, reason))
            }),
            Cause::Preempted => {
                of_pods(&|pod| is_disrupted(pod, "PreemptionByScheduler"))
                    || self.documents("workloads").any(|it| {
                        list(&it["status"]["conditions"])
                            .any(|it| it["type"] == "Preempted" && it["status"] == "True")
                    })
            }
            Cause::NodeLost => of_pods(&|pod| {
                is_disrupted(pod, "DeletionByTaintManager")
                    || is_disrupted(pod, "DeletionByPodGC")
                    || pod["status"]["reason"] == "NodeLost"
            }),
            Cause::ImagePull => of_pods(&|pod| is_waiting(pod, &["ErrImagePull", "ImagePullBackOff"])),
            Cause::Configuration => {
                let is_stuck = |pod: &Value| is_waiting(pod, &NOT_CONFIGURED);
                of_pods(&is_stuck) || self.lacks_quota(|it| it.to_string().contains("doesn't exist"))
            }
            Cause::Unschedulable => of_pods(&|pod| {
                list(&pod["status"]["conditions"])
                    .any(|it| it["type"] == "PodScheduled" && it["reason"] == "Unschedulable")
            }),
            Cause::Deadline => {
                let is_so = |status: &Value| {
                    has_failed_without_condition(status) && status["reason"] == "DeadlineExceeded"
                };
                self.subject_had("Failed", "DeadlineExceeded")
                    || self.subject().is_ok_and(|(subject, _)| is_so(&subject["status"]))
            }
            Cause::Quota => {
                self.documents("events")
                    .any(|event| is_refused_pod(event) && event.to_string().contains("forbidden"))
                    || self.lacks_quota(|_| true)
            }
            Cause::Suspended => {
                self.subject_had("Suspended", "")
                    || self
                        .subject()
                        .is_ok_and(|(subject, _)| subject["status"]["jobDeploymentStatus"] == "Suspended")
            }
            Cause::Deleted => self.was_deleted(expected),
        }
    }

    /// Whether Kueue said so of a Workload without quota.
    fn lacks_quota(&self, is_so: impl Fn(&Value) -> bool) -> bool {
        let conditions = self.documents("workloads").flat_map(|it| list(&it["status"]["conditions"]));
        conditions.filter(|it| it["type"] == "QuotaReserved" && it["status"] == "False").any(is_so)
    }

    fn subject_had(&self, kind: &str, reason: &str) -> bool {
        let key = self.subject_key();
        let versions = self.history.changes.iter().filter(|change| change.key == key);
        versions.flat_map(|change| list(&change.document["status"]["conditions"])).any(|it| {
            it["type"] == kind && it["status"] == "True" && (reason.is_empty() || it["reason"] == reason)
        })
    }

    /// Whether the object's own message had these words.
    fn subject_told(&self, words: &str) -> bool {
        let key = self.subject_key();
        let versions = self.history.changes.iter().filter(|change| change.key == key);
        let mut messages = versions.filter_map(|change| change.document["status"]["message"].as_str());
        messages.any(|message| message.contains(words))
    }

    /// The pod that the label names, or the object itself.
    fn was_deleted(&self, expected: &Expected) -> bool {
        let pod = expected.pod.as_deref();
        let deleted = self.pods().find(|it| {
            pod.is_none_or(|pod| it["metadata"]["name"] == pod)
                && it["metadata"]["deletionTimestamp"].is_string()
        });
        deleted.is_some() || self.subject().is_ok_and(|(_, is_deleted)| is_deleted)
    }
}

/// Ray and Volcano say that a job has failed in a word, and not in a condition.
fn has_failed_without_condition(status: &Value) -> bool {
    status["jobDeploymentStatus"] == "Failed" || status["state"]["phase"] == "Failed"
}

/// Ray says so in two words: that it is over, and how its entrypoint ended.
fn has_succeeded_without_condition(status: &Value) -> bool {
    status["jobDeploymentStatus"] == "Complete" && status["jobStatus"] == "SUCCEEDED"
}

/// Whether the event says that a pod was not made: `FailedCreate`, or as Ray has it `FailedToCreateHeadPod`.
fn is_refused_pod(event: &Value) -> bool {
    let reason = event["reason"].as_str().unwrap_or_default();
    reason == "FailedCreate" || reason.starts_with("FailedToCreate") && reason.ends_with("Pod")
}

fn list(value: &Value) -> std::slice::Iter<'_, Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// How a container ended last, and the time before.
fn terminations(status: &Value) -> impl Iterator<Item = &Value> {
    [&status["state"]["terminated"], &status["lastState"]["terminated"]]
        .into_iter()
        .filter(|it| it.is_object())
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let of = |field: &str| list(&pod["status"][field]);
    of("initContainerStatuses").chain(of("containerStatuses"))
}

fn any_end(pod: &Value, is_mark: impl Fn(&Value) -> bool) -> bool {
    statuses(pod).flat_map(terminations).any(is_mark)
}

fn is_waiting(pod: &Value, reasons: &[&str]) -> bool {
    statuses(pod).any(|it| reasons.iter().any(|reason| it["state"]["waiting"]["reason"] == *reason))
}

fn is_disrupted(pod: &Value, reason: &str) -> bool {
    list(&pod["status"]["conditions"]).any(|it| it["type"] == "DisruptionTarget" && it["reason"] == reason)
}
