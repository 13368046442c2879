//! The journal from outside: what was appended comes back, whatever happens in between.

// Helpers of tests are tests; the lint knows only the functions that are marked so.
#![allow(clippy::unwrap_used)]

mod appends;
mod backlog;
mod crash;
mod damage;
mod export;
mod flips;
mod import;
mod migration;
mod model;
mod moments;
mod opening;
mod retention;
mod servers;
mod size;
mod support;
