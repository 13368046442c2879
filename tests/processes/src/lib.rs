//! An empty library: this package has only tests, in `tests/processes`.
//!
//! `tests/processes/main.rs` says which faults they cover.
