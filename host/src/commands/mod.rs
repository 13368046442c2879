//! The commands that read, verify and end. They never run a controller: `run` and `playground` do.
//!
//! Scripts rely on a command's exit code, so a command returns a [`CommandEnd`] or an error, and one place
//! maps them to codes. The commands are grouped by what they read: the API, a journal, an audit trail, files,
//! a plugin. A group uses nothing else, so an offline command can't depend on a running controller, and a
//! command for the API can't read another process's journal.

mod api;
mod audit;
mod check;
mod doctor;
mod journal;
mod object_files;
mod plugin;
pub mod print;
mod reach;
mod shell;

use std::fmt;

use anyhow::Result;

pub use api::{
    dead_letters, get, mute, pause, resume, run_dashboard, run_diff, run_gaps, run_jobs, run_plugins,
    run_poison, run_status, run_submit, run_tap, run_timeline, run_wait, run_why, unmute,
};
#[cfg(feature = "playground")]
pub use api::{plugins_table, plural};
#[cfg(test)]
pub use audit::BrokenLine;
#[cfg(feature = "playground")]
pub use audit::new_key;
pub use audit::run_audit;
pub use check::check;
#[cfg(test)]
pub use doctor::codes;
pub use doctor::run_doctor;
pub use journal::journal;
pub use plugin::plugin;
pub use shell::{complete, completion, man};

/// The result of a command, as its exit code reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    Fine,
    /// A check or a job failed; the command itself worked.
    Failed,
    /// Nothing failed, but something is probably not as intended.
    Warned,
    /// The awaited condition did not occur in time.
    TimedOut,
}

impl CommandEnd {
    pub const fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Failed => 3,
            Self::Warned => 4,
            Self::TimedOut => 5,
        }
    }
}

pub type CommandResult = Result<CommandEnd>;

/// The command line itself makes no sense, whatever the controller or the files contain.
#[derive(Debug)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl UsageError {
    /// Returns an error of this type.
    pub fn error(message: impl Into<String>) -> anyhow::Error {
        Self(message.into()).into()
    }
}
