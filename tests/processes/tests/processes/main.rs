//! Rows of the table of faults that a simulation can't reach: the built program on disks that are
//! full, failing or damaged, and stopped in the middle of its work.

mod disk;
mod lab;
mod stopped;
