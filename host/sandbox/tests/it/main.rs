//! The sandbox with real guests: the probe of `plugins/probe`, which executes a test's commands, and the
//! hostile guests of `tests/guests/hostile`.
//!
//! Testing limits with a mock of a guest would prove nothing, because memory, time and traps depend on
//! wasmtime and compiled code. So every test compiles and runs a component. Invariant: a guest that fails
//! ends with an error that names the cause, and no other guest is affected.

// Helpers of tests are test code.
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
