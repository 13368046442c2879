//! Brings states into the journal. Callers queue their appends; `group` commits them together, and `plan`
//! decides which rows they make.
//!
//! Decisions and I/O are apart, so that a test can drive `plan` without a store, and each store can be slow
//! or fail in its own way. It reads nothing for callers, and knows no SQL: it writes through the traits of
//! `store`.

pub(crate) mod group;
pub(crate) mod plan;
pub(crate) mod recent;
