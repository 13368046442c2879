//! The command line: every command and flag, in the order in which a newcomer meets them.
//!
//! Help texts, completion and the reference must not contradict each other. So the doc comments here are the
//! help texts, and the reference is generated from them; a second description by hand was rejected, because
//! it would drift. This module parses and validates only. It runs no command, and opens neither a journal nor
//! a connection, so `--help` works on any machine.

mod check;
mod controller;
mod dead_letters;
mod doctor;
mod journal;
mod objects;
mod operate;
mod plugin;
mod reach;
mod shell;
mod values;

use clap::{Parser, Subcommand};

pub use check::CheckArgs;
pub use controller::{CompileArgs, LogArgs, PlaygroundArgs, RunArgs};
pub use dead_letters::{DeadLetters, LetterChoice};
pub use doctor::DoctorArgs;
pub use journal::{
    Audit, ErasePersonArgs, ExportArgs, ImportArgs, Journal, JournalArgs, ShowTrailArgs, StatesArgs,
    TrailArgs, VerifyTrailArgs,
};
pub use objects::{
    DiffArgs, GapsArgs, GetArgs, JobsArgs, ListArgs, PoisonArgs, TapArgs, TimelineArgs, WaitArgs, WhichGone,
    WhyArgs,
};
pub use operate::{DashboardArgs, MuteArgs, PauseArgs, PluginsArgs, StatusArgs, SubmitArgs};
pub use plugin::{
    BenchPluginArgs, BuildPluginArgs, CutoverPluginArgs, ForgetPluginArgs, InstallPluginArgs,
    IntoClusterArgs, Language, NewPluginArgs, PackPluginArgs, Plugin, ReplayPluginArgs, RunPluginArgs,
    ShadowPluginArgs, TestPluginArgs, TriedPluginArgs,
};
pub use reach::{GetOutput, Output, QueryArgs, ReachArgs};
pub use shell::{CompletionArgs, ManArgs, Shell, command, command_of, is_called, replace_advice};
pub use values::{MomentArg, SecretArg, ZoneArg};

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
                  5 timeout."
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
    /// Opens the portal in the browser, signed in as you. The connection to a portal in a cluster stays open until
    /// Ctrl-C
    Dashboard(DashboardArgs),
    /// Shows sources, plugins and the journal, with the completeness figures
    Status(StatusArgs),
    /// Lists jobs with their status: those that exist now, those that are gone, or those of a moment
    Jobs(JobsArgs),
    /// Lists the objects of any watched kind with their status, now or at any moment
    Get(GetArgs),
    /// Lists gaps: versions that could not be witnessed, with their bounds and the reason
    Gaps(GapsArgs),
    /// Lists poison messages: bytes from the API server that are no object of their source's kind
    Poison(PoisonArgs),
    /// Shows the states of one object, the Events about it and who was told of it, oldest first
    Timeline(TimelineArgs),
    /// Says in one sentence why an object failed or what it waits for, and shows what that rests on
    Why(WhyArgs),
    /// Shows what changed between two states of one object, as a unified diff of YAML
    Diff(DiffArgs),
    /// Waits until an object is finished or deleted, and prints its last phase
    Wait(WaitArgs),
    /// Creates a Job from a template, in your name
    Submit(SubmitArgs),
    /// Prints states as lines of JSON as they are witnessed, until Ctrl-C
    Tap(TapArgs),
    /// Lists the plugins with their state, their lag and their last error
    Plugins(PluginsArgs),
    /// Pauses a plugin: it gets no states until it is resumed, also after a restart. Retention keeps its states
    Pause(PauseArgs),
    /// Resumes a paused plugin: it goes on from where it was
    Resume(PauseArgs),
    /// Mutes an object, a namespace or everything: people get no messages about it
    Mute(MuteArgs),
    /// Undoes a mute
    Unmute(MuteArgs),
    /// Lists, replays and drops dead letters: states that were parked after their last try
    #[command(subcommand, name = "deadletters")]
    DeadLetters(DeadLetters),
    /// Verifies, measures, exports and imports a journal
    #[command(subcommand)]
    Journal(Journal),
    /// Proves and shows an audit trail
    #[command(subcommand)]
    Audit(Audit),
    /// Checks a folder of manifests, a manifest, a component or a status rule, and names each fault
    Check(CheckArgs),
    /// Looks at what Kubewitness needs: rights, storage, clocks, versions, and what runs
    Doctor(DoctorArgs),
    /// Prints the script that completes words in a shell: kinds, names and namespaces as the controller knows them
    Completion(CompletionArgs),
    /// Writes a page for `man` for each command
    Man(ManArgs),
    /// Makes, builds, tries, tests and packs a plugin
    #[command(subcommand)]
    Plugin(Plugin),
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

    #[test]
    fn commands_that_tell_by_their_exit_code_name_the_codes() {
        for (name, codes) in
            [("wait", &["0", "3", "5"][..]), ("submit", &["0", "3", "5"]), ("doctor", &["0", "3", "4"])]
        {
            let mut all = super::Cli::command();
            let help = all.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            let (_, exit_codes) = help.split_once("Exit codes").expect("a line about exit codes");
            assert!(codes.iter().all(|code| exit_codes.contains(code)), "{exit_codes}");
        }
    }
}
