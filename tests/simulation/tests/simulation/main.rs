//! The whole pipeline in simulated time: a cluster, a watch, a journal, the real dispatch and lanes,
//! plugins and their sinks. All choices come from one seed, so that a seed replays a run exactly.

// A helper of a test fails as the test itself would; its tasks end with the test's runtime.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod bugs;
mod journal;
mod planted_bugs;
mod plugin;
mod rows;
mod seeds;
mod sink;
mod steps;
mod story;
mod watcher;
mod world;
