//! The port through which the portal asks the API server who a person is and what that person may see.
//!
//! Rights change at any time, so how long an answer stays valid is a decision, and it belongs to the portal.
//! Implementations therefore cache nothing and decide nothing: they ask, and report a failure as a failure. A
//! missing answer never counts as a permission.

mod shares;

use std::collections::BTreeMap;

pub use shares::PartyShares;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A person or a program, as the API server identifies it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Person {
    pub user: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The action that a person wants to take, as the API server's authorisers describe it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessAttempt {
    pub verb: String,
    pub group: String,
    /// The plural of the kind, as RBAC rules name it: `jobs`.
    pub resource: String,
    /// Empty: every namespace, or a resource without namespaces.
    pub namespace: String,
    /// Empty: an object of any name.
    pub name: String,
}

/// A namespace that exists now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNamespace {
    pub uid: String,
    /// In whole seconds, as the API server reports it. No object of this namespace is older.
    pub created_ms: u64,
}

#[derive(Debug, Error)]
pub enum ReviewError {
    /// The API server may answer the same question in a moment.
    #[error("{0}")]
    Unavailable(String),
    /// The API server does not allow this process to ask.
    #[error("{0}")]
    Forbidden(String),
}

/// Asks the API server. Every call is a new question.
#[async_trait]
pub trait AccessReviewer: Send + Sync {
    /// The person to whom this token belongs; `None` if the API server does not know the token, or does not
    /// know it any more.
    async fn authenticate_token(&self, token: &str) -> Result<Option<Person>, ReviewError>;

    async fn allows_attempt(&self, person: &Person, attempt: &AccessAttempt) -> Result<bool, ReviewError>;

    /// The namespace with this name; `None` if it does not exist.
    async fn find_namespace(&self, name: &str) -> Result<Option<LiveNamespace>, ReviewError>;
}
