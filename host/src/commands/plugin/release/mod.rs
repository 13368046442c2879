//! What brings a plugin into a cluster, and its next version: its ConfigMap, the comparison in the shadow, and the
//! take-over.

mod cutover;
mod pack;
mod shadow;

pub use cutover::cutover;
pub use pack::{install, pack};
pub use shadow::shadow;
