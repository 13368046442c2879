//! How states get in: callers queue, one of them commits for all, and `plan` decides which rows a batch
//! makes. Knows no SQL: a store is what `store` says.

pub(crate) mod group;
pub(crate) mod plan;
pub(crate) mod recent;
