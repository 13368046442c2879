//! Nothing but tests: see `tests/processes`.
