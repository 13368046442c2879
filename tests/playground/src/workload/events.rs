//! The Events that the Job controller, the scheduler and the kubelets write about a job and its pods. The
//! workload removes them with the job, as a cluster forgets them after an hour.

use serde_json::{Value, json};

use super::WorkloadError;
use super::api::{WorkloadApi, WriteEnd};
use super::document::{MADE_ROOM, node_name};
use super::life::{JobState, LifeAction, PodState};
use super::plan::WorkloadPlan;
use super::time;

/// The most Events of one job. A real cluster has no such limit, and forgets them after an hour.
const MOST: usize = 64;

/// The object that an Event is about.
pub struct EventSubject<'a> {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// The content of an Event that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EventContent {
    warns: bool,
    reason: &'static str,
    message: String,
    from: &'static str,
}

fn normal(from: &'static str, reason: &'static str, message: impl Into<String>) -> EventContent {
    EventContent { warns: false, reason, message: message.into(), from }
}

fn warning(from: &'static str, reason: &'static str, message: impl Into<String>) -> EventContent {
    EventContent { warns: true, ..normal(from, reason, message) }
}

/// The Events of one job that the server has.
#[derive(Default)]
pub struct JobEvents {
    /// Path, content, and the count.
    written: Vec<(String, EventContent, u64)>,
}

const JOBS: &str = "job-controller";
const QUEUE: &str = "kueue-job-controller";
const SCHEDULER: &str = "default-scheduler";
const KUBELET: &str = "kubelet";

/// The Events about a Job after this write.
fn of_job(action: &LifeAction, pod: &str) -> Vec<EventContent> {
    match action {
        LifeAction::CreatePod(_) => vec![normal(JOBS, "SuccessfulCreate", format!("Created pod: {pod}"))],
        LifeAction::Suspend(true) => {
            vec![normal(QUEUE, "Stopped", MADE_ROOM), normal(JOBS, "Suspended", "Job suspended")]
        }
        LifeAction::Suspend(false) => vec![normal(JOBS, "Resumed", "Job resumed")],
        LifeAction::WriteJob(state) => of_end(state).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn of_end(state: &JobState) -> Option<EventContent> {
    let end = state
        .conditions
        .iter()
        .find(|condition| condition.status && ["Complete", "Failed"].contains(&condition.kind))?;
    Some(match end.kind {
        "Complete" => normal(JOBS, "Completed", "Job completed"),
        _ => warning(JOBS, end.reason, end.message),
    })
}

fn of_pod(state: &PodState, plan: &WorkloadPlan, pod: &str) -> Vec<EventContent> {
    let WorkloadPlan { namespace, image, container, .. } = plan;
    match state {
        PodState::Unschedulable => vec![warning(
            SCHEDULER,
            "FailedScheduling",
            "0/12 nodes are available: 12 Insufficient nvidia.com/gpu. preemption: 0/12 nodes are available: 12 No \
             preemption victims found for incoming pod.",
        )],
        PodState::Creating => vec![
            normal(
                SCHEDULER,
                "Scheduled",
                format!("Successfully assigned {namespace}/{pod} to {}", node_name(pod)),
            ),
            normal(KUBELET, "Pulling", format!("Pulling image \"{image}\"")),
        ],
        PodState::Waiting("ImagePullBackOff") => {
            vec![normal(KUBELET, "BackOff", format!("Back-off pulling image \"{image}\""))]
        }
        PodState::Waiting(_) => {
            vec![warning(KUBELET, "Failed", format!("Failed to pull image \"{image}\": not found"))]
        }
        PodState::Running => vec![
            normal(KUBELET, "Pulled", format!("Successfully pulled image \"{image}\" in 2.1s")),
            normal(KUBELET, "Started", format!("Started container {container}")),
        ],
        PodState::Evicted => vec![warning(KUBELET, "Evicted", "The node was low on resource: memory.")],
        PodState::Disrupted("PreemptionByScheduler") => {
            let node = node_name(pod);
            vec![normal(
                SCHEDULER,
                "Preempted",
                format!("Preempted by a pod of a higher priority on node {node}"),
            )]
        }
        // The queue tells it of the job.
        PodState::Disrupted(_) => Vec::new(),
        PodState::Killed => vec![normal(KUBELET, "Killing", format!("Stopping container {container}"))],
        PodState::Ended { .. } => Vec::new(),
    }
}

impl JobEvents {
    pub async fn job(
        &mut self,
        api: &WorkloadApi,
        namespace: &str,
        about: EventSubject<'_>,
        action: &LifeAction,
        pod: &str,
    ) -> Result<(), WorkloadError> {
        for happened in of_job(action, pod) {
            self.tell(api, namespace, &about, happened).await?;
        }
        Ok(())
    }

    pub async fn pod(
        &mut self,
        api: &WorkloadApi,
        plan: &WorkloadPlan,
        about: EventSubject<'_>,
        state: &PodState,
    ) -> Result<(), WorkloadError> {
        if *state == PodState::Creating {
            self.again(api, about.name, "FailedScheduling").await?;
        }
        for happened in of_pod(state, plan, about.name) {
            self.tell(api, &plan.namespace, &about, happened).await?;
        }
        Ok(())
    }

    async fn tell(
        &mut self,
        api: &WorkloadApi,
        namespace: &str,
        about: &EventSubject<'_>,
        happened: EventContent,
    ) -> Result<(), WorkloadError> {
        if about.uid.is_empty() || self.written.len() >= MOST {
            return Ok(());
        }
        let name = format!("{}.{:016x}", about.name, self.written.len() + 1);
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let document = document(namespace, &name, about, &happened);
        if let WriteEnd::Done(_) = api.create(&path, &document).await? {
            self.written.push((format!("{path}/{name}"), happened, 1));
        }
        Ok(())
    }

    /// Repeats an Event twice: the count in the same Event increases.
    async fn again(&mut self, api: &WorkloadApi, name: &str, reason: &str) -> Result<(), WorkloadError> {
        let part = format!("/{name}.");
        let is_it = |(path, happened, _): &&mut (String, EventContent, u64)| {
            happened.reason == reason && path.contains(&part)
        };
        if let Some((path, _, count)) = self.written.iter_mut().find(is_it) {
            *count += 2;
            let change = json!({"count": *count, "lastTimestamp": time::rfc3339(time::now())});
            api.merge(path, &change).await?;
        }
        Ok(())
    }

    /// Removes the Events, as the cluster forgets them.
    pub async fn forget(&mut self, api: &WorkloadApi) -> Result<(), WorkloadError> {
        for (path, _, _) in std::mem::take(&mut self.written) {
            api.delete(&path).await?;
        }
        Ok(())
    }
}

fn document(namespace: &str, name: &str, about: &EventSubject<'_>, happened: &EventContent) -> Value {
    let now = time::rfc3339(time::now());
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "type": if happened.warns { "Warning" } else { "Normal" },
        "reason": happened.reason,
        "message": happened.message,
        "source": {"component": happened.from},
        "reportingComponent": happened.from,
        "reportingInstance": "",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "eventTime": null,
    })
}

#[cfg(test)]
mod tests {
    use super::super::life::JobCondition;
    use super::*;

    #[test]
    fn a_pods_way_to_its_end_is_told_as_a_cluster_tells_it() {
        let reasons = |state: PodState| {
            let told = of_pod(&state, &WorkloadPlan::draw(1, 1, &["team".to_owned()]), "p");
            told.into_iter().map(|happened| (happened.warns, happened.reason)).collect::<Vec<_>>()
        };
        assert_eq!(reasons(PodState::Unschedulable), [(true, "FailedScheduling")]);
        assert_eq!(reasons(PodState::Creating), [(false, "Scheduled"), (false, "Pulling")]);
        assert_eq!(reasons(PodState::Waiting("ErrImagePull")), [(true, "Failed")]);
        assert_eq!(reasons(PodState::Waiting("ImagePullBackOff")), [(false, "BackOff")]);
        assert_eq!(reasons(PodState::Running), [(false, "Pulled"), (false, "Started")]);
        assert!(reasons(PodState::Ended { exit_code: 1, reason: "Error" }).is_empty());
        // A queue preempts a job, and no scheduler had a part in it.
        assert_eq!(reasons(PodState::Disrupted("PreemptionByScheduler")), [(false, "Preempted")]);
        assert!(reasons(PodState::Disrupted("DeletionByQueue")).is_empty());
        let told = of_job(&LifeAction::Suspend(true), "p");
        assert_eq!(told.iter().map(|it| it.reason).collect::<Vec<_>>(), ["Stopped", "Suspended"]);
    }

    #[test]
    fn events_name_the_image_of_the_pod() {
        let plan = WorkloadPlan::draw(1, 1, &["team".to_owned()]);
        let states = [
            PodState::Creating,
            PodState::Waiting("ErrImagePull"),
            PodState::Waiting("ImagePullBackOff"),
            PodState::Running,
        ];
        for state in states {
            let told = of_pod(&state, &plan, "p");
            let of_image = told.iter().filter(|happened| happened.message.contains(" image "));
            let quoted = format!("\"{}\"", plan.image);
            assert!(of_image.clone().all(|happened| happened.message.contains(&quoted)), "{told:?}");
            assert_eq!(of_image.count(), 1, "{told:?}");
        }
    }

    #[test]
    fn a_jobs_end_is_told_with_its_reason() {
        let end = |kind, reason| {
            let condition = JobCondition { kind, status: true, reason, message: "m", at: 0 };
            of_end(&JobState { conditions: vec![condition], ..JobState::default() })
        };
        assert_eq!(end("Complete", "CompletionsReached").unwrap().reason, "Completed");
        assert_eq!(
            end("Failed", "BackoffLimitExceeded").unwrap(),
            warning(JOBS, "BackoffLimitExceeded", "m")
        );
        assert_eq!(end("Suspended", "JobSuspended"), None);
    }
}
