//! `kubewitness plugin pack` and `install`: the ConfigMap of a plugin, with its component, printed or written
//! into a cluster.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kubewitness_core::config::{PLUGIN_LABEL, is_name};
use kubewitness_watch::configmaps::{InstallError, InstallResult, install_config_map as write};
use kubewitness_watch::{ConnectOptions, SignedIn};
use serde_json::{Value, json};

use crate::cli::{InstallPluginArgs, IntoClusterArgs, PackPluginArgs};
use crate::commands::plugin::subject::{self, ExaminedComponent};
use crate::commands::plugin::trial::base64_of;
use crate::commands::reach::NAMESPACE;
use crate::commands::{CommandEnd, CommandResult, UsageError, print};
use crate::config::tree::YamlTree;

/// The size limit of a ConfigMap in Kubernetes, minus room for the manifest and the names.
const MOST: usize = (1 << 20) - (64 << 10);

pub async fn pack(args: PackPluginArgs) -> CommandResult {
    let (_, map) = config_map(&args.dir, &args.namespace).await?;
    print::text(&print::yaml(&map)?)?;
    Ok(CommandEnd::Fine)
}

pub async fn install(args: InstallPluginArgs) -> CommandResult {
    let InstallPluginArgs { dir, into } = args;
    let (name, map) = config_map(&dir, kubewitness_namespace(&into)).await?;
    let map = serde_json::from_value(map)?;
    write_and_report(&into, &name, async |signed_in| write(signed_in, map, PLUGIN_LABEL, into.dry_run).await)
        .await
}

/// The namespace of Kubewitness.
pub fn kubewitness_namespace(into: &IntoClusterArgs) -> &str {
    into.namespace.as_deref().unwrap_or(NAMESPACE)
}

/// Reports what happened to a ConfigMap.
pub async fn write_and_report(
    into: &IntoClusterArgs,
    name: &str,
    write: impl AsyncFnOnce(&SignedIn) -> Result<InstallResult, InstallError>,
) -> CommandResult {
    let IntoClusterArgs { kubeconfig, context, dry_run, .. } = into;
    let namespace = kubewitness_namespace(into);
    if !is_name(namespace) {
        return Err(UsageError::error(format!("--namespace {namespace}: it is no name of a namespace")));
    }
    let options = ConnectOptions { kubeconfig: kubeconfig.clone(), context: context.clone() };
    let signed_in = SignedIn::sign_in(&options).await?;
    let written = write(&signed_in).await.map_err(|error| match error {
        InstallError::Foreign(_) => {
            anyhow!("{error}. Give the plugin another name, or remove that ConfigMap")
        }
        error => error.into(),
    });
    let place = format!("the ConfigMap {name} in the namespace {namespace} of {}", signed_in.server);
    let written = written.with_context(|| format!("writing {place}"))?;
    let what = match written {
        InstallResult::Created => "created",
        InstallResult::Configured => "configured",
        InstallResult::Unchanged => "unchanged",
    };
    let trial =
        if *dry_run { " (dry run: the API server would take it, and nothing is written)" } else { "" };
    print::text(&format!("configmap/{name} {what}{trial}\n"))?;
    if !dry_run {
        print::text("`kubewitness plugins` shows when the controller has taken it.\n")?;
    }
    Ok(CommandEnd::Fine)
}

/// The name of the plugin, and its ConfigMap.
async fn config_map(dir: &Path, namespace: &str) -> Result<(String, Value)> {
    let parsed = subject::read_manifest(dir)?;
    let ExaminedComponent { bytes, component, .. } = subject::examine_manifest(&parsed).await?;
    if bytes.len() > MOST {
        bail!(
            "the component has {} KiB, and a ConfigMap holds 1 MiB. Push it to a registry, with `wkg oci push \
             REGISTRY/{name}:VERSION {name}.wasm`, name it with `module: {{oci: REGISTRY/{name}:VERSION}}`, and apply a \
             ConfigMap with the manifest alone. Or put it into a folder that the controller's pod mounts, and start the \
             controller with `--plugins FOLDER`",
            bytes.len() >> 10,
            name = parsed.name
        );
    }
    let key = format!("{}.wasm", parsed.name);
    // As its author wrote it, without the defaults.
    let mut manifest = as_written(&parsed.entry.text)?;
    manifest["spec"]["module"] = json!({"configMapKey": key, "sha256": component.file_digest()});
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": parsed.name,
            "namespace": namespace,
            "labels": {PLUGIN_LABEL: "true"},
        },
        "data": {"plugin.yaml": print::yaml(&manifest)?},
        "binaryData": {key: base64_of(&bytes)},
    });
    Ok((parsed.name, map))
}

fn as_written(text: &str) -> Result<Value> {
    let trees = YamlTree::parse(text).map_err(|error| anyhow!("line {}: {}", error.line, error.message))?;
    trees.iter().map(YamlTree::to_json).find(Value::is_object).context("the manifest has no document")
}
