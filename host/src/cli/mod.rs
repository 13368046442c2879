//! The command line: every command and flag, in the order in which a newcomer meets them. The doc comments are the
//! help texts, and the reference is generated from them.

mod check;
mod controller;
mod dead_letters;
mod journal;
mod objects;
mod operate;
mod reach;
mod values;

use clap::{Parser, Subcommand};

pub use check::CheckArgs;
pub use controller::{CompileArgs, LogArgs, PlaygroundArgs, RunArgs};
pub use dead_letters::{DeadLetters, LetterChoice};
pub use journal::{Audit, ExportArgs, ImportArgs, Journal, JournalArgs};
pub use objects::{DiffArgs, GapsArgs, GetArgs, JobsArgs, PoisonArgs, TapArgs, TimelineArgs, WaitArgs};
pub use operate::{DashboardArgs, PauseArgs};
pub use reach::{GetOutput, Output, QueryArgs, ReachArgs};
pub use values::{Moment, Secret};

/// Witnesses every state of Kubernetes objects, journals it, and hands it in order to sandboxed
/// plugins.
#[derive(Debug, Parser)]
#[command(
    name = "kubewitness",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    after_help = "Begin with `kubewitness playground`: a simulated cluster that needs nothing else.\n\
                  Exit codes: 0 fine, 1 error, 2 usage, 3 a check or an object failed, 4 warnings only,\n\
                  5 time-out."
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
    /// Shows what changed between two states of one object, as a unified diff of YAML
    Diff(DiffArgs),
    /// Waits until an object has ended, and prints the phase in which it ended
    Wait(WaitArgs),
    /// Prints states as lines of JSON as they are witnessed, until Ctrl-C
    Tap(TapArgs),
    /// Lists the plugins with their state, their lag and their last error
    Plugins(QueryArgs),
    /// Pauses a plugin: it gets no states until it is resumed, also after a restart. Retention keeps its states
    Pause(PauseArgs),
    /// Resumes a paused plugin: it goes on from where it was
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
