//! What an event means, given what is known.

pub(crate) mod batch;
pub(crate) mod gap_log;
pub(crate) mod meaning;
pub(crate) mod object;
pub(crate) mod owners;
pub(crate) mod states;
