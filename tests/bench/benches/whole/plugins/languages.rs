//! The memory that an idle plugin holds, by the language that it is written in: the plugin of
//! `kubewitness plugin new`, the same in each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use kubewitness_figures::record;

use crate::canned::CannedServer;
use crate::crowd::{JOBS, goal_text, ms, rest, until_active};
use crate::host::{HostLab, binary, mib, plugin, settings};

const GOAL_MIB: f64 = 1.0;
/// A language, and the folder of its tool: where the plugin looks for it, and the program within.
const LANGUAGES: [(&str, Option<(&str, &str)>); 3] = [
    ("rust", None),
    ("python", Some(("venv", "bin/componentize-py"))),
    ("javascript", Some(("node_modules", ".bin/componentize-js"))),
];

pub async fn memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let canned = CannedServer::start(JOBS, 0).await?;
    let kubeconfig = canned.kubeconfig(folder.path())?;
    println!(
        "plugins: memory at rest by language, each plugin has handled {JOBS} states and has an instance"
    );
    let none = lab(&folder.path().join("none"), &[])?;
    drop(until_active(&none, &kubeconfig, 0).await?);
    let alone = rest(&until_active(&none, &kubeconfig, 0).await?.1).await?.resident;
    println!("  peer: no plugin {:>8.1} MiB", mib(alone));
    for (language, tool) in LANGUAGES {
        let Some(built) = build(folder.path(), language, tool)? else {
            println!("  {language}: SKIPPED, its tool is not on this machine");
            continue;
        };
        let size = built.metadata()?.len();
        record(&format!("component.{language}"), size as f64 / 1e6)?;
        let lab = lab(&folder.path().join(format!("{language}-lab")), &[(language, &built)])?;
        // Memory that compiling took is not what plugins hold.
        let (compiled, host) = until_active(&lab, &kubeconfig, 1).await?;
        drop(host);
        let (cached, host) = until_active(&lab, &kubeconfig, 1).await?;
        let memory = rest(&host).await?;
        let more = mib(memory.resident.saturating_sub(alone));
        println!(
            "  {language:<15} {more:>8.1} MiB more; component {:.1} MiB; active after {:.0} ms, {:.0} ms where it is compiled \
             first",
            mib(size / 1024),
            ms(cached),
            ms(compiled)
        );
        if tool.is_none() {
            println!("  goal: at most {GOAL_MIB} MiB in Rust: {}", goal_text(more, GOAL_MIB));
        }
    }
    Ok(())
}

/// Makes a plugin and builds it, as the guide says. None where the language's tool is missing.
fn build(folder: &Path, language: &str, tool: Option<(&str, &str)>) -> Result<Option<PathBuf>> {
    let services = kubewitness_harness::services_folder().unwrap_or_default().join("languages");
    if tool.is_some_and(|(tools, program)| !services.join(tools).join(program).exists()) {
        return Ok(None);
    }
    kubewitness(folder, &["plugin", "new", language, "--lang", language])?;
    let made = folder.join(language);
    if let Some((tools, _)) = tool {
        std::os::unix::fs::symlink(services.join(tools), made.join(tools))?;
    }
    kubewitness(&made, &["plugin", "build"])?;
    Ok(Some(made.join(format!("{language}.wasm"))))
}

fn kubewitness(folder: &Path, line: &[&str]) -> Result<()> {
    let mut command = Command::new(binary()?);
    // What a task runner says to cargo is not meant for the plugin's build.
    command.args(line).current_dir(folder).env("CARGO_TARGET_DIR", folder.join("target"));
    let ran = command.stdout(Stdio::null()).status().context("starting kubewitness")?;
    ensure!(ran.success(), "`kubewitness {}` ended with {ran}", line.join(" "));
    Ok(())
}

fn lab(folder: &Path, plugins: &[(&str, &Path)]) -> Result<HostLab> {
    let spec = "subscribe: [{source: jobs, mode: every, start: beginning}]\nconfig: {phase: Failed}";
    let mut manifests = vec![settings("sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]")];
    manifests.extend(plugins.iter().map(|(name, _)| plugin(name, name, spec)));
    let lab = HostLab::new(folder, &manifests)?;
    for (name, component) in plugins {
        std::fs::copy(component, folder.join("config").join(format!("{name}.wasm")))?;
    }
    Ok(lab)
}
