//! The documentation keeps what it says: its pages are read, and their commands are run.

mod commands;
mod page;
mod prose;
mod references;
mod runs;
mod shell;
