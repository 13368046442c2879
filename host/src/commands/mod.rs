//! The commands that ask and prove; those that run are `controller` and `playground`.

mod check;
mod client;
pub mod print;
mod proof;
mod query;

use anyhow::Result;

pub use check::check;
pub use proof::{audit, journal};
pub use query::{dead_letters, jobs, plugins, plugins_table, status, timeline};

/// How a command ended, as its exit code says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Fine,
    /// A check failed or a job did: the command itself worked.
    Failed,
}

pub type Ended = Result<End>;
