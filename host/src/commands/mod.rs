//! The commands that ask and prove; those that run are `controller` and `playground`.

mod check;
mod check_rules;
mod client;
mod findings;
mod follow;
mod get;
pub mod print;
mod proof;
mod query;
mod status;

use anyhow::Result;

pub use check::check;
pub use findings::{gaps, poison};
pub use get::{get, jobs};
pub use proof::{audit, journal};
pub use query::{dead_letters, timeline};
pub use status::{plugins, plugins_table, status};

/// How a command ended, as its exit code says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Fine,
    /// A check failed or a job did: the command itself worked.
    Failed,
    /// Nothing failed, and something is probably not as it was meant.
    Warned,
}

pub type Ended = Result<End>;
