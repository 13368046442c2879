//! `kubewitness plugin`: the commands for authors of plugins.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use kubewitness_core::config::Duration;
use kubewitness_core::limits::BATCH_MOST;

use super::journal::{JournalAt, StatesArgs};
use super::reach::{Output, QueryArgs};
use super::values::{SecretArg, parse_duration, whole_number_between};

#[derive(Debug, Subcommand)]
pub enum Plugin {
    /// Makes a folder with a plugin that works, its manifest and a test
    New(NewPluginArgs),
    /// Builds the plugin of a folder into a component, and checks it against its manifest
    Build(BuildPluginArgs),
    /// Hands the objects of a file to a plugin, and shows what it does. Nothing is sent, and nothing is kept
    Run(RunPluginArgs),
    /// Hands states of a journal to a plugin, and shows what it does. Nothing is sent, and nothing is kept. The controller
    /// may go on meanwhile
    Replay(Box<ReplayPluginArgs>),
    /// Runs the tests of a plugin's folder: hands objects to the plugin, and compares what it does with the expected
    /// results
    Test(TestPluginArgs),
    /// Measures what a state costs in a plugin, beside the plugins that come with the controller. Nothing is sent, and nothing is
    /// kept
    Bench(BenchPluginArgs),
    /// Prints the ConfigMap of a plugin, with its component, for `kubectl apply -f -`
    Pack(PackPluginArgs),
    /// Writes the ConfigMap of a plugin, with its component, into the cluster of the kubeconfig
    Install(InstallPluginArgs),
    /// Shows how the next version of a plugin, which `spec.shadow` names, differs from the running one. It ends with 3 if
    /// something differs, and with 4 if no state was compared yet
    Shadow(ShadowPluginArgs),
    /// Lets the next version of a plugin, which `spec.shadow` names, take over. The command writes its component into `module`
    /// of the plugin's ConfigMap, with the digest that the controller has compared
    Cutover(CutoverPluginArgs),
    /// Removes what a deleted plugin left in the journal and in granted databases. The controller must be stopped. Without
    /// `--yes` the command only lists it
    Forget(Box<ForgetPluginArgs>),
}

/// A language that a plugin can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    Rust,
    Python,
    Javascript,
}

#[derive(Debug, Args)]
pub struct NewPluginArgs {
    /// The name of the plugin and of its folder: lower-case letters, digits and `-`
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The language of the plugin
    #[arg(long, value_enum, default_value_t = Language::Rust)]
    pub lang: Language,
    /// The folder in which the plugin's folder is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct BuildPluginArgs {
    /// The folder of the plugin, which has its `plugin.yaml`
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// A plugin that is tried, with nothing behind it.
#[derive(Debug, Args)]
pub struct TriedPluginArgs {
    /// The folder of the plugin, a manifest (.yaml) or a component (.wasm). A component alone is granted what it says that
    /// it needs
    #[arg(value_name = "PLUGIN", default_value = ".")]
    pub plugin: PathBuf,
    /// The configuration of the plugin, as JSON. It replaces that of the manifest
    #[arg(long, value_name = "JSON")]
    pub config: Option<String>,
    /// A YAML list of answers to the plugin's HTTP requests, in order, such as `[{status: 503}, {status: 200, body: ok}]`.
    /// Further requests are answered 200. `{refused: [{recipient: ada@example.com}]}` answers an e-mail. A message without
    /// an answer is taken for all recipients
    #[arg(long, value_name = "FILE")]
    pub answers: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RunPluginArgs {
    #[command(flatten)]
    pub tried: TriedPluginArgs,
    /// The objects, one state each: YAML or JSON, several documents, a list, or the events of a watch. A document
    /// `tick: next` or `tick: 2026-01-01T08:00:00Z` is a tick. An object is observed when it changed last, by its own words.
    /// `-` reads standard input
    #[arg(short, long, value_name = "FILE", required_unless_present = "tick")]
    pub file: Option<PathBuf>,
    /// Calls the plugin once on its schedule, after the objects. `--tick=2m`: two minutes after the last one
    #[arg(
        long,
        value_name = "AFTER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0s",
        value_parser = parse_duration
    )]
    pub tick: Option<Duration>,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ReplayPluginArgs {
    #[command(flatten)]
    pub tried: TriedPluginArgs,
    #[command(flatten)]
    pub at: JournalAt,
    #[command(flatten)]
    pub states: StatesArgs,
    /// Another version of the plugin, such as the one in use: the same states go to both, and what they do is compared
    #[arg(long, value_name = "PLUGIN")]
    pub against: Option<PathBuf>,
    /// How many states are handed over at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole_number_between::<u32>(1, 100_000))]
    pub limit: u32,
    /// Calls the plugin once on its schedule, so long after the last state, such as `--tick=10m`. `--tick` alone is a minute.
    /// With --against it is counted as a state
    #[arg(
        long,
        value_name = "AFTER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1m",
        value_parser = parse_duration
    )]
    pub tick: Option<Duration>,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct TestPluginArgs {
    /// The folder of the plugin. Each file of its folder `tests` is a test
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Writes what the plugin does now into the files of expected results
    #[arg(long)]
    pub update: bool,
}

#[derive(Debug, Args)]
pub struct BenchPluginArgs {
    #[command(flatten)]
    pub tried: TriedPluginArgs,
    /// The objects, as for `plugin run`. They are repeated under other names. Left out: a Job that runs and fails
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// How many states each plugin is handed in a round
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = whole_number_between::<u32>(1, 10_000))]
    pub states: u32,
    /// How many states one call has at most. Left out: `delivery.batch` of the manifest
    #[arg(long, value_name = "N", value_parser = whole_number_between::<u32>(1, u64::from(BATCH_MOST)))]
    pub batch: Option<u32>,
    /// A folder with the components that come with the controller, beside those that it finds by itself
    #[arg(long, env = "KUBEWITNESS_PLUGINS", value_name = "DIR")]
    pub plugins: Option<PathBuf>,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct PackPluginArgs {
    /// The folder of the plugin, which has its `plugin.yaml`
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// The namespace of the ConfigMap
    #[arg(short, long, default_value = "kubewitness")]
    pub namespace: String,
}

#[derive(Debug, Args)]
pub struct ForgetPluginArgs {
    /// The name of the plugin
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub at: JournalAt,
    /// Removes it. A plugin of this name begins anew
    #[arg(long)]
    pub yes: bool,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ShadowPluginArgs {
    /// The name of the plugin
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Args)]
pub struct CutoverPluginArgs {
    /// The name of the plugin
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The ConfigMap with its manifest. Without it: one with the name of the plugin
    #[arg(long, value_name = "NAME")]
    pub config_map: Option<String>,
    /// The address of the controller, which says what it has compared. Without it: http://127.0.0.1:8787 if a controller
    /// answers there and neither --kubeconfig nor --context is given, otherwise a pod of Kubewitness in the cluster
    #[arg(long, env = "KUBEWITNESS_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// The token that says who you are to the controller. Without it: a command that goes through the cluster takes the
    /// token of the kubeconfig
    #[arg(long, env = "KUBEWITNESS_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<SecretArg>,
    #[command(flatten)]
    pub into: IntoClusterArgs,
}

#[derive(Debug, Args)]
pub struct InstallPluginArgs {
    /// The folder of the plugin, which has its `plugin.yaml`
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub into: IntoClusterArgs,
}

/// Where a ConfigMap is written.
#[derive(Debug, Args)]
pub struct IntoClusterArgs {
    /// The namespace of Kubewitness, in which the ConfigMap is written. Without it: kubewitness
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// The kubeconfig of the cluster. Without it: $KUBECONFIG, then ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Asks the API server whether it would take the ConfigMap, and writes nothing
    #[arg(long)]
    pub dry_run: bool,
}
