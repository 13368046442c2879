//! Runs each call of a plugin as its own task. So the dispatcher, other calls and the journal run on all
//! processors, instead of taking turns on one. A newer version replaces the older one between two calls.

use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Result;
use async_trait::async_trait;
use kubewitness_core::ports::{
    AppliedStates, CallError, CallOutcome, CallPause, KvWrite, PluginHandler, ScheduledCall, StateDelivery,
};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::controller::election::ReplicaElection;
use crate::tasks::{TaskFate, TaskSupervisor};

/// Clone freely: all clones share the same plugin's calls.
#[derive(Clone)]
pub struct PluginCalls {
    name: Arc<str>,
    handler: Arc<RwLock<Arc<dyn PluginHandler>>>,
    tasks: TaskSupervisor,
    running: TaskTracker,
    election: Option<ReplicaElection>,
}

impl PluginCalls {
    pub fn new(
        plugin: &str,
        handler: Arc<dyn PluginHandler>,
        tasks: TaskSupervisor,
        election: Option<ReplicaElection>,
    ) -> Self {
        let name = format!("a call of {plugin}").into();
        let handler = Arc::new(RwLock::new(handler));
        Self { name, handler, tasks, running: TaskTracker::new(), election }
    }

    /// New calls go to this version. Calls in progress end where they began.
    pub fn replace_handler(&self, handler: Arc<dyn PluginHandler>) {
        *self.handler.write().unwrap_or_else(PoisonError::into_inner) = handler;
    }

    fn current_handler(&self) -> Arc<dyn PluginHandler> {
        self.handler.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until no call is in progress. The plugin's states may not be delivered before that: an abandoned
    /// call may commit while it ends, and the next one reads what it has done.
    pub async fn await_idle(&self) {
        self.running.close();
        self.running.wait().await;
    }
}

impl PluginCalls {
    /// If dropped, it abandons the call, which ends at its next wait.
    async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, CallError>> + Send + 'static,
    ) -> Result<T, CallError> {
        // A process that was suspended beyond its Lease notices it here first.
        if self.election.as_ref().is_some_and(|election| !election.is_held()) {
            return Err(CallError::Unavailable("another replica is the leader now".into()));
        }
        let (mut reply, answer) = oneshot::channel();
        let call = self.running.track_future(async move {
            let called = tokio::select! {
                biased;
                () = reply.closed() => return Ok(()),
                called = call => called,
            };
            // The caller gave up at the last moment: the receipt records what the call has done.
            reply.send(called).ok();
            Ok(())
        });
        self.tasks.spawn_task(&*self.name, TaskFate::Finite, call);
        let gone = |_| CallError::Unavailable("the call ended without an answer".to_string());
        answer.await.map_err(gone)?
    }
}

#[async_trait]
impl PluginHandler for PluginCalls {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        let (handler, batch) = (self.current_handler(), batch.to_vec());
        self.run(async move { handler.handle_batch(&batch).await }).await
    }

    async fn find_applied(&self, batch: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        let (handler, batch) = (self.current_handler(), batch.to_vec());
        self.run(async move { handler.find_applied(&batch).await }).await
    }

    async fn handle_tick(&self, tick: ScheduledCall) -> Result<Vec<KvWrite>, CallError> {
        let handler = self.current_handler();
        self.run(async move { handler.handle_tick(tick).await }).await
    }

    fn pause_before_call(&self) -> Option<CallPause> {
        self.current_handler().pause_before_call()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::Semaphore;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Answers when the test allows it, and counts the calls in progress.
    struct SlowHandler {
        may: Semaphore,
        now: AtomicUsize,
    }

    struct UnderWay<'a>(&'a AtomicUsize);

    impl Drop for UnderWay<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[async_trait]
    impl PluginHandler for SlowHandler {
        async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
            self.now.fetch_add(1, Ordering::SeqCst);
            let _under = UnderWay(&self.now);
            self.may.acquire().await.unwrap().forget();
            Err(CallError::Protocol(format!("{} states", batch.len())))
        }

        async fn find_applied(&self, _: &[StateDelivery]) -> Result<AppliedStates, CallError> {
            Ok(AppliedStates::default())
        }
    }

    fn calls() -> (Arc<SlowHandler>, PluginCalls, TaskSupervisor) {
        let slow = Arc::new(SlowHandler { may: Semaphore::new(0), now: AtomicUsize::new(0) });
        let tasks = TaskSupervisor::new(CancellationToken::new(), CancellationToken::new());
        (slow.clone(), PluginCalls::new("p", slow, tasks.clone(), None), tasks)
    }

    async fn until(slow: &SlowHandler, calls: usize) {
        let reached = async {
            while slow.now.load(Ordering::SeqCst) != calls {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reached).await.unwrap();
    }

    #[tokio::test]
    async fn a_call_goes_on_while_nobody_looks_and_its_answer_waits() {
        let (slow, calls, _) = calls();
        let mut call = calls.handle_batch(&[]);
        assert!(futures::poll!(&mut call).is_pending());
        slow.may.add_permits(1);
        calls.await_idle().await;
        assert_eq!(call.await.unwrap_err(), CallError::Protocol("0 states".into()));
    }

    #[tokio::test]
    async fn calls_under_way_end_in_their_version_and_the_next_begin_in_the_newer_one() {
        let (older, calls, _) = calls();
        let mut first = calls.handle_batch(&[]);
        assert!(futures::poll!(&mut first).is_pending());
        until(&older, 1).await;
        let newer = Arc::new(SlowHandler { may: Semaphore::new(1), now: AtomicUsize::new(0) });
        calls.replace_handler(newer);
        assert!(calls.handle_batch(&[]).await.is_err(), "it is answered while the older call is under way");
        assert_eq!(older.now.load(Ordering::SeqCst), 1);
        older.may.add_permits(1);
        assert!(first.await.is_err());
        calls.await_idle().await;
    }

    #[tokio::test]
    async fn nobody_goes_on_before_a_call_that_was_given_up_has_ended() {
        let (slow, calls, tasks) = calls();
        let mut call = calls.handle_batch(&[]);
        assert!(futures::poll!(&mut call).is_pending());
        until(&slow, 1).await;
        drop(call);
        assert_eq!(slow.now.load(Ordering::SeqCst), 1, "it ends by itself");
        calls.await_idle().await;
        assert_eq!(slow.now.load(Ordering::SeqCst), 0);
        tasks.await_all().await.unwrap();
    }
}
