//! What is wrong with a manifest or a rule.

use serde::{Deserialize, Serialize};

/// A fault of a manifest: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Such as `spec.subscribe[0].source`.
    pub field: String,
    pub message: String,
}
