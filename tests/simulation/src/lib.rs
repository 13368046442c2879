//! An empty library: this package has only tests, in `tests/simulation`.
//!
//! `tests/simulation/main.rs` says what is simulated and what is real.
