//! The completion of words that only the controller knows: kinds, names, namespaces, plugins, sources,
//! templates and their parameters.
//!
//! The controller has at most a second to answer. If it does not, nothing is offered and no error is shown.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use kubewitness_core::status::PHASES;
use tokio::runtime::Builder;

use super::words::CommandWords;
use crate::cli::{self, ReachArgs, SecretArg};
use crate::commands::api::{CompletionKind, fetch_candidates};

/// A shell that waits longer seems to hang.
const WITHIN: Duration = Duration::from_secs(1);

/// The words before the one that is completed, because clap passes only that one to its completers.
static BEFORE: OnceLock<CommandWords> = OnceLock::new();

/// Takes the words of the line, the first of which is the program, and the index of the one to complete.
pub(super) fn begin(words: impl Iterator<Item = OsString>, index: Option<usize>) {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let index = index.unwrap_or(words.len().saturating_sub(1)).min(words.len());
    let mut command = cli::command();
    command.build();
    // Set once, because this process completes one word.
    BEFORE.get_or_init(|| CommandWords::read(&command, words.get(1..index).unwrap_or_default()));
}

/// The command line, with a completer for each argument.
pub(super) fn command() -> Command {
    with_completers(cli::command())
}

fn with_completers(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| with_completer(&name, arg));
    command.mut_subcommands(with_completers)
}

/// `command` is the command to which the argument belongs.
fn with_completer(command: &str, arg: Arg) -> Arg {
    if arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
        return arg;
    }
    let is_word = arg.get_long().is_none();
    let completer = match (arg.get_id().as_str(), command) {
        ("namespace", _) => ArgValueCompleter::new(|typed: &OsStr| {
            offered_candidates(typed, |_, _| CompletionKind::Namespaces)
        }),
        ("plugin", _) | ("name", "plugins" | "forget") => {
            ArgValueCompleter::new(|typed: &OsStr| offered_candidates(typed, |_, _| CompletionKind::Plugins))
        }
        ("source", _) => {
            ArgValueCompleter::new(|typed: &OsStr| offered_candidates(typed, |_, _| CompletionKind::Sources))
        }
        ("template", _) => ArgValueCompleter::new(|typed: &OsStr| {
            offered_candidates(typed, |_, _| CompletionKind::Templates)
        }),
        ("parameters", "submit") => {
            ArgValueCompleter::new(|typed: &OsStr| offered_candidates(typed, parameter_completion))
        }
        ("phase", _) => ArgValueCompleter::new(phase_candidates),
        ("name", "get" | "jobs") if is_word => {
            ArgValueCompleter::new(|typed: &OsStr| offered_candidates(typed, object_completion))
        }
        ("kind" | "object", _) => {
            ArgValueCompleter::new(|typed: &OsStr| offered_candidates(typed, object_completion))
        }
        _ => return arg,
    };
    arg.add(completer)
}

fn phase_candidates(typed: &OsStr) -> Vec<CompletionCandidate> {
    let begins = typed.to_str().unwrap_or_default().to_lowercase();
    let fits = PHASES.into_iter().filter(|phase| phase.to_lowercase().starts_with(&begins));
    fits.map(CompletionCandidate::new).collect()
}

/// The name of an object: a kind and a name, in one word or in two.
fn object_completion(before: &CommandWords, typed: &str) -> CompletionKind {
    let command = before.commands.first().map(String::as_str);
    let of = |kind: &str, begins: &str| CompletionKind::Names {
        kind: kind.to_owned(),
        namespace: before.flag_value(&["-n", "--namespace"]),
        begins: begins.to_owned(),
        // These commands show the past, including ended objects.
        gone: !matches!(command, Some("get" | "jobs")) || before.flag_value(&["--at", "--gone"]).is_some(),
    };
    match (typed.split_once('/'), before.arguments.first()) {
        (Some((kind, begins)), _) => of(kind, begins),
        (None, Some(kind)) => of(kind, typed),
        (None, None) if command == Some("jobs") => {
            of(before.flag_value(&["--kind"]).as_deref().unwrap_or("Job"), typed)
        }
        (None, None) => CompletionKind::Kinds,
    }
}

/// A parameter of the template, or its value after the `=`.
fn parameter_completion(before: &CommandWords, typed: &str) -> CompletionKind {
    let name = |pair: &str| pair.split_once('=').map_or(pair, |(name, _)| name).to_owned();
    CompletionKind::Parameters {
        template: before.arguments.first().cloned().unwrap_or_default(),
        given: before.all_values(&["-p", "--parameter"]).map(name).collect(),
        of: typed.split_once('=').map(|(name, _)| name.to_owned()),
    }
}

fn offered_candidates(
    typed: &OsStr,
    wanted: impl Fn(&CommandWords, &str) -> CompletionKind,
) -> Vec<CompletionCandidate> {
    let (Some(typed), Some(before)) = (typed.to_str(), BEFORE.get()) else { return Vec::new() };
    let wanted = wanted(before, typed);
    let mut found = ask_controller(&reach_args(before), &wanted).unwrap_or_default();
    let is_get = before.commands.first().is_some_and(|command| command == "get");
    if wanted == CompletionKind::Kinds && is_get {
        found.insert("all".into());
    }
    // Usually one word names an object with its kind; `get` also accepts a kind alone.
    let kind = typed.split_once('/').filter(|_| matches!(wanted, CompletionKind::Names { .. }));
    let prefix = kind.map(|(kind, _)| format!("{kind}/")).unwrap_or_default();
    let suffix = if wanted == CompletionKind::Kinds && !is_get { "/" } else { "" };
    let words = found.into_iter().filter(|word| is_plain(word));
    let words = words.map(|word| format!("{prefix}{word}{suffix}"));
    words.filter(|word| word.starts_with(typed)).map(CompletionCandidate::new).collect()
}

/// Whether a shell takes it for one plain word. Others choose these names, and a Role may be called
/// `$(reboot)`. A word that a shell would execute is not offered, because not every shell quotes completions.
fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@+".contains(c);
    word.starts_with(char::is_alphanumeric) && word.chars().all(is_plain)
}

fn reach_args(before: &CommandWords) -> ReachArgs {
    let variable = |name: &str| std::env::var(name).ok();
    ReachArgs {
        server: before.flag_value(&["--server"]).or_else(|| variable("KUBEWITNESS_SERVER")),
        kubeconfig: before.flag_value(&["--kubeconfig"]).map(Into::into),
        context: before.flag_value(&["--context"]),
        kubewitness_namespace: before
            .flag_value(&["--kubewitness-namespace"])
            .or_else(|| variable("KUBEWITNESS_NAMESPACE")),
        is_default_namespace: false,
        token: before.flag_value(&["--token"]).or_else(|| variable("KUBEWITNESS_TOKEN")).map(SecretArg),
    }
}

fn ask_controller(reach: &ReachArgs, wanted: &CompletionKind) -> Option<BTreeSet<String>> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().ok()?;
    let found =
        runtime.block_on(async { tokio::time::timeout(WITHIN, fetch_candidates(reach, wanted)).await });
    // A login command of the kubeconfig may still run.
    runtime.shutdown_background();
    found.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &str, typed: &str) -> CompletionKind {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let mut command = cli::command();
        command.build();
        object_completion(&CommandWords::read(&command, &words), typed)
    }

    fn names(kind: &str, namespace: Option<&str>, begins: &str, gone: bool) -> CompletionKind {
        CompletionKind::Names {
            kind: kind.into(),
            namespace: namespace.map(Into::into),
            begins: begins.into(),
            gone,
        }
    }

    #[test]
    fn an_object_is_completed_kind_first_and_then_its_name() {
        assert_eq!(wanted("get", "jo"), CompletionKind::Kinds);
        assert_eq!(wanted("get job -n a", "tr"), names("job", Some("a"), "tr", false));
        assert_eq!(wanted("timeline", "job/tr"), names("job", None, "tr", true));
        assert_eq!(wanted("jobs", "tr"), names("Job", None, "tr", false));
        assert_eq!(wanted("jobs --kind pod", ""), names("pod", None, "", false));
        for line in ["get job --at 2h", "get job --gone", "get job --gone=too"] {
            assert_eq!(wanted(line, ""), names("job", None, "", true), "{line}");
        }
    }

    #[test]
    fn a_parameter_is_completed_by_its_name_and_then_by_its_value() {
        let wanted = |line: &str, typed: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let mut command = cli::command();
            command.build();
            parameter_completion(&CommandWords::read(&command, &words), typed)
        };
        let of = |given: &[&str], of: Option<&str>| CompletionKind::Parameters {
            template: "train".into(),
            given: given.iter().map(|name| (*name).to_owned()).collect(),
            of: of.map(Into::into),
        };
        assert_eq!(wanted("submit train", "gp"), of(&[], None));
        assert_eq!(wanted("submit train -p gpus=2 --parameter size=l -n a", ""), of(&["gpus", "size"], None));
        assert_eq!(wanted("submit train", "size="), of(&[], Some("size")));
    }

    #[test]
    fn a_word_that_a_shell_would_obey_is_not_offered() {
        for plain in ["train-7", "system:node", "gpus=", "size=l", "größe", "a/b.c_d"] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in [
            "$(reboot)",
            "a;b",
            "a|b",
            "*",
            "a b",
            "`a`",
            "a&b",
            "a>b",
            "~a",
            "{a,b}",
            "a\"b",
            "a'b",
            "a\\b",
            "a\u{202e}b",
            "a\nb",
            "-n",
            "--server=http://x",
            "",
            "!a",
            "a#b",
            "=ls",
            "%1",
        ] {
            assert!(!is_plain(other), "{other}");
        }
    }

    #[test]
    fn every_argument_that_the_controller_knows_has_a_completer() {
        let mut command = command();
        command.build();
        for (line, arg, has_one) in [
            ("get", "namespace", true),
            ("get", "kind", true),
            ("get", "phase", true),
            ("wait", "object", true),
            ("tap", "source", true),
            ("submit", "template", true),
            ("submit", "parameters", true),
            ("plugins", "name", true),
            ("plugin forget", "name", true),
            ("plugin new", "name", false),
            ("plugin run", "plugin", false),
            ("check", "object", false),
        ] {
            let below =
                line.split(' ').fold(&command, |command, name| command.find_subcommand(name).unwrap());
            let arg = below.get_arguments().find(|found| found.get_id() == arg).expect("an argument");
            assert_eq!(arg.get::<ArgValueCompleter>().is_some(), has_one, "{line} {arg}");
        }
    }
}
