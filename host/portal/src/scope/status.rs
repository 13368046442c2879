//! Reduces the status to what the viewer may see. Without the right, the viewer sees only the names of the
//! sources.

use std::sync::Arc;

use kubewitness_core::views::{SourceView, StatusView};

use super::{AccessVerb, ViewerVisibility};
use crate::access::GuardedAct;
use crate::answer::Problem;

impl ViewerVisibility {
    /// For scripts: what was counted after the request.
    pub(crate) async fn visible_status(&self) -> Result<StatusView, Problem> {
        self.of_status(&*self.status.count_anew().await?).await
    }

    /// For pages, which share one count.
    pub(crate) async fn recent_status(&self) -> Result<StatusView, Problem> {
        self.of_status(&*self.status.recent_figures().await?).await
    }

    async fn of_status(&self, status: &StatusView) -> Result<StatusView, Problem> {
        let mut status = status.clone();
        if self.is_operators().await? {
            self.keep_seen(&mut status).await?;
            return Ok(status);
        }
        let mut sources = Vec::new();
        for source in status.sources {
            let counts = self.sees_source(AccessVerb::List, &source.name).await?;
            sources.push(SourceView {
                objects: if counts { source.objects } else { 0 },
                name: source.name,
                api_version: source.api_version,
                kind: source.kind,
                synced: source.synced,
                ..SourceView::default()
            });
        }
        Ok(StatusView { sources, restricted: true, ..StatusView::default() })
    }

    /// An operator sees how the controller works. Objects that are named there are shown only to people who
    /// may see them.
    async fn keep_seen(&self, status: &mut StatusView) -> Result<(), Problem> {
        if self.is_whole() {
            return Ok(());
        }
        for source in &mut status.sources {
            for found in std::mem::take(&mut source.discrepancies) {
                if self.may_see(AccessVerb::List, &found.object, None).await? {
                    source.discrepancies.push(found);
                }
            }
        }
        for plugin in &mut status.plugins {
            let sees_plugin = self.viewer.has_right(GuardedAct::SeePlugin, &plugin.name).await?;
            if let Some(manifest) = plugin.manifest.as_mut().filter(|_| !sees_plugin) {
                Arc::make_mut(manifest).config = None;
            }
            let Some(shadow) = &mut plugin.shadow else { continue };
            for difference in std::mem::take(&mut shadow.differences) {
                if sees_plugin && self.state_at(difference.seq).await?.is_some() {
                    shadow.differences.push(difference);
                }
            }
        }
        Ok(())
    }

    /// Why the controller is not ready, for people who may know.
    pub(crate) async fn not_ready(&self) -> Result<Option<String>, Problem> {
        match self.views.why_not_ready() {
            Some(why) if self.is_operators().await? => Ok(Some(why)),
            _ => Ok(None),
        }
    }
}
