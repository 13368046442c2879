//! What operators do with a running controller: `dashboard`, `pause` and `resume`.

use clap::Args;

use super::reach::{QueryArgs, ReachArgs};

#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Only prints the address, and opens no browser
    #[arg(long)]
    pub no_open: bool,
    #[command(flatten)]
    pub reach: ReachArgs,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The plugin
    pub plugin: String,
    /// Why you do it. The reason is kept in the record
    #[arg(long)]
    pub reason: String,
    /// Your name in the record. Without it: your login name. Where people sign in, the record has the name that the
    /// API server knows
    #[arg(long, value_name = "NAME")]
    pub who: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
}
