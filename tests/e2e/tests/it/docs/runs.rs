//! Runs each block of commands that has no reason against it. Commands that ask a controller run beside a
//! playground; the others run on the data folder that it leaves behind.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    ChildProcess, ProcessEnd, Scratch, command, command_json, compiled, free_port, in_scratch, in_time,
    kubewitness_binary, plugins_folder, project_root, until_ok,
};
use tokio::process::Command;

use super::page::{Block, Page, pages};
use super::shell::simple_commands;

const WITHIN: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_secs(1);
const FOLDER: &str = "kubewitness-playground";
/// Commands that ask a running controller.
const ASKING: [&str; 12] = [
    "submit",
    "status",
    "jobs",
    "get",
    "gaps",
    "poison",
    "timeline",
    "why",
    "plugins",
    "pause",
    "resume",
    "deadletters",
];
/// Objects that pages ask for by name, and what becomes of them: the seed gives them.
const KNOWN: [([&str; 4], &str); 2] = [
    (["timeline", "job/bert-distill-6ptc", "-n", "team-vision"], "Succeeded"),
    (["timeline", "job/mixtral-align-wmmf", "-n", "team-search"], "BackoffLimitExceeded"),
];

/// A playground, and a shell beside it.
struct PageLab<'a> {
    scratch: &'a Scratch,
    server: String,
    process: ChildProcess,
}

impl<'a> PageLab<'a> {
    async fn start(scratch: &'a Scratch) -> Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        compiled::seed_playground(&scratch.path().join(FOLDER))?;
        let mut command = Command::new(kubewitness_binary()?);
        command.args(["playground", "--rate", "60", "--data", FOLDER, "--listen", &address]);
        command.current_dir(scratch.path()).env("KUBEWITNESS_PLUGINS", plugins_folder()?);
        let process = ChildProcess::start("playground", command.env("HOME", scratch.path()), scratch.path())?;
        let lab = Self { scratch, server: format!("http://{address}"), process };
        until_ok(WITHIN, "the playground to have the objects that pages name", async || {
            // Each look starts programs, and the playground needs the processors.
            tokio::time::sleep(LOOK).await;
            for (known, end) in KNOWN {
                let asked = [&known[..], &["--server", &lab.server]].concat();
                let (code, stdout, stderr) = self::command(&asked).await?;
                ensure!(code == Some(0) && stdout.contains(end), "{code:?}: {stdout}{stderr}");
            }
            lab.works().await
        })
        .await
        .with_context(|| lab.process.say())?;
        Ok(lab)
    }

    /// Its plugins have been compiled, so that one can be paused, and its templates are offered.
    async fn works(&self) -> Result<()> {
        let plugins = command_json(&["plugins", "-o", "json", "--server", &self.server]).await?;
        let all = plugins.as_array().context("plugins")?;
        ensure!(!all.is_empty() && all.iter().all(|plugin| plugin["state"] != "starting"), "{plugins}");
        let templates = command_json(&["submit", "--list", "-o", "json", "--server", &self.server]).await?;
        ensure!(templates.as_array().is_some_and(|all| !all.is_empty()), "{templates}");
        Ok(())
    }

    /// The folder in which a page's commands run, with the files that the page shows.
    fn folder(&self, page: &Page) -> Result<PathBuf> {
        let folder = self.scratch.folder(&page.name().replace('/', "-"))?;
        link(&project_root().join("deploy"), &folder.join("deploy"))?;
        link(&self.scratch.path().join(FOLDER), &folder.join(FOLDER))?;
        for block in page.blocks().iter().filter(|block| block.language == "yaml") {
            let name = block
                .lines
                .first()
                .and_then(|line| line.strip_prefix("# "))
                .filter(|name| !name.contains(' '));
            if let Some(name) = name {
                std::fs::write(folder.join(name), block.lines.join("\n"))?;
            }
        }
        Ok(folder)
    }

    async fn run(&self, page: &Page, block: &Block) -> Result<()> {
        let program = kubewitness_binary()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.parent().context("the program's folder")?.display());
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &block.commands().join("\n")]).current_dir(self.folder(page)?);
        shell.env("PATH", path).env("KUBEWITNESS_SERVER", &self.server).env_remove("KUBECONFIG");
        shell.env("KUBEWITNESS_PLUGINS", plugins_folder()?).env("NO_COLOR", "1").kill_on_drop(true);
        let output = in_time(WITHIN, shell.output()).await.context("it does not end")??;
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "it ended with {}: {stdout}{stderr}", output.status);
        let seen: Vec<String> = stdout.lines().chain(stderr.lines()).map(squeezed).collect();
        for line in block.output().iter().filter(|line| is_certain(line)) {
            ensure!(seen.contains(&squeezed(line)), "it does not say `{line}` but {stdout}{stderr}");
        }
        Ok(())
    }
}

fn link(to: &Path, from: &Path) -> Result<()> {
    match std::os::unix::fs::symlink(to, from) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The width of a column depends on its content.
pub fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Figures, times and hashes differ from run to run. Table heads and sentences do not.
pub fn is_certain(line: &str) -> bool {
    !line.is_empty() && !line.contains('…') && !line.contains(|letter: char| letter.is_ascii_digit())
}

/// The subcommands of a block. A test starts no program but `kubewitness` for a page.
fn started(block: &Block) -> Result<Vec<String>> {
    let mut commands = Vec::new();
    for words in block.commands().iter().flat_map(|line| simple_commands(line)) {
        match words.as_slice() {
            [program, command, ..] if program == "kubewitness" => commands.push(command.clone()),
            _ => bail!("`{}` is not run by tests: say why in a line before the block", words.join(" ")),
        }
    }
    ensure!(!commands.is_empty(), "it has no command after `$ `");
    Ok(commands)
}

/// The blocks without a reason against running them, and whether they ask a running controller.
fn runnable(pages: &[Page]) -> Result<Vec<(&Page, Block, bool)>> {
    let mut found = Vec::new();
    for page in pages.iter().filter(|page| page.name() != "README.zh-CN.md") {
        for block in page.blocks().into_iter().filter(|block| block.is_console() && block.not_run.is_none()) {
            let commands = started(&block).with_context(|| format!("{}:{}", page.name(), block.line))?;
            let asks = commands.iter().any(|command| ASKING.contains(&command.as_str()));
            found.push((page, block, asks));
        }
    }
    ensure!(found.len() > 15, "only {} blocks can be run", found.len());
    Ok(found)
}

#[tokio::test]
async fn the_commands_of_the_documentation_work_as_they_stand() {
    in_scratch("docs", async |scratch| {
        let pages = pages()?;
        let blocks = runnable(&pages)?;
        let mut lab = PageLab::start(scratch).await?;
        let mut faults = Vec::new();
        for asks in [true, false] {
            for (page, block, _) in blocks.iter().filter(|(_, _, own)| *own == asks) {
                let ran = lab.run(page, block).await;
                faults.extend(ran.err().map(|why| format!("{}:{}: {why:#}", page.name(), block.line)));
            }
            // The other commands read the folder of a controller that has ended.
            if asks {
                let ended = lab.process.terminate(WITHIN).await?;
                ensure!(ended == ProcessEnd::Code(0), "it ended with {ended:?}; {}", lab.process.say());
            }
        }
        ensure!(faults.is_empty(), "{}", faults.join("\n"));
        Ok(())
    })
    .await;
}

#[test]
fn what_differs_from_run_to_run_is_not_compared() {
    assert!(is_certain("SOURCE   STATE    OBJECTS") && !is_certain("jobs   synced   68") && !is_certain("…"));
    assert_eq!(squeezed("A   B "), "A B");
}
