//! The judges of the fault tests. One compares the API server's history with the journal, the other compares the
//! journal with what took effect at the plugins. They are pure: no clock, no I/O. The faults themselves are in
//! `tests`.

pub mod delivery;
pub mod marks;
pub mod oracle;
pub mod truth;

pub use kubewitness_chance::Dice;
pub use marks::Marks;
pub use oracle::{OracleFault, OracleRule, judge};
pub use truth::{JournalRecord, ResourceHistory, ServerTruth, TruthEvent, TruthFloor, WrittenEntry};
