//! `kubewitness`: parse, run, return.
//!
//! A long `main` is code that no test can call. So this file only parses the command line, chooses the
//! command, and turns its result into an exit code. Decisions are made in the folders beside it and in the
//! library crates. Shutdown is a parameter of what runs, so a test chooses its moment. A process that was
//! told to end does end: work that a file system blocks is not waited for beyond a limit.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod cli;
mod commands;
mod config;
mod controller;
mod journal_place;
#[cfg(feature = "playground")]
mod playground;
mod process;
#[cfg(test)]
#[cfg(feature = "playground")]
mod reference;
mod run;
mod tasks;

use std::process::ExitCode;
use std::time::Duration;

use clap::FromArgMatches;
use kubewitness_sandbox::ChildBounds;

use cli::{Cli, Command, CompileArgs};
use commands::print::note;
use commands::{CommandEnd, CommandResult, UsageError};

#[cfg(not(feature = "playground"))]
const NO_PLAYGROUND: &str = "this is a production build, without the simulated cluster. In a checkout of Kubewitness, \
    `cargo xtask playground` builds and starts one that has it";

/// After an orderly end nothing is left; work that a file system blocks is not waited for.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // The one TLS provider of the process. Installing it twice would be a bug.
    rustls::crypto::ring::default_provider().install_default().ok();
    if let Some(answered) = commands::complete() {
        return answered;
    }
    let program = std::env::args_os().next();
    let matches = cli::command_of(program.as_deref()).try_get_matches();
    let matches = matches.unwrap_or_else(|error| cli::replace_advice(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // Comes first: this process must not open or start anything before its limits are set, because it could
    // not release it afterwards.
    if let Command::CompileComponent(CompileArgs { memory, cpu }) = cli.command {
        return kubewitness_sandbox::compile_here(ChildBounds { memory, cpu });
    }
    process::file_mode::keep_from_others();
    // One more than guests may hold.
    let threads = kubewitness_sandbox::guests_at_once() + 1;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            note!("kubewitness: starting the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(dispatch(cli.command));
    runtime.shutdown_timeout(LEFT_BEHIND);
    match ended {
        Ok(end) => ExitCode::from(end.code()),
        Err(error) => {
            note!("kubewitness: {error:#}");
            if error.downcast_ref::<UsageError>().is_some() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

async fn dispatch(command: Command) -> CommandResult {
    match command {
        #[cfg(feature = "playground")]
        Command::Playground(args) => playground::playground(args).await,
        #[cfg(not(feature = "playground"))]
        Command::Playground(_) => Err(UsageError::error(NO_PLAYGROUND)),
        Command::Run(args) => run::run(args).await,
        Command::Dashboard(args) => commands::run_dashboard(args).await,
        Command::Status(args) => commands::run_status(args).await,
        Command::Jobs(args) => commands::run_jobs(args).await,
        Command::Get(args) => commands::get(args).await,
        Command::Gaps(args) => commands::run_gaps(args).await,
        Command::Poison(args) => commands::run_poison(args).await,
        Command::Timeline(args) => commands::run_timeline(args).await,
        Command::Why(args) => commands::run_why(args).await,
        Command::Diff(args) => commands::run_diff(args).await,
        Command::Wait(args) => commands::run_wait(args).await,
        Command::Submit(args) => commands::run_submit(args).await,
        Command::Tap(args) => commands::run_tap(args).await,
        Command::Plugins(args) => commands::run_plugins(args).await,
        Command::Pause(args) => commands::pause(args).await,
        Command::Resume(args) => commands::resume(args).await,
        Command::Mute(args) => commands::mute(args).await,
        Command::Unmute(args) => commands::unmute(args).await,
        Command::DeadLetters(args) => commands::dead_letters(args).await,
        Command::Journal(args) => commands::journal(args).await,
        Command::Audit(args) => commands::run_audit(args).await,
        Command::Check(args) => commands::check(args).await,
        Command::Doctor(args) => commands::run_doctor(args).await,
        Command::Completion(args) => commands::completion(&args),
        Command::Man(args) => commands::man(&args),
        Command::Plugin(args) => commands::plugin(args).await,
        // It needs no runtime, and has ended before one exists.
        Command::CompileComponent(_) => Ok(CommandEnd::Fine),
    }
}
