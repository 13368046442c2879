//! Rows of the table of faults that a simulation can't reach: the built program on disks that are
//! full, failing or damaged, stopped in the middle of its work, and beside another one.

mod disk;
mod lab;
mod leaders;
mod power;
mod stopped;
