//! Executes the steps of a life against an API server. It decides nothing about the life, and only reports to
//! it what other people did to its objects.

use serde_json::{Value, json};

use super::WorkloadError;
use super::api::{WorkloadApi, WriteEnd};
use super::document::{self, PodFacts};
use super::events::{EventSubject, JobEvents};
use super::life::{JobLife, JobPhase, JobState, LifeAction, LifeStep, PodIndex, PodState};
use super::rng::SplitMix;
use super::time;

/// The writers whose part the workload plays.
const SUBMITTER: &str = "?fieldManager=kubectl-create";
const CONTROLLER: &str = "?fieldManager=kube-controller-manager";
const KUBELET: &str = "?fieldManager=kubelet";

/// How often a conflicting write is decided again. Nobody else writes these objects for long.
const CONFLICTS: u32 = 8;
/// The names that are tried for one job.
const NAMES: u32 = 4;

/// A life, with its objects on the server.
pub struct DrivenLife {
    pub life: JobLife,
    /// The phase of the job as last written.
    pub shown: JobPhase,
    job: Value,
    pods: Vec<PodFacts>,
    documents: Vec<Value>,
    rng: SplitMix,
    /// The Events of the job and its pods; `None` if the workload writes none.
    events: Option<JobEvents>,
}

impl DrivenLife {
    pub fn new(life: JobLife, rng: SplitMix, tells: bool) -> Self {
        let events = tells.then(JobEvents::default);
        Self {
            life,
            shown: JobPhase::New,
            job: Value::Null,
            pods: Vec::new(),
            documents: Vec::new(),
            rng,
            events,
        }
    }

    /// A Job that somebody else has created.
    pub fn adopted(life: JobLife, rng: SplitMix, tells: bool, job: Value) -> Self {
        Self { job, ..Self::new(life, rng, tells) }
    }

    /// Drops the documents: the job has ended, and only its names are still needed.
    pub fn forget_documents(&mut self) {
        self.job = Value::Null;
        self.documents = Vec::new();
    }

    pub async fn carry_out(&mut self, api: &WorkloadApi, step: &LifeStep) -> Result<(), WorkloadError> {
        self.write(api, &step.action).await?;
        self.tell(api, &step.action).await
    }

    async fn tell(&mut self, api: &WorkloadApi, action: &LifeAction) -> Result<(), WorkloadError> {
        let Some(events) = &mut self.events else { return Ok(()) };
        let plan = self.life.plan();
        let namespace = &plan.namespace;
        match action {
            LifeAction::DeleteJob => events.forget(api).await,
            LifeAction::WritePod(pod, state) => {
                let PodFacts { name, uid, .. } = &self.pods[*pod];
                let about = EventSubject { api_version: "v1", kind: "Pod", name, uid };
                events.pod(api, plan, about, state).await
            }
            action => {
                let uid = self.job["metadata"]["uid"].as_str().unwrap_or_default();
                let about = EventSubject { api_version: "batch/v1", kind: "Job", name: &plan.name, uid };
                let newest = self.pods.last().map_or("", |pod| &pod.name);
                events.job(api, namespace, about, action, newest).await
            }
        }
    }

    async fn write(&mut self, api: &WorkloadApi, action: &LifeAction) -> Result<(), WorkloadError> {
        match action {
            LifeAction::CreateJob => self.create_job(api).await,
            LifeAction::Suspend(suspend) => self.suspend(api, *suspend).await,
            LifeAction::WriteJob(state) => self.write_job(api, state).await,
            LifeAction::CreatePod(pod) => self.create_pod(api, *pod).await,
            LifeAction::WritePod(pod, state) => self.write_pod(api, *pod, state).await,
            LifeAction::ReleasePod(pod) => self.release_pod(api, *pod).await,
            LifeAction::DeletePod(pod) => self.delete_pod(api, *pod).await,
            LifeAction::Rest => Ok(()),
            // A missing object counts as deleted.
            LifeAction::DeleteJob => api.delete(&self.job_path()).await.map(drop),
        }
    }

    fn jobs_path(&self) -> String {
        format!("/apis/batch/v1/namespaces/{}/jobs", self.life.plan().namespace)
    }

    fn job_path(&self) -> String {
        format!("{}/{}", self.jobs_path(), self.life.plan().name)
    }

    fn pods_path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.life.plan().namespace)
    }

    fn pod_path(&self, pod: PodIndex) -> String {
        format!("{}/{}", self.pods_path(), self.pods[pod].name)
    }

    async fn create_job(&mut self, api: &WorkloadApi) -> Result<(), WorkloadError> {
        if !self.job.is_null() {
            return Ok(());
        }
        for _ in 0..NAMES {
            match api
                .create(&format!("{}{SUBMITTER}", self.jobs_path()), &document::job(self.life.plan()))
                .await?
            {
                WriteEnd::Done(job) => {
                    self.job = job;
                    return Ok(());
                }
                WriteEnd::Conflict => return self.read_job(api).await.map(drop),
                WriteEnd::Taken | WriteEnd::Missing => self.life.rename(),
            }
        }
        Err(WorkloadError::NoName { namespace: self.life.plan().namespace.clone(), tries: NAMES })
    }

    /// Returns `false` if the Job is gone, which it also reports to the life.
    async fn read_job(&mut self, api: &WorkloadApi) -> Result<bool, WorkloadError> {
        match api.get(&self.job_path()).await? {
            WriteEnd::Done(job) => {
                // A Job of another submitter has our name. We do not drive it.
                if self.job["metadata"]["uid"].is_null()
                    || self.job["metadata"]["uid"] == job["metadata"]["uid"]
                {
                    self.job = job;
                    return Ok(true);
                }
                self.life.vanished();
                Ok(false)
            }
            _ => {
                self.life.vanished();
                Ok(false)
            }
        }
    }

    async fn suspend(&mut self, api: &WorkloadApi, suspend: bool) -> Result<(), WorkloadError> {
        self.change_job(api, "", |job| job["spec"]["suspend"] = json!(suspend)).await
    }

    async fn write_job(&mut self, api: &WorkloadApi, state: &JobState) -> Result<(), WorkloadError> {
        let status = document::job_status(state, &self.pods);
        self.change_job(api, "/status", |job| job["status"] = status.clone()).await
    }

    async fn change_job(
        &mut self,
        api: &WorkloadApi,
        part: &str,
        change: impl Fn(&mut Value),
    ) -> Result<(), WorkloadError> {
        let path = format!("{}{part}{CONTROLLER}", self.job_path());
        for _ in 0..CONFLICTS {
            change(&mut self.job);
            match api.replace(&path, &self.job).await? {
                WriteEnd::Done(job) => {
                    self.job = job;
                    return Ok(());
                }
                WriteEnd::Missing => {
                    self.life.vanished();
                    return Ok(());
                }
                WriteEnd::Conflict | WriteEnd::Taken => {
                    if !self.read_job(api).await? {
                        return Ok(());
                    }
                }
            }
        }
        Err(WorkloadError::Contended { path, tries: CONFLICTS })
    }

    async fn create_pod(&mut self, api: &WorkloadApi, pod: PodIndex) -> Result<(), WorkloadError> {
        let mut name = String::new();
        for _ in 0..NAMES {
            name = format!("{}-{}", self.life.plan().name, self.rng.suffix(5));
            let document = document::pod(self.life.plan(), &self.job, pod, &name);
            let created = match api.create(&format!("{}{CONTROLLER}", self.pods_path()), &document).await? {
                WriteEnd::Done(created) => created,
                WriteEnd::Conflict => match api.get(&format!("{}/{name}", self.pods_path())).await? {
                    WriteEnd::Done(created) => created,
                    _ => break,
                },
                WriteEnd::Missing => break,
                WriteEnd::Taken => continue,
            };
            self.keep_pod(pod, name, created);
            return Ok(());
        }
        // Its slot stays, so that later pods keep their numbers.
        self.keep_pod(pod, name, Value::Null);
        self.life.pod_vanished(pod);
        Ok(())
    }

    fn keep_pod(&mut self, pod: PodIndex, name: String, document: Value) {
        let uid = document["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        self.pods.resize_with(self.pods.len().max(pod + 1), PodFacts::default);
        self.documents.resize(self.documents.len().max(pod + 1), Value::Null);
        self.pods[pod] = PodFacts { name, uid, ..PodFacts::default() };
        self.documents[pod] = document;
    }

    async fn write_pod(
        &mut self,
        api: &WorkloadApi,
        pod: PodIndex,
        state: &PodState,
    ) -> Result<(), WorkloadError> {
        if *state == PodState::Creating {
            self.bind_pod(api, pod).await?;
        }
        let now = time::now();
        let facts = &mut self.pods[pod];
        match state {
            PodState::Creating => facts.scheduled = Some(now),
            PodState::Running => facts.started = Some(now),
            _ => {}
        }
        let path = format!("{}/status{KUBELET}", self.pod_path(pod));
        for _ in 0..CONFLICTS {
            let document = &mut self.documents[pod];
            let before = document["status"].take();
            document["status"] = document::pod_status(self.life.plan(), state, &self.pods[pod], &before, now);
            match api.replace(&path, document).await? {
                WriteEnd::Done(written) => {
                    self.documents[pod] = written;
                    return Ok(());
                }
                WriteEnd::Missing => {
                    self.life.pod_vanished(pod);
                    return Ok(());
                }
                WriteEnd::Conflict | WriteEnd::Taken => match api.get(&self.pod_path(pod)).await? {
                    WriteEnd::Done(read) => self.documents[pod] = read,
                    _ => {
                        self.life.pod_vanished(pod);
                        return Ok(());
                    }
                },
            }
        }
        Err(WorkloadError::Contended { path, tries: CONFLICTS })
    }

    /// Has the pod run on its node, as the scheduler does. An earlier try may have had the same effect.
    async fn bind_pod(&mut self, api: &WorkloadApi, pod: PodIndex) -> Result<(), WorkloadError> {
        let binding = document::binding(&self.life.plan().namespace, &self.pods[pod].name);
        api.create(&format!("{}/binding", self.pod_path(pod)), &binding).await?;
        match api.get(&self.pod_path(pod)).await? {
            WriteEnd::Done(bound) => self.documents[pod] = bound,
            _ => self.life.pod_vanished(pod),
        }
        Ok(())
    }

    async fn delete_pod(&mut self, api: &WorkloadApi, pod: PodIndex) -> Result<(), WorkloadError> {
        match api.delete(&self.pod_path(pod)).await? {
            // For a pod that still has its finalizer the answer is the pod, with the time of its deletion.
            WriteEnd::Done(marked) if marked["kind"] == "Pod" => {
                if let Some(document) = self.documents.get_mut(pod) {
                    *document = marked;
                }
            }
            WriteEnd::Missing => self.life.pod_vanished(pod),
            _ => {}
        }
        Ok(())
    }

    /// Sends a patch, as the Job controller does: it must not depend on what the kubelet wrote.
    async fn release_pod(&mut self, api: &WorkloadApi, pod: PodIndex) -> Result<(), WorkloadError> {
        match api.merge(&self.pod_path(pod), &json!({"metadata": {"finalizers": null}})).await? {
            WriteEnd::Done(released) => {
                if let Some(document) = self.documents.get_mut(pod) {
                    *document = released;
                }
            }
            WriteEnd::Missing => self.life.pod_vanished(pod),
            WriteEnd::Conflict | WriteEnd::Taken => {}
        }
        Ok(())
    }
}
