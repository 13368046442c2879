//! The commands that call a running controller.
//!
//! They see only its HTTP API: no file, no journal, no cluster. Commands that opened the journal themselves
//! would work on one machine only, and would skip the rights of the person who calls them.
//!
//! So a person on a laptop and a person in the pod get the same answers with the same rights, and the API
//! serves everything that people can do.

mod client;
mod complete;
mod diff;
mod gaps;
mod get;
mod live;
mod object_name;
mod operate;
mod status;
#[cfg(test)]
mod testing;
mod timeline;

pub use client::{ApiClient, ControllerFacts};
pub use complete::{CompletionKind, fetch_candidates};
pub use diff::run_diff;
pub use gaps::{run_gaps, run_poison};
pub use get::{get, run_jobs};
pub use live::{run_tap, run_wait};
pub use operate::{dead_letters, mute, pause, resume, run_dashboard, run_submit, unmute};
#[cfg(feature = "playground")]
pub use status::plugins_table;
pub use status::{plugin_views, plural, run_plugins, run_status, why_blind};
pub use timeline::{run_timeline, run_why};
