//! The rows of the table of faults that a simulation can't reach, with the built program as a process.
//!
//! A simulated disk fails only in the ways that its author knew. SQLite and the file system have others. So
//! these tests use real disks that are full, that fail to sync, or that return damaged bytes; power cuts,
//! which lose whatever was not synced; processes that are stopped with a signal and continued much later; and
//! two processes that would write to one journal.
//!
//! They are slow and depend on the machine, so everything that simulated time can reach is in
//! `tests/simulation` instead.

mod disk;
mod lab;
mod leaders;
mod power;
mod stopped;
