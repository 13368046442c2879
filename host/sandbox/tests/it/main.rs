//! The sandbox against real guests: the probe of `plugins/probe`, which does what a test asks of it, and those of
//! `tests/guests/hostile`, which mean harm.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod capabilities;
mod fit;
mod fixture;
mod hostile;
mod interface;
mod isolation;
mod limits;
mod pool;
mod tally;
mod tick;
