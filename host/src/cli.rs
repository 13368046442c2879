//! The command line: every command and flag, in the order in which a newcomer meets them. The doc comments are the
//! help texts, and the reference is generated from them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use kubewitness_core::calendar;
use kubewitness_core::config::Duration;
use kubewitness_core::status::PHASES;

use crate::access::AccessArgs;

/// Witnesses every state of Kubernetes objects, journals it, and hands it in order to sandboxed
/// plugins.
#[derive(Debug, Parser)]
#[command(
    name = "kubewitness",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    after_help = "Begin with `kubewitness playground`: a simulated cluster that needs nothing else.\n\
                  Exit codes: 0 fine, 1 error, 2 usage, 3 a check failed, 4 warnings only."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a simulated cluster with training jobs, the controller, three plugins and the portal
    Playground(PlaygroundArgs),
    /// Runs the controller: in a cluster, against a kubeconfig, or from a folder of manifests
    Run(RunArgs),
    /// Opens the portal in the browser, signed in as you. Where it is in a cluster, the way to it is there until Ctrl-C
    Dashboard(DashboardArgs),
    /// Shows sources, plugins and the journal, with the completeness figures
    Status(QueryArgs),
    /// Lists the jobs that exist now, with their status
    Jobs(JobsArgs),
    /// Lists the objects of any watched kind that exist now, with their status
    Get(GetArgs),
    /// Lists gaps: versions that could not be witnessed, with their bounds and the reason
    Gaps(GapsArgs),
    /// Lists poison states: frames that could not be read as an object of their kind
    Poison(PoisonArgs),
    /// Shows the story of one object, oldest state first
    Timeline(TimelineArgs),
    /// Lists the plugins with their state, their lag and their last error
    Plugins(QueryArgs),
    /// Pauses a plugin: it gets no states until it is resumed, also over a restart. Retention keeps what it has not had
    Pause(PauseArgs),
    /// Resumes a plugin that was paused: it goes on from where it was
    Resume(PauseArgs),
    /// Lists, replays and drops dead letters: states that were parked after their last try
    #[command(subcommand, name = "deadletters")]
    DeadLetters(DeadLetters),
    /// Verifies, measures, exports and imports a journal
    #[command(subcommand)]
    Journal(Journal),
    /// Verifies an audit trail
    #[command(subcommand)]
    Audit(Audit),
    /// Checks a folder of manifests, a manifest, a component or a status rule, and names each fault
    Check(CheckArgs),
    /// Compiles one component, from standard input to standard output. The controller starts it for itself
    #[command(hide = true)]
    CompileComponent(CompileArgs),
}

/// What the process takes at most.
#[derive(Debug, Args)]
pub struct CompileArgs {
    /// Address space, in bytes
    #[arg(long, value_name = "BYTES")]
    pub memory: u64,
    /// Processor time, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub cpu: u64,
}

/// In a build without the simulated cluster the command says so, whatever its flags.
#[cfg(not(feature = "playground"))]
#[derive(Debug, Args)]
pub struct PlaygroundArgs {
    #[arg(hide = true, allow_hyphen_values = true, trailing_var_arg = true)]
    _flags: Vec<std::ffi::OsString>,
}

#[cfg(feature = "playground")]
#[derive(Debug, Args)]
pub struct PlaygroundArgs {
    /// Jobs to submit in total; 0 keeps submitting
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub jobs: u64,
    /// Changes of state per second
    #[arg(long, default_value_t = 20.0, value_name = "R", value_parser = positive)]
    pub rate: f64,
    /// Ends by itself after this time, such as 30s or 5m
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub duration: Option<Duration>,
    /// The seed of the jobs: the same seed gives the same jobs
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// The folder for the journal, the database, the audit trail and the notifications
    #[arg(long, default_value = "kubewitness-playground", value_name = "DIR")]
    pub data: PathBuf,
    /// Address of the portal and API
    #[arg(long, default_value = "127.0.0.1:8787", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Who may use the portal and API. With `kubernetes`, the playground has three people and prints their tokens
    #[arg(long, value_enum, default_value_t = crate::access::Auth::None, value_name = "WHO")]
    pub auth: crate::access::Auth,
    #[command(flatten)]
    pub plugins: PluginArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[cfg(feature = "playground")]
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 100_000.0 => Ok(rate),
        _ => Err("write a number above 0, at most 100000".into()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse()
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// A folder of manifests: labelled ConfigMaps, or bare documents of the kinds Host and Plugin. Files whose names
    /// begin with a dot are not read. Without it, the controller reads the labelled ConfigMaps of the namespace
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// The data folder, for the journal and the caches
    #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub journal: JournalArgs,
    /// The Lease by which replicas elect a leader. All replicas witness into one journal, and the
    /// leader hands states to plugins. The journal must be on a server
    #[arg(long, env = "KUBEWITNESS_LEASE", value_name = "[NAMESPACE/]NAME")]
    pub lease: Option<String>,
    /// Address of the portal and API
    #[arg(long, env = "KUBEWITNESS_LISTEN", default_value = "127.0.0.1:8787", value_name = "ADDR")]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub access: AccessArgs,
    /// A second address for /healthz, /readyz and /metrics, which the network may reach
    #[arg(long, value_name = "ADDR")]
    pub health_listen: Option<SocketAddr>,
    /// The kubeconfig. Without it: $KUBECONFIG, ~/.kube/config, or the service account of the pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace of the ConfigMaps. Without it: that of the context, or of the pod
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub plugins: PluginArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Which database has the journal. An address with a password is read from the environment or from
/// a file, since a command line is seen by everybody on the machine.
#[derive(Debug, Args)]
pub struct JournalArgs {
    /// Where the journal is: `sqlite` for journal.db in the data folder, or the address of a database
    /// (postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE)
    #[arg(
        long = "journal",
        env = "KUBEWITNESS_JOURNAL",
        hide_env_values = true,
        default_value = "sqlite",
        value_name = "WHERE"
    )]
    pub place: Secret,
    /// A file that holds the address of the journal, such as a file of a mounted Secret
    #[arg(long, env = "KUBEWITNESS_JOURNAL_FILE", value_name = "FILE")]
    pub journal_file: Option<PathBuf>,
}

/// A value that may hold a password: it is never printed.
#[derive(Clone)]
pub struct Secret(pub String);

impl std::str::FromStr for Secret {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

#[derive(Debug, Args)]
pub struct PluginArgs {
    /// The folder for `module: {file: …}`, after the folder of the manifest
    #[arg(long, env = "KUBEWITNESS_PLUGINS", value_name = "DIR")]
    pub plugins: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// Which log lines are written, such as `info` or `kubewitness_watch=debug`
    #[arg(long, env = "KUBEWITNESS_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// Writes the log as one JSON object per line
    #[arg(long)]
    pub log_json: bool,
}

/// For commands that ask a running controller.
#[derive(Debug, Args)]
pub struct QueryArgs {
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    /// The table with every column
    Wide,
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GetOutput {
    Table,
    /// The table with every column
    Wide,
    /// With a NAME: the document of the object as it was witnessed. Without: each object with its status
    Json,
    Yaml,
    /// KIND.GROUP/NAME, as kubectl takes it
    Name,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// A kind (Job, jobs, jobs.batch, po), `all` for every kind, or KIND/NAME
    pub kind: String,
    /// Only the object with this name
    pub name: Option<String>,
    /// Only this namespace. Without it: all namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only objects with these labels, such as `team=a,tier in (x, y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Only objects that an index has under this key, such as owner=UID or node=worker-1
    #[arg(long, value_name = "NAME=KEY")]
    pub index: Option<String>,
    /// Only this phase, such as Running
    #[arg(long)]
    pub phase: Option<String>,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 10_000)]
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

#[derive(Debug, Default, Args)]
pub struct ReachArgs {
    /// The controller to ask. Without it: what listens at http://127.0.0.1:8787, and otherwise a pod of Kubewitness in
    /// the cluster of the kubeconfig, through the API server
    #[arg(long, env = "KUBEWITNESS_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// The kubeconfig of the cluster that Kubewitness runs in; then http://127.0.0.1:8787 is not looked at
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; then http://127.0.0.1:8787 is not looked at
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace of Kubewitness itself. Without it: kubewitness
    #[arg(long, value_name = "NAME")]
    pub kubewitness_namespace: Option<String>,
    /// The token that says who you are. Without it: that of the kubeconfig, where the cluster is asked. Others on
    /// this machine see a command line, so the variable is the better place
    #[arg(long, env = "KUBEWITNESS_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<Secret>,
}

#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Only prints the address, and opens no browser. On a machine that others use, they may see the address of an
    /// opened browser in the list of processes
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

#[derive(Debug, Args)]
pub struct GapsArgs {
    /// One object (KIND/NAME such as job/train-7, or a uid) or one KIND
    pub object: Option<String>,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// At most this many, the newest ones
    #[arg(long, default_value_t = 500)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct PoisonArgs {
    /// The number of one poison state. Its bytes are printed as the API server sent them
    pub number: Option<u64>,
    /// Only this source
    #[arg(long, conflicts_with = "number")]
    pub source: Option<String>,
    /// At most this many, the newest ones
    #[arg(long, default_value_t = 500)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Only this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only this phase, such as Running
    #[arg(long)]
    pub phase: Option<String>,
    /// Only jobs with these labels, such as `team=a,tier in (x, y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// The kind; `all` for every kind
    #[arg(long, default_value = "Job")]
    pub kind: String,
    /// At most this many
    #[arg(long, default_value_t = 500)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct TimelineArgs {
    /// KIND/NAME, such as job/train-7, or a uid
    pub object: String,
    /// The namespace of the object. Without it: `default`, or none where the kind has no namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// At most this many states
    #[arg(long, default_value_t = 500)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Subcommand)]
pub enum DeadLetters {
    /// Lists the dead letters, with the last error of each
    List {
        /// Only this plugin's
        #[arg(long)]
        plugin: Option<String>,
        /// Lists the dropped dead letters instead
        #[arg(long)]
        dropped: bool,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Shows one dead letter, with the result of each try
    Show {
        /// The position of the dead letter in the journal
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
        /// Waits until all of them were tried, and shows the progress. The exit code is 4 if any is parked again
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
        #[arg(long, conflicts_with_all = ["seq", "namespace", "error", "older_than"])]
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
    #[arg(long, value_delimiter = ',')]
    pub seq: Vec<u64>,
    /// Only dead letters of objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only dead letters whose last error contains this text
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Only dead letters that were parked at least this long ago, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older_than: Option<Duration>,
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
}

#[derive(Debug, Subcommand)]
pub enum Journal {
    /// Proves the journal: order, ids, deltas, checkpoints, cursors and the completeness of every plugin
    Verify {
        /// The controller's data folder, or the journal's file
        #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        journal: JournalArgs,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
    /// Shows the size of each source, what retention may remove, and what holds the rest
    Stats {
        /// The controller's data folder, or the journal's file
        #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        journal: JournalArgs,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
    /// Writes states as lines of JSON, oldest first. The controller may go on meanwhile
    Export(ExportArgs),
    /// Takes an export in, into an empty data folder or database
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What `journal export --documents` wrote; `-` for standard input
    #[arg(required_unless_present = "discard")]
    pub file: Option<PathBuf>,
    /// The data folder, or the journal's file; nothing may be in it
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub journal: JournalArgs,
    /// Goes on with an import that failed or was killed, with the same file: what is there is compared with it first
    #[arg(long = "continue")]
    pub goes_on: bool,
    /// Throws away what an import that failed or was killed has taken in
    #[arg(long, conflicts_with_all = ["file", "goes_on"])]
    pub discard: bool,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The controller's data folder, or the journal's file
    #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub journal: JournalArgs,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only this kind: Job, jobs, po
    #[arg(long)]
    pub kind: Option<String>,
    /// Only objects with this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only the object with this uid
    #[arg(long)]
    pub uid: Option<String>,
    /// Only states that were observed at this time or later: 2026-11-20T13:45:00Z, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<Moment>,
    /// Only states that were observed before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub until: Option<Moment>,
    /// Only states after this position
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// Only states up to this position
    #[arg(long, value_name = "SEQ")]
    pub through: Option<u64>,
    /// With the documents, byte for byte: about 2 KB per Job. An import needs them
    #[arg(long)]
    pub documents: bool,
    /// The file to write. Without it: standard output
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// A moment, or so long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    At(u64),
    Ago(Duration),
}

fn moment(text: &str) -> Result<Moment, String> {
    let whole = text.strip_suffix('Z').map(|text| format!("{text}.000Z"));
    let at = calendar::parse(text).or_else(|| calendar::parse(&whole?)).map(Moment::At);
    at.or_else(|| text.parse().ok().map(Moment::Ago))
        .ok_or_else(|| "write a moment such as 2026-11-20T13:45:00Z, or how long ago, such as 2h".into())
}

#[derive(Debug, Subcommand)]
pub enum Audit {
    /// Proves that no line of a ledger was changed, removed or moved
    Verify {
        /// The file of the ledger
        file: PathBuf,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// A folder, a manifest (.yaml), a component (.wasm) or a file of status rules
    #[arg(required_unless_present_any = ["object", "list_rules"])]
    pub path: Option<PathBuf>,
    /// Shows the status that the rules give this object, and which case decided. The object is YAML
    /// or JSON, may be a list, and `-` reads standard input. The rules are those of PATH and the
    /// built-in ones
    #[arg(long, value_name = "FILE")]
    pub object: Option<PathBuf>,
    /// With --object: fails unless the object has this phase
    #[arg(long, value_name = "PHASE", requires = "object", value_parser = PossibleValuesParser::new(PHASES))]
    pub expect: Option<String>,
    /// With --object: shows whether a subscription with this filter takes the object as a first state
    #[arg(long, value_name = "EXPRESSION", requires = "object")]
    pub filter: Option<String>,
    /// Lists the status rules of PATH and the built-in ones, in full with -o json
    #[arg(long, conflicts_with = "object")]
    pub list_rules: bool,
    #[command(flatten)]
    pub plugins: PluginArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn a_moment_is_a_date_or_so_long_ago() {
        use super::{Moment, moment};
        assert_eq!(moment("1970-01-01T00:01:00Z"), Ok(Moment::At(60_000)));
        assert_eq!(moment("1970-01-01T00:01:00.250Z"), Ok(Moment::At(60_250)));
        assert!(matches!(moment("2h"), Ok(Moment::Ago(_))));
        assert!(moment("yesterday").is_err() && moment("").is_err());
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
