//! How a version of a plugin ends: its calls have time to finish, and until then no other version gets the
//! plugin's states. It starts no version.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use kubewitness_core::limits;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::{PluginCandidate, RunningPlugin, RunningPlugins};
use crate::controller::shared::PluginPhase;
use crate::tasks::TaskFate;

/// How long other plugins' changes wait for a plugin that drains. Almost every call has ended by then.
const WAIT: Duration = Duration::from_secs(1);

pub(super) struct DrainingPlugins {
    /// `None` if no version ran.
    pub candidate: Option<PluginCandidate>,
    pub task: JoinHandle<()>,
}

/// The result of stopping a plugin.
pub enum StopOutcome {
    Drained(Box<PluginCandidate>),
    /// Some calls have not ended.
    NotYet,
    NotThere,
}

impl RunningPlugins {
    /// Drains one plugin. The next version continues from its cursor, with the unfinished states. A plugin
    /// that drains slowly continues beside everything else; the caller stops it again once it has drained.
    pub async fn stop_plugin(&mut self, name: &str) -> StopOutcome {
        if self.is_draining(name) {
            return StopOutcome::NotYet;
        }
        if let Some(candidate) = self.drained.remove(name) {
            return StopOutcome::Drained(candidate.into());
        }
        let Some(running) = self.running.remove(name) else { return StopOutcome::NotThere };
        self.shared.set_phase(name, PluginPhase::Draining, None);
        let (candidate, draining) = (running.candidate.clone(), drain_plugin(name.to_owned(), running));
        let mut task = self.tasks.spawn_task(format!("draining {name}"), TaskFate::Finite, async {
            draining.await;
            Ok(())
        });
        if tokio::time::timeout(WAIT, &mut task).await.is_ok() {
            return StopOutcome::Drained(candidate.into());
        }
        let why = "its calls have not ended yet: the next version waits for them".to_owned();
        self.shared.set_phase(name, PluginPhase::Draining, Some(why));
        self.draining.insert(name.to_owned(), DrainingPlugins { candidate: Some(candidate), task });
        StopOutcome::NotYet
    }

    /// Returns once a plugin that was left draining has drained.
    pub async fn await_drained(&mut self) {
        let name = poll_fn(|context| {
            let ended = self.draining.iter_mut().find_map(|(name, draining)| {
                draining.task.poll_unpin(context).is_ready().then(|| name.clone())
            });
            ended.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        if let Some(DrainingPlugins { candidate: Some(candidate), .. }) = self.draining.remove(&name) {
            self.drained.insert(name, candidate);
        }
    }

    /// The versions that have drained and were not replaced.
    pub fn take_drained(&mut self) -> Vec<PluginCandidate> {
        std::mem::take(&mut self.drained).into_values().collect()
    }

    /// Ends all without draining: another replica may already continue with them.
    pub async fn abandon_all(&mut self) {
        for running in self.running.values() {
            running.abort.cancel();
        }
        self.shut_down().await;
        self.drained.clear();
    }

    pub async fn shut_down(&mut self) {
        let all = std::mem::take(&mut self.running);
        for (name, running) in &all {
            self.shared.set_phase(name, PluginPhase::Draining, None);
            running.drain.cancel();
        }
        futures::future::join_all(all.into_iter().map(|(name, running)| drain_plugin(name, running))).await;
        for left in std::mem::take(&mut self.draining).into_values() {
            left.task.await.ok();
        }
    }
}

pub(super) async fn drain_plugin(name: String, running: RunningPlugin) {
    let RunningPlugin { drain, abort, mut task, .. } = running;
    drain.cancel();
    if tokio::time::timeout(limits::DRAIN, &mut task).await.is_err() {
        warn!(
            plugin = name,
            "the plugin did not drain within {} s: its calls are stopped",
            limits::DRAIN.as_secs()
        );
        abort.cancel();
        // Its end was reported to the supervisor.
        task.await.ok();
    }
    info!(plugin = name, "the plugin has drained");
}
