//! Nothing but tests: see `tests/simulation`.
