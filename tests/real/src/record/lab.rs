//! The namespace of one case, and what a case does in it.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_causes::{Expected, HistoryChange, LabelSubject, attempt_of};
use kubewitness_harness::until;
use reqwest::Method;
use serde_json::{Value, json};

use super::controllers::ControlledCluster;
use super::dashboards::EntrypointRun;
use super::kubelet::{PodPlace, PodScript, SeenPod, now_ms, rfc3339};
pub(super) use super::manifests::{MAIN, container, job};

/// The longest wait of a case: a pod of a deleted node goes after a minute, a third retry begins after 70 seconds.
const HAPPENS_WITHIN: Duration = Duration::from_secs(180);
/// The time for what follows from the last step of a case: events, counters, finalizers.
const SETTLES: Duration = Duration::from_millis(2_500);
pub(super) const JOB: &str = "train";
const MARK: &str = "recorded";
pub(super) const QUOTA: &str = "team";

/// The record that a case has left.
pub(super) struct Recording {
    pub(super) object: LabelSubject,
    pub(super) expected: Expected,
    pub(super) changes: Vec<HistoryChange>,
}

pub(super) struct RecordLab<'a> {
    cluster: &'a ControlledCluster,
    pub(super) namespace: String,
    nodes: RefCell<Vec<String>>,
    number: u32,
    /// The object that the label is about.
    subject: RefCell<LabelSubject>,
}

impl<'a> RecordLab<'a> {
    pub(super) async fn open(case: &str, cluster: &'a ControlledCluster) -> Result<Self> {
        let number = cluster.next_number();
        let namespace = format!("team-{number}");
        let subject = LabelSubject {
            kind: "Job".into(),
            group: "batch".into(),
            namespace: namespace.clone(),
            name: JOB.into(),
        };
        let lab = Self {
            cluster,
            namespace: namespace.clone(),
            nodes: RefCell::default(),
            number,
            subject: RefCell::new(subject),
        };
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        lab.write(Method::POST, "/api/v1/namespaces", Some(&object))
            .await
            .with_context(|| case.to_owned())?;
        Ok(lab)
    }

    /// Says how the pods of this namespace go. Pods that come later are asked for, not those that run.
    pub(super) fn direct(&self, director: impl Fn(&PodPlace) -> PodScript + Send + Sync + 'static) {
        self.cluster.fleet.direct(&self.namespace, Arc::new(director));
    }

    /// Says what becomes of the entrypoints of this namespace's RayJobs, counted from 0 as they are submitted.
    pub(super) fn direct_entrypoints(
        &self,
        director: impl Fn(usize) -> EntrypointRun + Send + Sync + 'static,
    ) {
        self.cluster.dashboards.direct(&self.namespace, director);
    }

    /// Creates the Job that the label is about, with these fields over the usual ones.
    pub(super) async fn job(&self, spec: Value, pod: Value) -> Result<()> {
        self.create("batch", "jobs", job(JOB, &spec, &pod)).await
    }

    pub(super) async fn other_job(&self, name: &str, spec: Value, pod: Value) -> Result<()> {
        self.create("batch", "jobs", job(name, &spec, &pod)).await
    }

    /// Creates the object that the label is about, if that is no Job.
    pub(super) async fn subject(&self, object: Value) -> Result<()> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (kind, api) = (text("kind"), text("apiVersion"));
        let path = format!("/apis/{api}/namespaces/{}/{}s", self.namespace, kind.to_lowercase());
        {
            let mut subject = self.subject.borrow_mut();
            (subject.kind, subject.group) = (kind, api.split('/').next().unwrap_or_default().to_owned());
        }
        self.post(&path, object).await
    }

    pub(super) async fn create(&self, group: &str, resource: &str, object: Value) -> Result<()> {
        self.post(&self.path(group, resource), object).await
    }

    pub(super) async fn post(&self, path: &str, object: Value) -> Result<()> {
        self.write(Method::POST, path, Some(&object)).await.map(drop)
    }

    pub(super) fn path(&self, group: &str, resource: &str) -> String {
        let root = if group.is_empty() { "/api/v1".into() } else { format!("/apis/{group}/v1") };
        format!("{root}/namespaces/{}/{resource}", self.namespace)
    }

    pub(super) async fn patch(&self, path: &str, patch: Value) -> Result<Value> {
        self.write(Method::PATCH, path, Some(&patch)).await
    }

    pub(super) async fn patch_job(&self, patch: Value) -> Result<()> {
        self.patch(&self.path("batch", &format!("jobs/{JOB}")), patch).await.map(drop)
    }

    pub(super) async fn delete(&self, path: &str) -> Result<()> {
        self.write(Method::DELETE, path, None).await.map(drop)
    }

    pub(super) async fn delete_pod(&self, pod: &str) -> Result<()> {
        self.delete(&self.path("", &format!("pods/{pod}"))).await
    }

    /// By the eviction API, as `kubectl drain` does.
    pub(super) async fn drain_pod(&self, pod: &str) -> Result<()> {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
        self.write(Method::POST, &self.path("", &format!("pods/{pod}/eviction")), Some(&eviction))
            .await
            .map(drop)
    }

    async fn write(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let (code, answer) = self.cluster.api.request(method.clone(), path, body).await?;
        ensure!((200..300).contains(&code), "{method} {path} was answered with {code}: {answer}");
        Ok(answer)
    }

    /// A node for this case alone; [`RecordLab::on_own_nodes`] sends pods there.
    pub(super) async fn node(&self, cpu: &str) -> Result<String> {
        let name = format!("gpu-{}-{}", self.number, self.nodes.borrow().len() + 1);
        self.nodes.borrow_mut().push(name.clone());
        self.cluster.fleet.add_node(&name, cpu, Some(&self.pool())).await?;
        // The API server taints a new node until the node controller has seen that it is ready.
        self.object_until(&format!("nodes/{name}"), "to take pods", |node| {
            !node["spec"]["taints"].to_string().contains("not-ready")
        })
        .await?;
        Ok(name)
    }

    fn pool(&self) -> String {
        format!("gpu-{}", self.number)
    }

    /// The fields of a pod that let it onto this case's nodes, and onto no other.
    pub(super) fn on_own_nodes(&self, cpu: &str) -> Value {
        json!({
            "nodeSelector": {"pool": self.pool()},
            "tolerations": [{"key": "pool", "operator": "Equal", "value": self.pool(), "effect": "NoSchedule"}],
            "containers": [container(MAIN, cpu)],
        })
    }

    pub(super) fn kill_node(&self, node: &str) {
        self.cluster.fleet.kill_node(node);
    }

    pub(super) fn revive_node(&self, node: &str) {
        self.cluster.fleet.revive_node(node);
    }

    pub(super) fn evict_for_pressure(&self, pod: &str, message: &str) -> Result<()> {
        self.cluster.fleet.evict(&self.namespace, pod, message)
    }

    /// The kubelet of the node reports a pressure.
    pub(super) async fn press_node(
        &self,
        node: &str,
        condition: &str,
        reason: &str,
        message: &str,
    ) -> Result<()> {
        let now = rfc3339(now_ms());
        let condition = json!({"type": condition, "status": "True", "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now});
        let body = json!({"status": {"conditions": [condition]}});
        let path = format!("/api/v1/nodes/{node}/status");
        let (code, answer) = self.cluster.api.client().merge_lists(&path, &body).await?;
        ensure!(code == 200, "a condition of a node was answered with {code}: {answer}");
        Ok(())
    }

    pub(super) async fn taint_node(&self, node: &str, key: &str) -> Result<()> {
        let pool = json!({"key": "pool", "value": self.pool(), "effect": "NoSchedule"});
        let taint = json!({"key": key, "value": "planned", "effect": "NoExecute"});
        self.patch(&format!("/api/v1/nodes/{node}"), json!({"spec": {"taints": [pool, taint]}}))
            .await
            .map(drop)
    }

    /// A quota that is in force.
    pub(super) async fn quota(&self, hard: Value) -> Result<()> {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA},
            "spec": {"hard": hard}});
        self.create("", "resourcequotas", quota).await?;
        let path = self.path("", &format!("resourcequotas/{QUOTA}"));
        until(HAPPENS_WITHIN, "a quota in force", async || {
            let quota = self.write(Method::GET, &path, None).await?;
            Ok((quota["status"]["hard"] == hard).then_some(()))
        })
        .await
    }

    /// The newest version of this object when it is so.
    pub(super) async fn object_until(
        &self,
        key: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let last = RefCell::new(Value::Null);
        let object = until(HAPPENS_WITHIN, &format!("{key} {what}"), async || {
            let newest = self.cluster.capture.newest(key)?;
            *last.borrow_mut() = newest.clone().unwrap_or_default();
            Ok(newest.filter(&is_so))
        })
        .await;
        object.with_context(|| format!("it was {}", last.borrow()["status"]))
    }

    pub(super) async fn await_end(&self, key: &str) -> Result<()> {
        until(HAPPENS_WITHIN, &format!("the end of {key}"), async || {
            Ok(self.cluster.capture.newest(key)?.is_none().then_some(()))
        })
        .await
    }

    pub(super) fn job_key(&self) -> String {
        let subject = self.subject.borrow();
        format!("{}s/{}/{}", subject.kind.to_lowercase(), self.namespace, subject.name)
    }

    pub(super) async fn job_until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        self.object_until(&self.job_key(), what, is_so).await
    }

    pub(super) async fn finished(&self) -> Result<Value> {
        // A JobSet's condition has a name of its own, and a RayJob has a word instead.
        const ENDS: [&str; 3] = ["Complete", "Completed", "Failed"];
        let is_so =
            |job: &Value, end: &str| has_condition(job, end) || job["status"]["jobDeploymentStatus"] == end;
        self.job_until("to finish", |job| ENDS.iter().any(|end| is_so(job, end))).await
    }

    /// The pod of the Job that came to a kubelet as the `ordinal`th.
    pub(super) async fn pod(&self, ordinal: usize) -> Result<SeenPod> {
        self.pod_where(|place| place.ordinal == ordinal).await
    }

    /// The first pod with this completion index.
    pub(super) async fn pod_of(&self, index: usize) -> Result<SeenPod> {
        self.pod_where(|place| place.index == Some(index) && place.retry == 0).await
    }

    async fn pod_where(&self, is_it: impl Fn(&PodPlace) -> bool) -> Result<SeenPod> {
        let job = self.subject.borrow().name.clone();
        self.seen_pod(|place| place.job == job && is_it(place)).await
    }

    /// The first pod of another Job in this namespace.
    pub(super) async fn pod_of_job(&self, job: &str) -> Result<SeenPod> {
        self.seen_pod(|place| place.job == job).await
    }

    /// The pod of another Job that came to a kubelet as the `ordinal`th.
    pub(super) async fn later_pod_of_job(&self, job: &str, ordinal: usize) -> Result<SeenPod> {
        self.seen_pod(|place| place.job == job && place.ordinal == ordinal).await
    }

    /// The first pod of another Job with this completion index.
    pub(super) async fn pod_of_job_at(&self, job: &str, index: usize) -> Result<SeenPod> {
        self.seen_pod(|place| place.job == job && place.index == Some(index)).await
    }

    async fn seen_pod(&self, is_it: impl Fn(&PodPlace) -> bool) -> Result<SeenPod> {
        until(HAPPENS_WITHIN, "a pod to be bound", async || {
            let seen = self.cluster.fleet.seen_pods(&self.namespace);
            Ok(seen.into_iter().find(|it| is_it(&it.place)))
        })
        .await
    }

    /// The same once all its containers run.
    pub(super) async fn running_pod(&self, ordinal: usize) -> Result<SeenPod> {
        let pod = self.pod(ordinal).await?;
        self.pod_until(&pod.name, "to be ready", |pod| has_condition(pod, "Ready")).await?;
        Ok(pod)
    }

    pub(super) async fn pod_until(
        &self,
        pod: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        self.object_until(&format!("pods/{}/{pod}", self.namespace), what, is_so).await
    }

    /// The newest version of some object under this prefix that is so.
    pub(super) async fn some_until(
        &self,
        prefix: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let prefix = prefix.replacen('/', &format!("/{}/", self.namespace), 1);
        until(HAPPENS_WITHIN, what, async || Ok(self.cluster.capture.all(&prefix).into_iter().find(&is_so)))
            .await
    }

    /// The only pod, which no kubelet has.
    pub(super) async fn unbound_pod(&self) -> Result<String> {
        let pod = self.some_until(&format!("pods/{JOB}-"), "an unschedulable pod", is_unschedulable).await?;
        Ok(pod["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    }

    /// The pod that the scheduler took from its node.
    pub(super) async fn preempted_pod(&self) -> Result<String> {
        let is_it = |event: &Value| event["reason"] == "Preempted";
        let event = self.some_until(&format!("events/{JOB}-"), "an event of a preemption", is_it).await?;
        Ok(event["involvedObject"]["name"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) async fn running_other(&self, job: &str) -> Result<()> {
        let pod = self.pod_of_job(job).await?;
        self.pod_until(&pod.name, "to be ready", |pod| has_condition(pod, "Ready")).await.map(drop)
    }

    pub(super) async fn event(&self, reason: &str) -> Result<()> {
        let is_it = |event: &Value| event["reason"] == reason;
        self.some_until("events/", &format!("an event {reason}"), is_it).await.map(drop)
    }

    /// The first Job that a CronJob makes is the one that the label is about.
    pub(super) async fn first_job(&self) -> Result<()> {
        let job = self.some_until("jobs/", "a Job of a CronJob", |_| true).await?;
        self.subject.borrow_mut().name = job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Ok(())
    }

    pub(super) async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Ends the recording. How many pods failed is what the Job says itself.
    pub(super) async fn close(&self, mut expected: Expected) -> Result<Recording> {
        tokio::time::sleep(SETTLES).await;
        let mark = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MARK}});
        self.create("", "configmaps", mark).await?;
        let mark = format!("configmaps/{}/{MARK}", self.namespace);
        self.object_until(&mark, "to be told", |_| true).await?;
        let nodes = self.nodes.borrow();
        let changes = self.cluster.capture.changes(|change| {
            let of_node = |node: &String| {
                change.key == format!("nodes/{node}")
                    || (change.key.starts_with("events/")
                        && change.document["involvedObject"]["name"] == node.as_str())
            };
            is_told_of(&change.key, &self.namespace) || nodes.iter().any(of_node)
        });
        let job = changes.iter().rfind(|change| change.key == self.job_key()).context("a Job")?;
        expected.attempts = job.document["status"]["failed"].as_u64().unwrap_or_default();
        let object = self.subject.borrow().clone();
        expected.attempt = attempt_of(&object, &changes);
        Ok(Recording { object, expected, changes })
    }
}

pub(super) fn has_condition(object: &Value, kind: &str) -> bool {
    conditions(object).any(|it| it["type"] == kind && it["status"] == "True")
}

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["conditions"].as_array().into_iter().flatten()
}

/// Whether a history has this object. The mark of its end is a ConfigMap.
fn is_told_of(key: &str, namespace: &str) -> bool {
    let (resource, name) = key.split_once('/').unwrap_or_default();
    resource != "configmaps" && name.strip_prefix(namespace).is_some_and(|name| name.starts_with('/'))
}

fn is_unschedulable(pod: &Value) -> bool {
    conditions(pod).any(|it| it["type"] == "PodScheduled" && it["reason"] == "Unschedulable")
}

/// Whether a container of the pod waits for this reason.
pub(super) fn waits_for(pod: &Value, reason: &str) -> bool {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let mut statuses = lists.iter().flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    statuses.any(|it| it["state"]["waiting"]["reason"] == reason)
}
