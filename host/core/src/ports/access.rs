//! Who asks, and what they may see: the portal asks, and the API server decides.
//!
//! Nothing here keeps an answer. How long one is kept, and what happens where none can be had, is the
//! portal's to decide.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A person or a program, as the API server knows them.
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

/// What somebody wants to do, as the API server's authorisers take it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub verb: String,
    pub group: String,
    /// The plural, as rules of RBAC name it: `jobs`.
    pub resource: String,
    /// Empty: in every namespace, or of a resource that has none.
    pub namespace: String,
    /// Empty: whatever its name is.
    pub name: String,
}

/// A namespace that is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNamespace {
    pub uid: String,
    /// Whole seconds, as the API server tells it. An object of this namespace is never older.
    pub created_ms: u64,
}

#[derive(Debug, Error)]
pub enum ReviewError {
    /// The same question may be answered in a moment.
    #[error("{0}")]
    Unavailable(String),
    /// The API server does not let this process ask.
    #[error("{0}")]
    Forbidden(String),
}

/// Answers of the API server, asked for anew each time.
#[async_trait]
pub trait Reviewer: Send + Sync {
    /// Whose token this is; none where the API server does not know it, or no longer.
    async fn authenticate(&self, token: &str) -> Result<Option<Person>, ReviewError>;

    async fn allows(&self, person: &Person, attempt: &Attempt) -> Result<bool, ReviewError>;

    /// The namespace of this name; none where there is none.
    async fn namespace(&self, name: &str) -> Result<Option<LiveNamespace>, ReviewError>;
}
