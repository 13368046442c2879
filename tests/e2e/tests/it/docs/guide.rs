//! Follows the guide to a first plugin as it stands: its blocks, in their order, in an empty folder. A block says for which
//! languages it is run here. Where the minutes of the guide are measured, its tools are installed and its crates compiled
//! within them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_figures::record;
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, compiled, in_scratch, in_time, kubewitness_binary,
    plugins_folder,
};
use reqwest::Method;
use serde_json::json;
use tokio::process::Command;

use super::page::{Block, Page};
use super::runs::{is_certain, squeezed, text};
use crate::command_line::authors::{componentize_js, componentize_py, target_of_authors};
use crate::support::{create_job, example_copy, simulator};

const GUIDE: &str = "docs/how-to/write-a-plugin.md";
/// The beginning of the reason of a block that is run here; the languages follow it.
const HERE: &str = "tests/e2e/tests/it/docs/guide.rs runs it for ";
/// A first build compiles the crates of the SDK on a machine that does other things, too.
const WITHIN: Duration = Duration::from_secs(900);
const READY: Duration = Duration::from_secs(120);
/// The folder of the controller whose states the guide hands over.
const DATA: &str = "kubewitness-data";

/// The blocks for a language. One that stands in more than one language has the word of the first.
fn blocks(language: &str) -> Result<Vec<Block>> {
    let named = |block: &Block| {
        let reason = block.not_run.as_deref().unwrap_or_default();
        reason
            .split_once(HERE)
            .is_some_and(|(_, languages)| languages.split([',', ' ']).any(|it| it == language))
    };
    Ok(Page::read(Path::new(GUIDE))?.blocks().into_iter().filter(named).collect())
}

/// A language as the page says it, and as `--lang` does.
#[derive(Clone, Copy)]
struct GuideLanguage {
    name: &'static str,
    lang: &'static str,
    /// The name in the plugin's folder of the tool that is installed once.
    tool: &'static str,
    /// The command that installs the tool, as the README of the plugin's folder says it.
    install: &'static str,
}

const RUST: GuideLanguage = GuideLanguage { name: "Rust", lang: "rust", tool: "", install: "true" };
const PYTHON: GuideLanguage = GuideLanguage {
    name: "Python",
    lang: "python",
    tool: "venv",
    install: "python3 -m venv venv && venv/bin/pip install --quiet -r requirements.txt",
};
const JAVASCRIPT: GuideLanguage =
    GuideLanguage { name: "JavaScript", lang: "javascript", tool: "node_modules", install: "npm install" };

fn is_measured() -> bool {
    std::env::var_os(kubewitness_figures::RECORDS).is_some()
}

/// The block after which the plugin is built, tried and tested: its minutes are a figure.
const TESTED: &str = "kubewitness plugin test";

/// Somebody who types what the page shows.
struct GuideReader<'a> {
    scratch: &'a Scratch,
    language: GuideLanguage,
    kubeconfig: PathBuf,
    /// Where the last block has led.
    folder: PathBuf,
}

impl GuideReader<'_> {
    async fn types(&mut self, block: &Block) -> Result<()> {
        let program = kubewitness_binary()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.parent().context("the program's folder")?.display());
        let ends_in = self.scratch.path().join("ends-in");
        let commands =
            block.commands().join("\n").replace("--lang rust", &format!("--lang {}", self.language.lang));
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &format!("{commands}\npwd > {}", ends_in.display())]);
        shell.current_dir(&self.folder).env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        shell.env("KUBEWITNESS_PLUGINS", plugins_folder()?).env("NO_COLOR", "1").kill_on_drop(true);
        // What a task runner says to cargo is not meant for the plugin's build.
        shell.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
        if !is_measured() {
            shell.env("CARGO_TARGET_DIR", target_of_authors()?);
        }
        let output = in_time(WITHIN, shell.output()).await.context("it does not end")??;
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "it ended with {}: {stdout}{stderr}", output.status);
        let seen: Vec<String> = stdout.lines().chain(stderr.lines()).map(squeezed).collect();
        // How to get its tool is told in each language's own words.
        let is_shared = |line: &str| self.language.lang == "rust" || !line.contains("rustup");
        for line in block.output().into_iter().filter(|line| is_certain(line) && is_shared(line)) {
            ensure!(seen.contains(&squeezed(line)), "it does not say `{line}` but {stdout}{stderr}");
        }
        self.folder = std::fs::read_to_string(ends_in)?.trim_end().into();
        Ok(())
    }
}

async fn with_states(scratch: &Scratch, simulator: &Simulator) -> Result<Kubewitness> {
    let options = RunOptions {
        kubeconfig: simulator.kubeconfig().to_path_buf(),
        config: Some(example_copy(scratch)?),
        data: scratch.folder(DATA)?,
        ..RunOptions::default()
    };
    let mut run = Kubewitness::start("run", &options, scratch.path())?;
    run.answers().await?;
    create_job(simulator, "one").await?;
    run.status_when(READY, "the job", |status| status.journal.states > 0).await?;
    Ok(run)
}

/// The folder of a controller, which every reader has elsewhere, and what the page says to install once.
async fn set_up(made: &Path, scratch: &Scratch, language: GuideLanguage, tool: Option<&Path>) -> Result<()> {
    let links = |to: &Path, name: &str| std::os::unix::fs::symlink(to, made.join(name));
    links(&scratch.path().join(DATA), DATA)?;
    match tool {
        Some(tool) if !is_measured() => links(tool, language.tool)?,
        Some(_) | None => {
            let mut shell = Command::new("sh");
            shell.args(["-c", language.install]).current_dir(made).kill_on_drop(true);
            let ran = in_time(WITHIN, shell.status()).await;
            let ran = ran.with_context(|| format!("`{}` does not end", language.install))??;
            ensure!(ran.success(), "`{}` ended with {ran}", language.install);
        }
    }
    Ok(())
}

async fn follow(scratch: &Scratch, language: GuideLanguage, tool: Option<PathBuf>) -> Result<()> {
    let name = language.name;
    let (simulator, blocks) = (simulator(scratch).await?, blocks(name)?);
    ensure!(blocks.len() >= 6, "only {} blocks are run for {name}", blocks.len());
    let mut run = with_states(scratch, &simulator).await?;
    // The controller's own, where `install` writes to.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubewitness"}});
    let (code, told) = simulator.request(Method::POST, "/api/v1/namespaces", Some(&namespace)).await?;
    ensure!(code == 201, "{code}: {told}");
    let kubeconfig = simulator.kubeconfig().to_path_buf();
    let mut reader = GuideReader { scratch, language, kubeconfig, folder: scratch.folder("empty")? };
    let begun = Instant::now();
    for (number, block) in blocks.iter().enumerate() {
        reader.types(block).await.with_context(|| format!("{GUIDE}:{} in {name}", block.line))?;
        if number == 0 {
            let made = reader.folder.join("shout");
            set_up(&made, scratch, language, tool.as_deref()).await?;
            if !is_measured() {
                compiled::seed_author(&made)?;
            }
        }
        if block.commands().iter().any(|line| line == TESTED) {
            record(&format!("guide.{}", language.lang), begun.elapsed().as_secs_f64() / 60.0)?;
        }
    }
    compiled::harvest_author(&reader.folder)?;
    run.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_to_a_plugin_works_as_it_stands_in_rust() {
    in_scratch("guide-rust", async |scratch| follow(scratch, RUST, None).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_to_a_plugin_works_as_it_stands_in_python() {
    let Some(tool) = componentize_py("the guide in Python") else { return };
    in_scratch("guide-python", async |scratch| follow(scratch, PYTHON, Some(tool)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_to_a_plugin_works_as_it_stands_in_javascript() {
    let Some(tool) = componentize_js("the guide in JavaScript") else { return };
    in_scratch("guide-javascript", async |scratch| follow(scratch, JAVASCRIPT, Some(tool)).await).await;
}
