//! End to end: the built programs as separate processes, used as an operator uses them.
//!
//! Tests of a crate call its functions, so they miss whatever is wrong between the crates: flags, files,
//! signals, exit codes, the order of start and stop. These tests start the built program, with the real
//! kubectl and with real databases, and read its output, its API and its tables.
//!
//! They use the simulated API server, because a real one takes long to start and can't be made to fail on
//! request. The folder `simulated` guards against errors of the simulation: it compares its answers with
//! recordings of a real server. Each folder is one subject; `mod.rs` says which.

mod command_line;
mod deployment;
mod docs;
mod effects;
mod limits;
mod plugins;
mod portal;
mod simulated;
mod storage;
mod support;
mod watching;
