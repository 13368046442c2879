//! `kubewitness deadletters`: its commands, and how they select dead letters.

use clap::{Args, Subcommand};
use kubewitness_core::config::Duration;

use super::reach::{ObjectQueryArgs, QueryArgs};
use super::values::{MomentArg, parse_count, parse_duration, parse_moment, parse_position};

#[derive(Debug, Subcommand)]
pub enum DeadLetters {
    /// Lists the dead letters, with the last error of each
    List {
        /// Only this plugin's
        #[arg(long)]
        plugin: Option<String>,
        /// Only dead letters of objects in this namespace. Without it: all namespaces
        #[arg(short, long)]
        namespace: Option<String>,
        /// All namespaces, which is the default
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        /// Only dead letters of objects with these labels, also those that are gone, such as `team=a,!old`
        #[arg(short = 'l', long, value_name = "SELECTOR")]
        selector: Option<String>,
        /// Lists the dropped dead letters instead
        #[arg(long)]
        dropped: bool,
        /// Shows them again whenever something changes, until Ctrl-C
        #[arg(short, long)]
        watch: bool,
        #[command(flatten)]
        query: ObjectQueryArgs,
    },
    /// Shows one dead letter, with the result of each try
    Show {
        /// The position of the dead letter in the journal
        #[arg(value_parser = parse_position)]
        seq: u64,
        /// Only this plugin's
        #[arg(long)]
        plugin: Option<String>,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Hands dead letters to their plugin again, in order
    Replay {
        #[command(flatten)]
        choice: LetterChoice,
        /// Waits until all of them were tried, and shows the progress. The exit code is 4 if any of them is parked again
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Gives dead letters up for good. They stay counted as dead
    Drop {
        #[command(flatten)]
        choice: LetterChoice,
        /// All dead letters of the plugin
        #[arg(long, conflicts_with_all = ["seq", "namespace", "error", "older_than", "since", "until"])]
        all: bool,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Lists who replayed or dropped what, and who paused and resumed which plugin, when and why
    Records {
        /// Only this plugin's
        #[arg(long)]
        plugin: Option<String>,
        #[command(flatten)]
        query: QueryArgs,
    },
}

/// Which dead letters. All given conditions must hold.
#[derive(Debug, Args)]
pub struct LetterChoice {
    /// The plugin of the dead letters
    #[arg(long)]
    pub plugin: String,
    /// One position of the journal, or several with commas. Without it: any position
    #[arg(long, value_delimiter = ',', value_parser = parse_position)]
    pub seq: Vec<u64>,
    /// Only dead letters of objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only dead letters whose last error contains this text
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Only dead letters that were parked at least this long ago, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Only dead letters that were parked at this time or later. 12h means the last 12 hours
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub since: Option<MomentArg>,
    /// Only dead letters that were parked before this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub until: Option<MomentArg>,
    /// Why you do it. The reason is kept in the record
    #[arg(long)]
    pub reason: String,
    /// Your name in the record. Without it: your login name. Where people sign in, the record has the name that the
    /// API server knows
    #[arg(long, value_name = "NAME")]
    pub who: Option<String>,
    /// Only counts the dead letters, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Does not ask whether that many dead letters are meant. With a number, which --dry-run gives: only if there are
    /// exactly as many, such as --yes=243. Needed without --seq where nobody can be asked. A drop of several takes the
    /// number
    #[arg(long, value_name = "COUNT", num_args = 0..=1, require_equals = true, value_parser = parse_count)]
    pub yes: Option<Option<u64>>,
}
