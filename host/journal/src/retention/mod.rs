//! Takes old states away, as far as the settings of a source and its plugins allow. `decide` chooses,
//! `pass` asks the journal's writer to remove. Knows no SQL, and removes nothing itself.

mod decide;
mod leaps;
mod pass;
mod rebase;
mod removable;
mod stats;
mod sweep;
mod used_rows;

pub use pass::SourceRetention;
pub use stats::stats;
