//! When the plugin may be called again: after failures, while the journal is unavailable, and for a tick.
//!
//! Each question is a pure machine of its own, to which the caller passes the time. Sleeping in the loop
//! itself would be shorter to write, but then a pause could be tested only by waiting for it, and a stop
//! would have to interrupt it.

pub(crate) mod breaker;
pub(crate) mod pause;
pub(crate) mod ticks;
