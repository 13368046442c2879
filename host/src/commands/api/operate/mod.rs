//! The commands with which an operator changes something, or opens the portal. The controller makes the
//! change: no command here writes into a journal or a cluster.

mod dashboard;
mod dead_letters;
mod muting;
mod pausing;
mod submit;

pub use dashboard::run_dashboard;
pub use dead_letters::dead_letters;
pub use muting::{mute, unmute};
pub use pausing::{pause, resume};
pub use submit::run_submit;
