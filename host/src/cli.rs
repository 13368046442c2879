//! The command line: what there is, in the order in which a newcomer meets it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use kubewitness_core::calendar;
use kubewitness_core::config::Duration;
use kubewitness_core::status::PHASES;

/// Witnesses every state of Kubernetes objects, journals it, and hands it in order to sandboxed
/// plugins.
#[derive(Debug, Parser)]
#[command(
    name = "kubewitness",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    after_help = "Begin with `kubewitness playground`: a simulated cluster, nothing else needed.\n\
                  Exit codes: 0 fine, 1 error, 2 usage, 3 a check failed, 4 warnings only."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// A simulated cluster with training jobs, the controller, three plugins and the portal
    Playground(PlaygroundArgs),
    /// The controller: in a cluster, against a kubeconfig, or from a folder of manifests
    Run(RunArgs),
    /// Sources, plugins and the journal, with the completeness figures
    Status(QueryArgs),
    /// The jobs that are there now, with their status
    Jobs(JobsArgs),
    /// What is there now of any kind that is watched, with its status
    Get(GetArgs),
    /// Versions that could not be witnessed, each hole with its bounds and its reason
    Gaps(GapsArgs),
    /// What came and was no object of its kind, and its bytes
    Poison(PoisonArgs),
    /// One object's story, oldest first
    Timeline(TimelineArgs),
    /// The plugins: state, lag, last error
    Plugins(QueryArgs),
    /// States that were parked after their last try
    #[command(subcommand, name = "deadletters")]
    DeadLetters(DeadLetters),
    /// A journal: proofs, figures, a copy as lines of JSON
    #[command(subcommand)]
    Journal(Journal),
    /// Proofs about an audit trail
    #[command(subcommand)]
    Audit(Audit),
    /// A folder of manifests, one manifest, component or status rule: what exactly does not fit
    Check(CheckArgs),
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
    /// Changes of state a second
    #[arg(long, default_value_t = 20.0, value_name = "R", value_parser = positive)]
    pub rate: f64,
    /// End by itself after this time, such as 30s or 5m
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub duration: Option<Duration>,
    /// The same seed gives the same jobs with the same lives
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// Where journal, database, audit trail and notifications go
    #[arg(long, default_value = "kubewitness-playground", value_name = "DIR")]
    pub data: PathBuf,
    /// Address of the portal and API
    #[arg(long, default_value = "127.0.0.1:8787", value_name = "ADDR")]
    pub listen: SocketAddr,
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
    /// A folder of manifests: labelled ConfigMaps, or documents of the kinds Host and Plugin as they are; without
    /// it, the labelled ConfigMaps of the namespace are read
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// Where the journal and caches go
    #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub journal: JournalArgs,
    /// Share the journal with other replicas that name the same Lease: all of them witness, and the
    /// holder of the Lease hands states to plugins. The journal has to be on a server
    #[arg(long, env = "KUBEWITNESS_LEASE", value_name = "[NAMESPACE/]NAME")]
    pub lease: Option<String>,
    /// Address of the portal and API
    #[arg(long, env = "KUBEWITNESS_LISTEN", default_value = "127.0.0.1:8787", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are served as well, to the network if need be
    #[arg(long, value_name = "ADDR")]
    pub health_listen: Option<SocketAddr>,
    /// The kubeconfig (otherwise $KUBECONFIG, ~/.kube/config, or the pod's service account)
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace of the ConfigMaps (otherwise the context's, or the pod's own)
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
    /// Where the journal is: `sqlite` (journal.db in the data folder), or the address of a database,
    /// postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE
    #[arg(
        long = "journal",
        env = "KUBEWITNESS_JOURNAL",
        hide_env_values = true,
        default_value = "sqlite",
        value_name = "WHERE"
    )]
    pub place: Secret,
    /// A file that holds that address, such as a mounted Secret's
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
    /// Where `module: {file: …}` is looked for after the manifest's own folder
    #[arg(long, env = "KUBEWITNESS_PLUGINS", value_name = "DIR")]
    pub plugins: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// What is logged, such as `info` or `kubewitness_watch=debug`
    #[arg(long, env = "KUBEWITNESS_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// One JSON object a line instead of text
    #[arg(long)]
    pub log_json: bool,
}

/// For commands that ask a running controller.
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// The controller to ask
    #[arg(long, env = "KUBEWITNESS_SERVER", default_value = "http://127.0.0.1:8787", value_name = "URL")]
    pub server: String,
    /// How to print it
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
    /// With a NAME the object's document as it was witnessed, otherwise each with its status
    Json,
    Yaml,
    /// KIND.GROUP/NAME, as kubectl takes it
    Name,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// A kind as people write it: Job, jobs, jobs.batch, po; `all` for every kind; or KIND/NAME
    pub kind: String,
    /// Only the object with this name
    pub name: Option<String>,
    /// Only this namespace; without it, all of them
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// All namespaces, which is what happens without -n, too
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only objects with these labels, such as `team=a,tier in (x, y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Only what an index of the source has under a key, such as owner=UID or node=worker-1
    #[arg(long, value_name = "NAME=KEY")]
    pub index: Option<String>,
    /// Only this phase, such as Running
    #[arg(long)]
    pub phase: Option<String>,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 10_000)]
    pub limit: usize,
    /// Goes on to show what changes, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub server: ServerArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = GetOutput::Table, value_name = "FORMAT")]
    pub output: GetOutput,
}

#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The controller to ask
    #[arg(long, env = "KUBEWITNESS_SERVER", default_value = "http://127.0.0.1:8787", value_name = "URL")]
    pub server: String,
}

#[derive(Debug, Args)]
pub struct GapsArgs {
    /// Of one object: KIND/NAME, such as job/train-7, or a uid; or of one KIND
    pub object: Option<String>,
    /// Only of this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only of objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// At most so many, the newest
    #[arg(long, default_value_t = 500)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct PoisonArgs {
    /// The number of one poison state: its bytes are printed as they came
    pub number: Option<u64>,
    /// Only of this source
    #[arg(long, conflicts_with = "number")]
    pub source: Option<String>,
    /// At most so many, the newest
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
    /// Another kind than Job; `all` for every kind
    #[arg(long, default_value = "Job")]
    pub kind: String,
    /// At most so many
    #[arg(long, default_value_t = 500)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct TimelineArgs {
    /// KIND/NAME, such as job/train-7, or a uid
    pub object: String,
    /// Its namespace; without it `default`, or none where the kind has no namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// At most so many states
    #[arg(long, default_value_t = 500)]
    pub limit: usize,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Subcommand)]
pub enum DeadLetters {
    /// What is parked, and why
    List {
        /// Only this plugin's
        #[arg(long)]
        plugin: Option<String>,
        /// What was dropped instead
        #[arg(long)]
        dropped: bool,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// One of them with what became of each try
    Show {
        /// Its position in the journal
        seq: u64,
        /// Only this plugin's
        #[arg(long)]
        plugin: Option<String>,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Hands parked states to their plugin again, in order
    Replay {
        #[command(flatten)]
        choice: LetterChoice,
        /// Tells how far it is until all of it was tried; 4 if something is parked then
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Lets parked states go for good; they stay in the accounts as dead
    Drop {
        #[command(flatten)]
        choice: LetterChoice,
        /// All of the plugin's
        #[arg(long, conflicts_with_all = ["seq", "namespace", "error", "older_than"])]
        all: bool,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Who replayed or dropped what, when and why
    Records {
        /// Only this plugin's
        #[arg(long)]
        plugin: Option<String>,
        #[command(flatten)]
        query: QueryArgs,
    },
}

/// Which dead letters; everything that is given must hold.
#[derive(Debug, Args)]
pub struct LetterChoice {
    /// The plugin whose letters are meant
    #[arg(long)]
    pub plugin: String,
    /// One position of the journal, or several; without it, wherever they are
    #[arg(long, value_delimiter = ',')]
    pub seq: Vec<u64>,
    /// Only those of objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only those whose last error has this text in it
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Only those that were parked at least so long ago, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// Why: it is kept with what was done
    #[arg(long)]
    pub reason: String,
    /// Who does it, as the record has it; without it, the name that you are logged in with
    #[arg(long, value_name = "NAME")]
    pub who: Option<String>,
    /// Only count
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum Journal {
    /// Order, ids, deltas, checkpoints, cursors and every plugin's completeness
    Verify {
        /// The controller's data folder, or the journal's file
        #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        journal: JournalArgs,
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
    /// What each source takes, what retention may take of it, and what holds the rest
    Stats {
        /// The controller's data folder, or the journal's file
        #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        journal: JournalArgs,
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
    /// States as lines of JSON, oldest first; a controller may write meanwhile
    Export(ExportArgs),
    /// Takes an export in, into an empty data folder or database
    Import {
        /// What `journal export --documents` wrote; `-` for standard input
        file: PathBuf,
        /// The data folder, or the journal's file; nothing may be in it
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        #[command(flatten)]
        journal: JournalArgs,
    },
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The controller's data folder, or the journal's file
    #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub journal: JournalArgs,
    /// Only of this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only of objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only of this kind, as people write it: Job, jobs, po
    #[arg(long)]
    pub kind: Option<String>,
    /// Only of objects with this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only of the object with this uid
    #[arg(long)]
    pub uid: Option<String>,
    /// Only what was observed at this moment or later: 2026-11-20T13:45:00Z, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<Moment>,
    /// Only what was observed before this moment
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub until: Option<Moment>,
    /// Only what lies behind this position
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// Only what lies up to this position
    #[arg(long, value_name = "SEQ")]
    pub through: Option<u64>,
    /// With the documents, byte for byte: about 2 KB a Job; needed for an import
    #[arg(long)]
    pub documents: bool,
    /// Where to write it, instead of to standard output
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
    /// That no line of a ledger was changed, removed or moved
    Verify {
        /// The ledger's file
        file: PathBuf,
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// A folder, a manifest (.yaml), a component (.wasm) or a file of status rules
    #[arg(required_unless_present_any = ["object", "list_rules"])]
    pub path: Option<PathBuf>,
    /// Tells the status of this object (YAML or JSON, a list, `-` for standard input) by the rules
    /// of PATH and the built-in ones, and which line decided
    #[arg(long, value_name = "FILE")]
    pub object: Option<PathBuf>,
    /// With --object: fails unless the status has this phase
    #[arg(long, value_name = "PHASE", requires = "object", value_parser = PossibleValuesParser::new(PHASES))]
    pub expect: Option<String>,
    /// With --object: whether a subscription with this filter would want the object, as its first
    /// state
    #[arg(long, value_name = "EXPRESSION", requires = "object")]
    pub filter: Option<String>,
    /// The status rules of PATH and the built-in ones; in full with -o json
    #[arg(long, conflicts_with = "object")]
    pub list_rules: bool,
    #[command(flatten)]
    pub plugins: PluginArgs,
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
