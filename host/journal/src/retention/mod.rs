//! What is kept of a source's history, and how the rest goes.

pub(crate) mod decide;
mod pass;
mod rebase;
mod scene;
mod stats;

pub use pass::Retention;
pub(crate) use scene::is_still_so;
pub(crate) use stats::stats;
