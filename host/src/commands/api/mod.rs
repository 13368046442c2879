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
pub use complete::{CompletionKind, look_up};
pub use diff::diff;
pub use gaps::{gaps, poison};
pub use get::{get, jobs};
pub use live::{tap, wait};
pub use operate::{dashboard, dead_letters, mute, pause, resume, submit, unmute};
#[cfg(feature = "playground")]
pub use status::plugins_table;
pub use status::{blind, plugin_views, plugins, plural, status};
pub use timeline::{timeline, why};
