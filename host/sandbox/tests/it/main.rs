//! The sandbox against a real guest: the probe of `plugins/probe`, which misbehaves on request.

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
