//! A fault of a manifest or a status rule.

use serde::{Deserialize, Serialize};

/// A fault of a manifest: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The path of the field, such as `spec.subscribe[0].source`.
    pub field: String,
    pub message: String,
}
