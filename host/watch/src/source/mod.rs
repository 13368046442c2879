//! What the tasks of one source share.

pub(crate) mod handle;
pub(crate) mod input;
pub(crate) mod listers;
pub(crate) mod round;
