//! Tests of questions about the past: which objects existed at a moment, which were in a phase, and which
//! ended for a given cause.

mod causes;
mod moments;
mod phases;
