//! The judges of the fault tests: what the API server had against what the journal holds, and what
//! the journal holds against what became of it at the plugins. Pure; the faults themselves are in
//! `tests`.

pub mod delivery;
pub mod dice;
pub mod oracle;
pub mod truth;

pub use dice::{Dice, Marks};
pub use oracle::{Fault, Rule, judge};
pub use truth::{Entry, Event, Floor, History, Told, Truth};
