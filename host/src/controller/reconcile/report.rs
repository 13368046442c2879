//! Reports the result of each change of a plugin: in the log, and in the cluster as a status ConfigMap for
//! each plugin and an Event on the operator's ConfigMap.

use std::collections::BTreeMap;
use std::time::Duration;

use kubewitness_core::config::STATUS_LABEL;
use kubewitness_watch::ApiConnection;
use kubewitness_watch::configmaps::{self, ConfigMapDoc, RecordType};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::config::cluster::WatchedMaps;
use crate::controller::shared::PluginPhase;

/// Statuses are not watched. Each is read this often, with one request for each plugin, to find one that was
/// deleted or edited.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The outcome of one plugin's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigReport {
    pub plugin: String,
    pub config_map: String,
    pub phase: PluginPhase,
    pub digest: String,
    pub message: Option<String>,
}

/// Where reports go beside the log.
#[derive(Clone)]
pub struct ClusterReports {
    pub connection: ApiConnection,
    pub namespace: String,
    pub maps: WatchedMaps,
}

pub struct ConfigReporter {
    cluster: Option<ClusterReports>,
    /// The last reports. A report that could not be written to the cluster is missing in `written`.
    reported: BTreeMap<String, ConfigReport>,
    written: BTreeMap<String, ConfigReport>,
    looked: Instant,
}

impl ConfigReporter {
    pub fn new(cluster: Option<ClusterReports>) -> Self {
        Self { cluster, reported: BTreeMap::new(), written: BTreeMap::new(), looked: Instant::now() }
    }

    pub async fn send_report(&mut self, report: ConfigReport) {
        if self.reported.insert(report.plugin.clone(), report.clone()).as_ref() != Some(&report) {
            log_report(&report);
        }
        self.write(&report).await;
    }

    /// Removes the status of a removed plugin.
    pub async fn forget_plugin(&mut self, plugin: &str) {
        self.reported.remove(plugin);
        self.written.remove(plugin);
        info!(plugin, "the plugin is removed");
        let Some(cluster) = &self.cluster else { return };
        let name = status_name(plugin);
        if let Err(error) =
            configmaps::delete_status(&cluster.connection.client, &cluster.namespace, &name).await
        {
            warn!(plugin, "its status ConfigMap {name} can't be deleted: {error}");
        }
    }

    /// Writes reports that failed before, and repairs statuses that were changed in the cluster.
    pub async fn repair_reports(&mut self) {
        let look = self.looked.elapsed() >= LOOK_AGAIN;
        if look {
            self.looked = Instant::now();
        }
        for report in self.reported.values().cloned().collect::<Vec<_>>() {
            match self.written.get(&report.plugin) == Some(&report) {
                true if look => self.restore_report(&report).await,
                true => {}
                false => self.write(&report).await,
            }
        }
    }

    async fn restore_report(&mut self, report: &ConfigReport) {
        let Some(cluster) = &self.cluster else { return };
        let plugin = &report.plugin;
        match write_status(cluster, report).await {
            Ok(false) => {}
            Ok(true) => warn!(plugin, "its status was deleted or changed in the cluster: writing it again"),
            Err(error) => {
                warn!(plugin, "its status can't be written, trying again: {error}");
                self.written.remove(plugin);
            }
        }
    }

    async fn write(&mut self, report: &ConfigReport) {
        let Some(cluster) = &self.cluster else { return };
        if self.written.get(&report.plugin) == Some(report) {
            return;
        }
        match write_status(cluster, report).await {
            Ok(_) => {
                if let Some(about) = cluster.maps.get(&report.config_map) {
                    emit_event(cluster, &about, report).await;
                }
                self.written.insert(report.plugin.clone(), report.clone());
            }
            Err(error) => warn!(plugin = report.plugin, "its status can't be written, trying again: {error}"),
        }
    }
}

fn log_report(report: &ConfigReport) {
    let (plugin, digest) = (&report.plugin, &report.digest);
    match (report.phase, &report.message) {
        (PluginPhase::Active, _) => info!(plugin, digest, "the plugin is active"),
        (PluginPhase::Failed, message) => {
            // One record is one line of the log, however many faults it has.
            let why = message.as_deref().unwrap_or("no reason was given").replace('\n', "; ");
            error!(plugin, "the plugin is not loaded: {why}");
        }
        (phase, message) => {
            warn!(plugin, digest, phase = phase.as_str(), "{}", message.as_deref().unwrap_or_default());
        }
    }
}

fn status_name(plugin: &str) -> String {
    format!("kubewitness-status-{plugin}")
}

/// Returns `false` if nothing had to change.
async fn write_status(
    cluster: &ClusterReports,
    report: &ConfigReport,
) -> Result<bool, configmaps::WriteError> {
    let labels = BTreeMap::from([
        (STATUS_LABEL.to_string(), "true".to_string()),
        ("kubewitness.dev/phase".to_string(), report.phase.as_str().to_string()),
        // A label has at most 63 characters; 12 identify a component, and the data has the whole digest.
        ("kubewitness.dev/digest".to_string(), report.digest.chars().take(12).collect()),
    ]);
    let data = BTreeMap::from([
        ("plugin".to_string(), report.plugin.clone()),
        ("configMap".to_string(), report.config_map.clone()),
        ("phase".to_string(), report.phase.as_str().to_string()),
        ("digest".to_string(), report.digest.clone()),
        ("message".to_string(), report.message.clone().unwrap_or_default()),
    ]);
    let name = status_name(&report.plugin);
    configmaps::write_status(&cluster.connection.client, &cluster.namespace, &name, &labels, &data).await
}

/// An Event is an extra: the status ConfigMap says the same, so a failure is only logged.
async fn emit_event(cluster: &ClusterReports, about: &ConfigMapDoc, report: &ConfigReport) {
    let (kind, reason, text) = match report.phase {
        PluginPhase::Active => {
            (RecordType::Normal, "PluginActive", format!("plugin {} is active", report.plugin))
        }
        _ => (RecordType::Warning, "PluginRefused", report.message.clone().unwrap_or_default()),
    };
    let sent =
        configmaps::emit_event(&cluster.connection.client, &cluster.namespace, about, kind, reason, &text)
            .await;
    if let Err(error) = sent {
        warn!(plugin = report.plugin, "an event can't be written: {error}");
    }
}
