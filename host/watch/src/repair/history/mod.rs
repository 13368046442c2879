//! Checks whether the server's history is still the witnessed one, and finds where a replaced history
//! diverges.
//!
//! A restored server answers as if nothing had happened, and version numbers alone don't show the change. So
//! several checks compare what was witnessed with what the server has now. This module reads from the server
//! and the journal, and changes neither. `read` decides what to do about an answer.

pub(crate) mod census;
pub(crate) mod landmarks;
pub(crate) mod newest_common;
