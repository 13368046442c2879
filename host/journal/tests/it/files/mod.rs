//! A journal as a file: which files are opened, by which process, in which format, of which size, and after a
//! kill.

mod crash;
mod migration;
mod opening;
mod size;
