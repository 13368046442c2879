//! `kubewitness plugin build`: runs the tool of the plugin's language, and checks the result.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::Command;

use super::subject;
use crate::cli::BuildPluginArgs;
use crate::commands::{CommandEnd, CommandResult, print};

/// The tool that makes a component from Python. It runs in the plugin's folder.
const COMPONENTIZE_PY: [&str; 2] = ["venv/bin/componentize-py", "componentize-py"];
const COMPONENTIZE_JS: &str = "node_modules/.bin/componentize-js";
/// The world in `wit/component.wit`.
const WORLD: &str = "component";

pub async fn build(args: BuildPluginArgs) -> CommandResult {
    let manifest = subject::read_manifest(&args.dir)?;
    let Some(file) = &manifest.spec.module.file else {
        bail!("spec.module of the manifest names no `file`: that is where the component is written");
    };
    let target = subject::path_in_folder(&args.dir, file);
    if args.dir.join("Cargo.toml").is_file() {
        build_rust(&args.dir, &target).await?;
    } else if args.dir.join("plugin.py").is_file() {
        build_python(&args.dir, file).await?;
    } else if args.dir.join("plugin.js").is_file() {
        build_javascript(&args.dir, file).await?;
    } else {
        bail!(
            "{} has no Cargo.toml, no plugin.py and no plugin.js: build the component with your language's own tool, and put \
             it at {}",
            args.dir.display(),
            target.display()
        );
    }
    let bytes = std::fs::metadata(&target).with_context(|| format!("reading {}", target.display()))?.len();
    // An author wants to know at once whether the component fits.
    let subject = subject::load(&args.dir, None).await?;
    let digest: String = subject.component.file_digest().chars().take(12).collect();
    print::text(&format!("✓ {} ({} KiB, component {digest})\n", target.display(), bytes.div_ceil(1024)))?;
    Ok(CommandEnd::Fine)
}

async fn build_rust(folder: &Path, target: &Path) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args([
        "build",
        "--release",
        "--target",
        "wasm32-wasip2",
        "--message-format",
        "json-render-diagnostics",
    ]);
    command.current_dir(folder).stdout(Stdio::piped());
    let hint = "install Rust with rustup, then `rustup target add wasm32-wasip2`";
    let built = run_for_output(command, "cargo", hint).await?;
    // The last message is about the plugin itself.
    let messages = built.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let made = messages.filter_map(|message| built_component(&message)).next();
    let Some(made) = made else {
        bail!("cargo made no component: the crate's type in Cargo.toml has to include \"cdylib\"");
    };
    std::fs::copy(&made, target)
        .with_context(|| format!("copying {} to {}", made.display(), target.display()))?;
    Ok(())
}

/// The file that a message of cargo reports as built.
fn built_component(message: &Value) -> Option<PathBuf> {
    let files = message.get("filenames")?.as_array()?;
    let mut files = files.iter().filter_map(Value::as_str);
    files.find(|file| file.ends_with(".wasm")).map(PathBuf::from)
}

async fn build_python(folder: &Path, file: &str) -> Result<()> {
    let own = folder.join(COMPONENTIZE_PY[0]);
    // A relative program would be searched for in the folder in which it runs.
    let program = if own.is_file() { std::path::absolute(own)? } else { PathBuf::from(COMPONENTIZE_PY[1]) };
    let mut command = Command::new(program);
    command.args(["-d", "wit", "-w", WORLD, "componentize", "plugin", "-o", file]).current_dir(folder);
    run_for_output(
        command,
        "componentize-py",
        "`python3 -m venv venv && venv/bin/pip install -r requirements.txt`",
    )
    .await
    .map(drop)
}

async fn build_javascript(folder: &Path, file: &str) -> Result<()> {
    let mut command = Command::new(std::path::absolute(folder.join(COMPONENTIZE_JS))?);
    // It finds the interfaces only by an absolute path.
    command.arg("--wit").arg(std::path::absolute(folder.join("wit"))?).args(["--world-name", WORLD]);
    for feature in ["stdio", "random", "clocks", "http", "fetch-event"] {
        command.args(["--disable", feature]);
    }
    command.args(["-o", file, "plugin.js"]).current_dir(folder);
    run_for_output(command, "componentize-js", "`npm install`").await.map(drop)
}

/// Its standard output, if requested. Its complaints go to the terminal at once.
async fn run_for_output(mut command: Command, tool: &str, install: &str) -> Result<String> {
    let ran = command.stdin(Stdio::null()).spawn();
    let ran = match ran {
        Ok(child) => child.wait_with_output().await.with_context(|| format!("waiting for {tool}"))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{tool} is not installed here: {install}")
        }
        Err(error) => return Err(error).with_context(|| format!("starting {tool}")),
    };
    if !ran.status.success() {
        bail!("{tool} ended with {}: what it printed says why", ran.status);
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
