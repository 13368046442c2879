//! `kubewitness check`: what it checks, and the expected result.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use kubewitness_core::status::PHASES;

use super::controller::PluginArgs;
use super::reach::Output;

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
