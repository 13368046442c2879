//! The setting `submit.credentials`: in whose name the API server is asked.

use serde::{Deserialize, Serialize};

/// With which credentials the API server is asked to create a Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Credentials {
    /// The token of the person who asks. It has to be one for the API server.
    #[default]
    Token,
    /// The host's own, impersonating the person who asks. The host needs the right `impersonate`.
    Impersonation,
    /// The host's own, where nobody signs in (`--auth none`). Whoever reaches the portal creates Jobs with the
    /// host's rights.
    Controller,
}
