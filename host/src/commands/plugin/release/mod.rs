//! What brings a plugin into a cluster, and its next version: its ConfigMap, the comparison in the shadow, and the
//! take-over. These commands run no plugin, and write nothing into a cluster but the ConfigMaps of plugins.

mod cutover;
mod pack;
mod shadow;

pub use cutover::cutover;
pub use pack::{install, pack};
pub use shadow::shadow;
