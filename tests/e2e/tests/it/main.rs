//! End to end: the built programs as processes of their own, the real kubectl, and the
//! simulated API server against recordings of a real one.

mod command_line;
mod deployment;
mod docs;
mod effects;
mod limits;
mod plugins;
mod portal;
mod simulated;
mod storage;
mod support;
mod watching;
