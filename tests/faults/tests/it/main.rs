//! The rows of the table of faults, each over many seeds: the real source and the real journal
//! against the simulated API server over real sockets, judged by what the server kept.

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
