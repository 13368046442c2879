//! The commands that show objects and their witnessed states.

use clap::{ArgGroup, Args, ValueEnum};
use kubewitness_core::config::Duration;
use kubewitness_core::order::ORDERS;
use kubewitness_core::status::PHASES;
use kubewitness_core::views::CauseKind;

use super::reach::{GetOutput, ObjectQueryArgs, QueryArgs, ReachArgs};
use super::values::{MomentArg, any_number, parse_duration, parse_moment, parse_stream_position};

#[derive(Debug, Args)]
pub struct GetArgs {
    /// A kind (Job, jobs, jobs.batch, po), several with commas, `all` for every kind but Events, or KIND/NAME
    pub kind: String,
    /// Only the objects with these names. After KIND/NAME: further objects as KIND/NAME
    pub name: Vec<String>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Only the jobs with these names
    pub name: Vec<String>,
    /// The kind; `all` for every kind but Events
    #[arg(long, default_value = "Job")]
    pub kind: String,
    #[command(flatten)]
    pub list: ListArgs,
}

/// Which objects, of which time, and how they are shown.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("past").args(["gone", "was", "cause"]).multiple(true)))]
pub struct ListArgs {
    /// Only this namespace. Without it: all namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only objects with these labels, such as `team=a,tier in (x, y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Only objects whose name, uid, submitter or value of a label contains this text
    #[arg(long, value_name = "TEXT")]
    pub search: Option<String>,
    /// Only objects that an index has under this key, such as owner=UID or node=worker-1
    #[arg(long, value_name = "NAME=KEY")]
    pub index: Option<String>,
    /// Only this phase, such as Running
    #[arg(long)]
    pub phase: Option<String>,
    /// Objects that were in this phase between --since and --until, also those that are gone. Without times: at any
    /// time in the journal. `--gone` lists only those that are gone
    #[arg(
        long,
        value_name = "PHASE",
        value_parser = clap::builder::PossibleValuesParser::new(PHASES),
        ignore_case = true,
        conflicts_with_all = ["index", "at", "watch", "sort"]
    )]
    pub was: Option<String>,
    /// Objects that ended badly for this cause between --since and --until, also those that are gone: the newest end first.
    /// `kubewitness why` says more of one of them
    #[arg(
        long,
        value_name = "CAUSE",
        value_parser = clap::builder::PossibleValuesParser::new(CauseKind::ALL.map(CauseKind::as_str)),
        ignore_case = true,
        conflicts_with_all = ["was", "index", "at", "watch", "sort"]
    )]
    pub cause: Option<String>,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// Each object as it was at this time, such as '2026-11-24 03:00' in your time zone, 2026-11-24T03:00:00Z, or 2h
    /// for two hours ago
    #[arg(long, value_name = "TIME", value_parser = parse_moment, conflicts_with_all = ["index", "gone", "watch"])]
    pub at: Option<MomentArg>,
    /// Objects that are gone, the newest deletion first. `--gone=too` also lists those that exist
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "only",
        conflicts_with_all = ["index", "watch"]
    )]
    pub gone: Option<WhichGone>,
    /// With --gone: only objects that were deleted at this time or later. With --was: that were in the phase at this time or
    /// later. With --cause: that ended badly at this time or later. Times are written as for --at; 7d is a week ago
    #[arg(long, value_name = "TIME", value_parser = parse_moment, requires = "past")]
    pub since: Option<MomentArg>,
    /// With --gone: only objects that were deleted before this time. With --was: that were in the phase before this time.
    /// With --cause: that ended badly before this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment, requires = "past")]
    pub until: Option<MomentArg>,
    /// The order: changed, created, name, namespace, phase or restarts. A `-` before it reverses it. Without it: by
    /// source, kind, namespace and name. Of objects that are gone, `changed` is when they were deleted; created, phase and
    /// restarts sort the 2,000 of them that were deleted last
    #[arg(long, visible_alias = "sort-by", value_name = "ORDER", value_parser = ORDERS, allow_hyphen_values = true, conflicts_with_all = ["at", "watch"])]
    pub sort: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 10_000, value_parser = any_number::<usize>)]
    pub limit: usize,
    /// Goes on and shows changes until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = GetOutput::Table, value_name = "FORMAT")]
    pub output: GetOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhichGone {
    /// Only objects that are gone
    Only,
    /// Objects that are gone, and objects that exist
    Too,
}

#[derive(Debug, Args)]
pub struct TimelineArgs {
    /// KIND/NAME or KIND NAME, such as job/train-7, or a uid
    #[arg(required = true, num_args = 1..=2, value_name = "OBJECT")]
    pub object: Vec<String>,
    /// The namespace of the object. Without it: the namespace of the kubeconfig's context. With --server alone, or without a
    /// context: `default`
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// At most this many states
    #[arg(long, default_value_t = 500, value_parser = any_number::<usize>)]
    pub limit: usize,
    /// Shows them again whenever something changes, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub query: ObjectQueryArgs,
}

#[derive(Debug, Args)]
pub struct WhyArgs {
    /// KIND/NAME or KIND NAME, such as job/train-7, or a uid
    #[arg(required = true, num_args = 1..=2, value_name = "OBJECT")]
    pub object: Vec<String>,
    /// The namespace of the object. Without it: the namespace of the kubeconfig's context. With --server alone, or without a
    /// context: `default`
    #[arg(short, long)]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct GapsArgs {
    /// One object (KIND/NAME or KIND NAME, such as job/train-7, or a uid), or one KIND
    #[arg(num_args = 0..=2, value_name = "OBJECT")]
    pub object: Vec<String>,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only objects in this namespace. Without it: all namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only objects with these labels, also those that are gone, such as `team=a,tier in (x, y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// At most this many, the newest ones
    #[arg(long, default_value_t = 500, value_parser = any_number::<usize>)]
    pub limit: usize,
    /// Shows them again whenever something changes, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub query: ObjectQueryArgs,
}

#[derive(Debug, Args)]
pub struct PoisonArgs {
    /// The number of one poison message. Its bytes are printed as the API server sent them
    #[arg(value_parser = any_number::<u64>)]
    pub number: Option<u64>,
    /// Only this source
    #[arg(long, conflicts_with = "number")]
    pub source: Option<String>,
    /// At most this many, the newest ones
    #[arg(long, default_value_t = 500, value_parser = any_number::<usize>)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// KIND/NAME or KIND NAME, such as job/train-7, or a uid. Then two positions, as `kubewitness timeline` lists
    /// them; or one, which is compared with the state before it. Without a position: the last two states
    #[arg(required = true, num_args = 1..=4, value_name = "OBJECT [SEQ [SEQ]]")]
    pub object: Vec<String>,
    /// The namespace of the object. Without it: the namespace of the kubeconfig's context. With --server alone, or without a
    /// context: `default`
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// With metadata.managedFields, which are left out otherwise
    #[arg(long)]
    pub show_managed_fields: bool,
    #[command(flatten)]
    pub reach: ReachArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 Succeeded, 3 Failed, Cancelled or Deleted, 5 timeout.")]
pub struct WaitArgs {
    /// KIND/NAME or KIND NAME, such as job/train-7, or a uid. An object that is already gone counts with its last
    /// phase
    #[arg(required = true, num_args = 1..=2, value_name = "OBJECT")]
    pub object: Vec<String>,
    /// The namespace of the object. Without it: the namespace of the kubeconfig's context. With --server alone, or without a
    /// context: `default`
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Waits no longer than this, such as 30s or 2h, and then ends with exit code 5. Without it: for ever
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub reach: ReachArgs,
}

#[derive(Debug, Args)]
pub struct TapArgs {
    /// A kind (Job, jobs, jobs.batch, po), or one object as KIND/NAME or KIND NAME. Without it: every kind
    #[arg(num_args = 0..=2, value_name = "KIND[/NAME]")]
    pub object: Vec<String>,
    /// Only this namespace. Without it: all namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only states with these labels, such as `team=a,tier in (x, y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// Begins after this position: `position` of the last line that was taken, or 0 for the oldest state. Its
    /// mark tells whether the journal still has that state; a bare `seq` can't tell. Without it: states to come.
    /// Where retention has removed later states, a line on standard error says so
    #[arg(long, value_name = "SEQ[-MARK]", value_parser = parse_stream_position)]
    pub after: Option<String>,
    #[command(flatten)]
    pub reach: ReachArgs,
}
