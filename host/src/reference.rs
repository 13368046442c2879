//! The pages of the reference that the binary knows: commands, codes, interfaces. Tests generate them and
//! compare them with `docs/reference`.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use kubewitness_core::words::WordMeaning;
use kubewitness_core::{state, status};
use kubewitness_harness::{GENERATED, cell, reference};

use crate::commands::{BrokenLine, CommandEnd, codes};
use crate::controller::PluginPhase;

/// Every command has these flags, and they explain themselves.
const EVERYWHERE: [&str; 2] = ["help", "version"];

fn argument(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    let names = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => return format!("`{values}`"),
    };
    match arg.get_action().takes_values() {
        true => format!("`{names} {values}`"),
        false => format!("`{names}`"),
    }
}

fn meaning(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let possible = arg.get_possible_values();
    let takes = arg.get_action().takes_values();
    if takes && !possible.is_empty() && possible.len() < 8 {
        let value = |value: &clap::builder::PossibleValue| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        };
        write!(text, ": {}", possible.iter().map(value).collect::<Vec<_>>().join(", ")).unwrap();
    }
    text
}

/// Renders a command, then its subcommands.
fn command(page: &mut String, command: &mut Command) {
    let usage = command.render_usage().to_string();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let usage = usage.trim_start_matches("Usage: ");
    write!(page, "\n## {name}\n\n{about}.\n\n```text\n{usage}\n```\n").unwrap();
    let shown = |arg: &&Arg| !arg.is_hide_set() && !EVERYWHERE.contains(&arg.get_id().as_str());
    let args: Vec<_> = command.get_arguments().filter(shown).collect();
    if !args.is_empty() {
        page.push_str("\n| argument or flag | meaning | default | environment |\n|---|---|---|---|\n");
    }
    for arg in args {
        let defaults = arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
        let default = match (arg.is_required_set(), arg.get_action().takes_values()) {
            (true, _) => "required".to_owned(),
            (false, true) => defaults.collect::<Vec<_>>().join(", "),
            (false, false) => String::new(),
        };
        let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let cells = [argument(arg), meaning(arg), default, variable].map(|text| cell(&text));
        writeln!(page, "| {} |", cells.join(" | ")).unwrap();
    }
    if let Some(more) = command.get_after_help() {
        write!(page, "\n{}\n", more.to_string().replace('\n', " ")).unwrap();
    }
    for below in command.get_subcommands_mut().filter(|below| !below.is_hide_set()) {
        self::command(page, below);
    }
}

#[test]
fn the_reference_lists_every_command_and_flag() {
    let mut page = format!(
        "{GENERATED}# Commands\n\nData goes to standard output, progress and errors to standard error. Every command \
         takes `-h, --help`. [Exit codes](codes.md#exit-codes) are the same for all of them. A variable of the \
         environment gives a flag its value where the command line does not.\n"
    );
    let mut all = crate::cli::Cli::command();
    all.build();
    all.get_subcommands_mut()
        .filter(|below| !below.is_hide_set())
        .for_each(|below| command(&mut page, below));
    reference("commands.md", &page);
}

fn table(page: &mut String, title: &str, about: &str, words: &[WordMeaning]) {
    write!(page, "\n## {title}\n\n{about}\n\n| word | meaning |\n|---|---|\n").unwrap();
    for word in words {
        writeln!(page, "| `{}` | {} |", word.name, cell(word.about)).unwrap();
    }
}

/// A new exit code does not compile without an entry here.
fn exit(end: CommandEnd) -> &'static str {
    match end {
        CommandEnd::Fine => "The command did what it was asked to do, and found nothing wrong.",
        CommandEnd::Failed => "The command worked, and a check or a job failed.",
        CommandEnd::Warned => "The command worked, and something is probably not as it was meant.",
        CommandEnd::TimedOut => "What the command waits for has not come within `--timeout`.",
    }
}

/// A new finding does not compile without an entry here.
fn cause(broken: &BrokenLine) -> &'static str {
    match broken {
        BrokenLine::Cut => {
            "The controller was killed or the disk was full while it wrote the line, or somebody cut the file."
        }
        BrokenLine::NotText | BrokenLine::Unreadable(_) | BrokenLine::NoHash => {
            "Something else than the controller wrote the line."
        }
        BrokenLine::NoTrail(_) => "Another plugin writes the ledger, or somebody changed its first line.",
        BrokenLine::Number(_) => "The file lacks a line, has one too many, or has lines in another order.",
        BrokenLine::Unlinked | BrokenLine::Changed => "Somebody edited the file, or the disk lost bytes.",
        BrokenLine::Twice(_) => "Two plugins share the ledger, or somebody added the line.",
        BrokenLine::OtherLedger(_) | BrokenLine::OtherFile(_) => {
            "A file or a line was put in the place of another."
        }
        BrokenLine::OtherPrevious => {
            "A file was changed or replaced, or the ledger was forked, as a copy of a disk does it."
        }
        BrokenLine::NoHead | BrokenLine::Miscounted | BrokenLine::OtherRoot => {
            "Somebody edited the file, or the disk lost bytes. It was so before the line was written."
        }
        BrokenLine::BehindSeal => "Somebody added the line: the controller writes nothing after a seal.",
        BrokenLine::Unsigned => {
            "`signing` was taken out of the settings meanwhile, or somebody without the key wrote the line."
        }
        BrokenLine::UnknownKey(_) => {
            "The key was changed and its old or new public part is not given, or it is not yours."
        }
        BrokenLine::Forged => "Somebody without the key wrote or changed the line.",
        BrokenLine::NoSeal => "Somebody cut the file's end or put the file there.",
        BrokenLine::OtherAnchor(_) => {
            "Somebody with the key rewrote the ledger, or it was restored from a copy."
        }
    }
}

#[test]
fn the_reference_lists_every_code() {
    let mut page = format!(
        "{GENERATED}# Codes\n\nThe words and numbers that programs can rely on. They keep their meaning; new ones may \
         be added.\n\n## Exit codes\n\n| code | meaning |\n|---|---|\n"
    );
    let ends = [CommandEnd::Fine, CommandEnd::Failed, CommandEnd::Warned, CommandEnd::TimedOut]
        .map(|end| (end.code(), exit(end)));
    let errors = [
        (1, "The command could not do what it was asked to do. Standard error says why and what to do."),
        (2, "The command line is wrong."),
    ];
    let mut codes: Vec<_> = ends.into_iter().chain(errors).collect();
    codes.sort_unstable();
    codes.iter().for_each(|(code, about)| writeln!(page, "| {code} | {about} |").unwrap());
    let page = &mut page;
    let about = "The field `phase` of a status. [Status rules](host.md#rule) decide it.";
    table(page, "Phases of objects", about, &status::phase::ALL);
    let about = "The field `reason` of a gap, as `kubewitness gaps`, the portal and the API show it.";
    table(page, "Reasons of gaps", about, &state::gap_reason::ALL);
    let about = "The field `state` of a plugin, as `kubewitness plugins`, the API and the label \
        `kubewitness.dev/phase` of the status ConfigMap show it.";
    table(page, "Phases of plugins", about, PluginPhase::ALL);
    let about = "The field `code` of a problem that `kubewitness journal verify` finds. A problem means that the \
        journal is damaged or was changed by another program: keep the files and restore a copy.";
    table(page, "Codes of `journal verify`", about, &kubewitness_journal::code::ALL);
    let about = "The field `what` of the first line of a ledger that does not hold, as `kubewitness audit verify` \
        shows it. Nothing after that line is checked.";
    write!(page, "\n## Findings of `audit verify`\n\n{about}\n\n| finding | cause |\n|---|---|\n").unwrap();
    for broken in [
        BrokenLine::Cut,
        BrokenLine::NotText,
        BrokenLine::Unreadable("…".into()),
        BrokenLine::NoTrail("…".into()),
        BrokenLine::NoHash,
        BrokenLine::Number(7),
        BrokenLine::Unlinked,
        BrokenLine::Changed,
        BrokenLine::Twice("…".into()),
        BrokenLine::OtherLedger("…".into()),
        BrokenLine::OtherFile(7),
        BrokenLine::OtherPrevious,
        BrokenLine::NoHead,
        BrokenLine::Miscounted,
        BrokenLine::OtherRoot,
        BrokenLine::BehindSeal,
        BrokenLine::Unsigned,
        BrokenLine::UnknownKey("…".into()),
        BrokenLine::Forged,
        BrokenLine::NoSeal,
        BrokenLine::OtherAnchor("…".into()),
    ] {
        writeln!(page, "| {broken} | {} |", cause(&broken)).unwrap();
    }
    reference("codes.md", page);
}

#[test]
fn the_reference_has_a_page_for_each_code_of_doctor() {
    let mut index = format!(
        "{GENERATED}# Codes of `kubewitness doctor`\n\nEach line of `kubewitness doctor` has a code, which keeps its \
         meaning. `kubewitness doctor --explain CODE` prints its page.\n\n| code | what is checked |\n|---|---|\n"
    );
    for code in codes::ALL {
        let file = format!("{}.md", code.code.to_lowercase());
        writeln!(index, "| [{}]({file}) | {} |", code.code, cell(code.title)).unwrap();
        let page = format!(
            "{GENERATED}# {}: {}\n\n{}\n\n## What to do\n\n{}\n\n[All codes](README.md)\n",
            code.code, code.title, code.meaning, code.remedy
        );
        reference(&format!("doctor/{file}"), &page);
    }
    reference("doctor/README.md", &index);
}

/// One section for each interface or world, with its doc comment as text.
fn wit(page: &mut String, file: &str, text: &str) {
    write!(page, "\n## {file}\n\n").unwrap();
    let (mut about, mut item) = (String::new(), String::new());
    for line in text.lines().filter(|line| !line.starts_with("package ")) {
        if !item.is_empty() {
            writeln!(item, "{line}").unwrap();
            if line == "}" {
                write!(page, "```wit\n{item}```\n").unwrap();
                item.clear();
            }
        } else if let Some(words) = line.strip_prefix("///") {
            writeln!(about, "{}", words.trim_start()).unwrap();
        } else if let Some(words) = line.strip_prefix("//") {
            writeln!(page, "{}", words.trim_start()).unwrap();
        } else if line.is_empty() {
            page.push('\n');
        } else {
            write!(page, "### {}\n\n{about}\n", line.trim_end_matches(" {")).unwrap();
            about.clear();
            writeln!(item, "{line}").unwrap();
        }
    }
}

#[test]
fn the_reference_has_every_interface() {
    let mut page = format!(
        "{GENERATED}# Interfaces of plugins\n\nA plugin is a WebAssembly component. These WIT files are the whole \
         contract between it and the controller, which they call the host. [Plugin manifests](plugin.md) say which \
         capabilities it is granted.\n"
    );
    for (file, text) in [
        ("worlds.wit", include_str!("../../wit/worlds.wit")),
        ("types.wit", include_str!("../../wit/types.wit")),
        ("capabilities.wit", include_str!("../../wit/capabilities.wit")),
    ] {
        wit(&mut page, file, text);
    }
    while page.contains("\n\n\n") {
        page = page.replace("\n\n\n", "\n\n");
    }
    reference("wit.md", &page);
}
