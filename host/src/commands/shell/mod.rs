//! Completion of words and manual pages, for shells, kubectl and `man`. It changes nothing.

mod complete;
mod scripts;
mod words;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap_complete::CompleteEnv;
use clap_complete::engine;
use clap_complete::env::Shells;

use super::{CommandEnd, CommandResult, UsageError};
use crate::cli::{self, CompletionArgs, ManArgs, Shell};
use crate::commands::print::{self, note};

/// Names the shell that asks for completions. The script of `completion` sets it.
const ASKED_BY: &str = "KUBEWITNESS_COMPLETE";
const PROGRAM: &str = "kubewitness";
/// kubectl starts a program of this name to complete the words after `kubectl kubewitness`.
const FOR_KUBECTL: &str = "kubectl_complete-kubewitness";
/// The last line for kubectl: only these words, and no file names.
const NO_FILES: &str = ":4";
/// The same, without a space after the word, because it continues.
const NO_FILES_NO_SPACE: &str = ":6";

/// Answers a shell or kubectl that asks for completions; `None` for any other call.
pub fn complete() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let is_for_kubectl = arguments.next().is_some_and(|name| cli::is_called(&name, FOR_KUBECTL));
    let done = if is_for_kubectl {
        for_kubectl(arguments.collect())
    } else {
        std::env::var_os(ASKED_BY)?;
        for_shell()
    };
    // Errors are not shown: a person who presses Tab wants words or nothing.
    Some(if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn for_shell() -> Result<()> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse::<usize>().ok());
    complete::begin(words, index);
    let completer = CompleteEnv::with_factory(complete::command).var(ASKED_BY);
    completer.try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref())?;
    Ok(())
}

fn for_kubectl(arguments: Vec<OsString>) -> Result<()> {
    let mut words = vec![OsString::from(PROGRAM)];
    words.extend(arguments);
    if words.len() == 1 {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    complete::begin(words.iter().cloned(), Some(last));
    let found = engine::complete(&mut complete::command(), words, last, None)?;
    let mut text = String::new();
    for candidate in &found {
        text.push_str(&candidate.get_value().to_string_lossy());
        if let Some(help) = candidate.get_help() {
            let help = help.to_string();
            text.push_str(&format!("\t{}", help.lines().next().unwrap_or_default()));
        }
        text.push('\n');
    }
    let goes_on = |word: &str| word.ends_with('=') || word.ends_with('/');
    let all_go_on = found.iter().all(|candidate| goes_on(&candidate.get_value().to_string_lossy()));
    let end = if all_go_on && !found.is_empty() { NO_FILES_NO_SPACE } else { NO_FILES };
    print::text(&format!("{text}{end}\n"))
}

/// `kubewitness completion`: prints the script that a shell reads.
pub fn completion(args: &CompletionArgs) -> CommandResult {
    let name = match args.shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
    };
    let shells = Shells::builtins();
    let shell = shells.completer(name).ok_or_else(|| anyhow!("{name} is not known"))?;
    let mut script = Vec::new();
    shell.write_registration(ASKED_BY, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    let script = scripts::change_script(name, &String::from_utf8_lossy(&script));
    print::text(&script.ok_or_else(|| anyhow!("the script for {name} is another one than is known"))?)?;
    Ok(CommandEnd::Fine)
}

/// `kubewitness man`: writes a page for each command.
pub fn man(args: &ManArgs) -> CommandResult {
    let dir: &Path = &args.dir;
    if !dir.is_dir() {
        let shown = dir.display();
        return Err(UsageError::error(format!(
            "{shown} is no folder: make it with `mkdir -p {shown}`, or name another"
        )));
    }
    clap_mangen::generate_to(cli::command(), dir)
        .with_context(|| format!("writing pages into {}", dir.display()))?;
    note!("pages are in {}: `man -l {}/kubewitness.1` shows the first", dir.display(), dir.display());
    Ok(CommandEnd::Fine)
}
