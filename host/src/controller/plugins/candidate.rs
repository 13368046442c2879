//! A plugin on its way from a document to one that may run: what is wanted, and what passed every check. It starts
//! nothing.

use std::sync::Arc;

use kubewitness_core::config::{ComponentsSpec, Fault, HostSpec, ModulesSpec, PluginSpec};
use kubewitness_sandbox::{Component, Engine};

use crate::config::component::{Fetched, Found, Pulled};
use crate::config::last_good::GoodPlugin;
use crate::config::manifest::{Entry, Parsed, Problem};

/// What is examined. The same question has the same answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub entry: Entry,
    /// Of the component; of one that is fetched, its name elsewhere.
    pub mark: String,
    pub limits: ComponentsSpec,
    pub modules: ModulesSpec,
}

impl Question {
    /// Whether the same component is compiled within the same limits, whatever else the document says.
    pub fn compiles_the_same(&self, other: &Self) -> bool {
        self.mark == other.mark && self.limits == other.limits && self.modules == other.modules
    }
}

/// A document that parsed, with the component that it names.
pub struct Wanted {
    pub parsed: Parsed<PluginSpec>,
    pub found: Found,
    pub question: Question,
    /// Told once it is taken.
    pub warnings: Vec<Problem>,
}

/// A configuration that passed every check, ready to run.
#[derive(Clone)]
pub struct Candidate {
    pub parsed: Parsed<PluginSpec>,
    pub component: Component,
    /// Where the component was fetched from, if it lay elsewhere.
    pub pulled: Option<Pulled>,
    pub question: Question,
    /// Told once it is taken.
    pub warnings: Vec<Problem>,
}

impl Candidate {
    /// Whether the component is all that would change: what the plugin may reach, is told and is handed stays.
    pub fn differs_in_component_alone(&self, other: &Self) -> bool {
        let with_its_module =
            PluginSpec { module: other.parsed.spec.module.clone(), ..self.parsed.spec.clone() };
        with_its_module == other.parsed.spec
    }
}

impl Wanted {
    pub fn new(parsed: Parsed<PluginSpec>, found: Found, host: &HostSpec) -> Self {
        let (limits, modules) = (host.limits.components.clone(), host.modules.clone());
        let question = Question { entry: parsed.entry.clone(), mark: found.mark(), limits, modules };
        Self { parsed, found, question, warnings: Vec::new() }
    }

    /// What was fetched for this very document before need not be fetched again. What lies here and is the same is in
    /// memory once.
    pub fn keep(&mut self, good: &GoodPlugin) {
        match (&mut self.found, &good.pulled) {
            (Found::Remote(remote), Some(pulled)) if good.entry.text == self.parsed.entry.text => {
                remote.keep(good.component.clone(), pulled);
            }
            (Found::Here(bytes), _) if *bytes == good.component => *bytes = good.component.clone(),
            _ => {}
        }
    }

    /// Fetches, compiles and checks. This may take minutes.
    pub async fn examine(self, engine: &Engine) -> Result<Candidate, Vec<Problem>> {
        let Self { parsed, found, question, mut warnings } = self;
        let Fetched { bytes, pulled } = found.fetch(&parsed).await?;
        let component = examine_component(engine, &parsed, &bytes, &question.limits).await?;
        warnings.extend(parsed.problems(component.warnings(&parsed.spec)));
        Ok(Candidate { parsed, component, pulled, question, warnings })
    }
}

/// The one judge of a component: `kubewitness check` asks it too.
pub async fn examine_component(
    engine: &Engine,
    parsed: &Parsed<PluginSpec>,
    bytes: &Arc<[u8]>,
    limits: &ComponentsSpec,
) -> Result<Component, Vec<Problem>> {
    let refused = |message: String| parsed.problems(vec![Fault { field: "spec.module".into(), message }]);
    let component = engine.load(bytes, limits).await.map_err(|error| refused(error.to_string()))?;
    let faults = component.check(&parsed.spec).await.map_err(|error| refused(error.to_string()))?;
    if faults.is_empty() { Ok(component) } else { Err(parsed.problems(faults)) }
}
