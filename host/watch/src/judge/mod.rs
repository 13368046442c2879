//! What an event means, given what is known: which states it makes, and which objects have to be read back.
//!
//! Pure: it waits for nothing, and knows neither the journal nor the server. It reads the cache, and changes
//! nothing in it.

pub(crate) mod batch;
pub(crate) mod gap_log;
pub(crate) mod meaning;
pub(crate) mod object;
pub(crate) mod owners;
pub(crate) mod states;
