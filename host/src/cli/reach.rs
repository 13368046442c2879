//! What every command takes that asks a running controller, and the formats of its output.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::Secret;

#[derive(Clone, Debug, Default, Args)]
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
    /// The token that says who you are. Without it: that of the kubeconfig, where the cluster is asked. It is sent to
    /// --server or to the cluster, and not to what listens at http://127.0.0.1:8787 by chance. Others on this machine
    /// see a command line, so the variable is the better place
    #[arg(long, env = "KUBEWITNESS_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<Secret>,
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
