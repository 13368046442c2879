//! The parts of a state: versions, identities, documents as bytes, times, and their bounds.
//!
//! Every stage handles states, so these types must not depend on any stage, or a change in one would reach
//! all others. So this module uses only [`files`](crate::files) from the rest of the crate: no configuration,
//! no status rules, no lanes. A document stays the exact bytes of the server; the id of a state is a pure
//! function of its identity, so the same state always gets the same id.

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
