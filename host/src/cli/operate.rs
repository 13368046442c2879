//! The commands that operate a running controller: `dashboard`, `status`, `plugins`, `pause`, `resume`, `mute`,
//! `unmute` and `submit`.

use clap::Args;
use kubewitness_core::config::Duration;

use super::reach::{GetOutput, QueryArgs, ReachArgs};
use super::values::{FlagValueError, parse_duration};

#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Only prints the address, and opens no browser
    #[arg(long)]
    pub no_open: bool,
    #[command(flatten)]
    pub reach: ReachArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Shows the figures again whenever something changes, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct PluginsArgs {
    /// Only the plugin with this name
    pub name: Option<String>,
    /// Shows the plugins again whenever something changes, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = GetOutput::Table, value_name = "FORMAT")]
    pub output: GetOutput,
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

#[derive(Debug, Args)]
#[command(
    after_help = "Plugins apply a mute within seconds. Give exactly one: an object, --namespace, --all or --list."
)]
pub struct MuteArgs {
    /// KIND/NAME or KIND NAME, such as job/train-7, or a uid
    #[arg(num_args = 0..=2, value_name = "OBJECT", conflicts_with_all = ["all", "list"])]
    pub object: Vec<String>,
    /// The namespace of the object. Without an object: everything in this namespace
    #[arg(short, long, conflicts_with_all = ["all", "list"])]
    pub namespace: Option<String>,
    /// Everything in all namespaces
    #[arg(long)]
    pub all: bool,
    /// Lists what is muted, as far as you may undo it
    #[arg(long, conflicts_with_all = ["all", "to", "who"])]
    pub list: bool,
    /// Only this recipient, as the plugin names it, such as ops or mail:ada@example.com. Without it: every recipient
    #[arg(long, value_name = "RECIPIENT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub to: Option<String>,
    /// Your name in the list. Without it: your login name. Where people sign in, the list has the name that the API server
    /// knows
    #[arg(long, value_name = "NAME")]
    pub who: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The API server decides whether you may create the Job. Exit codes with --watch: 0 Succeeded,\n\
                  3 Failed, Cancelled or Deleted, 5 timeout."
)]
pub struct SubmitArgs {
    /// The name of the template, as --list shows it
    #[arg(required_unless_present = "list")]
    pub template: Option<String>,
    /// Lists the templates with their parameters, or those of one template
    #[arg(long, conflicts_with_all = ["parameters", "watch", "dry_run", "key"])]
    pub list: bool,
    /// The value of a parameter. Give the flag once for each
    #[arg(short, long = "parameter", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub parameters: Vec<(String, String)>,
    /// The namespace of the Job. Without it: the namespace of the kubeconfig's context. With --server alone, or without a
    /// context: `default`
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Waits until the Job has ended, and prints the phase in which it ended
    #[arg(short, long)]
    pub watch: bool,
    /// With --watch: waits no longer than this, such as 30s or 2h, and then ends with exit code 5
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "watch")]
    pub timeout: Option<Duration>,
    /// The API server checks the Job, and nothing is created
    #[arg(long, conflicts_with = "watch")]
    pub dry_run: bool,
    /// Two submissions with the same key create one Job. Without it: a new key each time. Give a key in a script that
    /// may be interrupted and run again
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Your name in the annotation of the Job. Without it: your login name. Where people sign in, it is the name that
    /// the API server knows
    #[arg(long, value_name = "NAME")]
    pub who: Option<String>,
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = GetOutput::Table, value_name = "FORMAT")]
    pub output: GetOutput,
}

fn parse_pair(text: &str) -> Result<(String, String), FlagValueError> {
    let (name, value) = text.split_once('=').ok_or(FlagValueError::NoPair)?;
    match name.is_empty() {
        true => Err(FlagValueError::NoName),
        false => Ok((name.to_owned(), value.to_owned())),
    }
}
