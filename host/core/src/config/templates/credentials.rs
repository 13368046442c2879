//! The setting `submit`: the credentials with which the controller creates Jobs.

use serde::{Deserialize, Serialize};

/// How Jobs are submitted from templates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitSpec {
    /// With which credentials the API server is asked to create a Job.
    #[serde(default)]
    pub credentials: Credentials,
}

/// With which credentials the API server is asked to create a Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Credentials {
    /// The token of the person who asks. It has to be one for the API server.
    #[default]
    Token,
    /// The controller's own, impersonating the person who asks. The controller needs the right `impersonate`.
    Impersonation,
    /// The controller's own, where nobody signs in (`--auth none`). Whoever reaches the portal creates Jobs with the
    /// controller's rights.
    Controller,
}
