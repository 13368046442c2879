//! Removes old states, as far as the settings of a source and its plugins allow.
//!
//! A state may still be needed by a plugin that has not finished it, by a dead letter, or by a watch that may
//! resume before it. Removing by age alone was rejected: it would silently lose states that were never
//! delivered. So `decide` chooses in pure code, and `pass` asks the journal's writer to remove. The writer
//! checks the facts again within its transaction, so a decision never outlives them. This module knows no
//! SQL, and removes nothing itself.

mod decide;
mod leaps;
mod pass;
mod rebase;
mod record_ages;
mod removable;
mod stats;
mod sweep;
mod used_rows;

pub use pass::SourceRetention;
pub use record_ages::RecordAges;
pub use stats::journal_stats;
