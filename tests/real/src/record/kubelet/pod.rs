//! One pod on one node: its containers in their order, its phase and its conditions. A pure machine: it is given the time
//! and what was asked of it, and returns what the kubelet has to write.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::container::{Container, ContainerRole, PodName};
use super::script::PodScript;
use super::{KubeletEffect, rfc3339};

/// From SIGTERM to the end of the container.
const STOPS_MS: u64 = 1_200;

/// An eviction by the kubelet itself.
#[derive(Clone, Debug)]
pub(super) struct PressureEviction {
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodStage {
    Alive,
    Stopping {
        at: u64,
    },
    /// All containers have ended, and the phase is not told yet: a kubelet reports it once nothing can run any more.
    Ended,
    Finished,
    Removed,
}

struct Condition {
    is_true: bool,
    since: u64,
    reason: &'static str,
    message: String,
}

pub(super) struct PodMachine {
    name: PodName,
    containers: Vec<Container>,
    stage: PodStage,
    is_announced: bool,
    is_deleted: bool,
    eviction: Option<PressureEviction>,
    conditions: BTreeMap<&'static str, Condition>,
    began: u64,
    /// As it was reported last.
    phase: &'static str,
    host_ip: String,
    pod_ip: String,
    generation: Value,
    reports_late: Option<u64>,
    /// Nothing is written before this.
    pub(super) silent_until: u64,
}

impl PodMachine {
    pub(super) fn new(pod: &Value, script: &PodScript, addresses: (String, String), now: u64) -> Self {
        let metadata = &pod["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let name = PodName { full: format!("{}_{}({})", text("name"), text("namespace"), text("uid")) };
        let restarts = pod["spec"]["restartPolicy"] != "Never";
        let list = |field: &str| pod["spec"][field].as_array().cloned().unwrap_or_default();
        let container = |spec: &Value, role| {
            Container::new(
                spec,
                role,
                restarts,
                script.of(spec["name"].as_str().unwrap_or_default()),
                &name.full,
            )
        };
        let inits = list("initContainers");
        let inits = inits.iter().map(|spec| {
            let role =
                if spec["restartPolicy"] == "Always" { ContainerRole::Sidecar } else { ContainerRole::Init };
            container(spec, role)
        });
        let mains = list("containers");
        let containers = inits.chain(mains.iter().map(|spec| container(spec, ContainerRole::Main))).collect();
        Self {
            name,
            containers,
            stage: PodStage::Alive,
            is_announced: false,
            is_deleted: metadata["deletionTimestamp"].is_string(),
            eviction: None,
            conditions: BTreeMap::new(),
            began: now,
            phase: "Pending",
            host_ip: addresses.0,
            pod_ip: addresses.1,
            generation: metadata["generation"].clone(),
            reports_late: script.reports_late.map(|by| by.as_millis() as u64),
            silent_until: 0,
        }
    }

    /// Takes what others have changed: a deletion, which is a generation of its own.
    pub(super) fn update(&mut self, pod: &Value) {
        self.is_deleted |= pod["metadata"]["deletionTimestamp"].is_string();
        self.generation = pod["metadata"]["generation"].clone();
    }

    pub(super) fn evict(&mut self, eviction: PressureEviction) {
        self.eviction = Some(eviction);
    }

    /// Returns the kubelet's writes at this moment. A status comes after the events that explain it.
    pub(super) fn tick(&mut self, now: u64) -> Vec<KubeletEffect> {
        let mut effects = Vec::new();
        let is_changed = match self.stage {
            PodStage::Alive => self.live(now, &mut effects),
            PodStage::Stopping { at } => now >= at && self.all_stopped(now),
            PodStage::Ended => {
                self.stage = PodStage::Finished;
                true
            }
            PodStage::Finished => {
                if self.is_deleted {
                    self.stage = PodStage::Removed;
                    effects.push(KubeletEffect::Remove);
                }
                false
            }
            PodStage::Removed => false,
        };
        if is_changed {
            let status = self.status(now);
            effects.push(KubeletEffect::Status(status));
        }
        effects
    }

    fn live(&mut self, now: u64, effects: &mut Vec<KubeletEffect>) -> bool {
        if self.is_deleted || self.eviction.is_some() {
            return self.begin_to_stop(now, effects);
        }
        let mut is_changed = !std::mem::replace(&mut self.is_announced, true);
        if let Some(next) = self.next_to_begin() {
            for container in &mut self.containers[next] {
                container.begin(now);
            }
        }
        let had_ended = self.first_end();
        for container in &mut self.containers {
            is_changed |= container.tick(now, &self.name, effects);
        }
        if let (None, true, Some(late)) = (had_ended, self.first_end().is_some(), self.reports_late) {
            self.silent_until = now + late;
        }
        if self.is_over() {
            let is_sidecar_up = self.containers.iter().any(Container::is_running);
            if is_sidecar_up {
                self.begin_to_stop(now, effects);
            } else {
                self.containers
                    .iter_mut()
                    .filter(|it| it.role == ContainerRole::Sidecar)
                    .for_each(|it| it.stop(now));
                self.stage = PodStage::Ended;
            }
        }
        is_changed
    }

    fn first_end(&self) -> Option<()> {
        self.containers.iter().find_map(|container| container.termination().map(drop))
    }

    /// Init containers begin one by one, each after the one before has ended or, of a sidecar, has begun. The others
    /// begin together.
    fn next_to_begin(&self) -> Option<std::ops::Range<usize>> {
        let mains = self.containers.iter().position(|it| it.role == ContainerRole::Main).unwrap_or_default();
        for (at, container) in self.containers[..mains].iter().enumerate() {
            if container.is_queued() {
                return Some(at..at + 1);
            }
            if !is_passed(container) {
                return None;
            }
        }
        self.containers[mains].is_queued().then_some(mains..self.containers.len())
    }

    /// Whether nothing is left to do: an init container failed for good, or all others have ended for good.
    fn is_over(&self) -> bool {
        let failed = |it: &Container| {
            it.role == ContainerRole::Init && it.final_exit().is_some_and(|exit| exit.code != 0)
        };
        let mut mains = self.containers.iter().filter(|it| it.role == ContainerRole::Main);
        self.containers.iter().any(failed) || mains.all(|it| it.final_exit().is_some())
    }

    fn begin_to_stop(&mut self, now: u64, effects: &mut Vec<KubeletEffect>) -> bool {
        for container in self.containers.iter().filter(|it| it.is_running()) {
            effects.push(container.event(
                "Normal",
                "Killing",
                &format!("Stopping container {}", container.name),
            ));
        }
        let waits = self.containers.iter().any(Container::is_running);
        self.stage = PodStage::Stopping { at: if waits { now + STOPS_MS } else { now } };
        false
    }

    fn all_stopped(&mut self, now: u64) -> bool {
        let is_initialized = self.is_initialized();
        for container in &mut self.containers {
            // Before initialisation, a main container that never ran stays as it waits.
            if is_initialized || container.role != ContainerRole::Main {
                container.stop(now);
            }
        }
        self.stage = PodStage::Ended;
        true
    }

    fn is_initialized(&self) -> bool {
        self.containers.iter().filter(|it| it.role != ContainerRole::Main).all(is_passed)
    }

    fn phase(&self) -> &'static str {
        let mains = || self.containers.iter().filter(|it| it.role == ContainerRole::Main);
        if self.stage == PodStage::Ended {
            return self.phase;
        }
        if self.stage == PodStage::Finished {
            let is_good = self.eviction.is_none()
                && mains().all(|it| it.final_exit().is_some_and(|exit| exit.code == 0));
            return if is_good { "Succeeded" } else { "Failed" };
        }
        let is_pending = !self.is_initialized() || mains().any(|it| it.is_waiting() && !it.has_run());
        if is_pending { "Pending" } else { "Running" }
    }

    fn status(&mut self, now: u64) -> Value {
        let phase = self.phase();
        self.phase = phase;
        self.judge_conditions(phase, now);
        // The kubelet says so of all containers of a pod that has init containers.
        let initializes = self.containers.iter().any(|it| it.role != ContainerRole::Main);
        let statuses = |is_main: bool| -> Vec<Value> {
            let of = self.containers.iter().filter(|it| (it.role == ContainerRole::Main) == is_main);
            of.map(|it| it.status(initializes, &self.name)).collect()
        };
        let conditions: Vec<Value> =
            self.conditions.iter().map(|(kind, it)| it.value(kind, &self.generation)).collect();
        let mut status = json!({
            "phase": phase, "conditions": conditions, "hostIP": self.host_ip, "hostIPs": [{"ip": self.host_ip}],
            "startTime": rfc3339(self.began), "containerStatuses": statuses(true),
            "observedGeneration": self.generation,
        });
        let inits = statuses(false);
        if !inits.is_empty() {
            status["initContainerStatuses"] = inits.into();
        }
        // The sandbox has its address before the first container begins.
        if self.containers.iter().any(Container::has_run) {
            status["podIP"] = self.pod_ip.clone().into();
            status["podIPs"] = json!([{"ip": self.pod_ip}]);
        }
        if let Some(eviction) = self.eviction.as_ref().filter(|_| self.stage == PodStage::Finished) {
            status["reason"] = "Evicted".into();
            status["message"] = eviction.message.clone().into();
        }
        status
    }

    fn judge_conditions(&mut self, phase: &str, now: u64) {
        let names = |is_listed: &dyn Fn(&Container) -> bool| -> String {
            let listed = self.containers.iter().filter(|it| is_listed(it));
            listed.map(|it| it.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        let is_initialized = self.is_initialized();
        let unready = names(&|it| it.role != ContainerRole::Init && !it.is_running());
        let incomplete = names(&|it| it.role != ContainerRole::Main && !is_passed(it));
        let is_over = matches!(self.stage, PodStage::Ended | PodStage::Finished);
        let is_ready = is_initialized && unready.is_empty() && !is_over;
        let end = match phase {
            "Succeeded" => "PodCompleted",
            "Failed" => "PodFailed",
            _ => "ContainersNotReady",
        };
        let unready = if phase == "Pending" || phase == "Running" {
            format!("containers with unready status: [{unready}]")
        } else {
            String::new()
        };
        let has_sandbox = !is_over && self.containers.iter().any(Container::has_run);
        self.condition("PodReadyToStartContainers", has_sandbox, "", String::new(), now);
        if is_initialized {
            let reason = if phase == "Succeeded" { "PodCompleted" } else { "" };
            self.condition("Initialized", true, reason, String::new(), now);
        } else {
            let message = format!("containers with incomplete status: [{incomplete}]");
            self.condition("Initialized", false, "ContainersNotInitialized", message, now);
        }
        for kind in ["Ready", "ContainersReady"] {
            let (reason, message) = if is_ready { ("", String::new()) } else { (end, unready.clone()) };
            self.condition(kind, is_ready, reason, message, now);
        }
        if let Some(eviction) = self.eviction.clone().filter(|_| self.stage == PodStage::Finished) {
            self.condition("DisruptionTarget", true, "TerminationByKubelet", eviction.message, now);
        }
    }

    fn condition(
        &mut self,
        kind: &'static str,
        is_true: bool,
        reason: &'static str,
        message: String,
        now: u64,
    ) {
        let before = self.conditions.get(kind).filter(|it| it.is_true == is_true);
        let since = before.map_or(now, |it| it.since);
        self.conditions.insert(kind, Condition { is_true, since, reason, message });
    }
}

/// Whether an init container lets the next one begin.
fn is_passed(container: &Container) -> bool {
    match container.role {
        ContainerRole::Sidecar => container.has_run(),
        _ => container.final_exit().is_some_and(|exit| exit.code == 0),
    }
}

impl Condition {
    fn value(&self, kind: &str, generation: &Value) -> Value {
        let mut value = json!({
            "type": kind, "status": if self.is_true { "True" } else { "False" }, "lastProbeTime": null,
            "lastTransitionTime": rfc3339(self.since), "observedGeneration": generation,
            // Null takes away what an earlier version said.
            "reason": null, "message": null,
        });
        if !self.reason.is_empty() {
            value["reason"] = self.reason.into();
        }
        if !self.message.is_empty() {
            value["message"] = self.message.as_str().into();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::kubelet::ContainerExit;

    fn machine(spec: &Value, script: &PodScript) -> PodMachine {
        PodMachine::new(&pod(spec, false), script, ("10.0.1.4".into(), "10.244.1.1".into()), 0)
    }

    fn pod(spec: &Value, is_deleted: bool) -> Value {
        let mut pod =
            json!({"metadata": {"name": "a", "namespace": "b", "uid": "c", "generation": 1}, "spec": spec});
        if is_deleted {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        pod
    }

    /// The statuses that are written until then; `None` stands for the removal.
    fn run(machine: &mut PodMachine, ms: std::ops::Range<u64>) -> Vec<Option<Value>> {
        let effects = ms.step_by(100).flat_map(|now| machine.tick(now));
        effects
            .filter_map(|effect| match effect {
                KubeletEffect::Status(status) => Some(Some(status)),
                KubeletEffect::Remove => Some(None),
                KubeletEffect::Event { .. } => None,
            })
            .collect()
    }

    fn main_alone() -> Value {
        json!({"restartPolicy": "Never", "containers": [{"name": "main"}]})
    }

    #[test]
    fn the_end_of_a_container_is_written_before_the_phase() {
        let mut machine = machine(&main_alone(), &PodScript::exits("main", 1_000, ContainerExit::code(3)));
        let written = run(&mut machine, 0..5_000);
        let shown: Vec<_> = written
            .iter()
            .flatten()
            .map(|it| {
                let state = &it["containerStatuses"][0]["state"];
                (it["phase"].as_str().unwrap_or_default(), state["terminated"]["exitCode"].as_i64())
            })
            .collect();
        assert_eq!(shown, [("Pending", None), ("Running", None), ("Running", Some(3)), ("Failed", Some(3))]);
    }

    #[test]
    fn a_deleted_pod_is_removed_after_the_end_of_its_containers() {
        let mut machine = machine(&main_alone(), &PodScript::endless());
        run(&mut machine, 0..2_000);
        machine.update(&pod(&main_alone(), true));
        let written = run(&mut machine, 2_000..6_000);
        let codes: Vec<_> = written
            .iter()
            .map(|it| {
                it.as_ref().map(|it| it["containerStatuses"][0]["state"]["terminated"]["exitCode"].clone())
            })
            .collect();
        assert_eq!(codes, [Some(137.into()), Some(137.into()), None]);
    }

    #[test]
    fn a_crash_loop_keeps_the_last_end_and_counts_restarts() {
        let spec = json!({"restartPolicy": "OnFailure", "containers": [{"name": "main"}]});
        let mut machine = machine(&spec, &PodScript::exits("main", 1_000, ContainerExit::code(1)));
        let written = run(&mut machine, 0..8_000);
        let last = &written.last().and_then(Option::as_ref).expect("a status")["containerStatuses"][0];
        assert_eq!(last["state"]["waiting"]["reason"], "CrashLoopBackOff");
        assert_eq!(last["lastState"]["terminated"]["exitCode"], 1);
        assert_eq!(last["restartCount"], 1);
    }

    #[test]
    fn a_sidecar_that_is_stopped_does_not_decide_the_phase() {
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "main"}],
            "initContainers": [{"name": "logs", "restartPolicy": "Always"}]});
        let mut machine = machine(&spec, &PodScript::exits("main", 1_000, ContainerExit::code(0)));
        let written = run(&mut machine, 0..8_000);
        let last = written.last().and_then(Option::as_ref).expect("a status");
        assert_eq!(last["phase"], "Succeeded");
        assert_eq!(last["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    }

    #[test]
    fn an_init_container_that_fails_keeps_the_others_from_starting() {
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "main"}],
            "initContainers": [{"name": "fetch"}]});
        let mut machine = machine(&spec, &PodScript::exits("fetch", 1_000, ContainerExit::code(1)));
        let written = run(&mut machine, 0..5_000);
        let last = written.last().and_then(Option::as_ref).expect("a status");
        assert_eq!(last["phase"], "Failed");
        assert_eq!(last["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    }
}
