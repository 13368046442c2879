//! An empty library: this package has only tests, in `tests/it`.
//!
//! They are one test program, since each further program would be linked on its own. `tests/it/main.rs` says
//! what they cover.
