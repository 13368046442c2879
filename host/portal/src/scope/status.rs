//! Cuts the status down to what the viewer may see. Without the right, the viewer sees the names of the sources.

use std::sync::Arc;

use kubewitness_core::views::{SourceView, StatusView};

use super::{Verb, Visibility};
use crate::access::Act;
use crate::answer::Problem;

impl Visibility {
    pub(crate) async fn status(&self) -> Result<StatusView, Problem> {
        let mut status = self.views.status().await?;
        if self.is_operators().await? {
            for plugin in &mut status.plugins {
                if plugin.manifest.is_none() || self.viewer.may(Act::SeePlugin, &plugin.name).await? {
                    continue;
                }
                if let Some(manifest) = &mut plugin.manifest {
                    Arc::make_mut(manifest).config = None;
                }
                if let Some(shadow) = &mut plugin.shadow {
                    shadow.differences.clear();
                }
            }
            return Ok(status);
        }
        let mut sources = Vec::new();
        for source in status.sources {
            let counts = self.sees_source(Verb::List, &source.name).await?;
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

    /// Why the controller is not ready, for those who may know.
    pub(crate) async fn not_ready(&self) -> Result<Option<String>, Problem> {
        match self.views.ready() {
            Err(why) if self.is_operators().await? => Ok(Some(why)),
            _ => Ok(None),
        }
    }
}
