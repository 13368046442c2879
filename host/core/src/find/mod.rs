//! What objects are found by: indexes over their places, and label selectors.
//!
//! Decides on bytes and texts alone, and keeps no objects.

pub mod index;
pub mod selector;
