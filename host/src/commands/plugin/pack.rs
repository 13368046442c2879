//! `kubewitness plugin pack`: the ConfigMap of a plugin, with its component.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use super::subject::{self, Examined};
use crate::cli::PackPluginArgs;
use crate::commands::{End, Ended, print};
use crate::config::tree::Tree;

/// What Kubernetes takes of a ConfigMap, less the manifest and the names.
const MOST: usize = (1 << 20) - (64 << 10);

pub async fn pack(args: PackPluginArgs) -> Ended {
    let parsed = subject::manifest(&args.dir)?;
    let Examined { bytes, component, .. } = subject::examine(&parsed).await?;
    if bytes.len() > MOST {
        bail!(
            "the component has {} KiB, and a ConfigMap holds 1 MiB. Put it into a folder that the controller's pod mounts, \
             start the controller with `--plugins FOLDER`, and apply the manifest as it is",
            bytes.len() >> 10
        );
    }
    let key = format!("{}.wasm", parsed.name);
    // What its author wrote, without the defaults.
    let mut manifest = written(&parsed.entry.text)?;
    manifest["spec"]["module"] = json!({"configMapKey": key, "sha256": component.digest()});
    let config_map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": parsed.name,
            "namespace": args.namespace,
            "labels": {"kubewitness.dev/plugin": "true"},
        },
        "data": {"plugin.yaml": print::yaml(&manifest)?},
        "binaryData": {key: super::trial::base64_of(&bytes)},
    });
    print::text(&print::yaml(&config_map)?)?;
    Ok(End::Fine)
}

fn written(text: &str) -> Result<Value> {
    let trees = Tree::parse(text).map_err(|error| anyhow!("line {}: {}", error.line, error.message))?;
    trees.iter().map(Tree::to_json).find(Value::is_object).context("the manifest has no document")
}
