//! The random choices of tests. One seed decides all of them, so a run that failed can be repeated. It knows nothing of
//! what is tested.
//!
//! Each run has a new seed. A test that needs only some choices takes them from [`seed`]. A test that runs once for each
//! of many seeds asks [`Seeds`] which ones.

mod dice;
mod seeds;

pub use dice::Dice;
pub use seeds::{Replay, Seeds, kills, repeat_command, seed};
