//! The setting `repeat`: whether a request is sent again if nobody knows whether it arrived.

use serde::{Deserialize, Serialize};

/// Whether a request that may have been sent is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Repeat {
    /// It is sent again: at least once.
    #[default]
    InDoubt,
    /// It is never sent again: its state becomes a dead letter.
    Never,
}
