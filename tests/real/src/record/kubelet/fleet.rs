//! The kubelets of all nodes: the watch, the heartbeats, and the writes of what the pods' machines decide.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::pod::{PodMachine, PressureEviction};
use super::script::PodScript;
use super::{KubeletEffect, now_ms, rfc3339};
use crate::cluster::ApiClient;

const TICK: Duration = Duration::from_millis(100);
/// Well below the grace period of the node controller.
const HEARTBEAT: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(300);
/// Pod updates between two ticks: more than all scenarios make together.
const QUEUE: usize = 4096;
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Where a pod stands among those of its namespace.
#[derive(Clone, Debug)]
pub(crate) struct PodPlace {
    /// In the order in which pods of the same Job came to a kubelet, from 0.
    pub ordinal: usize,
    /// The completion index of an indexed Job.
    pub index: Option<usize>,
    /// How many pods of the same Job had this index before.
    pub retry: usize,
    /// The Job, or the part in a Ray cluster: `head` or `worker`. Empty for a pod without either.
    pub job: String,
}

#[derive(Clone, Debug)]
pub(crate) struct SeenPod {
    pub name: String,
    pub node: String,
    pub place: PodPlace,
}

type PodDirector = Arc<dyn Fn(&PodPlace) -> PodScript + Send + Sync>;

struct Node {
    is_alive: bool,
    address: String,
    pods: u8,
}

struct RunningPod {
    namespace: String,
    name: String,
    uid: String,
    node: String,
    machine: PodMachine,
    /// Effects that could not be reported yet.
    unwritten: Vec<KubeletEffect>,
}

#[derive(Default)]
struct FleetState {
    nodes: HashMap<String, Node>,
    directors: HashMap<String, PodDirector>,
    seen: HashMap<String, Vec<SeenPod>>,
    running: HashMap<String, RunningPod>,
    events: u64,
    node_count: u8,
    /// Writes that the API server did not take.
    refused: Vec<String>,
}

pub(crate) struct Fleet {
    api: ApiClient,
    state: Arc<Mutex<FleetState>>,
    /// Ends with the fleet.
    tasks: JoinSet<()>,
}

impl Fleet {
    pub(crate) fn start(api: ApiClient) -> Self {
        let state = Arc::new(Mutex::new(FleetState::default()));
        let (sender, receiver) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_pods(api.clone(), sender));
        tasks.spawn(tick_forever(api.clone(), state.clone(), receiver));
        tasks.spawn(beat_forever(api.clone(), state.clone()));
        Self { api, state, tasks }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.tasks.try_join_next().is_some()
    }

    /// Adds a node and waits until the API server has it as ready.
    pub(crate) async fn add_node(&self, name: &str, cpu: &str, pool: Option<&str>) -> Result<()> {
        let number = {
            let mut state = lock(&self.state);
            state.node_count += 1;
            state.node_count
        };
        let address = format!("10.0.{number}.4");
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "spec": {},
        });
        if let Some(pool) = pool {
            node["metadata"]["labels"]["pool"] = pool.into();
            node["spec"]["taints"] = json!([{"key": "pool", "value": pool, "effect": "NoSchedule"}]);
        }
        let (code, answer) = self.api.request(Method::POST, "/api/v1/nodes", Some(&node)).await?;
        ensure!(code == 201, "a node was answered with {code}: {answer}");
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_time()},
        });
        let (code, answer) = self.api.request(Method::POST, LEASES, Some(&lease)).await?;
        ensure!(code == 201, "a lease was answered with {code}: {answer}");
        let path = format!("/api/v1/nodes/{name}/status");
        let (code, answer) =
            self.api.request(Method::PATCH, &path, Some(&node_status(cpu, &address))).await?;
        ensure!(code == 200, "a node's status was answered with {code}: {answer}");
        lock(&self.state).nodes.insert(name.to_owned(), Node { is_alive: true, address, pods: 0 });
        Ok(())
    }

    /// The node stops: no heartbeat, no status, nothing that is asked of it is done.
    pub(crate) fn kill_node(&self, name: &str) {
        if let Some(node) = lock(&self.state).nodes.get_mut(name) {
            node.is_alive = false;
        }
    }

    pub(crate) fn revive_node(&self, name: &str) {
        if let Some(node) = lock(&self.state).nodes.get_mut(name) {
            node.is_alive = true;
        }
    }

    /// Writes of the kubelets that the API server did not take: there should be none.
    pub(crate) fn refused(&self) -> Vec<String> {
        lock(&self.state).refused.clone()
    }

    pub(crate) fn direct(&self, namespace: &str, director: PodDirector) {
        lock(&self.state).directors.insert(namespace.to_owned(), director);
    }

    pub(crate) fn seen_pods(&self, namespace: &str) -> Vec<SeenPod> {
        lock(&self.state).seen.get(namespace).cloned().unwrap_or_default()
    }

    /// The kubelet ends the pod because its node runs out of something.
    pub(crate) fn evict(&self, namespace: &str, pod: &str, message: &str) -> Result<()> {
        let mut state = lock(&self.state);
        let mut running = state.running.values_mut();
        let running = running.find(|it| it.namespace == namespace && it.name == pod);
        let running = running.with_context(|| format!("{pod} runs on no node"))?;
        let event = KubeletEffect::Event {
            kind: "Warning",
            reason: "Evicted",
            message: message.to_owned(),
            path: None,
        };
        running.unwritten.push(event);
        running.machine.evict(PressureEviction { message: message.to_owned() });
        Ok(())
    }
}

fn lock(state: &Mutex<FleetState>) -> MutexGuard<'_, FleetState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node_status(cpu: &str, address: &str) -> Value {
    let now = rfc3339(now_ms());
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let size = json!({"cpu": cpu, "memory": "256Gi", "pods": "110"});
    json!({"status": {
        "capacity": size, "allocatable": size,
        "addresses": [{"type": "InternalIP", "address": address}],
        "nodeInfo": {
            "kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4", "osImage": "Debian 13",
            "operatingSystem": "linux", "architecture": "amd64", "kernelVersion": "6.12.48", "kubeProxyVersion": "",
            "machineID": "", "systemUUID": "", "bootID": "",
        },
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
    }})
}

fn micro_time() -> String {
    let ms = now_ms();
    format!("{}.{:03}000Z", rfc3339(ms).trim_end_matches('Z'), ms % 1000)
}

async fn beat_forever(api: ApiClient, state: Arc<Mutex<FleetState>>) {
    loop {
        let alive: Vec<String> = {
            let state = lock(&state);
            state.nodes.iter().filter(|(_, node)| node.is_alive).map(|(name, _)| name.clone()).collect()
        };
        let mut beats = JoinSet::new();
        for node in alive {
            let api = api.clone();
            beats.spawn(async move {
                let lease = json!({"spec": {"renewTime": micro_time()}});
                // The next heartbeat repeats one that was lost.
                api.request(Method::PATCH, &format!("{LEASES}/{node}"), Some(&lease)).await.is_ok()
            });
        }
        beats.join_all().await;
        tokio::time::sleep(HEARTBEAT).await;
    }
}

/// Hands on each pod as it is at the moment and then as it changes.
async fn watch_pods(api: ApiClient, sender: mpsc::Sender<(String, Value)>) {
    loop {
        // A list begins anew what a broken watch has missed; machines take what they know already.
        if let Err(error) = list_and_watch(&api, &sender).await {
            eprintln!("real: the kubelets' watch of pods ended: {error:#}");
        }
        if sender.is_closed() {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn list_and_watch(api: &ApiClient, sender: &mpsc::Sender<(String, Value)>) -> Result<()> {
    let (code, list) = api.request(Method::GET, "/api/v1/pods", None).await?;
    ensure!(code == 200, "a list of pods was answered with {code}");
    for pod in list["items"].as_array().into_iter().flatten() {
        sender.send(("ADDED".into(), pod.clone())).await?;
    }
    let version = list["metadata"]["resourceVersion"].as_str().context("a version of the list")?;
    let mut watch = api.watch(&format!("/api/v1/pods?watch=true&resourceVersion={version}")).await?;
    let mut unread = Vec::new();
    while let Some(chunk) = watch.chunk().await? {
        unread.extend_from_slice(&chunk);
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            let mut event: Value = serde_json::from_slice(&line)?;
            let kind = event["type"].as_str().unwrap_or_default().to_owned();
            ensure!(kind != "ERROR", "the watch was told {event}");
            sender.send((kind, event["object"].take())).await?;
        }
    }
    Ok(())
}

async fn tick_forever(
    api: ApiClient,
    state: Arc<Mutex<FleetState>>,
    mut updates: mpsc::Receiver<(String, Value)>,
) {
    loop {
        tokio::time::sleep(TICK).await;
        let now = now_ms();
        let writes = {
            let mut state = lock(&state);
            while let Ok((kind, pod)) = updates.try_recv() {
                state.take(&kind, &pod, now);
            }
            state.tick(now)
        };
        // Writes of one pod keep their order: the next tick waits for them.
        let mut requests = JoinSet::new();
        for write in writes {
            requests.spawn(write.send(api.clone()));
        }
        let refused = requests.join_all().await;
        lock(&state).refused.extend(refused.into_iter().flatten());
    }
}

/// The writes of one pod at one moment, in their order.
struct PodWrites {
    namespace: String,
    name: String,
    uid: String,
    node: String,
    number: u64,
    now: u64,
    effects: Vec<KubeletEffect>,
}

impl FleetState {
    fn take(&mut self, kind: &str, pod: &Value, now: u64) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (metadata, uid) = (&pod["metadata"], text(&pod["metadata"]["uid"]));
        if kind == "DELETED" {
            self.running.remove(&uid);
            return;
        }
        if let Some(running) = self.running.get_mut(&uid) {
            running.machine.update(pod);
            return;
        }
        let (namespace, name, node) =
            (text(&metadata["namespace"]), text(&metadata["name"]), text(&pod["spec"]["nodeName"]));
        let is_finished = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
        let Some(owner) = self.nodes.get_mut(&node).filter(|node| node.is_alive && !is_finished) else {
            return;
        };
        owner.pods = owner.pods.wrapping_add(1);
        let node_net = owner.address.replacen("10.0.", "10.244.", 1);
        let pod_ip = format!("{}.{}", node_net.strip_suffix(".4").unwrap_or(&node_net), owner.pods);
        let addresses = (owner.address.clone(), pod_ip);
        let place = self.place(&namespace, metadata);
        let seen = SeenPod { name: name.clone(), node: node.clone(), place: place.clone() };
        self.seen.entry(namespace.clone()).or_default().push(seen);
        let script = self.directors.get(&namespace).map(|director| director(&place)).unwrap_or_default();
        let machine = PodMachine::new(pod, &script, addresses, now);
        self.running
            .insert(uid.clone(), RunningPod { namespace, name, uid, node, machine, unwritten: Vec::new() });
    }

    fn place(&self, namespace: &str, metadata: &Value) -> PodPlace {
        let label = |name: &str| metadata["labels"][name].as_str();
        let job = label("job-name").or_else(|| label("ray.io/node-type")).unwrap_or_default().to_owned();
        let index = label("batch.kubernetes.io/job-completion-index").and_then(|index| index.parse().ok());
        let seen = self.seen.get(namespace).map(Vec::as_slice).unwrap_or_default();
        let before = || seen.iter().filter(|it| it.place.job == job);
        let retry = before().filter(|it| index.is_some() && it.place.index == index).count();
        PodPlace { ordinal: before().count(), index, retry, job }
    }

    fn tick(&mut self, now: u64) -> Vec<PodWrites> {
        let mut writes = Vec::new();
        for pod in self.running.values_mut() {
            if !self.nodes.get(&pod.node).is_some_and(|node| node.is_alive) {
                continue;
            }
            pod.unwritten.extend(pod.machine.tick(now));
            if now < pod.machine.silent_until || pod.unwritten.is_empty() {
                continue;
            }
            self.events += pod.unwritten.len() as u64;
            writes.push(PodWrites {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                node: pod.node.clone(),
                number: self.events,
                now,
                effects: std::mem::take(&mut pod.unwritten),
            });
        }
        writes
    }
}

impl PodWrites {
    /// Returns what was refused.
    async fn send(self, api: ApiClient) -> Vec<String> {
        let mut refused = Vec::new();
        for (at, effect) in self.effects.iter().enumerate() {
            let written = match effect {
                KubeletEffect::Status(status) => {
                    let body = json!({"metadata": {"uid": self.uid}, "status": status});
                    api.merge_lists(&format!("{}/status", self.path()), &body).await
                }
                KubeletEffect::Event { kind, reason, message, path } => {
                    let event = self.event(at, kind, reason, message, path.as_deref());
                    let events = format!("/api/v1/namespaces/{}/events", self.namespace);
                    api.request(Method::POST, &events, Some(&event)).await
                }
                KubeletEffect::Remove => {
                    let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}});
                    api.request(Method::DELETE, &self.path(), Some(&body)).await
                }
            };
            match written {
                // A pod that was taken away meanwhile has no status any more.
                Ok((200 | 201 | 404 | 409, _)) => {}
                Ok((code, answer)) => refused.push(format!("{code} for {}: {answer}", self.path())),
                Err(error) => refused.push(format!("{}: {error:#}", self.path())),
            }
        }
        refused
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }

    fn event(&self, at: usize, kind: &str, reason: &str, message: &str, path: Option<&str>) -> Value {
        let time = rfc3339(self.now);
        let name = format!("{}.{:016x}", self.name, self.now * 100_000 + self.number * 16 + at as u64);
        let mut event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": self.namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace, "name": self.name,
                "uid": self.uid},
            "reason": reason, "message": message, "type": kind, "count": 1,
            "firstTimestamp": time, "lastTimestamp": time,
            "source": {"component": "kubelet", "host": self.node},
            "reportingComponent": "kubelet", "reportingInstance": self.node,
        });
        if let Some(path) = path {
            event["involvedObject"]["fieldPath"] = path.into();
        }
        event
    }
}
