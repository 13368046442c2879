//! Tests of witnessing while either side fails: outages, restarts, several sources, gaps, and what was there
//! before.

mod causes;
mod encrypted;
pub mod gaps;
mod outage;
mod past;
pub mod restart;
mod resync;
mod retention;
mod rules;
mod sources;
