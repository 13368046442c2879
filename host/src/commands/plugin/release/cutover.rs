//! `kubewitness plugin cutover`: the version in the shadow of a plugin takes over. The controller does the rest, as with any
//! change of the ConfigMap.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use kubewitness_core::config::{PLUGIN_KEY, PLUGIN_LABEL, is_name};
use kubewitness_watch::configmaps::change;
use serde_json::Value;

use super::pack;
use crate::cli::CutoverPluginArgs;
use crate::commands::{Ended, Usage, print};
use crate::config::tree::{NotYaml, Tree};

pub async fn cutover(args: CutoverPluginArgs) -> Ended {
    let CutoverPluginArgs { name, config_map, into } = args;
    let map = config_map.unwrap_or_else(|| name.clone());
    // It becomes a part of an address.
    if !is_name(&name) || !is_name(&map) {
        return Err(Usage::error(format!(
            "`{name}` in the ConfigMap `{map}` is no plugin: check both names"
        )));
    }
    let take_over =
        |data: &mut BTreeMap<String, String>| cut_over(&name, data).map_err(|error| format!("{error:#}"));
    let at = (into.namespace.as_str(), map.as_str());
    let write = async |signed_in: &_| change(signed_in, at, PLUGIN_LABEL, into.dry_run, take_over).await;
    pack::written(&into, &map, write).await
}

/// In the one text of the ConfigMap that the controller reads.
fn cut_over(name: &str, data: &mut BTreeMap<String, String>) -> Result<()> {
    let text = data.get_mut(PLUGIN_KEY);
    let text = text.with_context(|| {
        format!("it has no `{PLUGIN_KEY}`: `--config-map` names the one that has the manifest of `{name}`")
    })?;
    let trees = Tree::parse(text)
        .map_err(|NotYaml { message, .. }| anyhow!("its `{PLUGIN_KEY}` can't be read: {message}"))?;
    let mut documents: Vec<Value> = trees.iter().map(Tree::to_json).collect();
    let is_it = |it: &&mut Value| it["kind"] == "Plugin" && it["metadata"]["name"] == name;
    let document = documents.iter_mut().find(is_it).with_context(|| {
        format!(
            "its `{PLUGIN_KEY}` is not the manifest of a plugin `{name}`: `--config-map` names the one that has it"
        )
    })?;
    let spec = document["spec"].as_object_mut().context("its manifest has no `spec`")?;
    let shadow = spec.remove("shadow").and_then(|mut shadow| Some(shadow.get_mut("module")?.take()));
    let module = shadow.with_context(|| {
        format!(
            "the plugin `{name}` has no version in its shadow: `spec.shadow.module` of its manifest names one"
        )
    })?;
    spec.insert("module".to_owned(), module);
    let texts = documents.iter().map(print::yaml).collect::<Result<Vec<_>>>()?;
    *text = texts.join("---\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(spec: &str) -> BTreeMap<String, String> {
        let manifest = format!("kind: Plugin\nmetadata: {{name: shout}}\nspec: {spec}\n");
        [("other".into(), "a: [".into()), ("plugin.yaml".into(), manifest)].into()
    }

    #[test]
    fn the_component_of_the_shadow_takes_the_place_of_the_one_at_work() {
        let spec =
            "{module: {file: a.wasm, sha256: aa}, shadow: {module: {oci: 'r/b:2'}}, config: {phase: Failed}}";
        let mut data = data(spec);
        // A copy that nobody reads comes first.
        let old = data["plugin.yaml"].clone();
        data.insert("old.yaml".into(), old.clone());
        cut_over("shout", &mut data).unwrap();
        let now: Value = serde_saphyr::from_str(&data["plugin.yaml"]).unwrap();
        let spec = serde_json::json!({"module": {"oci": "r/b:2"}, "config": {"phase": "Failed"}});
        assert_eq!((&now["spec"], &now["metadata"]["name"]), (&spec, &"shout".into()));
        assert_eq!((&data["other"], &data["old.yaml"]), (&"a: [".to_owned(), &old));
        let again = cut_over("shout", &mut data).unwrap_err().to_string();
        assert!(again.contains("`spec.shadow.module` of its manifest names one"), "{again}");
    }

    #[test]
    fn a_manifest_that_is_elsewhere_is_asked_for() {
        let told = cut_over("whisper", &mut data("{}")).unwrap_err().to_string();
        assert!(told.contains("`--config-map` names the one that has it"), "{told}");
        let mut other: BTreeMap<_, _> =
            [("old.yaml".into(), data("{}").remove("plugin.yaml").unwrap())].into();
        let told = cut_over("shout", &mut other).unwrap_err().to_string();
        assert!(told.contains("it has no `plugin.yaml`"), "{told}");
    }
}
