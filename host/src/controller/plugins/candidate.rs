//! A plugin on its way from a document to one that may run: what is wanted, and what passed every check. It starts
//! nothing.

use std::sync::Arc;

use kubewitness_core::config::{ComponentsSpec, Fault, HostSpec, PluginSpec};
use kubewitness_sandbox::{Component, Engine};

use crate::config::component;
use crate::config::manifest::{Entry, Parsed, Problem};

/// What is examined. The same question has the same answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub entry: Entry,
    /// Of the component.
    pub digest: String,
    pub limits: ComponentsSpec,
}

impl Question {
    /// Whether the same component is compiled within the same limits, whatever else the document says.
    pub fn compiles_the_same(&self, other: &Self) -> bool {
        self.digest == other.digest && self.limits == other.limits
    }
}

/// A document that parsed, with the component that it names.
pub struct Wanted {
    pub parsed: Parsed<PluginSpec>,
    pub bytes: Arc<[u8]>,
    pub question: Question,
    /// Told once it is taken.
    pub warnings: Vec<Problem>,
}

/// A configuration that passed every check, ready to run.
#[derive(Clone)]
pub struct Candidate {
    pub parsed: Parsed<PluginSpec>,
    pub component: Component,
    pub bytes: Arc<[u8]>,
    pub question: Question,
    /// Told once it is taken.
    pub warnings: Vec<Problem>,
}

impl Wanted {
    pub fn new(parsed: Parsed<PluginSpec>, bytes: Vec<u8>, host: &HostSpec) -> Self {
        let (digest, limits) = (component::digest(&bytes), host.limits.components.clone());
        let question = Question { entry: parsed.entry.clone(), digest, limits };
        Self { parsed, bytes: bytes.into(), question, warnings: Vec::new() }
    }

    /// Compiles and checks. This may take minutes.
    pub async fn examine(self, engine: &Engine) -> Result<Candidate, Vec<Problem>> {
        let Self { parsed, bytes, question, warnings } = self;
        let component = examine_component(engine, &parsed, &bytes, &question.limits).await?;
        Ok(Candidate { parsed, component, bytes, question, warnings })
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
