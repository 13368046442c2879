//! The script of the containers of a pod. A scenario writes it; nothing of it is in the pod, so that no
//! history gives its cause away.

use std::time::Duration;

/// How a container ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerExit {
    pub code: i64,
    pub reason: &'static str,
    pub message: Option<&'static str>,
}

impl ContainerExit {
    /// As containerd reports an end. A container runtime reports no signal apart from the code.
    pub const fn code(code: i64) -> Self {
        Self { code, reason: if code == 0 { "Completed" } else { "Error" }, message: None }
    }

    pub const fn out_of_memory() -> Self {
        Self { code: 137, reason: "OOMKilled", message: None }
    }

    /// The end of a file or of the log that the container asked the kubelet to report.
    pub const fn saying(mut self, message: &'static str) -> Self {
        self.message = Some(message);
        self
    }
}

/// Why a container does not start.
#[derive(Clone, Debug)]
pub enum Obstacle {
    ImagePull(&'static str),
    Configuration(&'static str),
}

#[derive(Clone, Debug)]
pub struct ContainerRun {
    /// `None`: until somebody ends it.
    pub lasts: Option<Duration>,
    pub exit: ContainerExit,
}

#[derive(Clone, Debug)]
pub struct ContainerScript {
    /// With the time after which it is gone; `None`: never.
    pub obstacle: Option<(Obstacle, Option<Duration>)>,
    /// One for each start. The last one is repeated.
    pub runs: Vec<ContainerRun>,
    /// How it ends when the kubelet stops it.
    pub stopped: ContainerExit,
}

impl Default for ContainerScript {
    fn default() -> Self {
        Self {
            obstacle: None,
            runs: vec![ContainerRun { lasts: None, exit: ContainerExit::code(0) }],
            // Most training processes are children of a shell that does not pass SIGTERM on.
            stopped: ContainerExit::code(137),
        }
    }
}

/// A container that is not named runs until it is stopped.
#[derive(Clone, Debug, Default)]
pub struct PodScript {
    pub(super) containers: Vec<(&'static str, ContainerScript)>,
    pub(super) reports_late: Option<Duration>,
}

impl PodScript {
    /// Its containers run until they are stopped.
    pub fn endless() -> Self {
        Self::default()
    }

    pub fn exits(container: &'static str, after_ms: u64, exit: ContainerExit) -> Self {
        Self::default().add_run(container, after_ms, exit)
    }

    /// Adds one more run of the container.
    #[must_use]
    pub fn add_run(mut self, container: &'static str, after_ms: u64, exit: ContainerExit) -> Self {
        let run = ContainerRun { lasts: Some(Duration::from_millis(after_ms)), exit };
        match self.containers.iter_mut().find(|(name, _)| *name == container) {
            Some((_, script)) => script.runs.push(run),
            None => {
                self.containers.push((container, ContainerScript { runs: vec![run], ..Default::default() }));
            }
        }
        self
    }

    /// Adds a run that lasts until somebody ends it.
    #[must_use]
    pub fn then_endless(mut self, container: &'static str) -> Self {
        self.container(container).runs.push(ContainerRun { lasts: None, exit: ContainerExit::code(0) });
        self
    }

    #[must_use]
    pub fn blocked(
        mut self,
        container: &'static str,
        obstacle: Obstacle,
        gone_after: Option<Duration>,
    ) -> Self {
        self.container(container).obstacle = Some((obstacle, gone_after));
        self
    }

    #[must_use]
    pub fn stopped_with(mut self, container: &'static str, exit: ContainerExit) -> Self {
        self.container(container).stopped = exit;
        self
    }

    /// The kubelet can't reach the API server for this long once a container has ended.
    #[must_use]
    pub fn reported_late(mut self, by: Duration) -> Self {
        self.reports_late = Some(by);
        self
    }

    pub(super) fn of(&self, container: &str) -> ContainerScript {
        let known = self.containers.iter().find(|(name, _)| *name == container);
        known.map(|(_, script)| script.clone()).unwrap_or_default()
    }

    fn container(&mut self, container: &'static str) -> &mut ContainerScript {
        let at = self.containers.iter().position(|(name, _)| *name == container).unwrap_or_else(|| {
            self.containers.push((container, ContainerScript::default()));
            self.containers.len() - 1
        });
        &mut self.containers[at].1
    }
}
