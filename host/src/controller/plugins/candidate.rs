//! A plugin on its way from a document to one that may run: what is wanted, and what passed every check. It starts
//! nothing.

use bytes::Bytes;
use kubewitness_core::config::{ComponentsSpec, Fault, HostSpec, ModulesSpec, PluginSpec};
use kubewitness_sandbox::{Component, Engine};
use tracing::warn;

use crate::config::component::{Fetched, Found, Kept, Pulled};
use crate::config::last_good::{GoodPlugin, LastGood};
use crate::config::manifest::{Entry, Parsed, Problem};

/// What is examined. The same question has the same answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub entry: Entry,
    /// Of the component; of one that is fetched, its name elsewhere.
    pub mark: String,
    /// The same of its shadow.
    pub shadow_mark: Option<String>,
    pub limits: ComponentsSpec,
    pub modules: ModulesSpec,
}

impl Question {
    /// Whether the same component is compiled within the same limits, whatever else the document says.
    pub fn compiles_the_same(&self, other: &Self) -> bool {
        self.mark == other.mark
            && self.shadow_mark == other.shadow_mark
            && self.limits == other.limits
            && self.modules == other.modules
    }
}

/// A document that parsed, with the component that it names.
pub struct Wanted {
    pub parsed: Parsed<PluginSpec>,
    pub found: Found,
    pub question: Question,
    /// Told once it is taken.
    pub warnings: Vec<Problem>,
    /// The version that is compared with it.
    pub shadow: Option<Box<Wanted>>,
}

/// A configuration that passed every check, ready to run.
#[derive(Clone)]
pub struct Candidate {
    pub parsed: Parsed<PluginSpec>,
    pub component: Component,
    /// Where the component was fetched from, if it lay elsewhere.
    pub pulled: Option<Pulled>,
    /// Of a shadow that was fetched: it may take over, and is not fetched again then.
    pub kept: Option<Kept>,
    pub question: Question,
    /// Told once it is taken.
    pub warnings: Vec<Problem>,
    pub shadow: Option<Box<Candidate>>,
}

/// What fits, with the bytes of its component: they go to the disk once it runs.
pub struct Examined {
    pub candidate: Candidate,
    pub bytes: Bytes,
}

impl Candidate {
    /// Whether components are all that would change: what the plugin may reach, is told and is handed stays.
    pub fn differs_in_components_alone(&self, other: &Self) -> bool {
        let PluginSpec { module, shadow, .. } = other.parsed.spec.clone();
        PluginSpec { module, shadow, ..self.parsed.spec.clone() } == other.parsed.spec
    }

    /// Whether it has the shadow that its document names.
    pub fn has_its_shadow(&self) -> bool {
        self.shadow.is_some() || self.parsed.spec.shadow.is_none()
    }

    pub fn is_same(&self, other: &Self) -> bool {
        let shadow = |it: &Self| it.shadow.as_ref().map(|shadow| shadow.component.digest().to_owned());
        self.parsed.spec == other.parsed.spec
            && self.component.digest() == other.component.digest()
            && shadow(self) == shadow(other)
    }
}

impl Wanted {
    pub fn new(parsed: Parsed<PluginSpec>, found: Found, host: &HostSpec) -> Self {
        let (limits, modules) = (host.limits.components.clone(), host.modules.clone());
        let (entry, mark) = (parsed.entry.clone(), found.mark());
        let question = Question { entry, mark, shadow_mark: None, limits, modules };
        Self { parsed, found, question, warnings: Vec::new(), shadow: None }
    }

    pub fn beside(self, shadow: Option<Self>) -> Self {
        let shadow_mark = shadow.as_ref().map(|shadow| shadow.question.mark.clone());
        Self { question: Question { shadow_mark, ..self.question }, shadow: shadow.map(Box::new), ..self }
    }

    /// Without a shadow that lies elsewhere. A registry that does not answer holds up what comes from it alone.
    pub fn at_work(self) -> Self {
        match &self.shadow {
            Some(shadow) if matches!(shadow.found, Found::Remote(_)) => self.beside(None),
            _ => self,
        }
    }

    /// What was fetched for this very document before need not be fetched again.
    pub fn keep(&mut self, good: &GoodPlugin, last_good: &LastGood) {
        if let (Found::Remote(remote), Some(pulled)) = (&mut self.found, &good.pulled)
            && good.entry.text == self.parsed.entry.text
        {
            remote.keep(last_good.component(&self.parsed.name, good), pulled);
        }
    }

    /// What was compared under this name is what takes over: a tag that has moved meanwhile is not asked for.
    pub fn keep_compared(&mut self, running: &Candidate) {
        let Some(shadow) = &running.shadow else { return };
        if let (Found::Remote(remote), Some(pulled), Some(kept)) =
            (&mut self.found, &shadow.pulled, &shadow.kept)
        {
            remote.keep(kept.clone(), pulled);
        }
    }

    /// Fetches, compiles and checks. This may take minutes.
    pub async fn examine(self, engine: &Engine) -> Result<Examined, Vec<Problem>> {
        let Self { parsed, found, question, mut warnings, shadow } = self;
        // First, so that nothing in memory waits for room for something else.
        let shadow = match shadow {
            Some(shadow) => Some(Box::pin(shadow.examine_aside(engine)).await?),
            None => None,
        };
        let Fetched { bytes, pulled } = found.fetch(&parsed).await?;
        let component = examine_component(engine, &parsed, &bytes, &question.limits).await?;
        warnings.extend(parsed.problems(component.warnings(&parsed.spec)));
        warnings.extend(shadow.iter().flat_map(|shadow| shadow.warnings.clone()));
        let candidate = Candidate { parsed, component, pulled, kept: None, question, warnings, shadow };
        Ok(Examined { candidate, bytes })
    }

    /// As a version that is compared. One that was fetched waits on disk, since it may take over.
    async fn examine_aside(self: Box<Self>, engine: &Engine) -> Result<Box<Candidate>, Vec<Problem>> {
        let folder = match &self.found {
            Found::Remote(remote) => Some(remote.folder().to_owned()),
            Found::Here(_) | Found::File(_) | Found::Kept(_) => None,
        };
        let Examined { candidate, bytes } = self.examine(engine).await?;
        let Some(folder) = folder else { return Ok(Box::new(candidate)) };
        let kept = Kept::on_disk(bytes, &folder).await.inspect_err(|error| {
            warn!(plugin = candidate.parsed.name, "the component is fetched again if it takes over: {error}");
        });
        Ok(Box::new(Candidate { kept: kept.ok(), ..candidate }))
    }
}

/// The one judge of a component: `kubewitness check` asks it too.
pub async fn examine_component(
    engine: &Engine,
    parsed: &Parsed<PluginSpec>,
    bytes: &Bytes,
    limits: &ComponentsSpec,
) -> Result<Component, Vec<Problem>> {
    let refused = |message: String| parsed.problems(vec![Fault { field: "spec.module".into(), message }]);
    let component = engine.load(bytes, limits).await.map_err(|error| refused(error.to_string()))?;
    let faults = component.check(&parsed.spec).await.map_err(|error| refused(error.to_string()))?;
    if faults.is_empty() { Ok(component) } else { Err(parsed.problems(faults)) }
}
