//! The random choices of tests, and the faults that they must find. One seed decides all of them, so a run that failed can be repeated. It knows nothing of
//! what is tested.
//!
//! Each run has a new seed. A test that needs only some choices takes them from [`seed`]. A test that runs once for each
//! of many seeds asks [`SeedPlan`] which ones.

mod dice;
mod planted;
mod seeds;

pub use dice::Dice;
pub use planted::{assert_fault_is_found, panic_message};
pub use seeds::{ReplayHint, SeedPlan, kills, repeat_command, seed, statements};
