//! `kubewitness plugin cutover`: the shadow version of a plugin takes over. The ConfigMap then names the
//! component that the controller has compared, by its digest: a tag or a file may have changed meanwhile. The
//! controller does the rest, as with any change of the ConfigMap.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use kubewitness_core::config::{OciReference, PLUGIN_KEY, PLUGIN_LABEL, is_name};
use kubewitness_core::views::ShadowView;
use kubewitness_watch::configmaps::change_config_map;
use serde_json::Value;

use super::{pack, shadow};
use crate::cli::{CutoverPluginArgs, ReachArgs};
use crate::commands::api::ApiClient;
use crate::commands::{CommandResult, UsageError, print};
use crate::config::tree::{NotYaml, YamlTree};

pub async fn cutover(args: CutoverPluginArgs) -> CommandResult {
    let CutoverPluginArgs { name, config_map, server, token, into } = args;
    let map = config_map.unwrap_or_else(|| name.clone());
    // The name becomes part of an address.
    if !is_name(&name) || !is_name(&map) {
        return Err(UsageError::error(format!(
            "`{name}` in the ConfigMap `{map}` is no plugin: check both names"
        )));
    }
    let reach = ReachArgs {
        server,
        token,
        kubeconfig: into.kubeconfig.clone(),
        context: into.context.clone(),
        kubewitness_namespace: Some(pack::kubewitness_namespace(&into).to_owned()),
        is_default_namespace: into.namespace.is_none(),
    };
    let client = ApiClient::reach_controller(&reach)
        .await
        .context("asking the controller which component it has compared")?;
    let compared = shadow::find(&client, &name).await?;
    let take_over = |data: &mut BTreeMap<String, String>| {
        replace_module(&name, &compared, data).map_err(|error| format!("{error:#}").into())
    };
    let at = (pack::kubewitness_namespace(&into), map.as_str());
    let write =
        async |signed_in: &_| change_config_map(signed_in, at, PLUGIN_LABEL, into.dry_run, take_over).await;
    pack::write_and_report(&into, &map, write).await
}

/// Changes the one text of the ConfigMap that the controller reads.
fn replace_module(name: &str, compared: &ShadowView, data: &mut BTreeMap<String, String>) -> Result<()> {
    let text = data.get_mut(PLUGIN_KEY);
    let text = text.with_context(|| {
        format!("it has no `{PLUGIN_KEY}`: `--config-map` names the one that has the manifest of `{name}`")
    })?;
    let trees = YamlTree::parse(text)
        .map_err(|NotYaml { message, .. }| anyhow!("its `{PLUGIN_KEY}` can't be read: {message}"))?;
    let mut documents: Vec<Value> = trees.iter().map(YamlTree::to_json).collect();
    let is_it = |it: &&mut Value| it["kind"] == "Plugin" && it["metadata"]["name"] == name;
    let document = documents.iter_mut().find(is_it).with_context(|| {
        format!(
            "its `{PLUGIN_KEY}` is not the manifest of a plugin `{name}`: `--config-map` names the one that has it"
        )
    })?;
    let spec = document["spec"].as_object_mut().context("its manifest has no `spec`")?;
    let shadow = spec.remove("shadow").and_then(|mut shadow| Some(shadow.get_mut("module")?.take()));
    let mut module = shadow.with_context(|| {
        format!(
            "the plugin `{name}` has no version in its shadow: `spec.shadow.module` of its manifest names one"
        )
    })?;
    pin_module(&mut module, compared)?;
    spec.insert("module".to_owned(), module);
    let texts = documents.iter().map(print::yaml).collect::<Result<Vec<_>>>()?;
    *text = texts.join("---\n");
    Ok(())
}

/// Pins the module to the component that was compared, whatever has its name by now.
fn pin_module(module: &mut Value, compared: &ShadowView) -> Result<()> {
    let text = |field: &str| module[field].as_str().map(str::to_owned);
    let (oci, url, wanted) = (text("oci"), text("url"), text("sha256"));
    let digest = &compared.digest;
    // Its origin: a tag with the digest of its image.
    let from = compared.module.as_deref();
    let is_it = match (&oci, &url) {
        (Some(oci), _) => from.is_some_and(|from| from == oci || from.split('@').next() == Some(oci)),
        (None, Some(url)) => from == Some(url),
        (None, None) => from.is_none(),
    };
    let has_its_digest = wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(digest));
    if !is_it || !has_its_digest {
        bail!(
            "the controller compares another component than its `spec.shadow.module` names ({}, sha256 {digest}): \
             `kubewitness plugins` says whether the manifest was taken; wait until it was, and look at \
             `kubewitness plugin shadow` again",
            from.unwrap_or("it lay here")
        );
    }
    let pinned = from.filter(|from| oci.is_some() && OciReference::parse(from).is_ok());
    let module = module.as_object_mut().context("its `spec.shadow.module` is no object")?;
    if let Some(pinned) = pinned {
        module.insert("oci".into(), pinned.into());
    }
    module.insert("sha256".into(), digest.as_str().into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const IMAGE: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn compared(module: Option<&str>) -> ShadowView {
        ShadowView { digest: "bb".into(), module: module.map(str::to_owned), ..ShadowView::default() }
    }

    fn data(spec: &str) -> BTreeMap<String, String> {
        let manifest = format!("kind: Plugin\nmetadata: {{name: shout}}\nspec: {spec}\n");
        [("other".into(), "a: [".into()), ("plugin.yaml".into(), manifest)].into()
    }

    #[test]
    fn the_component_of_the_shadow_takes_the_place_of_the_one_at_work() {
        let spec = "{module: {file: a.wasm, sha256: aa}, shadow: {module: {oci: 'r.example/b:2'}}, config: {phase: Failed}}";
        let mut data = data(spec);
        // A copy that nobody reads is written first.
        let old = data["plugin.yaml"].clone();
        data.insert("old.yaml".into(), old.clone());
        let from = format!("r.example/b:2@sha256:{IMAGE}");
        let compared = compared(Some(&from));
        replace_module("shout", &compared, &mut data).unwrap();
        let now: Value = serde_saphyr::from_str(&data["plugin.yaml"]).unwrap();
        let spec = json!({"module": {"oci": from, "sha256": "bb"}, "config": {"phase": "Failed"}});
        assert_eq!((&now["spec"], &now["metadata"]["name"]), (&spec, &"shout".into()));
        assert_eq!((&data["other"], &data["old.yaml"]), (&"a: [".to_owned(), &old));
        let again = replace_module("shout", &compared, &mut data).unwrap_err().to_string();
        assert!(again.contains("`spec.shadow.module` of its manifest names one"), "{again}");
    }

    #[test]
    fn what_takes_over_is_pinned_to_the_digest_that_was_compared_and_nothing_else_takes_over() {
        let url = "https://a.example/b.wasm";
        let pinned = format!("r.example/b@sha256:{IMAGE}");
        let cases = [
            (json!({"file": "b.wasm"}), None),
            (json!({"configMapKey": "b"}), None),
            (json!({"url": url, "sha256": "BB"}), Some(url)),
            (json!({"oci": pinned}), Some(pinned.as_str())),
        ];
        for (module, from) in cases {
            let mut now = module.clone();
            pin_module(&mut now, &compared(from)).unwrap();
            let mut wanted = module;
            wanted["sha256"] = "bb".into();
            assert_eq!(now, wanted);
        }
        let others = [
            (json!({"file": "b.wasm", "sha256": "aa"}), None),
            (json!({"file": "b.wasm"}), Some(url)),
            (json!({"oci": "r.example/b:3"}), Some(pinned.as_str())),
            (json!({"oci": "r.example/b:3"}), None),
            (json!({"url": "https://a.example/c.wasm", "sha256": "bb"}), Some(url)),
        ];
        for (mut module, from) in others {
            let error = pin_module(&mut module, &compared(from)).unwrap_err().to_string();
            assert!(error.contains("compares another component"), "{module}: {error}");
        }
    }

    #[test]
    fn a_manifest_that_is_elsewhere_is_asked_for() {
        let error = replace_module("whisper", &compared(None), &mut data("{}")).unwrap_err().to_string();
        assert!(error.contains("`--config-map` names the one that has it"), "{error}");
        let mut other: BTreeMap<_, _> =
            [("old.yaml".into(), data("{}").remove("plugin.yaml").unwrap())].into();
        let error = replace_module("shout", &compared(None), &mut other).unwrap_err().to_string();
        assert!(error.contains("it has no `plugin.yaml`"), "{error}");
    }
}
