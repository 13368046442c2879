//! Whether people submit Jobs, and with which credentials the API server is asked.

use serde::{Deserialize, Serialize};

pub use crate::submit::Credentials;

/// How Jobs are submitted from templates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitSpec {
    /// With which credentials the API server is asked to create a Job.
    #[serde(default)]
    pub credentials: Credentials,
}
