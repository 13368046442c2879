//! The parts of a state: versions, identities, documents as bytes, times, and their bounds.
//!
//! The parts must not depend on how they are used. So this module uses only [`files`](crate::files) from the
//! rest of the crate: no configuration, no status rules, no lanes.

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
