//! Compares at the end what the simulated cluster had with what was witnessed and delivered.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use kubewitness_core::ports::RawState;
use kubewitness_core::views::{PluginView, Views};
use kubewitness_core::{Change, Seq};
use tokio_util::sync::CancellationToken;

use super::PlaygroundWorld;

/// How long nothing may move before the rest is reported as missing. A slow machine that still delivers is not cut off.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many states are read from the journal at once.
const PAGE: usize = 4096;

pub struct CompletenessCheck {
    /// Versions and deletions in the cluster, for the watched kinds.
    pub existed: usize,
    /// Those of them that are in the journal.
    pub witnessed: usize,
    pub plugins: Vec<PluginView>,
    pub notifications: u64,
}

impl CompletenessCheck {
    pub fn is_complete(&self) -> bool {
        self.is_settled() && self.stopped_plugins().next().is_none()
    }

    /// Whether waiting longer would change nothing.
    fn is_settled(&self) -> bool {
        // A plugin that is still being compiled has seen no state.
        let is_even = |plugin: &PluginView| {
            plugin.state != "starting"
                && plugin.waiting == 0
                && plugin.dead == 0
                && plugin.lag_seq == 0
                && plugin.observed == plugin.delivered + plugin.filtered
        };
        self.existed == self.witnessed
            && !self.plugins.is_empty()
            && self.plugins.iter().all(|plugin| is_stopped(plugin) || is_even(plugin))
    }

    /// How much is witnessed, and how much of it the plugins have finished.
    fn progress(&self) -> u64 {
        let finished = |plugin: &PluginView| plugin.delivered + plugin.filtered + plugin.dead;
        self.witnessed as u64 + self.plugins.iter().map(finished).sum::<u64>()
    }

    /// Plugins that get no states until somebody acts.
    pub fn stopped_plugins(&self) -> impl Iterator<Item = &PluginView> {
        self.plugins.iter().filter(|plugin| is_stopped(plugin))
    }
}

fn is_stopped(plugin: &PluginView) -> bool {
    plugin.paused.is_some() || plugin.state == "failed"
}

/// One version of one object, or its deletion.
type VersionKey = (String, Option<String>);

/// Waits until everything is delivered, nothing has moved for too long, or the user interrupts.
pub async fn await_delivered(
    world: &PlaygroundWorld,
    views: &dyn Views,
    abort: &CancellationToken,
) -> Result<CompletenessCheck> {
    world.await_quiet().await;
    let truth = true_versions(world);
    let (mut after, mut witnessed) = (0, HashSet::new());
    let (mut progress, mut moved) = (0, Instant::now());
    loop {
        let status = views.status_view().await?;
        after = take_witnessed(views, after, &mut witnessed).await?;
        let completeness = CompletenessCheck {
            existed: truth.len(),
            witnessed: truth.intersection(&witnessed).count(),
            plugins: status.plugins,
            notifications: world.receiver.received.load(std::sync::atomic::Ordering::Relaxed),
        };
        if completeness.progress() != progress {
            (progress, moved) = (completeness.progress(), Instant::now());
        }
        if completeness.is_settled() || moved.elapsed() > PATIENCE || abort.is_cancelled() {
            return Ok(completeness);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn true_versions(world: &PlaygroundWorld) -> HashSet<VersionKey> {
    let mut keys = HashSet::new();
    for (group, resource) in [("batch", "jobs"), ("", "pods"), ("", "events")] {
        for record in world.api.history(group, resource) {
            let version = (record.event != "DELETED").then(|| record.version.to_string());
            keys.insert((record.uid.clone(), version));
        }
    }
    keys
}

/// Adds the journal's states after this position. Returns the last position that was read.
async fn take_witnessed(views: &dyn Views, mut after: Seq, keys: &mut HashSet<VersionKey>) -> Result<Seq> {
    loop {
        let states = views.states_after(after, PAGE).await?;
        let Some(last) = states.last() else { return Ok(after) };
        if last.seq() <= after {
            return Err(anyhow!("the journal gave position {} after {after}", last.seq()));
        }
        after = last.seq();
        for state in states.into_iter().map(RawState::unredacted) {
            let version = (state.change == Change::Present).then(|| state.resource_version.to_string());
            keys.insert((state.object.uid.clone(), version));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_complete_while_a_plugin_is_still_being_compiled() {
        let of = |state: &str| {
            let plugin = PluginView { name: "audit".into(), state: state.into(), ..PluginView::default() };
            CompletenessCheck { existed: 3, witnessed: 3, plugins: vec![plugin], notifications: 0 }
        };
        assert!(of("active").is_complete());
        assert!(!of("starting").is_settled() && !of("starting").is_complete());
        assert!(of("failed").is_settled() && !of("failed").is_complete());
    }
}
