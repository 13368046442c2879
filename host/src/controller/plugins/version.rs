//! One version of a plugin, made of a candidate. It starts nothing: calls go where `calls` sends them.

use std::sync::Arc;

use anyhow::{Context, Result};
use kubewitness_core::ports::{Grants, Handler};
use kubewitness_core::views::{ManifestView, ShadowView};
use kubewitness_sandbox::{Plugin, Tally};
use tokio::sync::{Notify, watch};

use super::candidate::Candidate;
use super::manifest;
use super::probation::{Probation, Watched};
use super::shadow::{Shadow, Shadowed};

/// One version of a plugin, ready to be called.
pub struct Version {
    pub plugin: Arc<Plugin>,
    pub handler: Arc<dyn Handler>,
    pub probation: Probation,
    pub manifest: ManifestView,
    /// What its shadow does beside it.
    pub shadow: Option<watch::Receiver<ShadowView>>,
}

impl Version {
    pub async fn of(
        name: &str,
        candidate: &Candidate,
        grants: Arc<dyn Grants>,
        tally: Arc<Tally>,
        decided: &Arc<Notify>,
    ) -> Result<Self> {
        let spec = &candidate.parsed.spec;
        let described = candidate.component.describe().await.context("asking what it needs")?;
        let needs = described.needs_with(&spec.config);
        let manifest = manifest::view(candidate.component.imports(), needs, &described.config_schema, spec);
        let plugin = candidate.component.plugin(name, &spec.limits, grants).context("instantiating it")?;
        let plugin = Arc::new(plugin.counted_by(tally));
        let probation = Probation::new(Arc::clone(decided));
        let handler = Arc::new(Watched { handler: plugin.clone(), probation: probation.clone() });
        Ok(Self { plugin, handler, probation, manifest, shadow: None })
    }

    /// The same, with each state handed on to a shadow.
    pub fn beside(self, shadow: Option<Shadow>) -> Self {
        let Some(shadow) = shadow else { return self };
        let view = Some(shadow.view());
        Self { handler: Arc::new(Shadowed { handler: self.handler, shadow }), shadow: view, ..self }
    }
}
