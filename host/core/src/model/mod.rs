//! The parts of a state: versions, identities, documents as bytes, times, and their bounds.
//!
//! Of the rest of this crate it uses only [`files`](crate::files): no configuration, no status rules, no lanes.

pub mod address;
pub mod calendar;
pub mod clock;
pub mod document;
pub mod frames;
pub mod kinds;
pub mod limits;
mod messages;
pub mod project;
pub mod state;
pub mod version;

pub use messages::{fault, nearest, phases, words};
