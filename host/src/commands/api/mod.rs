//! The commands that ask a running controller. They see its HTTP API only: no file, no journal, no cluster.

mod client;
mod dashboard;
mod dead_letters;
mod follow;
mod gaps;
mod get;
mod pausing;
mod status;
mod timeline;

pub use dashboard::dashboard;
pub use dead_letters::dead_letters;
pub use gaps::{gaps, poison};
pub use get::{get, jobs};
pub use pausing::{pause, resume};
#[cfg(feature = "playground")]
pub use status::plugins_table;
pub use status::{plugins, status};
pub use timeline::timeline;
