//! What was missed is found and read back, or becomes a gap.

mod audit;
mod compaction;
mod lost;
mod shared;
mod walkback;
