//! The judges of the fault tests: one compares the API server's history with the journal, the other compares
//! the journal with what took effect at the plugins.
//!
//! A test that expects particular rows after a particular fault covers only the faults that somebody thought
//! of. The judges check the promise itself instead, so any mix of faults can be tested: each version is
//! witnessed once and in order, or lies in exactly one gap; each state takes effect in the order of its
//! object, or is a dead letter.
//!
//! Invariant: they are pure, without a clock or I/O. They take from the product only the types of states and
//! gaps, and none of the code that they judge. The faults themselves are in `tests`, and
//! `tests/it/planted_bugs.rs` proves that the judges find each kind of error.

pub mod delivery;
pub mod marks;
pub mod oracle;
pub mod truth;

pub use kubewitness_chance::Dice;
pub use marks::Marks;
pub use oracle::{OracleFault, OracleRule, judge};
pub use truth::{JournalRecord, ResourceHistory, ServerTruth, TruthEvent, TruthFloor, WrittenEntry};
