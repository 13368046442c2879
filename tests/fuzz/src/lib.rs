//! What must hold for any bytes that a server may send: the properties that `libfuzzer/` looks
//! for counterexamples of (`cargo xtask fuzz`), and that `tests/replay.rs` checks without it.
//!
//! A property panics where it does not hold. Each is judged against something that was written
//! apart from what it judges: a split of the whole stream at once, and `serde_json`.

pub mod projection;
pub mod splitter;
mod tree;

/// What must hold for any bytes.
pub type Property = fn(&[u8]);

/// A target: the folder of its inputs in `corpus/`, and its property.
pub const TARGETS: [(&str, Property); 2] = [("splitter", splitter::check), ("projection", projection::check)];
