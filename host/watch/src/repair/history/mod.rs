//! Whether the server's history is still the one that was witnessed, and where another one parted from it.
//!
//! Asks the server and the journal, and changes neither. What follows from an answer is decided in `read`.

pub(crate) mod census;
pub(crate) mod landmarks;
pub(crate) mod newest_common;
