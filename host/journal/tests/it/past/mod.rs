//! Tests of questions about the past: what was there at a moment, and what was in a phase.

mod moments;
mod phases;
