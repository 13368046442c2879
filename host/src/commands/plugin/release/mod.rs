//! Brings a plugin and its next version into a cluster: its ConfigMap, the comparison in the shadow, and the
//! cutover. These commands run no plugin, and write nothing into a cluster except the ConfigMaps of plugins.

mod cutover;
mod pack;
mod shadow;

pub use cutover::cutover;
pub use pack::{install, pack};
pub use shadow::shadow;
