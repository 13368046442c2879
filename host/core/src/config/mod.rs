//! What an operator writes: the host's settings and one document a plugin. These types cannot
//! hold what is wrong in shape; names that point nowhere are found by [`check`](HostSpec::check).

mod check;
mod host;
mod plugin;
mod quantity;
mod secret;
mod streams;

use serde::{Deserialize, Serialize};

pub use crate::find::index::IndexSpec;
pub use crate::model::fault::Fault;
pub use check::is_name;
pub use host::*;
pub use plugin::*;
pub use quantity::{Bytes, Duration};
pub use streams::{FromSpec, StreamSpec};

pub const API_VERSION: &str = "kubewitness.dev/v1alpha1";
pub const PLUGIN_LABEL: &str = "kubewitness.dev/plugin";
pub const HOST_LABEL: &str = "kubewitness.dev/host";
pub const STATUS_LABEL: &str = "kubewitness.dev/status";
/// The keys of a ConfigMap's `data` that hold the documents.
pub const PLUGIN_KEY: &str = "plugin.yaml";
pub const HOST_KEY: &str = "host.yaml";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest<Spec> {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    pub name: String,
}
