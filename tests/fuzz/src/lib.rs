//! The properties that must hold for any bytes that a server may send.
//!
//! `libfuzzer/` searches for bytes that break a property (`cargo xtask fuzz`). Such a search has no end, so a
//! test run can't include it. Instead, the inputs found so far are in `corpus/`, and `tests/replay.rs` checks
//! the same properties with them in every test run.
//!
//! A property panics if it does not hold. Each compares the parser with other code that was written
//! independently: with a split of the whole stream at once, or with `serde_json`. A property that used the
//! parser's own helpers would repeat its errors.

pub mod projection;
pub mod splitter;
mod tree;

/// A property that must hold for any bytes.
pub type Property = fn(&[u8]);

/// A target: the folder of its inputs in `corpus/`, and its property.
pub const TARGETS: [(&str, Property); 2] = [("splitter", splitter::check), ("projection", projection::check)];
