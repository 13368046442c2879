//! Missed versions are found and read back, or become a gap.

mod audit;
mod compaction;
mod lost;
mod shared;
mod walkback;
