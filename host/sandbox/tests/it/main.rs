//! The sandbox with real guests: the probe of `plugins/probe`, which does what a test asks of it, and the
//! guests of `tests/guests/hostile`, which mean harm.
//!
//! A limit that only a mock of a guest runs into proves nothing: memory, time and traps are the work of
//! wasmtime and of compiled code. So every test compiles and runs a component. Invariant: a guest that fails
//! ends with an error that names the cause, and no other guest is affected.

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
