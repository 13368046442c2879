//! The random choices of tests, and the check that a test finds planted faults.
//!
//! A random test is only useful if a failed run can be repeated. So every choice of a run derives from one
//! seed, which the run prints with the command that repeats it. Each run has a new seed; a fixed one would
//! test the same paths for ever. Seeds that failed once are kept in `known_failures.txt` and always run
//! again.
//!
//! A test that needs only some choices takes them from [`seed`]. A test that runs once for each of many seeds
//! asks [`SeedPlan`] which ones. Invariant: this crate knows nothing of what is tested, so that every test
//! crate can use it.

mod dice;
mod planted;
mod seeds;

pub use dice::Dice;
pub use planted::{assert_fault_is_found, panic_message};
pub use seeds::{ReplayHint, SeedPlan, half, kills, repeat_command, seed, statements};
