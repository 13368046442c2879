//! Kubelets of simulated nodes, in this process: they watch the pods that the scheduler binds to their nodes, play what a
//! scenario wrote, and write status, events and heartbeats as a kubelet does.
//!
//! kwok was the other choice. Its stages are driven by what stands in a pod, so each recorded pod would carry its cause in
//! an annotation; and its templates can't keep a container's last state, count restarts, or report a state late. Of a real
//! kubelet's habits these matter to whoever looks for a cause, and are kept: a container's end is written before the
//! phase, a deleted pod's end before the pod goes, and a signal only as a code above 128.

mod container;
mod fleet;
mod pod;
mod script;

pub(super) use fleet::{Fleet, PodPlace, SeenPod};
pub(super) use script::{ContainerExit, Obstacle, PodScript};

use serde_json::Value;

/// A write of a kubelet.
enum KubeletEffect {
    /// A patch of the pod's status, merged by the keys of its lists.
    Status(Value),
    Event {
        kind: &'static str,
        reason: &'static str,
        message: String,
        path: Option<String>,
    },
    /// Nothing of a deleted pod runs any more.
    Remove,
}

/// In whole seconds, as Kubernetes writes times.
pub(super) fn rfc3339(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).map(|at| at.to_string()).unwrap_or_default()
}

pub(super) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as u64
}
