//! What is kept of a source's history, and how the rest goes.

mod decide;
mod pass;
mod rebase;
mod scene;
mod stats;

pub use pass::Retention;
pub use stats::stats;
