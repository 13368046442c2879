//! A plugin between its document and running: what is wanted, and what passed every check. It starts nothing.

use bytes::Bytes;
use kubewitness_core::config::{ComponentsSpec, HostSpec, ManifestFault, ModulesSpec, PluginSpec};
use kubewitness_sandbox::{PluginComponent, SandboxEngine};
use tracing::warn;

use crate::config::component::{ComponentSource, FetchedComponent, KeptComponents, PulledFrom};
use crate::config::last_good::{GoodPlugin, LastGood};
use crate::config::manifest::{ManifestEntry, ManifestProblem, ParsedManifest};

/// The subject of an examination. Equal questions have equal answers.
#[derive(Clone, Debug, PartialEq)]
pub struct ExaminedQuestion {
    pub entry: ManifestEntry,
    /// Identifies the component; for a remote one, by its remote name.
    pub mark: String,
    /// The same for its shadow.
    pub shadow_mark: Option<String>,
    pub limits: ComponentsSpec,
    pub modules: ModulesSpec,
}

impl ExaminedQuestion {
    /// Whether the same component is compiled within the same limits, whatever else the document says.
    pub fn compiles_the_same(&self, other: &Self) -> bool {
        self.mark == other.mark
            && self.shadow_mark == other.shadow_mark
            && self.limits == other.limits
            && self.modules == other.modules
    }
}

/// A document that parsed, with the component that it names.
pub struct WantedPlugin {
    pub parsed: ParsedManifest<PluginSpec>,
    pub found: ComponentSource,
    pub question: ExaminedQuestion,
    /// Logged once it is accepted.
    pub warnings: Vec<ManifestProblem>,
    /// The version that is compared with it.
    pub shadow: Option<Box<WantedPlugin>>,
}

/// A configuration that passed every check, ready to run.
#[derive(Clone)]
pub struct PluginCandidate {
    pub parsed: ParsedManifest<PluginSpec>,
    pub component: PluginComponent,
    /// The origin of the component, if it was fetched.
    pub pulled: Option<PulledFrom>,
    /// The component of a fetched shadow: it may take over, and is then not fetched again.
    pub kept: Option<KeptComponents>,
    pub question: ExaminedQuestion,
    /// Logged once it is accepted.
    pub warnings: Vec<ManifestProblem>,
    pub shadow: Option<Box<PluginCandidate>>,
}

/// A plugin that passed the checks, with the bytes of its component: they are saved once it runs.
pub struct ExaminedFit {
    pub candidate: PluginCandidate,
    pub bytes: Bytes,
}

impl PluginCandidate {
    /// Whether only components would change: grants, configuration and subscriptions stay the same.
    pub fn differs_in_components_alone(&self, other: &Self) -> bool {
        let PluginSpec { module, shadow, .. } = other.parsed.spec.clone();
        PluginSpec { module, shadow, ..self.parsed.spec.clone() } == other.parsed.spec
    }

    /// Whether it has the shadow that its document names.
    pub fn has_its_shadow(&self) -> bool {
        self.shadow.is_some() || self.parsed.spec.shadow.is_none()
    }

    pub fn is_same(&self, other: &Self) -> bool {
        let shadow = |it: &Self| it.shadow.as_ref().map(|shadow| shadow.component.file_digest().to_owned());
        self.parsed.spec == other.parsed.spec
            && self.component.file_digest() == other.component.file_digest()
            && shadow(self) == shadow(other)
    }
}

impl WantedPlugin {
    pub fn new(parsed: ParsedManifest<PluginSpec>, found: ComponentSource, host: &HostSpec) -> Self {
        let (limits, modules) = (host.limits.components.clone(), host.modules.clone());
        let (entry, mark) = (parsed.entry.clone(), found.source_mark());
        let question = ExaminedQuestion { entry, mark, shadow_mark: None, limits, modules };
        Self { parsed, found, question, warnings: Vec::new(), shadow: None }
    }

    pub fn with_shadow(self, shadow: Option<Self>) -> Self {
        let shadow_mark = shadow.as_ref().map(|shadow| shadow.question.mark.clone());
        Self {
            question: ExaminedQuestion { shadow_mark, ..self.question },
            shadow: shadow.map(Box::new),
            ..self
        }
    }

    /// Without a remote shadow. A registry that does not answer delays only its own components.
    pub fn at_work(self) -> Self {
        match &self.shadow {
            Some(shadow) if matches!(shadow.found, ComponentSource::Remote(_)) => self.with_shadow(None),
            _ => self,
        }
    }

    /// Reuses what was fetched for the same document before.
    pub fn reuse_fetched(&mut self, good: &GoodPlugin, last_good: &LastGood) {
        if let (ComponentSource::Remote(remote), Some(pulled)) = (&mut self.found, &good.pulled)
            && good.entry.text == self.parsed.entry.text
        {
            remote.reuse_kept(last_good.component(&self.parsed.name, good), pulled);
        }
    }

    /// Keeps the component that was compared under this name, even if the tag has moved meanwhile.
    pub fn keep_compared(&mut self, running: &PluginCandidate) {
        let Some(shadow) = &running.shadow else { return };
        if let (ComponentSource::Remote(remote), Some(pulled), Some(kept)) =
            (&mut self.found, &shadow.pulled, &shadow.kept)
        {
            remote.reuse_kept(kept.clone(), pulled);
        }
    }

    /// Fetches, compiles and checks. This may take minutes.
    pub async fn examine_component(
        self,
        engine: &SandboxEngine,
    ) -> Result<ExaminedFit, Vec<ManifestProblem>> {
        let Self { parsed, found, question, mut warnings, shadow } = self;
        // First, so that nothing in memory waits for room for something else.
        let shadow = match shadow {
            Some(shadow) => Some(Box::pin(shadow.examine_aside(engine)).await?),
            None => None,
        };
        let FetchedComponent { bytes, pulled } = found.fetch_component(&parsed).await?;
        let component = examine_component(engine, &parsed, &bytes, &question.limits).await?;
        warnings.extend(parsed.problems(component.warnings(&parsed.spec)));
        warnings.extend(shadow.iter().flat_map(|shadow| shadow.warnings.clone()));
        let candidate = PluginCandidate { parsed, component, pulled, kept: None, question, warnings, shadow };
        Ok(ExaminedFit { candidate, bytes })
    }

    /// Examines it as a version to compare. A fetched component waits on disk, because it may take over.
    async fn examine_aside(
        self: Box<Self>,
        engine: &SandboxEngine,
    ) -> Result<Box<PluginCandidate>, Vec<ManifestProblem>> {
        let folder = match &self.found {
            ComponentSource::Remote(remote) => Some(remote.folder().to_owned()),
            ComponentSource::Here(_) | ComponentSource::File(_) | ComponentSource::Kept(_) => None,
        };
        let ExaminedFit { candidate, bytes } = self.examine_component(engine).await?;
        let Some(folder) = folder else { return Ok(Box::new(candidate)) };
        let kept = KeptComponents::on_disk(bytes, &folder).await.inspect_err(|error| {
            warn!(plugin = candidate.parsed.name, "the component is fetched again if it takes over: {error}");
        });
        Ok(Box::new(PluginCandidate { kept: kept.ok(), ..candidate }))
    }
}

/// The only judge of a component; `kubewitness check` uses it, too.
pub async fn examine_component(
    engine: &SandboxEngine,
    parsed: &ParsedManifest<PluginSpec>,
    bytes: &Bytes,
    limits: &ComponentsSpec,
) -> Result<PluginComponent, Vec<ManifestProblem>> {
    let refused =
        |message: String| parsed.problems(vec![ManifestFault { field: "spec.module".into(), message }]);
    let component = engine.load(bytes, limits).await.map_err(|error| refused(error.to_string()))?;
    let faults = component.check(&parsed.spec).await.map_err(|error| refused(error.to_string()))?;
    if faults.is_empty() { Ok(component) } else { Err(parsed.problems(faults)) }
}
