//! Decides what an event means, given what is known: which states it makes, and which objects must be read
//! back.
//!
//! Pure: it never waits, and knows neither the journal nor the server. It reads the cache and does not change
//! it.

pub(crate) mod batch;
pub(crate) mod gap_log;
pub(crate) mod meaning;
pub(crate) mod object;
pub(crate) mod owners;
pub(crate) mod states;
