//! When the plugin may be called again: pure machines, to which the caller passes the time.

pub(crate) mod breaker;
pub(crate) mod pause;
pub(crate) mod ticks;
