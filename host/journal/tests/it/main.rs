//! The journal from outside: whatever was appended can be read back, even after a crash, a repair or a copy.
//!
//! Each store must keep the same promises, so most tests run on every store, and a random test compares each
//! with a model that is too simple to be wrong. The contents of tables are not tested: a store may lay them
//! out as it likes.

// Helpers of tests are test code, but the lint recognises only marked functions.
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
