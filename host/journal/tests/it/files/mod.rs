//! A journal as a file: which one is opened, by whom, of which format, of which size, and after a kill.

mod crash;
mod migration;
mod opening;
mod size;
