//! The rows of the table of faults (`docs/repair.md`), each over many seeds.
//!
//! The real source and the real journal run against the simulated API server over real sockets, through a
//! proxy that a test can let delay, cut or replace what passes. Afterwards the judges of this crate compare
//! the journal with the history that the server kept.
//!
//! Sockets are real because HTTP clients and TLS are part of what can fail. The price is that a seed replays
//! the choices but not the timing; `tests/simulation` replays both, without sockets.

// A helper of a test fails as the test itself would; its tasks end with the test's runtime.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod client;
mod killed_journal;
mod planted_bugs;
mod rows;
mod seeds;
mod wire;
mod workload;
mod world;
