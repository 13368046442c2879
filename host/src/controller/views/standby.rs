//! Answers about plugins that do not run in this process, and about a replica that is not the leader.

use kubewitness_core::ports::{Backlog, PluginProgress};
use kubewitness_core::views::{PluginView, ReplicaView, ViewError};

use super::{HostViews, unavailable};

impl HostViews {
    /// A plugin that another replica runs, or that could not be started, from its last saved progress.
    pub(super) async fn idle_view(
        &self,
        view: PluginView,
        (progress, finished): (PluginProgress, u64),
    ) -> Result<PluginView, ViewError> {
        let newest = *self.journal.newest_position().borrow();
        let mut counted = finished;
        for start in &progress.sources {
            let of = std::slice::from_ref(&start.source);
            let through = start.until.unwrap_or(newest);
            counted += self.journal.count(of, start.after, through).await.map_err(unavailable)?;
        }
        let PluginProgress { delivered, filtered, superseded, dead, cursor, .. } = progress;
        let waiting = counted.saturating_sub(delivered + filtered + dead);
        let observed = delivered + filtered + dead + waiting;
        let lag_seq = newest.saturating_sub(cursor);
        Ok(PluginView { observed, delivered, filtered, superseded, dead, waiting, lag_seq, ..view })
    }

    pub(super) async fn replica_view(&self) -> Result<Option<ReplicaView>, ViewError> {
        match &self.election {
            Some(election) => election.replica_view(&self.journal).await.map(Some).map_err(unavailable),
            None => Ok(None),
        }
    }

    /// A retry helps only if another replica is about to take over.
    pub(super) async fn why_idle(&self, plugin: &str) -> Result<ViewError, ViewError> {
        Ok(match self.replica_view().await? {
            Some(ReplicaView { dispatches: false, dispatcher: Some(other), .. }) => ViewError::Invalid(
                format!("another replica runs the plugin `{plugin}`: ask the process {other}"),
            ),
            Some(ReplicaView { dispatches: false, .. }) => ViewError::Unavailable(format!(
                "no replica runs the plugin `{plugin}` now: one of them is about to take over"
            )),
            _ => ViewError::Unavailable(format!("the plugin `{plugin}` does not run")),
        })
    }
}
