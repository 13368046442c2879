//! The label of a history.

use serde::{Deserialize, Serialize};

/// The largest number of a signal on Linux. A code such as 255 names none.
const LAST_SIGNAL: i64 = 64;

/// Why an object has the outcome that it has. A Job that succeeds or runs has [`Cause::None`], and what happened to its
/// earlier attempts is in `also`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    ExitCode,
    Signal,
    OutOfMemory,
    Evicted,
    Preempted,
    NodeLost,
    ImagePull,
    Configuration,
    Unschedulable,
    Deadline,
    Quota,
    Suspended,
    Deleted,
    None,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Succeeded,
    Failed,
    Running,
    /// It can't make progress: no pod of it runs.
    Waiting,
    /// It was deleted before it had finished.
    Deleted,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    pub cause: Cause,
    pub outcome: Outcome,
    /// The pod that failed first by the time at which it ended, or that waits; not a pod that a controller ended because
    /// of it.
    pub pod: Option<String>,
    pub container: Option<String>,
    pub init: bool,
    pub sidecar: bool,
    pub exit_code: Option<i64>,
    pub signal: Option<i64>,
    pub node: Option<String>,
    /// The thing that acted, if the history shows it: a preempting pod, the key of a taint, a pressure, an
    /// API.
    pub by: Option<String>,
    /// Failed pods, as the object's own status counts them.
    pub attempts: u64,
    /// The attempt that it came to, as [`crate::attempt_of`] counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// Other causes that are true, such as those of earlier attempts.
    pub also: Vec<Cause>,
}

impl Expected {
    pub fn new(cause: Cause, outcome: Outcome) -> Self {
        Self {
            cause,
            outcome,
            pod: None,
            container: None,
            init: false,
            sidecar: false,
            exit_code: None,
            signal: None,
            node: None,
            by: None,
            attempts: 0,
            attempt: None,
            also: Vec::new(),
        }
    }

    #[must_use]
    pub fn pod(mut self, pod: &str) -> Self {
        self.pod = Some(pod.to_owned());
        self
    }

    #[must_use]
    pub fn container(mut self, container: &str) -> Self {
        self.container = Some(container.to_owned());
        self
    }

    /// The container `name` of `pod` ended with this code, which tells the signal if one ended it.
    #[must_use]
    pub fn ended(self, pod: &str, name: &str, code: i64) -> Self {
        let signal = Some(code - 128).filter(|signal| (1..=LAST_SIGNAL).contains(signal));
        Self { exit_code: Some(code), signal, ..self.pod(pod).container(name) }
    }

    /// The object itself says that its program ended with this code; no container did.
    #[must_use]
    pub fn exit_code(mut self, code: i64) -> Self {
        self.exit_code = Some(code);
        self
    }

    #[must_use]
    pub fn init(mut self) -> Self {
        self.init = true;
        self
    }

    #[must_use]
    pub fn sidecar(mut self) -> Self {
        self.sidecar = true;
        self
    }

    #[must_use]
    pub fn node(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    #[must_use]
    pub fn by(mut self, actor: &str) -> Self {
        self.by = Some(actor.to_owned());
        self
    }

    #[must_use]
    pub fn also(mut self, causes: &[Cause]) -> Self {
        self.also.extend_from_slice(causes);
        self
    }
}
