//! Reads the configuration from the labelled ConfigMaps of one namespace, and follows them.

use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Result;
use kubewitness_core::config::{
    HOST_KEY, HOST_LABEL, PLUGIN_KEY, PLUGIN_LABEL, TEMPLATE_KEY, TEMPLATE_LABEL,
};
use kubewitness_watch::configmaps::{self, ConfigMapDoc, ConfigMaps};
use kubewitness_watch::{ApiConnection, WatchTuning};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::ConfigSnapshot;
use super::manifest::{ManifestEntry, ManifestOrigin, ManifestProblem};

/// The ConfigMaps as last seen. Events are written about them.
#[derive(Clone, Default)]
pub struct WatchedMaps(Arc<RwLock<Vec<ConfigMapDoc>>>);

impl WatchedMaps {
    pub fn get(&self, name: &str) -> Option<ConfigMapDoc> {
        let maps = self.0.read().unwrap_or_else(PoisonError::into_inner);
        maps.iter().find(|map| map.name == name).cloned()
    }

    fn set_maps(&self, maps: Vec<ConfigMapDoc>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = maps;
    }
}

/// Follows the namespace until `stop`. Nothing is sent before the first complete list.
pub async fn follow_namespace(
    connection: ApiConnection,
    tuning: WatchTuning,
    namespace: String,
    maps: WatchedMaps,
    sender: watch::Sender<Option<ConfigSnapshot>>,
    stop: CancellationToken,
) -> Result<()> {
    let (raw, mut changes) = watch::channel(configmaps::ConfigMapSnapshot::default());
    let selectors = [HOST_LABEL, PLUGIN_LABEL, TEMPLATE_LABEL].map(|label| format!("{label}=true"));
    let selectors: Vec<_> = selectors.iter().map(String::as_str).collect();
    let watching =
        ConfigMaps::new(connection.client, &namespace, &selectors).with_tuning(tuning).run(raw, stop);
    let forwarding = async {
        while changes.changed().await.is_ok() {
            let seen = changes.borrow_and_update().clone();
            if seen.synced {
                maps.set_maps(seen.maps.clone());
                sender.send_replace(Some(config_snapshot(&namespace, &seen.maps)));
            } else if let Some(condition) = seen.condition {
                // An unknown configuration is not an empty one: the running plugins, or the last ones,
                // continue.
                let place = format!("configmaps of the namespace {namespace}");
                let problem = ManifestProblem::of(place, None, condition);
                sender.send_replace(Some(ConfigSnapshot {
                    problems: vec![problem],
                    ..ConfigSnapshot::default()
                }));
            }
        }
    };
    tokio::join!(watching, forwarding);
    Ok(())
}

fn config_snapshot(namespace: &str, maps: &[ConfigMapDoc]) -> ConfigSnapshot {
    let mut snapshot = ConfigSnapshot::default();
    for map in maps {
        let labelled = |label: &str| map.labels.get(label).map(String::as_str) == Some("true");
        let (key, list) = match (labelled(HOST_LABEL), labelled(PLUGIN_LABEL)) {
            (true, _) => (HOST_KEY, &mut snapshot.hosts),
            (_, true) => (PLUGIN_KEY, &mut snapshot.plugins),
            _ if labelled(TEMPLATE_LABEL) => (TEMPLATE_KEY, &mut snapshot.templates),
            _ => continue,
        };
        list.push(ManifestEntry {
            config_map: map.name.clone(),
            origin: ManifestOrigin {
                place: format!("configmap {namespace}/{} {key}", map.name),
                first_line: 1,
                folder: None,
            },
            // A missing key is an empty document, and is refused as such.
            text: map.data.get(key).cloned().unwrap_or_default(),
            binary: map.binary_data.clone(),
        });
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use super::super::manifest::parse_host;
    use super::*;

    #[test]
    fn status_rules_of_a_config_map_are_read_and_their_faults_have_its_lines() {
        let rule = "apiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {name: host}\nspec:\n  sources: []\n  statusRules:\n    - group: example.com\n      kind: Experiment\n      cases:\n        - {when: [], phase: Running}\n";
        let host = |text: &str| {
            let mut map = ConfigMapDoc { name: "host".into(), ..ConfigMapDoc::default() };
            map.labels.insert(HOST_LABEL.into(), "true".into());
            map.data.insert(HOST_KEY.into(), text.into());
            parse_host(config_snapshot("kw", &[map]).only_host().unwrap())
        };
        let rules = host(rule).unwrap().spec.status_rules_in_force().unwrap();
        assert_eq!(rules.status_of("example.com", "Experiment", b"{}").phase, "Running");
        let problems = host(&rule.replace("Running", "Runing")).unwrap_err();
        let expected =
            "configmap kw/host host.yaml:10: spec.statusRules[0].cases[0].phase: `Runing` is no phase";
        assert!(problems[0].to_string().starts_with(expected), "{}", problems[0]);
    }
}
