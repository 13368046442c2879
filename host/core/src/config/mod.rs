//! The manifests that an operator writes: the host's settings, and one document for each plugin.
//!
//! A mistake in a manifest should be found when it is written, with its field, and all mistakes at once. So
//! deserialization refuses a wrong shape or an unknown field, and [`check`](HostSpec::check) finds names that
//! point nowhere and numbers out of range. Schemas and the reference are generated from the same types. This
//! module reads no file, no environment variable and no secret: the controller does. A secret in a manifest
//! is always a reference.

mod check;
mod components;
mod destinations;
mod host;
mod ledgers;
mod plugin;
mod redaction;
#[cfg(test)]
mod reference;
mod streams;
pub mod templates;
mod values;

use serde::{Deserialize, Serialize};

pub use crate::find::index::IndexSpec;
pub use crate::model::fault::ManifestFault;
pub use crate::model::kinds::is_name;
pub use components::{
    CeilingSpec, ComponentsSpec, ConfigField, GrantKind, HostLimitsSpec, ModuleKind, OciReference,
    config_faults, config_fields, is_local,
};
pub use destinations::*;
pub use host::*;
pub use ledgers::files;
pub use ledgers::{LedgerSpec, RotateSpec, ShipSpec, SigningSpec};
pub use plugin::*;
pub use redaction::{RedactedField, RedactionSpec};
pub use streams::{FromSpec, StreamSpec};
pub use templates::{Credentials, SubmitSpec};
pub use values::{Bytes, Duration, QuantityError};

pub const API_VERSION: &str = "kubewitness.dev/v1alpha1";
pub const PLUGIN_LABEL: &str = "kubewitness.dev/plugin";
pub const HOST_LABEL: &str = "kubewitness.dev/host";
pub const TEMPLATE_LABEL: &str = "kubewitness.dev/template";
pub const STATUS_LABEL: &str = "kubewitness.dev/status";
/// The keys of a ConfigMap's `data` that hold the documents.
pub const PLUGIN_KEY: &str = "plugin.yaml";
pub const HOST_KEY: &str = "host.yaml";
pub const TEMPLATE_KEY: &str = "template.yaml";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest<Spec> {
    /// The version of this format.
    #[cfg_attr(test, schemars(extend("const" = API_VERSION)))]
    pub api_version: String,
    /// The kind of the document.
    pub kind: String,
    /// The name of the document.
    pub metadata: Metadata,
    /// The content of the document.
    pub spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The name of the document. It is the name of the plugin or template.
    #[cfg_attr(test, schemars(schema_with = "reference::name"))]
    pub name: String,
}
