//! Compares each command in the documentation with the help texts of the program.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{command, project_root};

use super::page::pages;
use super::shell::simple_commands;

const PROGRAM: &str = "kubewitness";
const RUNNER: &str = "tests/xtask/src/main.rs";

/// The flags and subcommands in a help text.
#[derive(Clone, Default)]
struct Help {
    flags: BTreeSet<String>,
    commands: BTreeSet<String>,
}

impl Help {
    fn parse(text: &str) -> Self {
        let mut help = Self::default();
        let mut in_commands = false;
        for line in text.lines() {
            if !line.starts_with(' ') {
                in_commands = line.starts_with("Commands:");
                continue;
            }
            let line = line.trim_start();
            if line.starts_with('-') {
                let names = line.split("  ").next().unwrap_or_default().split([',', ' ', '[']);
                help.flags.extend(names.filter(|name| name.starts_with('-')).map(str::to_owned));
            } else if in_commands && let Some(name) = line.split_whitespace().next() {
                help.commands.insert(name.to_owned());
            }
        }
        help
    }
}

/// The help of each command, read once.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, Help>);

impl Helps {
    async fn of(&mut self, path: &[String]) -> Result<Help> {
        if let Some(help) = self.0.get(path) {
            return Ok(help.clone());
        }
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let (code, stdout, stderr) = command(&args).await?;
        ensure!(code == Some(0), "`{PROGRAM} {}` ended with {code:?}: {stderr}", args.join(" "));
        let help = Help::parse(&stdout);
        self.0.insert(path.to_vec(), help.clone());
        Ok(help)
    }

    async fn check(&mut self, words: &[String]) -> Result<()> {
        let mut path = Vec::new();
        let mut help = self.of(&path).await?;
        let mut words = words.iter().peekable();
        while let Some(word) = words.next_if(|word| help.commands.contains(*word)) {
            path.push(word.clone());
            help = self.of(&path).await?;
        }
        ensure!(help.commands.is_empty(), "`{}` is no command of {:?}", words.peek().map_or("", |w| w), path);
        for word in words.filter(|word| word.starts_with('-') && word.len() > 1) {
            let flag = word.split('=').next().unwrap_or_default();
            ensure!(help.flags.contains(flag), "`{PROGRAM} {}` has no flag {flag}", path.join(" "));
        }
        Ok(())
    }
}

/// The task runner's commands stand in its source.
fn runner_has(runner: &str, words: &[String]) -> Result<()> {
    let name = words.first().context("`cargo xtask` without a command")?;
    if !runner.contains(&format!("\"{name}\"")) {
        bail!("`cargo xtask {name}` is no command of {RUNNER}");
    }
    Ok(())
}

#[tokio::test]
async fn each_command_of_the_documentation_exists_with_its_flags() -> Result<()> {
    let runner = std::fs::read_to_string(project_root().join(RUNNER)).context("the task runner")?;
    let mut helps = Helps::default();
    let mut faults = Vec::new();
    let mut checked = 0;
    for page in pages()? {
        for block in page.blocks().iter().filter(|block| block.is_console()) {
            for words in block.commands().iter().flat_map(|line| simple_commands(line)) {
                let program = words[0].rsplit('/').next().unwrap_or_default();
                let found = match (program, words.get(1).map(String::as_str)) {
                    (PROGRAM, _) => helps.check(&words[1..]).await,
                    ("cargo", Some("xtask")) => runner_has(&runner, &words[2..]),
                    _ => continue,
                };
                checked += 1;
                faults.extend(found.err().map(|why| format!("{}:{}: {why:#}", page.name(), block.line)));
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    ensure!(checked > 30, "only {checked} commands were found");
    Ok(())
}

#[test]
fn flags_and_commands_are_read_from_a_help_text() {
    let help = Help::parse(
        "Usage: x\n\nCommands:\n  run   It runs\n  stop  It stops\n\nOptions:\n  -n, --namespace <N>  One\n      --all\n      --gone[=<W>]\n",
    );
    assert_eq!(help.commands, ["run".to_owned(), "stop".to_owned()].into());
    assert_eq!(
        help.flags,
        ["-n".to_owned(), "--namespace".to_owned(), "--all".to_owned(), "--gone".to_owned()].into()
    );
}
