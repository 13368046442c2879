//! One version of a plugin, made from a candidate. It starts nothing: `calls` decides where calls go.

use std::sync::Arc;

use anyhow::{Context, Result};
use kubewitness_core::ports::{GrantProvider, PluginHandler};
use kubewitness_core::views::{ManifestView, ShadowView};
use kubewitness_sandbox::{PluginTally, SandboxPlugin};
use tokio::sync::{Notify, watch};

use super::candidate::PluginCandidate;
use super::manifest;
use super::probation::{VersionProbation, WatchedHandler};
use super::shadow::{ShadowTask, ShadowedHandler};

/// One version of a plugin, ready to be called.
pub struct PluginVersion {
    pub plugin: Arc<SandboxPlugin>,
    pub handler: Arc<dyn PluginHandler>,
    pub probation: VersionProbation,
    pub manifest: ManifestView,
    /// The comparison with its shadow.
    pub shadow: Option<watch::Receiver<ShadowView>>,
}

impl PluginVersion {
    pub async fn of(
        name: &str,
        candidate: &PluginCandidate,
        grants: Arc<dyn GrantProvider>,
        tally: Arc<PluginTally>,
        decided: &Arc<Notify>,
    ) -> Result<Self> {
        let spec = &candidate.parsed.spec;
        let described = candidate.component.describe_itself().await.context("asking what it needs")?;
        let needs = described.needs_with(&spec.config);
        let manifest = manifest::view(
            candidate.component.imported_capabilities(),
            needs,
            &described.config_schema,
            spec,
        );
        let plugin =
            candidate.component.make_plugin(name, &spec.limits, grants).context("instantiating it")?;
        let plugin = Arc::new(plugin.counted_by(tally));
        let probation = VersionProbation::new(Arc::clone(decided));
        let handler = Arc::new(WatchedHandler { handler: plugin.clone(), probation: probation.clone() });
        Ok(Self { plugin, handler, probation, manifest, shadow: None })
    }

    /// The same, but each state is also passed to a shadow.
    pub fn with_shadow(self, shadow: Option<ShadowTask>) -> Self {
        let Some(shadow) = shadow else { return self };
        let view = Some(shadow.subscribe_view());
        Self { handler: Arc::new(ShadowedHandler { handler: self.handler, shadow }), shadow: view, ..self }
    }
}
