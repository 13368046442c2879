//! `kubewitness check`: the checks of the controller, made in advance on files.
//!
//! A fault in a manifest should be found before it is applied. A separate linter was rejected: it would
//! accept what the controller refuses, or the other way around. So this command calls the same code that
//! decides whether a plugin may become active, for manifests, folders, components and status rules. It writes
//! nothing, and calls neither a controller nor a cluster.

mod status_rules;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kubewitness_core::config::{HostSpec, Manifest, ManifestFault, PluginSpec};
use kubewitness_sandbox::{PluginComponent, SandboxEngine, SandboxError};
use serde::Serialize;
use serde_json::Value;

use crate::cli::{CheckArgs, Output};
use crate::commands::print::{self, clean_line, coloured_mark};
use crate::commands::{CommandEnd, CommandResult, UsageError};
use crate::config::manifest::{ManifestEntry, ManifestProblem, ParsedManifest, parse_host, parse_plugin};
use crate::config::{ConfigSnapshot, component, folder, rules};
use crate::controller::{self, make_offer, plugins, trial};

/// The finding for files and documents that are not read. It is neither good nor bad.
const NOT_USED: &str = "not used";

/// One checked thing, with its faults.
#[derive(Serialize)]
pub(super) struct CheckFinding {
    what: String,
    ok: bool,
    detail: String,
    problems: Vec<String>,
    /// The same for programs, if it is about a manifest or a component.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<FaultOf>,
    /// Valid settings that are probably not intended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Information that is not a fault.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// One fault, for programs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct FaultOf {
    code: FaultCode,
    /// The path of the field; empty if the fault concerns no single field.
    field: String,
    message: String,
}

/// The subject of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FaultCode {
    /// The component is unavailable or unreadable, or was built for other interfaces.
    Component,
    /// The component requests what the manifest does not grant.
    Grants,
    /// The plugin's own configuration.
    Config,
    /// The component or the manifest can't be called on a schedule.
    Tick,
    /// Another field of the manifest, or the manifest as a whole.
    Manifest,
}

impl FaultCode {
    fn of(field: &str) -> Self {
        let is_in = |part: &str| {
            field.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        match field {
            _ if is_in("spec.module") || is_in("spec.shadow") => Self::Component,
            _ if is_in("spec.grants") => Self::Grants,
            _ if is_in("spec.config") => Self::Config,
            _ if is_in("spec.tick") => Self::Tick,
            _ => Self::Manifest,
        }
    }
}

impl From<&ManifestProblem> for FaultOf {
    fn from(ManifestProblem { field, message, .. }: &ManifestProblem) -> Self {
        Self { code: FaultCode::of(field), field: field.clone(), message: message.clone() }
    }
}

pub async fn check(args: CheckArgs) -> CommandResult {
    if args.object.is_some() || args.list_rules {
        return status_rules::explain_or_list(&args);
    }
    let Some(path) = args.path else {
        return Err(UsageError::error("name a folder, a manifest or a component"));
    };
    let engine = controller::sandbox_engine(None, false)?;
    let folders = component::default_folders(args.plugins.plugins.clone());
    let findings = if path.extension().is_some_and(|extension| extension == "wasm") {
        vec![check_component(&engine, &path).await?]
    } else {
        match read(&path)? {
            CheckedFiles::Rules(read) => {
                vec![CheckFinding::new(
                    format!("status rules {}", path.display()),
                    String::new(),
                    fault_texts(read),
                )]
            }
            CheckedFiles::Manifests(snapshot) => check_snapshot(&engine, &path, &snapshot, &folders).await,
        }
    };
    print_findings(args.output, &findings)
}

pub(super) fn print_findings(output: Output, findings: &Vec<CheckFinding>) -> CommandResult {
    let ok = findings.iter().all(|finding| finding.ok);
    let end = match findings.iter().any(|finding| !finding.warnings.is_empty()) {
        _ if !ok => CommandEnd::Failed,
        true => CommandEnd::Warned,
        false => CommandEnd::Fine,
    };
    print::print_value(output, findings, |findings| findings.iter().map(CheckFinding::text).collect())?;
    Ok(end)
}

fn fault_texts<T>(read: Result<T, Vec<ManifestProblem>>) -> Vec<String> {
    read.err().map(|problems| problem_texts(&problems)).unwrap_or_default()
}

impl CheckFinding {
    pub(super) fn new(what: String, detail: String, problems: Vec<String>) -> Self {
        let (ok, faults) = (problems.is_empty(), Vec::new());
        Self { what, ok, detail, problems, faults, warnings: Vec::new(), notes: Vec::new() }
    }

    fn of(what: String, detail: String, problems: &[ManifestProblem]) -> Self {
        let faults = problems.iter().map(FaultOf::from).collect();
        Self { faults, ..Self::new(what, detail, problem_texts(problems)) }
    }

    /// For a component without a manifest.
    fn unfit_component(what: String, error: &SandboxError) -> Self {
        let message = error.to_string();
        let fault = FaultOf { code: FaultCode::Component, field: String::new(), message: message.clone() };
        Self { faults: vec![fault], ..Self::new(what, String::new(), vec![message]) }
    }

    fn text(&self) -> String {
        let sign = if self.what == NOT_USED { "-" } else { coloured_mark(self.ok) };
        let mut text = format!("{sign} {}", clean_line(&self.what));
        if !self.detail.is_empty() {
            text.push_str(&format!(" ({})", clean_line(&self.detail)));
        }
        text.push('\n');
        for problem in &self.problems {
            text.push_str(&format!("    {}\n", clean_line(problem)));
        }
        for warning in &self.warnings {
            text.push_str(&format!("    ! {}\n", clean_line(warning)));
        }
        for note in &self.notes {
            text.push_str(&format!("    - {}\n", clean_line(note)));
        }
        text
    }
}

enum CheckedFiles {
    Rules(Result<rules::PlacedRules, Vec<ManifestProblem>>),
    Manifests(ConfigSnapshot),
}

/// A file is read once, because it may be a pipe.
fn read(path: &Path) -> Result<CheckedFiles> {
    let error_of = |problem: ManifestProblem| anyhow::anyhow!("{}", clean_line(&problem.to_string()));
    let snapshot = if path.is_dir() {
        folder::read(path).map_err(error_of)?
    } else {
        let text = folder::text(path).map_err(error_of)?;
        if let Some(rules) = rules::of_text(path, &text) {
            return Ok(CheckedFiles::Rules(rules));
        }
        folder::of_text(path, &text)
    };
    if snapshot.has_nothing() {
        let untaken: String = snapshot
            .unused_documents()
            .iter()
            .map(|document| format!("\n    {}", clean_line(document)))
            .collect();
        bail!(
            "{} has no host and no plugin: no ConfigMap labelled kubewitness.dev/host or kubewitness.dev/plugin: \
             \"true\", and no document of the kind Host or Plugin{untaken}",
            path.display()
        );
    }
    Ok(CheckedFiles::Manifests(snapshot))
}

/// Reports everything that is not used, and why. Documents that only a cluster uses may be in a folder: that
/// is not a fault.
fn unused_documents(snapshot: &ConfigSnapshot) -> Option<CheckFinding> {
    let (warnings, notes) = (problem_texts(&snapshot.slips), snapshot.unused_documents());
    let is_any = !warnings.is_empty() || !notes.is_empty();
    is_any.then(|| CheckFinding {
        warnings,
        notes,
        ..CheckFinding::new(NOT_USED.into(), String::new(), Vec::new())
    })
}

/// The settings against which a plugin's names are checked, and remarks about them.
struct CheckSettings {
    host: Option<HostSpec>,
    /// Empty if the host document is among the checked files.
    detail: String,
}

async fn check_snapshot(
    engine: &SandboxEngine,
    path: &Path,
    snapshot: &ConfigSnapshot,
    folders: &component::ComponentFolders,
) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    if !snapshot.problems.is_empty() {
        let problems = snapshot.problems.iter().map(ToString::to_string).collect();
        findings.push(CheckFinding::new("files".into(), String::new(), problems));
    }
    // A file that contains only templates needs no host.
    let is_of_templates = snapshot.plugins.is_empty() && !snapshot.templates.is_empty();
    let against = if snapshot.hosts.is_empty() && !path.is_dir() && is_of_templates {
        CheckSettings { host: None, detail: String::new() }
    } else if snapshot.hosts.is_empty() && !path.is_dir() {
        settings_beside(path)
    } else {
        let (finding, host) = check_host(snapshot, path.is_dir());
        findings.push(finding);
        let detail = if host.is_some() { "" } else { "not compared with the host manifest" };
        CheckSettings { host, detail: detail.into() }
    };
    let mut names = BTreeMap::new();
    for entry in &snapshot.plugins {
        findings.push(check_plugin(engine, entry, &against, folders, &mut names).await);
    }
    let (_, problems) = make_offer(None, snapshot);
    if !snapshot.templates.is_empty() {
        let detail = format!("{} of Jobs", snapshot.templates.len());
        findings.push(CheckFinding::new("templates".into(), detail, problem_texts(&problems)));
    }
    findings.extend(unused_documents(snapshot));
    findings
}

/// `is_all` is set if no other file has plugins.
fn check_host(snapshot: &ConfigSnapshot, is_all: bool) -> (CheckFinding, Option<HostSpec>) {
    match snapshot.only_host().map_err(|problem| vec![problem]).and_then(parse_host) {
        Ok(host) => {
            let HostSpec { sources, databases, status_rules, .. } = &host.spec;
            let mut detail = format!("{} sources, {} databases", sources.len(), databases.len());
            if !status_rules.is_empty() {
                detail.push_str(&format!(", {} status rules", status_rules.len()));
            }
            let what = format!("host {}", host.entry.display_name());
            let mut warnings = host_warnings(&host.spec, snapshot, is_all);
            warnings.extend(host.spec.stream_warnings());
            let warnings = problem_texts(&host.problems(warnings));
            (CheckFinding { warnings, ..CheckFinding::new(what, detail, Vec::new()) }, Some(host.spec))
        }
        Err(problems) => (CheckFinding::of("host".into(), String::new(), &problems), None),
    }
}

/// `None` if plugins may be unknown: they may use what seems to be unused.
pub fn host_warnings(host: &HostSpec, snapshot: &ConfigSnapshot, is_all: bool) -> Vec<ManifestFault> {
    let parsed: Result<Vec<_>, _> = snapshot.plugins.iter().map(|entry| parse_plugin(entry, host)).collect();
    match parsed {
        Ok(plugins) if is_all || !plugins.is_empty() => {
            host.warnings(plugins.iter().map(|plugin| &plugin.spec))
        }
        _ => Vec::new(),
    }
}

/// The host document beside a file that has none. Its faults are not faults of the file.
fn settings_beside(path: &Path) -> CheckSettings {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let unchecked = |why: &str| CheckSettings {
        host: None,
        detail: format!("not compared with the host manifest: {why} in {}", folder.display()),
    };
    let Ok(snapshot) = folder::read(folder) else { return unchecked("nothing can be read") };
    match snapshot.hosts.as_slice() {
        [] => unchecked("there is no host document"),
        [entry] => match parse_host(entry) {
            Ok(host) => CheckSettings {
                detail: format!("against the host manifest in {}", host.entry.origin.place),
                host: Some(host.spec),
            },
            Err(_) => unchecked("the host document has faults"),
        },
        _ => unchecked("there are several host documents"),
    }
}

/// A host that has everything that the plugin names, so that the rest of the plugin can be checked. A text
/// that does not parse names nothing, and is refused before its names are checked.
pub fn agreeable_host(entry: &ManifestEntry) -> HostSpec {
    let documents: Vec<Value> = serde_saphyr::from_multiple(&entry.text).unwrap_or_default();
    let document = documents.into_iter().find(|document| !document.is_null()).unwrap_or_default();
    let Ok(manifest) = serde_json::from_value::<Manifest<PluginSpec>>(document) else {
        return HostSpec::default();
    };
    trial::host_for(&manifest.spec)
}

/// `names` are the plugins so far, each with its file and its manifest.
async fn check_plugin(
    engine: &SandboxEngine,
    entry: &ManifestEntry,
    against: &CheckSettings,
    folders: &component::ComponentFolders,
    names: &mut BTreeMap<String, (String, PluginSpec)>,
) -> CheckFinding {
    let what = format!("plugin {}", entry.shown_as());
    let host = against.host.clone().unwrap_or_else(|| agreeable_host(entry));
    let parsed = match parse_plugin(entry, &host) {
        Ok(parsed) => parsed,
        Err(problems) => return CheckFinding::of(what, against.detail.clone(), &problems),
    };
    let beside = names.iter().flat_map(|(name, (_, other))| parsed.spec.warnings_beside(name, other));
    let mut warnings: Vec<_> = beside.collect();
    let mut problems = Vec::new();
    match names.get(&parsed.name) {
        Some((first, _)) => {
            let message = format!("`{}` is the plugin of {first} already: rename one", parsed.name);
            let fault = ManifestFault { field: "metadata.name".into(), message };
            problems.extend(parsed.problems(vec![fault]));
        }
        None => {
            let place = format!("{}:{}", entry.origin.place, entry.origin.first_line);
            names.insert(parsed.name.clone(), (place, parsed.spec.clone()));
        }
    }
    warnings.extend(against.host.iter().flat_map(|host| parsed.spec.warnings(host)));
    let mut details = Vec::new();
    match examine_component(engine, &parsed, folders, &host).await {
        Ok(component) => {
            details.push(format!(
                "component {}, interface {}",
                short_digest(&component),
                component.interface_version()
            ));
            warnings.extend(component.warnings(&parsed.spec));
        }
        Err(found) => problems.extend(found),
    }
    if let Some(shadow) = parsed.shadow() {
        match examine_component(engine, &shadow, folders, &host).await {
            Ok(component) => details.push(format!("shadow {}", short_digest(&component))),
            Err(found) => problems.extend(found),
        }
    }
    details.extend(Some(against.detail.clone()).filter(|detail| !detail.is_empty()));
    let warnings = problem_texts(&parsed.problems(warnings));
    CheckFinding { warnings, ..CheckFinding::of(what, details.join("; "), &problems) }
}

async fn examine_component(
    engine: &SandboxEngine,
    parsed: &ParsedManifest<PluginSpec>,
    folders: &component::ComponentFolders,
    host: &HostSpec,
) -> Result<PluginComponent, Vec<ManifestProblem>> {
    let found = component::find(parsed, folders, host).await?;
    let component::FetchedComponent { bytes, .. } = found.fetch_component(parsed).await?;
    plugins::examine_component(engine, parsed, &bytes, &host.limits.components).await
}

fn short_digest(component: &PluginComponent) -> String {
    component.file_digest().chars().take(12).collect()
}

pub(super) fn problem_texts(problems: &[ManifestProblem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// A component alone is checked against the limits of the host document beside it, or against the defaults.
async fn check_component(engine: &SandboxEngine, path: &Path) -> Result<CheckFinding> {
    let bytes = folder::read_named_file(path, component::COMPONENT_BYTES)
        .with_context(|| format!("reading {}", path.display()))?;
    let what = path.display().to_string();
    let against = settings_beside(path);
    let limits = against.host.unwrap_or_default().limits.components;
    let component = match engine.load(&bytes.into(), &limits).await {
        Ok(component) => component,
        Err(error) => return Ok(CheckFinding::unfit_component(what, &error)),
    };
    Ok(match component.describe_itself().await {
        Ok(description) => {
            let needs =
                if description.needs.is_empty() { "nothing".into() } else { description.needs.join(", ") };
            let ticks = if component.exports_ticker() { ", can be called on a schedule" } else { "" };
            let (name, version, interface) =
                (description.name, description.version, component.interface_version());
            let detail = format!("{name} {version}, interface {interface}{ticks}, needs {needs}");
            CheckFinding::new(what, detail, Vec::new())
        }
        Err(error) => CheckFinding::unfit_component(what, &error),
    })
}

#[cfg(test)]
mod tests;
