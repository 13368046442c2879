//! Whether the server's history is still the one that was witnessed.

pub(crate) mod census;
pub(crate) mod landmarks;
pub(crate) mod newest_common;
