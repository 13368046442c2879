//! The journal from outside: what was appended comes back, whatever happens in between.

// Helpers of tests are tests; the lint knows only the functions that are marked so.
#![allow(clippy::unwrap_used)]

mod appends;
mod backlog;
mod copy;
mod files;
mod model;
mod past;
mod proof;
mod retention;
mod servers;
mod support;
