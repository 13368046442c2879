//! The whole pipeline in simulated time: a simulated cluster, watch, journal, plugins and sinks around the
//! real dispatch and the real lanes.
//!
//! Bugs in the order of concurrent steps show up once in thousands of runs, and then can't be repeated. Here
//! nothing waits for real time, so one run takes milliseconds and thousands of seeds are affordable. Tests
//! over real sockets and disks (`tests/faults`, `tests/processes`) cover the parts that are simulated here,
//! at the price of speed and of exact replay.
//!
//! Invariant: all choices come from one seed, so a seed replays a run exactly. `planted_bugs` proves that the
//! oracle finds errors: each planted bug must be found.

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
