//! How states get into the journal. Callers queue their appends; `group` commits them together, and
//! `plan` decides which rows they make. Reads nothing for callers, and knows no SQL: it writes through
//! the traits of `store`.

pub(crate) mod group;
pub(crate) mod plan;
pub(crate) mod recent;
