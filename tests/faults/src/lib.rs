//! The judge of the fault tests: what the API server had, what the journal holds, and every way in
//! which the second could lie about the first. Pure; the faults themselves are in `tests/it`.

pub mod oracle;
pub mod truth;

pub use oracle::{Fault, Rule, judge};
pub use truth::{Entry, Event, Floor, History, Told, Truth};
