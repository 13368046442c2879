//! The commands that run a controller: `playground` and `run`, and the process that compiles for them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
#[cfg(feature = "playground")]
use kubewitness_core::config::Duration;

use super::journal::JournalArgs;
#[cfg(feature = "playground")]
use super::values::{FlagValueError, parse_duration};
use super::values::{any_number, parse_listen_address};
use crate::access::AccessArgs;

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
    /// Jobs to submit in total. The playground ends when all of them are gone. 0 keeps submitting
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = any_number::<u64>)]
    pub jobs: u64,
    /// Changes of state per second
    #[arg(long, default_value_t = 20.0, value_name = "R", value_parser = parse_positive_rate)]
    pub rate: f64,
    /// Ends by itself after this time, such as 30s or 5m
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// The seed of the jobs: the same seed gives the same jobs
    #[arg(long, default_value_t = 1, value_name = "S", value_parser = any_number::<u64>)]
    pub seed: u64,
    /// The folder for the journal, the database, the audit trail and the notifications
    #[arg(long, default_value = "kubewitness-playground", value_name = "DIR")]
    pub data: PathBuf,
    /// Address of the portal and API
    #[arg(long, default_value = "127.0.0.1:8787", value_name = "ADDR", value_parser = parse_listen_address)]
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
fn parse_positive_rate(text: &str) -> Result<f64, FlagValueError> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 100_000.0 => Ok(rate),
        _ => Err(FlagValueError::NoRate),
    }
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
    #[arg(long, env = "KUBEWITNESS_LISTEN", default_value = "127.0.0.1:8787", value_name = "ADDR", value_parser = parse_listen_address)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub access: AccessArgs,
    /// A second address for /healthz, /readyz and /metrics, which the network may reach
    #[arg(long, value_name = "ADDR", value_parser = parse_listen_address)]
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

/// The most that the process takes.
#[derive(Debug, Args)]
pub struct CompileArgs {
    /// Address space, in bytes
    #[arg(long, value_name = "BYTES", value_parser = any_number::<u64>)]
    pub memory: u64,
    /// Processor time, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = any_number::<u64>)]
    pub cpu: u64,
}
