//! Tests of questions about the past: what was there at a moment, what was in a phase, and what ended for which
//! cause.

mod causes;
mod moments;
mod phases;
