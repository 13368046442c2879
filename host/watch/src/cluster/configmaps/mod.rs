//! Watches ConfigMaps that contain configuration. It selects them by label and delivers whole snapshots.
//!
//! A source would not fit: it needs an open journal, and keeps every version, while only the newest
//! configuration counts. So this is an ordinary list and watch that decodes objects in full. Nothing is
//! delivered before the first complete list: an unknown configuration is not an empty one.

mod install;
mod records;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kubewitness_core::project::{self, EventType};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::connect::backoff::{Backoff, JitterDice};
use crate::connect::request::{ApiClient, RequestAddress, RequestFailure, error_chain, status_failure};
use crate::tuning::WatchTuning;
use kubewitness_core::frames::{FrameLine, FrameSplitter};

pub use install::{InstallError, InstallResult, change_config_map, install_config_map};
pub use records::{EventType as RecordType, WriteError, delete_status, emit_event, write_status};

/// A ConfigMap holds 1 MiB of data; base64 makes binary data a third larger.
const FRAME: usize = 4 * 1024 * 1024;
/// The most ConfigMaps that one label may select. Without a bound, anybody who may write ConfigMaps could
/// fill the memory. A host has a hundred plugins at most.
const MOST: usize = 2_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigMapDoc {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub labels: BTreeMap<String, String>,
    pub data: BTreeMap<String, String>,
    pub binary_data: BTreeMap<String, Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigMapSnapshot {
    /// Everything was listed at least once. Before that, a missing ConfigMap means nothing.
    pub synced: bool,
    /// By name.
    pub maps: Vec<ConfigMapDoc>,
    /// Why it may be out of date, for people.
    pub condition: Option<String>,
}

pub struct ConfigMaps {
    api: ApiClient,
    path: String,
    selectors: Vec<String>,
    tuning: WatchTuning,
}

/// The ConfigMaps that one selector has found so far, by uid.
#[derive(Default)]
struct SelectedMaps {
    synced: bool,
    maps: BTreeMap<String, ConfigMapDoc>,
    condition: Option<String>,
}

/// Where the snapshots are assembled.
struct SnapshotTable<'a> {
    selected: Mutex<Vec<SelectedMaps>>,
    out: &'a watch::Sender<ConfigMapSnapshot>,
}

impl SnapshotTable<'_> {
    fn change_snapshot(&self, place: usize, change: impl FnOnce(&mut SelectedMaps)) {
        let mut selected = self.selected.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut selected[place]);
        let maps: BTreeMap<_, _> = selected
            .iter()
            .flat_map(|maps| maps.maps.values())
            .map(|map| (map.name.clone(), map.clone()))
            .collect();
        let snapshot = ConfigMapSnapshot {
            synced: selected.iter().all(|maps| maps.synced),
            maps: maps.into_values().collect(),
            condition: selected.iter().find_map(|maps| maps.condition.clone()),
        };
        self.out.send_if_modified(|held| {
            let news = *held != snapshot;
            *held = snapshot;
            news
        });
    }

    fn count(&self, place: usize) -> usize {
        self.selected.lock().unwrap_or_else(PoisonError::into_inner)[place].maps.len()
    }
}

fn check_count(count: usize, selector: &str) -> Result<(), RequestFailure> {
    match count <= MOST {
        true => Ok(()),
        false => Err(RequestFailure::Answer(format!(
            "more than {MOST} ConfigMaps carry the label {selector}: delete some; until then changes are not taken"
        ))),
    }
}

impl ConfigMaps {
    /// Reads the ConfigMaps of one namespace that match any of the selectors (`kubewitness.dev/plugin=true`).
    pub fn new(client: kube::Client, namespace: &str, label_selectors: &[&str]) -> Self {
        Self {
            api: ApiClient::new(client),
            path: format!("/api/v1/namespaces/{namespace}/configmaps"),
            selectors: label_selectors.iter().map(ToString::to_string).collect(),
            tuning: WatchTuning::default(),
        }
    }

    pub fn with_tuning(mut self, tuning: WatchTuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Runs until the stop. Failures are retried and shown in the snapshot; known content stays until the
    /// server reports a change.
    pub async fn run(self, out: watch::Sender<ConfigMapSnapshot>, stop: CancellationToken) {
        let selected = Mutex::new(self.selectors.iter().map(|_| SelectedMaps::default()).collect());
        let table = SnapshotTable { selected, out: &out };
        let each = (0..self.selectors.len()).map(|place| self.follow_maps(place, &table));
        tokio::select! {
            () = stop.cancelled() => {}
            _ = join_all(each) => {}
        }
    }

    async fn follow_maps(&self, place: usize, table: &SnapshotTable<'_>) {
        let mut backoff = Backoff::new(self.tuning.first_pause, self.tuning.longest_pause);
        let mut dice = JitterDice::new(self.tuning.seed);
        let mut version: Option<String> = None;
        loop {
            let since = Instant::now();
            let failure = match &mut version {
                None => match self.list_maps(place, table).await {
                    Ok(listed) => {
                        version = Some(listed);
                        continue;
                    }
                    Err(failure) => Some(failure),
                },
                Some(version) => self.watch_maps(place, table, version, &mut dice).await.err(),
            };
            if since.elapsed() > Duration::from_secs(5) {
                backoff.reset_tries();
            }
            if failure.as_ref().is_some_and(RequestFailure::is_expired) || table.count(place) > MOST {
                version = None;
            }
            let asked = failure.as_ref().and_then(RequestFailure::retry_after);
            if let Some(failure) = failure.filter(|failure| !failure.is_expired()) {
                let condition = format!("ConfigMaps can't be watched: {failure}");
                tracing::warn!("{condition}");
                table.change_snapshot(place, |selected| selected.condition = Some(condition));
            }
            sleep(backoff.next(&mut dice, asked)).await;
        }
    }

    async fn list_maps(&self, place: usize, table: &SnapshotTable<'_>) -> Result<String, RequestFailure> {
        #[derive(Deserialize)]
        struct MapPage {
            metadata: MapMetadata,
            #[serde(default)]
            items: Vec<ConfigMap>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct MapMetadata {
            resource_version: String,
        }
        let address = RequestAddress::new(&self.path).with_parameter("labelSelector", &self.selectors[place]);
        let body = self.api.get(address.as_str()).await?;
        let page: MapPage =
            serde_json::from_slice(&body).map_err(|error| RequestFailure::Answer(error.to_string()))?;
        check_count(page.items.len(), &self.selectors[place])?;
        let maps = page.items.into_iter().map(config_map_doc).map(|map| (map.uid.clone(), map)).collect();
        table.change_snapshot(place, |selected| {
            *selected = SelectedMaps { synced: true, maps, condition: None }
        });
        Ok(page.metadata.resource_version)
    }

    /// Runs until the stream ends; `version` is the start of the next one.
    async fn watch_maps(
        &self,
        place: usize,
        table: &SnapshotTable<'_>,
        version: &mut String,
        dice: &mut JitterDice,
    ) -> Result<(), RequestFailure> {
        let (low, high) = self.tuning.watch_seconds;
        let address = RequestAddress::new(&self.path)
            .with_parameter("watch", "true")
            .with_parameter("allowWatchBookmarks", "true")
            .with_parameter("labelSelector", &self.selectors[place])
            .with_parameter("resourceVersion", version)
            .with_parameter("timeoutSeconds", &dice.random_between(low, high).to_string());
        let body = self.api.open(address.as_str(), self.tuning.idle).await?;
        table.change_snapshot(place, |selected| selected.condition = None);
        let mut body = std::pin::pin!(body);
        let (mut splitter, mut lines) = (FrameSplitter::new(FRAME), Vec::new());
        // An idle stream is not a failure: it is opened again.
        while let Ok(Some(next)) = timeout(self.tuning.idle, body.frame()).await {
            let chunk = next
                .map_err(|error| RequestFailure::Transport(error_chain(&error)))?
                .into_data()
                .unwrap_or_default();
            splitter.push(chunk, &mut lines);
            for line in lines.drain(..) {
                match line {
                    FrameLine::Frame(frame) => {
                        apply_event(&frame, version, |change| table.change_snapshot(place, change))?;
                        check_count(table.count(place), &self.selectors[place])?;
                    }
                    FrameLine::Oversized(_) => {
                        return Err(RequestFailure::Answer(format!("a frame is over {FRAME} bytes")));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Applies one event to the selected ConfigMaps.
fn apply_event(
    line: &[u8],
    version: &mut String,
    change: impl FnOnce(Box<dyn FnOnce(&mut SelectedMaps)>),
) -> Result<(), RequestFailure> {
    let fault = |error: String| RequestFailure::Answer(format!("a ConfigMap's event: {error}"));
    let frame = project::split_frame(line).map_err(|error| fault(error.to_string()))?;
    match frame.kind {
        EventType::Error => return Err(status_failure(None, frame.object, None)),
        EventType::Bookmark => {
            *version = project::bookmark_version(frame.object)
                .map_err(|error| fault(error.to_string()))?
                .into_owned();
        }
        EventType::Added | EventType::Modified | EventType::Deleted => {
            let map = config_map_doc(
                serde_json::from_slice(frame.object).map_err(|error| fault(error.to_string()))?,
            );
            version.clone_from(&map.resource_version);
            let deleted = frame.kind == EventType::Deleted;
            change(Box::new(move |selected| {
                if deleted {
                    selected.maps.remove(&map.uid);
                } else {
                    selected.maps.insert(map.uid.clone(), map);
                }
            }));
        }
    }
    Ok(())
}

fn config_map_doc(map: ConfigMap) -> ConfigMapDoc {
    ConfigMapDoc {
        name: map.metadata.name.unwrap_or_default(),
        uid: map.metadata.uid.unwrap_or_default(),
        resource_version: map.metadata.resource_version.unwrap_or_default(),
        labels: map.metadata.labels.unwrap_or_default(),
        data: map.data.unwrap_or_default(),
        binary_data: map
            .binary_data
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key, value.0.into()))
            .collect(),
    }
}
