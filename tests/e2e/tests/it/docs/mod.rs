//! Reads every page of the documentation and runs its commands.

mod code_paths;
mod colleague;
mod commands;
mod guide;
mod page;
mod prose;
mod references;
mod runs;
mod shell;
mod ten_tasks;
