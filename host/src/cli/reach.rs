//! The flags of every command that asks a running controller, and the formats of its output.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::SecretArg;

#[derive(Clone, Debug, Default, Args)]
pub struct ReachArgs {
    /// The address of the controller. Without it: http://127.0.0.1:8787 if a controller answers there, otherwise a
    /// pod of Kubewitness in the cluster of the kubeconfig, through the API server. A command that changes something
    /// never takes http://127.0.0.1:8787 unless it is named here
    #[arg(long, env = "KUBEWITNESS_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// The kubeconfig of the cluster that Kubewitness runs in. With it, http://127.0.0.1:8787 is not tried
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. With it, http://127.0.0.1:8787 is not tried
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace of Kubewitness itself. With it, http://127.0.0.1:8787 is not tried, and a pod there that is labelled
    /// as Kubewitness is trusted. Without it: kubewitness, where the service account of the pod has to be one that may
    /// create token reviews; the command asks the API server, which needs the right to create subjectaccessreviews
    #[arg(long, env = "KUBEWITNESS_NAMESPACE", value_name = "NAME")]
    pub kubewitness_namespace: Option<String>,
    /// The command chose the namespace, and no person did: it proves nothing about the pods there.
    #[arg(skip)]
    pub is_default_namespace: bool,
    /// The token that says who you are. Without it: a command that goes through the cluster takes the token of the
    /// kubeconfig. It is sent to --server or to the cluster, and never to http://127.0.0.1:8787 unless --server names it.
    /// Others on this machine can read a command line, so prefer the variable
    #[arg(long, env = "KUBEWITNESS_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<SecretArg>,
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

/// The same, for commands that tell of objects.
#[derive(Debug, Args)]
pub struct ObjectQueryArgs {
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = GetOutput::Table, value_name = "FORMAT")]
    pub output: GetOutput,
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
    /// With a NAME, get and jobs print the document of the object. Otherwise each row has all its fields
    Json,
    Yaml,
    /// Each object once as KIND.GROUP/NAME, as kubectl takes it; plugins by their name
    Name,
}

impl GetOutput {
    /// `None` for names alone.
    pub fn shape(self) -> Option<Output> {
        match self {
            Self::Name => None,
            Self::Table => Some(Output::Table),
            Self::Wide => Some(Output::Wide),
            Self::Json => Some(Output::Json),
            Self::Yaml => Some(Output::Yaml),
        }
    }
}
