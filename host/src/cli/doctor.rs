//! `kubewitness doctor`: what it checks.

use std::path::PathBuf;

use clap::Args;

use super::reach::{Output, ReachArgs};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 fine, 3 if a check failed (✗), 4 if there are only warnings (!). What is not checked (-)\n\
                  has no effect."
)]
pub struct DoctorArgs {
    /// Before installing: asks the cluster alone, and no controller
    #[arg(long)]
    pub pre: bool,
    /// The folder with the host's settings, whose sources need rights. Without it: the settings that the controller took
    /// last (with --data), those of the cluster, or the shipped ones
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// The controller's data folder, to see whether it can be written and has space. Without it: no folder is looked at
    #[arg(long, env = "KUBEWITNESS_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The service account that needs the rights, such as kubewitness/kubewitness. You need the right to create
    /// subjectaccessreviews. Without it: your own rights are checked
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub account: Option<String>,
    /// Explains a code, such as KW-D002, and checks nothing
    #[arg(long, value_name = "CODE")]
    pub explain: Option<String>,
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}
