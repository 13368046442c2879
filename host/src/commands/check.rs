//! `kubewitness check`: the judges that decide at run time, asked beforehand.

use std::path::Path;

use anyhow::{Context, Result, bail};
use kubewitness_sandbox::{Engine, EngineOptions};
use serde::Serialize;

use super::print::{self, mark};
use super::{End, Ended};
use crate::cli::CheckArgs;
use crate::config::manifest::{Entry, parse_host, parse_plugin};
use crate::config::{Snapshot, folder};
use crate::controller::{modules, plugins};

/// What was looked at, and what does not fit.
#[derive(Serialize)]
struct Finding {
    what: String,
    ok: bool,
    detail: String,
    problems: Vec<String>,
}

pub async fn check(args: CheckArgs) -> Ended {
    let engine = Engine::new(EngineOptions::default())?;
    let folders = modules::default_folders(args.plugins.plugins.clone());
    let findings = if args.path.extension().is_some_and(|extension| extension == "wasm") {
        vec![check_component(&engine, &args.path).await?]
    } else {
        let snapshot = read(&args.path)?;
        check_snapshot(&engine, &snapshot, &folders).await
    };
    let ok = findings.iter().all(|finding| finding.ok);
    print::value(args.output, &findings, |findings| findings.iter().map(Finding::text).collect())?;
    Ok(if ok { End::Fine } else { End::Failed })
}

impl Finding {
    fn new(what: String, detail: String, problems: Vec<String>) -> Self {
        Self { what, ok: problems.is_empty(), detail, problems }
    }

    fn text(&self) -> String {
        let mut text = format!("{} {}", mark(self.ok), self.what);
        if !self.detail.is_empty() {
            text.push_str(&format!(" ({})", self.detail));
        }
        text.push('\n');
        for problem in &self.problems {
            text.push_str(&format!("    {problem}\n"));
        }
        text
    }
}

fn read(path: &Path) -> Result<Snapshot> {
    let snapshot = if path.is_dir() { folder::read(path) } else { folder::read_file(path) };
    let snapshot = snapshot.map_err(|problem| anyhow::anyhow!("{problem}"))?;
    if snapshot == Snapshot::default() {
        bail!(
            "{} has no ConfigMap labelled kubewitness.dev/host or kubewitness.dev/plugin: \"true\"",
            path.display()
        );
    }
    Ok(snapshot)
}

async fn check_snapshot(
    engine: &Engine,
    snapshot: &Snapshot,
    folders: &[std::path::PathBuf],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !snapshot.problems.is_empty() {
        let problems = snapshot.problems.iter().map(ToString::to_string).collect();
        findings.push(Finding::new("files".into(), String::new(), problems));
    }
    let host = snapshot.host().map_err(|problem| vec![problem]).and_then(parse_host);
    match &host {
        Ok(host) => {
            let detail =
                format!("{} sources, {} databases", host.spec.sources.len(), host.spec.databases.len());
            findings.push(Finding::new(format!("host {}", host.entry.config_map), detail, Vec::new()));
        }
        Err(problems) => {
            let problems = problems.iter().map(ToString::to_string).collect();
            findings.push(Finding::new("host".into(), String::new(), problems));
        }
    }
    let Ok(host) = host else { return findings };
    for entry in &snapshot.plugins {
        findings.push(check_plugin(engine, entry, &host.spec, folders).await);
    }
    findings
}

async fn check_plugin(
    engine: &Engine,
    entry: &Entry,
    host: &kubewitness_core::config::HostSpec,
    folders: &[std::path::PathBuf],
) -> Finding {
    let what = format!("plugin {}", entry.config_map);
    let examined = async {
        let parsed = parse_plugin(entry, host)?;
        let bytes = modules::find(&parsed, folders)?;
        plugins::examine_component(engine, parsed, bytes).await
    };
    match examined.await {
        Ok(candidate) => {
            let digest: String = candidate.component.digest().chars().take(12).collect();
            Finding::new(what, format!("component {digest}"), Vec::new())
        }
        Err(problems) => {
            Finding::new(what, String::new(), problems.iter().map(ToString::to_string).collect())
        }
    }
}

async fn check_component(engine: &Engine, path: &Path) -> Result<Finding> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let what = path.display().to_string();
    let component = match engine.load(&bytes).await {
        Ok(component) => component,
        Err(error) => return Ok(Finding::new(what, String::new(), vec![error.to_string()])),
    };
    Ok(match component.describe().await {
        Ok(description) => {
            let needs =
                if description.needs.is_empty() { "nothing".into() } else { description.needs.join(", ") };
            let detail = format!("{} {}, needs {needs}", description.name, description.version);
            Finding::new(what, detail, Vec::new())
        }
        Err(error) => Finding::new(what, String::new(), vec![error.to_string()]),
    })
}
