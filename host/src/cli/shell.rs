//! The commands for shells and `man`, and the names under which the program can be called.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command, CommandFactory, ValueEnum};

use super::Cli;

/// The name under which kubectl finds a plugin.
const PLUGIN: &str = "kubectl-kubewitness";

#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell that reads the script
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder for the pages. It must exist
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

/// Whether the program was called by this name, in any folder.
pub fn is_called(program: &OsStr, name: &str) -> bool {
    Path::new(program).file_name().is_some_and(|file| file == name)
}

/// The command line as its help shows it.
pub fn command() -> Command {
    Cli::command()
}

/// The same for a program with this name: kubectl's plugin is called by two words.
pub fn command_of(program: Option<&OsStr>) -> Command {
    let command = command();
    match program.is_some_and(|program| is_called(program, PLUGIN)) {
        true => command.bin_name("kubectl kubewitness"),
        false => command,
    }
}

/// The library recommends `-- -5m`, which would make it a word that belongs to no flag.
pub fn replace_advice(mut error: clap::Error) -> clap::Error {
    let is_negative = |word: &str| {
        word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && is_negative(word)
    {
        let advice = "a time and a number have no `-` before them: write 5m for five minutes ago, and a number from 0 on";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn a_negative_value_is_told_as_what_it_is() {
        for line in [["get", "jobs", "--limit", "-1"], ["get", "jobs", "--at", "-5m"]] {
            let line = ["kubewitness"].iter().chain(&line);
            let error = replace_advice(command_of(None).try_get_matches_from(line).unwrap_err()).to_string();
            assert!(error.contains("write 5m for five minutes ago") && !error.contains("-- -"), "{error}");
        }
    }

    /// The words that lead to each command, and the command.
    fn commands(words: &[String], command: &Command) -> Vec<(Vec<String>, Command)> {
        let below = command.get_subcommands().flat_map(|sub| {
            let words: Vec<_> = words.iter().cloned().chain([sub.get_name().to_owned()]).collect();
            commands(&words, sub)
        });
        let below: Vec<_> = below.collect();
        [(words.to_vec(), command.clone())].into_iter().chain(below).collect()
    }

    #[test]
    fn each_argument_that_refuses_a_word_says_what_to_write_in_words_of_its_own() {
        // What the parsers of numbers, addresses and documents say. It doesn't say what to write.
        const OF_PARSERS: [&str; 8] = [
            "invalid digit",
            "invalid float",
            "invalid socket address syntax",
            "invalid IP address syntax",
            "expected value at line",
            "relative URL without a base",
            "is not in ",
            "cannot parse",
        ];
        let mut refused = 0;
        for (words, command) in commands(&["kubewitness".to_owned()], &command_of(None)) {
            let flags = command.get_opts().filter_map(clap::Arg::get_long).map(|flag| format!("--{flag}=x"));
            let positional = command.get_positionals().map(|_| "x".to_owned());
            for given in flags.map(|flag| vec![flag]).chain([positional.collect()]) {
                let line = words.iter().chain(&given);
                let Err(error) = command_of(None).try_get_matches_from(line) else { continue };
                let told = error.to_string();
                refused += usize::from(error.kind() == ErrorKind::ValueValidation);
                for text in OF_PARSERS {
                    assert!(!told.contains(text), "{words:?} {given:?}: {told}");
                }
            }
        }
        assert!(refused > 40, "{refused} arguments are numbers, addresses and times");
    }

    #[test]
    fn a_plugin_of_kubectl_shows_the_two_words_that_people_type() {
        let usage = |program: &str| {
            let line = [program, "wait", "--help"];
            command_of(Some(OsStr::new(program))).try_get_matches_from(line).unwrap_err().to_string()
        };
        let text = usage("/usr/local/bin/kubectl-kubewitness");
        assert!(text.contains("Usage: kubectl kubewitness wait"), "{text}");
        let text = usage("/usr/local/bin/kubewitness");
        assert!(text.contains("Usage: kubewitness wait"), "{text}");
    }
}
