//! Spawns the process's long-running tasks. A task that is spawned and forgotten can die unnoticed. So every
//! task has a name and declares what its end means, and an unexpected end stops the process. A lint refuses
//! other ways to spawn.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info};

/// The grace period of a stage after an abort. Calls end at the next tick of their engine, and writes in
/// milliseconds; anything slower hangs.
const GRACE: Duration = Duration::from_secs(2);
/// How often the log repeats what is still waited for.
const TELL_AGAIN: Duration = Duration::from_secs(5);

/// The meaning of a task's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskFate {
    /// The process is useless without it, so its end before shutdown stops everything.
    Essential,
    /// It may end whenever it is done; only an error stops the process.
    Finite,
}

/// Clone freely: all clones are one supervisor.
#[derive(Clone)]
pub struct TaskSupervisor {
    tracker: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
    state: Arc<Mutex<TaskState>>,
}

#[derive(Default)]
struct TaskState {
    /// The names of running tasks, in the order in which they were spawned.
    running: BTreeMap<u64, String>,
    spawned: u64,
    failure: Option<anyhow::Error>,
}

impl TaskSupervisor {
    /// `stop` is cancelled when a task ends unexpectedly. Once `abort` is cancelled, the wait for a task ends
    /// with its grace period.
    pub fn new(stop: CancellationToken, abort: CancellationToken) -> Self {
        Self { tracker: TaskTracker::new(), stop, abort, state: Arc::default() }
    }

    /// The process was told to end, or a task ended unexpectedly.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    fn lock_state(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn spawn_task<F>(&self, name: impl Into<String>, fate: TaskFate, future: F) -> JoinHandle<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(self.supervise_task(name.into(), fate, future))
    }

    /// Runs on a separate thread with its own runtime, so that other tasks can't delay it. `begin` creates
    /// the task there.
    pub fn spawn_apart<F>(
        &self,
        name: &'static str,
        fate: TaskFate,
        begin: impl FnOnce() -> Result<F> + Send + 'static,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (supervisor, (tell, begun)) = (self.clone(), std::sync::mpsc::channel());
        spawn_thread(name, move || {
            // If nobody receives the answer, the caller has ended.
            let tell = |result| {
                tell.send(result).ok();
            };
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return tell(Err(error.into())),
            };
            let entered = runtime.enter();
            let task = begin().map(|future| supervisor.supervise_task(name.into(), fate, future));
            drop(entered);
            match task {
                Err(error) => tell(Err(error)),
                Ok(task) => {
                    tell(Ok(()));
                    runtime.block_on(task);
                }
            }
        })?;
        begun.recv().with_context(|| format!("the task `{name}` ended before it was ready"))?
    }

    fn supervise_task<F>(
        &self,
        name: String,
        fate: TaskFate,
        future: F,
    ) -> impl Future<Output = ()> + Send + use<F> + 'static
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let supervisor = self.clone();
        let number = self.note_begun(&name);
        self.tracker.track_future(async move {
            let result = AssertUnwindSafe(future).catch_unwind().await;
            supervisor.note_ended(
                number,
                &name,
                fate,
                result.unwrap_or_else(|panic| Err(panic_error(&*panic))),
            );
        })
    }

    fn note_begun(&self, name: &str) -> u64 {
        let mut state = self.lock_state();
        state.spawned += 1;
        let number = state.spawned;
        state.running.insert(number, name.to_owned());
        number
    }

    fn note_ended(&self, number: u64, name: &str, fate: TaskFate, result: Result<()>) {
        self.lock_state().running.remove(&number);
        let error = match result {
            Err(error) => error.context(format!("the task `{name}` failed")),
            Ok(()) if fate == TaskFate::Essential && !self.stop.is_cancelled() => {
                anyhow!("the task `{name}` ended before it should")
            }
            Ok(()) => return debug!(task = name, "ended"),
        };
        error!(task = name, "{error:#}");
        self.lock_state().failure.get_or_insert(error);
        self.stop.cancel();
    }

    /// Waits for all tasks, then returns the first failure. After an abort the wait is limited, and the
    /// remaining tasks are named.
    pub async fn await_all(&self) -> Result<()> {
        self.tracker.close();
        let all_ended = tokio::select! {
            ended = or_overdue(&self.abort, self.tracker.wait()) => ended.is_some(),
            () = self.log_running_tasks() => false,
        };
        let failure = self.lock_state().failure.take().map_or(Ok(()), Err);
        if all_ended {
            return failure;
        }
        let overdue = format!("told to stop at once, these tasks have not ended: {}", self.running_names());
        match failure {
            Ok(()) => Err(anyhow!(overdue)),
            Err(error) => Err(error.context(overdue)),
        }
    }

    /// Logs at intervals what is waited for.
    pub async fn log_running_tasks(&self) {
        loop {
            tokio::time::sleep(TELL_AGAIN).await;
            info!("waiting for the end of {}", self.running_names());
        }
    }

    fn running_names(&self) -> String {
        let names: Vec<_> = self.lock_state().running.values().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    }
}

/// Waits as long as it takes, but at most for the grace period once `abort` is cancelled: then it returns
/// nothing.
pub async fn or_overdue<T>(abort: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    let overdue = async {
        abort.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        biased;
        output = future => Some(output),
        () = overdue => None,
    }
}

fn panic_error(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    anyhow!("it panicked: {}", text.unwrap_or_else(|| "no message".into()))
}

/// A separate thread, for work that must continue while the runtime itself waits, for example for a file
/// system that does not answer or a log without a reader. Nothing waits for the thread: it ends with the
/// process at the latest.
pub fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).with_context(|| format!("starting the thread `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_essential_task_that_ends_stops_the_process() {
        let stop = CancellationToken::new();
        let tasks = TaskSupervisor::new(stop.clone(), CancellationToken::new());
        tasks.spawn_task("short", TaskFate::Essential, async { Ok(()) });
        stop.cancelled().await;
        let error = tasks.await_all().await.unwrap_err();
        assert!(error.to_string().contains("`short` ended before it should"));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_with_its_message() {
        let stop = CancellationToken::new();
        let tasks = TaskSupervisor::new(stop.clone(), CancellationToken::new());
        tasks.spawn_task("wild", TaskFate::Finite, async { panic!("out of luck") });
        let error = tasks.await_all().await.unwrap_err();
        assert!(format!("{error:#}").contains("out of luck"));
        assert!(stop.is_cancelled());
    }

    #[tokio::test]
    async fn a_finite_task_may_end() {
        let stop = CancellationToken::new();
        let tasks = TaskSupervisor::new(stop.clone(), CancellationToken::new());
        tasks.spawn_task("brief", TaskFate::Finite, async { Ok(()) });
        tasks.await_all().await.unwrap();
        assert!(!stop.is_cancelled());
    }

    #[tokio::test]
    async fn a_task_apart_goes_on_while_the_others_hold_their_thread() {
        let tasks = TaskSupervisor::new(CancellationToken::new(), CancellationToken::new());
        let (told, heard) = std::sync::mpsc::channel();
        let begin = || {
            Ok(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(told.send(())?)
            })
        };
        tasks.spawn_apart("apart", TaskFate::Finite, begin).unwrap();
        // Nothing else runs on the only thread of this test meanwhile.
        heard.recv_timeout(Duration::from_secs(30)).unwrap();
        let refuse = || Err::<std::future::Ready<Result<()>>, _>(anyhow!("the address is taken"));
        let error = tasks.spawn_apart("refused", TaskFate::Finite, refuse).unwrap_err();
        assert_eq!(error.to_string(), "the address is taken");
        tasks.await_all().await.unwrap();
    }

    #[tokio::test]
    async fn after_an_abort_tasks_that_hang_are_named_instead_of_waited_for() {
        let abort = CancellationToken::new();
        let tasks = TaskSupervisor::new(CancellationToken::new(), abort.clone());
        tasks.spawn_task("brief", TaskFate::Finite, async { Ok(()) });
        tasks.spawn_task("stuck", TaskFate::Finite, std::future::pending());
        let waiting = tokio::time::timeout(Duration::from_millis(50), tasks.await_all()).await;
        assert!(waiting.is_err(), "draining takes the time it takes");
        abort.cancel();
        let error = tasks.await_all().await.unwrap_err().to_string();
        assert!(error.contains("`stuck`") && !error.contains("brief"), "{error}");
    }
}
