//! Checks whether the server's history is still the witnessed one, and finds where another history parted
//! from it.
//!
//! Asks the server and the journal, and changes neither. `read` decides what follows from an answer.

pub(crate) mod census;
pub(crate) mod landmarks;
pub(crate) mod newest_common;
