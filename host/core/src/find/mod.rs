//! Finds objects by indexes over their documents and by label selectors.
//!
//! Works on bytes and texts alone, and stores no objects.

pub mod index;
pub mod redact;
pub mod selector;
