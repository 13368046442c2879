//! The one place that spawns. Every task has a name and a declared fate: what its end means.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error};

/// What it means that a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Without it the process is of no use: its end before shut-down stops everything.
    Essential,
    /// It may end whenever it is done; only an error stops the process.
    Finite,
}

/// Clone freely: all clones are one supervisor.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    failure: Arc<Mutex<Option<anyhow::Error>>>,
}

impl Tasks {
    /// `stop` is cancelled when a task ends against its fate.
    pub fn new(stop: CancellationToken) -> Self {
        Self { tracker: TaskTracker::new(), stop, failure: Arc::default() }
    }

    pub fn spawn<F>(&self, name: impl Into<String>, fate: Fate, future: F) -> JoinHandle<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let name = name.into();
        let supervisor = self.clone();
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(self.tracker.track_future(async move {
            let result = AssertUnwindSafe(future).catch_unwind().await;
            supervisor.ended(&name, fate, result.unwrap_or_else(|panic| Err(panic_error(&*panic))));
        }))
    }

    fn ended(&self, name: &str, fate: Fate, result: Result<()>) {
        let error = match result {
            Err(error) => error.context(format!("the task `{name}` failed")),
            Ok(()) if fate == Fate::Essential && !self.stop.is_cancelled() => {
                anyhow!("the task `{name}` ended before it should")
            }
            Ok(()) => return debug!(task = name, "ended"),
        };
        error!(task = name, "{error:#}");
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.cancel();
    }

    /// Waits for all tasks, then tells the first failure.
    pub async fn finish(&self) -> Result<()> {
        self.tracker.close();
        self.tracker.wait().await;
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

fn panic_error(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    anyhow!("it panicked: {}", text.unwrap_or_else(|| "no message".into()))
}

/// The signals that ask for an end: the first drains, the second aborts.
pub async fn signals(stop: CancellationToken, abort: CancellationToken) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    for token in [&stop, &abort] {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = abort.cancelled() => return Ok(()),
        }
        if !stop.is_cancelled() {
            tracing::info!("draining; a second signal stops at once");
        }
        token.cancel();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_essential_task_that_ends_stops_the_process() {
        let stop = CancellationToken::new();
        let tasks = Tasks::new(stop.clone());
        tasks.spawn("short", Fate::Essential, async { Ok(()) });
        stop.cancelled().await;
        let error = tasks.finish().await.unwrap_err();
        assert!(error.to_string().contains("`short` ended before it should"));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_with_its_message() {
        let stop = CancellationToken::new();
        let tasks = Tasks::new(stop.clone());
        tasks.spawn("wild", Fate::Finite, async { panic!("out of luck") });
        let error = tasks.finish().await.unwrap_err();
        assert!(format!("{error:#}").contains("out of luck"));
        assert!(stop.is_cancelled());
    }

    #[tokio::test]
    async fn a_finite_task_may_end() {
        let stop = CancellationToken::new();
        let tasks = Tasks::new(stop.clone());
        tasks.spawn("brief", Fate::Finite, async { Ok(()) });
        tasks.finish().await.unwrap();
        assert!(!stop.is_cancelled());
    }
}
