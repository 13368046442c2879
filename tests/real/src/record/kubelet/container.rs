//! One container: waiting, running, ended, started again. Time is a parameter.

use serde_json::{Value, json};

use super::script::{ContainerExit, ContainerScript, Obstacle};
use super::{KubeletEffect, rfc3339};

/// From its turn to its start, with the pull of an image that is there.
const CREATES_MS: u64 = 700;
/// From an end until the next sync of the pod sees to a restart.
const SYNCS_MS: u64 = 900;
/// A pull that fails fails at once.
const PULL_FAILS_MS: u64 = 1_000;
/// The kubelet's own first back-off, for pulls and for crashes.
const FIRST_BACK_OFF_MS: u64 = 10_000;
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerRole {
    Init,
    /// An init container that is restarted always, and lives beside the others.
    Sidecar,
    Main,
}

#[derive(Clone, Debug)]
pub(super) struct Termination {
    pub(super) exit: ContainerExit,
    /// It has none if it never ran.
    times: Option<(u64, u64)>,
    id: String,
}

#[derive(Clone, Debug)]
enum ContainerStep {
    Queued,
    Creating,
    PullFailed,
    PullBackOff,
    ConfigurationError,
    Running { since: u64 },
    CrashLoop,
    Ended(Termination),
}

pub(super) struct Container {
    pub(super) name: String,
    pub(super) role: ContainerRole,
    image: String,
    resources: Value,
    /// Such as `spec.containers{main}`, as events name it.
    path: String,
    script: ContainerScript,
    restarts_on_failure: bool,
    step: ContainerStep,
    due: u64,
    first_due: u64,
    back_offs: u32,
    restarts: u64,
    last: Option<Termination>,
    id_base: String,
}

/// The pod as messages name it.
pub(super) struct PodName {
    pub(super) full: String,
}

impl Container {
    pub(super) fn new(
        spec: &Value,
        role: ContainerRole,
        restarts_on_failure: bool,
        script: ContainerScript,
        id: &str,
    ) -> Self {
        let name = spec["name"].as_str().unwrap_or_default().to_owned();
        let list = if role == ContainerRole::Main { "containers" } else { "initContainers" };
        Self {
            path: format!("spec.{list}{{{name}}}"),
            id_base: hex_of(&format!("{id}/{name}")),
            name,
            role,
            image: spec["image"].as_str().unwrap_or_default().to_owned(),
            resources: spec["resources"].clone(),
            script,
            restarts_on_failure,
            step: ContainerStep::Queued,
            due: NEVER,
            first_due: 0,
            back_offs: 0,
            restarts: 0,
            last: None,
        }
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(self.step, ContainerStep::Queued)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.step, ContainerStep::Running { .. })
    }

    /// Whether it has been started at all.
    pub(super) fn has_run(&self) -> bool {
        self.last.is_some() || self.is_running() || self.termination().is_some_and(|end| end.times.is_some())
    }

    pub(super) fn termination(&self) -> Option<&Termination> {
        match &self.step {
            ContainerStep::Ended(termination) => Some(termination),
            _ => None,
        }
    }

    /// How it ended for good.
    pub(super) fn final_exit(&self) -> Option<&ContainerExit> {
        self.termination().filter(|_| self.due == NEVER).map(|termination| &termination.exit)
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.is_running() && self.termination().is_none()
    }

    pub(super) fn begin(&mut self, now: u64) {
        self.step = ContainerStep::Creating;
        self.first_due = now;
        self.due = now + CREATES_MS;
    }

    /// Moves on if its time has come, and says whether it did.
    pub(super) fn tick(&mut self, now: u64, pod: &PodName, effects: &mut Vec<KubeletEffect>) -> bool {
        if now < self.due {
            return false;
        }
        match self.step {
            ContainerStep::Queued => return false,
            ContainerStep::Creating | ContainerStep::ConfigurationError => self.start(now, effects),
            ContainerStep::PullBackOff => {
                effects.push(self.event("Normal", "Pulling", &format!("Pulling image \"{}\"", self.image)));
                self.start(now, effects);
            }
            ContainerStep::PullFailed => {
                self.step = ContainerStep::PullBackOff;
                self.due = now + self.back_off();
                effects.push(self.event(
                    "Normal",
                    "BackOff",
                    &format!("Back-off pulling image \"{}\"", self.image),
                ));
                effects.push(self.event("Warning", "Failed", "Error: ImagePullBackOff"));
            }
            ContainerStep::Running { .. } => {
                let exit = self.run().exit;
                self.end(now, exit);
            }
            ContainerStep::CrashLoop => self.run_again(now),
            ContainerStep::Ended(_) if self.restarts == 0 => self.run_again(now),
            ContainerStep::Ended(_) => {
                self.last = self.termination().cloned();
                self.step = ContainerStep::CrashLoop;
                self.due = now + self.back_off();
                let text = format!("Back-off restarting failed container {} in pod {}", self.name, pod.full);
                effects.push(self.event("Warning", "BackOff", &text));
            }
        }
        true
    }

    fn start(&mut self, now: u64, effects: &mut Vec<KubeletEffect>) {
        let waited = now - self.first_due;
        let is_blocked = |gone_after: &Option<std::time::Duration>| {
            gone_after.is_none_or(|after| u128::from(waited) < after.as_millis())
        };
        match &self.script.obstacle {
            Some((Obstacle::ImagePull(why), gone_after)) if is_blocked(gone_after) => {
                let text = format!("Failed to pull image \"{}\": {why}", self.image);
                effects.push(self.event("Warning", "Failed", &text));
                effects.push(self.event("Warning", "Failed", "Error: ErrImagePull"));
                (self.step, self.due) = (ContainerStep::PullFailed, now + PULL_FAILS_MS);
            }
            Some((Obstacle::Configuration(why), gone_after)) if is_blocked(gone_after) => {
                if !matches!(self.step, ContainerStep::ConfigurationError) {
                    effects.push(self.event("Warning", "Failed", &format!("Error: {why}")));
                }
                (self.step, self.due) = (ContainerStep::ConfigurationError, now + FIRST_BACK_OFF_MS / 2);
            }
            _ => self.running(now),
        }
    }

    fn run(&self) -> super::script::ContainerRun {
        let runs = &self.script.runs;
        runs[(self.restarts as usize).min(runs.len() - 1)].clone()
    }

    fn running(&mut self, now: u64) {
        self.step = ContainerStep::Running { since: now };
        self.due = self.run().lasts.map_or(NEVER, |lasts| now + lasts.as_millis() as u64);
    }

    fn run_again(&mut self, now: u64) {
        if let Some(ended) = self.termination().cloned() {
            self.last = Some(ended);
        }
        self.restarts += 1;
        self.running(now);
    }

    fn end(&mut self, now: u64, exit: ContainerExit) {
        let ContainerStep::Running { since } = self.step else { return };
        let is_restarted =
            self.role == ContainerRole::Sidecar || (self.restarts_on_failure && exit.code != 0);
        self.step = ContainerStep::Ended(Termination { exit, times: Some((since, now)), id: self.id() });
        self.due = if is_restarted { now + SYNCS_MS } else { NEVER };
    }

    /// Ends it for good, as the kubelet does that stops the pod.
    pub(super) fn stop(&mut self, now: u64) {
        if self.is_running() {
            self.end(now, self.script.stopped.clone());
        } else if self.is_waiting() && self.role != ContainerRole::Sidecar {
            let exit = ContainerExit {
                code: 137,
                reason: "ContainerStatusUnknown",
                message: Some("The container could not be located when the pod was terminated"),
            };
            self.step = ContainerStep::Ended(Termination { exit, times: None, id: String::new() });
        }
        self.due = NEVER;
    }

    fn back_off(&mut self) -> u64 {
        self.back_offs += 1;
        FIRST_BACK_OFF_MS << (self.back_offs - 1).min(5)
    }

    fn id(&self) -> String {
        format!("containerd://{}", hex_of(&format!("{}{}", self.id_base, self.restarts)))
    }

    pub(super) fn event(&self, kind: &'static str, reason: &'static str, message: &str) -> KubeletEffect {
        KubeletEffect::Event { kind, reason, message: message.to_owned(), path: Some(self.path.clone()) }
    }

    /// `initializing`: it waits for init containers, not for itself.
    pub(super) fn status(&self, initializing: bool, pod: &PodName) -> Value {
        let (is_up, is_init) = (self.is_running(), self.role == ContainerRole::Init);
        let state = match &self.step {
            ContainerStep::Queued | ContainerStep::Creating => {
                let reason = if initializing { "PodInitializing" } else { "ContainerCreating" };
                json!({"waiting": {"reason": reason}})
            }
            ContainerStep::PullFailed => waiting("ErrImagePull", &self.obstacle_text()),
            ContainerStep::PullBackOff => waiting(
                "ImagePullBackOff",
                &format!("Back-off pulling image \"{}\": ErrImagePull: {}", self.image, self.obstacle_text()),
            ),
            ContainerStep::ConfigurationError => waiting("CreateContainerConfigError", &self.obstacle_text()),
            ContainerStep::CrashLoop => waiting(
                "CrashLoopBackOff",
                &format!(
                    "back-off {} restarting failed container={} pod={}",
                    go_duration(FIRST_BACK_OFF_MS << (self.back_offs - 1).min(5)),
                    self.name,
                    pod.full
                ),
            ),
            ContainerStep::Running { since } => json!({"running": {"startedAt": rfc3339(*since)}}),
            ContainerStep::Ended(termination) => ended(termination),
        };
        let mut status = json!({
            "name": self.name, "image": self.image, "restartCount": self.restarts, "state": state,
            "lastState": self.last.as_ref().map_or(json!({}), ended), "imageID": "",
            // An init container is ready once it has done its work.
            "ready": if is_init { self.final_exit().is_some_and(|exit| exit.code == 0) } else { is_up },
            "started": is_up && !is_init,
        });
        if self.has_run() {
            status["imageID"] = format!("{}@sha256:{}", self.image, hex_of(&self.image)).into();
            let id = match (&self.step, &self.last) {
                (ContainerStep::Ended(termination), _) | (_, Some(termination)) if !is_up => {
                    termination.id.clone()
                }
                _ => self.id(),
            };
            status["containerID"] = id.into();
        }
        if is_up && self.resources.is_object() {
            status["resources"] = self.resources.clone();
        }
        status
    }

    fn obstacle_text(&self) -> String {
        match &self.script.obstacle {
            Some((Obstacle::ImagePull(why) | Obstacle::Configuration(why), _)) => (*why).to_owned(),
            None => String::new(),
        }
    }
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": message}})
}

fn ended(termination: &Termination) -> Value {
    let ContainerExit { code, reason, message } = &termination.exit;
    // Of a container that never ran, a kubelet writes the zero of Go's time, which the API server stores as null.
    let mut end = json!({"exitCode": code, "reason": reason});
    if let Some((started, finished)) = termination.times {
        end["startedAt"] = rfc3339(started).into();
        end["finishedAt"] = rfc3339(finished).into();
        end["containerID"] = termination.id.clone().into();
    }
    if let Some(message) = message {
        end["message"] = (*message).into();
    }
    json!({"terminated": end})
}

/// As Go prints it: `10s`, `1m20s`.
fn go_duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

/// 64 digits that follow from the text, like the identity of a container or an image.
fn hex_of(text: &str) -> String {
    let fnv = |salt: u64| {
        text.bytes().fold(0xcbf2_9ce4_8422_2325 ^ salt, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    (1..=4_u64).map(|salt| format!("{:016x}", fnv(salt * 0x9e37_79b9))).collect()
}
