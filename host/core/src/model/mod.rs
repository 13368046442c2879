//! What a state is made of: versions, identities, documents as bytes, times, and the bounds of them all.
//!
//! Stands on nothing else of this crate: neither configuration nor status rules nor lanes.

pub mod address;
pub mod calendar;
pub mod clock;
pub mod document;
pub mod fault;
pub mod frames;
pub mod kinds;
pub mod limits;
pub mod project;
pub mod state;
pub mod version;
