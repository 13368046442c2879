//! Brings a plugin and its next version into a cluster: its ConfigMap, the comparison in the shadow, and the
//! cutover.
//!
//! A new version that is simply installed shows its errors only in its effects. So it can run in the shadow
//! first: it gets the same states, its calls have no effect, and what both versions would do is compared
//! before the cutover.
//!
//! These commands run no plugin, and write nothing into a cluster except the ConfigMaps of plugins.

mod cutover;
mod pack;
mod shadow;

pub use cutover::cutover;
pub use pack::{install, pack};
pub use shadow::shadow;
