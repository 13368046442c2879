//! Finds the plugin of a command: by its folder, its manifest, or its component alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kubewitness_core::config::{
    ComponentsSpec, Duration, HostSpec, HttpGrant, KeyGrant, LedgerGrant, MailGrant, ManifestFault,
    PluginSpec, SqlGrant, TickSpec,
};
use kubewitness_core::limits::TICK_LEAST;
use kubewitness_sandbox::{PluginComponent, SandboxEngine};
use serde_json::{Map, Value};

use crate::commands::UsageError;
use crate::commands::check::agreeable_host;
use crate::commands::print::clean_line;
use crate::config::manifest::{ManifestProblem, ParsedManifest, parse_plugin};
use crate::config::{component, folder};
use crate::controller::{self, plugins};

/// The manifest in the folder of a plugin.
const MANIFEST: &str = "plugin.yaml";
/// The folder for compiled components, so that the second try starts at once.
const CACHE: &str = ".kubewitness";

/// The schedule of a component without a manifest.
const EACH_SECOND: TickSpec = TickSpec { every: Duration(TICK_LEAST), timeout: None };

/// A plugin that can be called, with its grants.
pub struct TrialSubject {
    pub name: String,
    pub spec: PluginSpec,
    pub component: PluginComponent,
    pub engine: SandboxEngine,
}

/// A file of a folder, as a person would name it.
pub fn path_in_folder(folder: &Path, file: &str) -> PathBuf {
    if folder == Path::new(".") { PathBuf::from(file) } else { folder.join(file) }
}

/// The manifest in a folder, or in a file.
pub fn read_manifest(path: &Path) -> Result<ParsedManifest<PluginSpec>> {
    let path = if path.is_dir() { path_in_folder(path, MANIFEST) } else { path.to_path_buf() };
    let text = folder::text(&path).map_err(|problem| {
        anyhow::anyhow!(
            "{}\n`kubewitness plugin new NAME` makes a folder that has one",
            clean_line(&problem.to_string())
        )
    })?;
    let snapshot = folder::of_text(&path, &text);
    let entry = match snapshot.plugins.as_slice() {
        [entry] => entry,
        plugins => bail!(
            "{} has {} documents of the kind Plugin: it needs one. A plugin is named by its folder, by its manifest \
             (plugin.yaml), or by its component (.wasm){}",
            path.display(),
            plugins.len(),
            json_lines(&snapshot.problems)
        ),
    };
    parse_plugin(entry, &agreeable_host(entry)).map_err(|problems| manifest_error(&problems))
}

fn manifest_error(problems: &[ManifestProblem]) -> anyhow::Error {
    anyhow::anyhow!("the manifest does not fit:{}", json_lines(problems))
}

fn json_lines(problems: &[ManifestProblem]) -> String {
    problems.iter().map(|problem| format!("\n    {}", clean_line(&problem.to_string()))).collect()
}

/// `config` replaces the configuration of the manifest.
pub async fn load(path: &Path, config: Option<&str>) -> Result<TrialSubject> {
    let config = config.map(parse_config).transpose()?;
    if is_component(path) {
        return subject_without_manifest(path, config.unwrap_or_default()).await;
    }
    let mut parsed = read_manifest(path)?;
    if let Some(config) = config {
        parsed.spec.config = config;
    }
    let ExaminedComponent { component, engine, .. } = examine_manifest(&parsed).await?;
    Ok(TrialSubject { name: parsed.name, spec: parsed.spec, component, engine })
}

/// Another version of a plugin. A component without a manifest is configured as the plugin is.
pub async fn version_beside(
    plugin: &TrialSubject,
    path: &Path,
    config: Option<&str>,
) -> Result<TrialSubject> {
    match config {
        None if is_component(path) => subject_without_manifest(path, plugin.spec.config.clone()).await,
        config => load(path, config).await,
    }
}

fn is_component(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "wasm")
}

/// A component that fits its manifest.
pub struct ExaminedComponent {
    pub bytes: bytes::Bytes,
    pub component: PluginComponent,
    pub engine: SandboxEngine,
}

/// Finds the component of a manifest, and examines it as the controller does.
pub async fn examine_manifest(parsed: &ParsedManifest<PluginSpec>) -> Result<ExaminedComponent> {
    let engine = trial_engine(parsed.entry.origin.folder.as_deref())?;
    let folders = component::default_folders(std::env::var_os("KUBEWITNESS_PLUGINS").map(PathBuf::from));
    if let (Some(file), Some(folder)) = (&parsed.spec.module.file, &parsed.entry.origin.folder)
        && !folder.join(file).exists()
        && !component::is_shipped(file, &folders)
    {
        bail!(
            "{} is not there: `kubewitness plugin build` builds it",
            path_in_folder(folder, file).display()
        );
    }
    let fetching = async {
        let found = component::find(parsed, &folders, &HostSpec::default()).await?;
        found.fetch_component(parsed).await
    };
    let component::FetchedComponent { bytes, .. } =
        fetching.await.map_err(|problems| manifest_error(&problems))?;
    let component = plugins::examine_component(&engine, parsed, &bytes, &ComponentsSpec::default()).await;
    Ok(ExaminedComponent {
        bytes,
        component: component.map_err(|problems| manifest_error(&problems))?,
        engine,
    })
}

/// A component without a manifest gets the grants that it declares as needed.
async fn subject_without_manifest(path: &Path, config: Map<String, Value>) -> Result<TrialSubject> {
    let bytes = folder::read_named_file(path, component::COMPONENT_BYTES)
        .with_context(|| format!("reading {}", path.display()))?;
    of_bytes(bytes.into(), trial_engine(path.parent())?, config).await
}

/// A plugin that comes with the controller. Its compiled code is beside that of another plugin.
pub async fn shipped_subject(
    name: &str,
    folder: Option<&Path>,
    beside: &SandboxEngine,
) -> Result<TrialSubject> {
    let bytes = component::shipped_component(name, folder).await?;
    of_bytes(bytes, beside.clone(), Map::new()).await
}

async fn of_bytes(
    bytes: bytes::Bytes,
    engine: SandboxEngine,
    config: Map<String, Value>,
) -> Result<TrialSubject> {
    let component = engine.load(&bytes, &ComponentsSpec::default()).await?;
    let description = component.describe_itself().await?;
    let mut spec = PluginSpec {
        module: Default::default(),
        subscribe: Vec::new(),
        grants: Default::default(),
        limits: Default::default(),
        delivery: Default::default(),
        // A component with a tick is also called on a schedule.
        tick: component.exports_ticker().then_some(EACH_SECOND),
        shadow: None,
        config,
    };
    for need in &description.needs_with(&spec.config) {
        let (what, name) = need.split_once(':').unwrap_or((need, ""));
        let name = name.to_owned();
        match what {
            "kv" => spec.grants.kv = true,
            "sql" => {
                spec.grants.sql.push(SqlGrant { database: name.clone(), name, access: Default::default() });
            }
            "http" => spec.grants.http.push(HttpGrant { destination: name.clone(), name }),
            "mail" => spec.grants.mail.push(MailGrant { server: name.clone(), name }),
            "ledger" => spec.grants.ledger.push(LedgerGrant { ledger: name.clone(), name }),
            "key" => spec.grants.keys.push(KeyGrant { key: name.clone(), name }),
            "lister" => spec.grants.lister.push(name),
            "outcomes" => spec.grants.outcomes.push(name),
            // The check below reports a component that declares a tick but has none.
            "tick" => spec.tick = Some(EACH_SECOND),
            _ => bail!("the component needs `{}`, which this controller does not know", clean_line(need)),
        }
    }
    let faults = component.check(&spec).await?;
    if !faults.is_empty() {
        bail!("{}", why_uncallable(&faults, spec.config.is_empty()));
    }
    Ok(TrialSubject { name: description.name, spec, component, engine })
}

/// Why a component without a manifest can't be called, and what to do about it.
fn why_uncallable(faults: &[ManifestFault], has_no_config: bool) -> String {
    let is_grant = |fault: &ManifestFault| fault.field.starts_with("spec.grants");
    let what = match has_no_config {
        _ if faults.iter().any(is_grant) => {
            "uses what it does not say that it needs: name a manifest that grants it, and not the component"
        }
        true => "needs a configuration, and none is given: give one with `--config JSON`",
        false => "refuses the configuration that `--config` gives",
    };
    let line =
        |fault: &ManifestFault| format!("\n    {}: {}", clean_line(&fault.field), clean_line(&fault.message));
    format!("the plugin {what}:{}", faults.iter().map(line).collect::<String>())
}

fn trial_engine(folder: Option<&Path>) -> Result<SandboxEngine> {
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A folder that can't be written gets no cache.
    let cache: Option<PathBuf> =
        Some(folder.join(CACHE)).filter(|cache| std::fs::create_dir_all(cache).is_ok());
    controller::sandbox_engine(cache, false)
}

fn parse_config(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        UsageError::error(format!(
            "--config is a JSON object, such as '{{\"phase\": \"Failed\"}}', and what is given is none from line {line}, column \
             {column} on"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_configuration_is_told_with_one_that_is_and_the_place_of_the_fault() {
        for (text, place) in
            [("x", "line 1, column 1"), ("{\n\"a\": }", "line 2, column 6"), ("[]", "line 1")]
        {
            let told = parse_config(text).unwrap_err().to_string();
            assert!(told.contains("such as '{\"phase\"") && told.contains(place), "{told}");
            assert!(!told.contains("expected"), "{told}");
        }
        assert_eq!(parse_config("{\"a\": 1}").unwrap().len(), 1);
    }

    #[test]
    fn a_configuration_is_asked_for_only_where_one_helps() {
        let fault = |field: &str| ManifestFault { field: field.into(), message: "no".into() };
        let reason = |fields: &[&str], has_no_config| {
            why_uncallable(&fields.iter().map(|field| fault(field)).collect::<Vec<_>>(), has_no_config)
        };
        assert!(reason(&["spec.config.url"], true).contains("--config JSON`:\n    spec.config.url: no"));
        assert!(reason(&["spec.config.url"], false).starts_with("the plugin refuses the configuration"));
        let grant = reason(&["spec.grants.kv", "spec.config"], true);
        assert!(grant.contains("name a manifest that grants it") && !grant.contains("--config"), "{grant}");
    }
}
