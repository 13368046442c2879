//! Decides what an event means, given what is known: which states it makes, and which objects must be read
//! back.
//!
//! Meaning depends on history, so it is where most faults of a watch hide: repeats, replays, reused names and
//! lagging servers. So the decision is pure. It reads the cache and does not change it, never waits, and
//! knows neither the journal nor the server. Tests can drive it through every order of events.

pub(crate) mod batch;
pub(crate) mod gap_log;
pub(crate) mod meaning;
pub(crate) mod object;
pub(crate) mod owners;
pub(crate) mod states;
