//! Finds what was missed, and reads it back.

pub(crate) mod audit;
pub(crate) mod compare;
pub(crate) mod history;
pub(crate) mod missed;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod sweep;
pub(crate) mod walk_back;
