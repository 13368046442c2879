//! Asks the controller for the words that complete a word of the command line.

use std::collections::BTreeSet;

use anyhow::Result;
use kubewitness_core::config::templates::{ParameterSpec, ParameterType};
use kubewitness_core::views::{ObjectView, PluginView, StatusView, TemplateView};
use serde_json::Value;

use super::client::ApiClient;
use crate::cli::ReachArgs;

/// More names than a person chooses from.
const NAMES: usize = 500;
/// The most objects whose namespaces are examined.
const OBJECTS: usize = 2000;

/// The kind of a word to complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    Kinds,
    Namespaces,
    Plugins,
    Sources,
    Templates,
    /// The parameters of a template as `NAME=`, without those already given; or the values that one of them
    /// accepts.
    Parameters {
        template: String,
        given: Vec<String>,
        of: Option<String>,
    },
    /// Names of objects of this kind that begin with this text.
    Names {
        kind: String,
        namespace: Option<String>,
        begins: String,
        gone: bool,
    },
}

pub async fn fetch_candidates(reach: &ReachArgs, wanted: &CompletionKind) -> Result<BTreeSet<String>> {
    let client = ApiClient::reach_controller(reach).await?;
    let nothing: [(&str, &str); 0] = [];
    Ok(match wanted {
        CompletionKind::Kinds => {
            let status: StatusView = client.get("api/v1/status", &nothing).await?;
            status.sources.into_iter().map(|source| source.kind.to_lowercase()).collect()
        }
        CompletionKind::Sources => {
            let status: StatusView = client.get("api/v1/status", &nothing).await?;
            status.sources.into_iter().map(|source| source.name).collect()
        }
        CompletionKind::Plugins => {
            let plugins: Vec<PluginView> = client.get("api/v1/plugins", &nothing).await?;
            plugins.into_iter().map(|plugin| plugin.name).collect()
        }
        CompletionKind::Templates => {
            let templates: Vec<TemplateView> = client.get("api/v1/templates", &nothing).await?;
            templates.into_iter().map(|template| template.name).collect()
        }
        CompletionKind::Parameters { template, given, of } => {
            let templates: Vec<TemplateView> = client.get("api/v1/templates", &nothing).await?;
            let template = templates.into_iter().find(|known| known.name == *template);
            let parameters = template.map(|template| template.parameters).unwrap_or_default();
            match of {
                Some(of) => {
                    let values = parameters.iter().find(|one| one.name == *of).map(known_values);
                    values.unwrap_or_default().into_iter().map(|value| format!("{of}={value}")).collect()
                }
                None => {
                    let open = parameters.into_iter().filter(|one| !given.contains(&one.name));
                    open.map(|one| format!("{}=", one.name)).collect()
                }
            }
        }
        CompletionKind::Namespaces => {
            let objects = client.fetch_list::<ObjectView>("api/v1/objects", &nothing, OBJECTS).await?.rows;
            let namespaces = objects.into_iter().map(|view| view.object.namespace);
            namespaces.filter(|namespace| !namespace.is_empty()).collect()
        }
        CompletionKind::Names { kind, namespace, begins, gone } => {
            let mut query = vec![("kind", kind.as_str())];
            query.extend(namespace.as_deref().map(|namespace| ("namespace", namespace)));
            query.extend((!begins.is_empty()).then_some(("search", begins.as_str())));
            query.extend(gone.then_some(("gone", "true")));
            let objects = client.fetch_list::<ObjectView>("api/v1/objects", &query, NAMES).await?.rows;
            objects.into_iter().map(|view| view.object.name).collect()
        }
    })
}

/// The values that are known in advance.
fn known_values(parameter: &ParameterSpec) -> Vec<String> {
    match (parameter.kind, &parameter.default) {
        (ParameterType::Choice, _) => parameter.choices.clone(),
        (ParameterType::Bool, _) => vec!["true".into(), "false".into()],
        (_, Some(Value::String(text))) => vec![text.clone()],
        (_, Some(default)) => vec![default.to_string()],
        (_, None) => Vec::new(),
    }
}
