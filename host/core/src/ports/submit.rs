//! The portal → the API server: Jobs that people submit under their own identity.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::Person;
use crate::config::templates::{Credentials, ParameterSpec, TemplateSpec};
use crate::redact::RedactionRules;

/// The identity with which the API server is called.
#[derive(Clone, Copy, Debug)]
pub enum ActingIdentity<'a> {
    /// The person's own token.
    Token(&'a str),
    /// The controller's credentials, impersonating this person.
    Person(&'a Person),
    /// The controller's credentials, as the controller.
    Controller,
}

/// A fault of one field of a Job, in the API server's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldCause {
    /// A path such as `spec.template.spec.containers[0].image`.
    pub field: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The API server answered and did nothing.
    #[error("{message}")]
    Refused { status: u16, message: String, causes: Vec<FieldCause> },
    /// The API server did not answer. Whether it executed the request is unknown.
    #[error("{0}")]
    Unanswered(String),
}

/// The templates of this controller, and how Jobs are made from them.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateOffer {
    pub credentials: Credentials,
    pub templates: BTreeMap<String, TemplateSpec>,
    /// Determines which values of a template people do not see.
    pub rules: Arc<RedactionRules>,
}

/// Creates Jobs. Every call is one request with a time limit.
#[async_trait]
pub trait JobSubmitter: Send + Sync {
    /// `None` if submission is disabled.
    fn template_offer(&self) -> Option<Arc<TemplateOffer>>;

    /// The Job as the API server created it, or, with `dry_run`, would create it.
    async fn create_job(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        job: &Value,
        dry_run: bool,
    ) -> Result<Value, SubmitError>;

    /// The Job with this name; `None` if it does not exist.
    async fn find_job(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, SubmitError>;
}

/// A template, as people fill it in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Template"))]
pub struct TemplateView {
    pub name: String,
    pub about: String,
    /// The namespaces to which it may be submitted; empty: every one in which a person may create Jobs.
    pub namespaces: Vec<String>,
    pub parameters: Vec<ParameterSpec>,
}

/// A Job to be made of a template. With the header `Idempotency-Key`, a repeated request makes no second Job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    pub template: String,
    pub namespace: String,
    /// By name. A text is read as the parameter's type.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, crate::config::templates::Scalar>"))]
    pub parameters: BTreeMap<String, Value>,
    /// The channel that the Job's annotation `kubewitness.dev/channel` names: `api` or `cli`. Empty: `api`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["", "api", "cli"])))]
    pub channel: String,
    /// Who asks, as they say of themselves. Where people sign in, it is not taken: their name at Kubernetes is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    /// The API server checks the Job, and nothing is created.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of a submission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SubmitResult"))]
pub struct SubmitView {
    pub namespace: String,
    pub name: String,
    /// Left out with `dry_run`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// False where an earlier request with the same key has created it, and with `dry_run`.
    pub created: bool,
    /// Who the Job's annotation says has submitted it.
    pub submitter: String,
    pub dry_run: bool,
}
