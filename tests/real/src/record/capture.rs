//! Everything that etcd was told, with the time at which it told it; and the newest version of each object, from which
//! cases see how far they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use kubewitness_causes::{HistoryChange, Operation};
use serde_json::Value;
use tokio::task::JoinSet;

use super::kubelet::now_ms;
use crate::cluster::EtcdStream;

const PREFIX: &str = "/registry/";
/// The resources that a history may have, as etcd and as a history's keys name them.
const RESOURCES: [(&str, &str); 11] = [
    ("jobs", "jobs"),
    ("pods", "pods"),
    ("events", "events"),
    ("cronjobs", "cronjobs"),
    ("minions", "nodes"),
    ("configmaps", "configmaps"),
    ("kueue.x-k8s.io/workloads", "workloads"),
    ("jobset.x-k8s.io/jobsets", "jobsets"),
    ("trainer.kubeflow.org/trainjobs", "trainjobs"),
    ("ray.io/rayjobs", "rayjobs"),
    ("ray.io/rayclusters", "rayclusters"),
];

#[derive(Default)]
struct CapturedObject {
    changes: Vec<HistoryChange>,
    newest: HashMap<String, Value>,
}

pub(super) struct Capture {
    captured: Arc<Mutex<CapturedObject>>,
    /// Ends with the capture.
    reading: JoinSet<Result<()>>,
}

impl Capture {
    pub(super) async fn start(etcd: &str) -> Result<Self> {
        let stream = EtcdStream::of(etcd, PREFIX).await?;
        let captured = Arc::new(Mutex::new(CapturedObject::default()));
        let mut reading = JoinSet::new();
        reading.spawn(read(stream, captured.clone()));
        Ok(Self { captured, reading })
    }

    /// The newest version of an object, such as `jobs/team/train`.
    pub(super) fn newest(&self, key: &str) -> Result<Option<Value>> {
        ensure!(self.reading.len() == 1, "the reader of etcd ended");
        Ok(lock(&self.captured).newest.get(key).cloned())
    }

    /// All that exist of a resource in a namespace.
    pub(super) fn all(&self, prefix: &str) -> Vec<Value> {
        let captured = lock(&self.captured);
        captured
            .newest
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(_, value)| value.clone())
            .collect()
    }

    /// The changes that `is_wanted` takes, in the order of their revisions.
    pub(super) fn changes(&self, is_wanted: impl Fn(&HistoryChange) -> bool) -> Vec<HistoryChange> {
        lock(&self.captured).changes.iter().filter(|change| is_wanted(change)).cloned().collect()
    }
}

fn lock(captured: &Mutex<CapturedObject>) -> MutexGuard<'_, CapturedObject> {
    captured.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(mut stream: EtcdStream, captured: Arc<Mutex<CapturedObject>>) -> Result<()> {
    loop {
        let changes = stream.next().await?;
        let at_ms = now_ms();
        let mut captured = lock(&captured);
        for change in changes {
            let Some(key) = key_of(&change.key) else { continue };
            let mut document = change.object()?;
            let metadata = document["metadata"].as_object_mut().context("an object has metadata")?;
            metadata.remove("managedFields");
            if change.is_delete {
                // As the last put had it, with the version of that put.
                document = captured.newest.remove(&key).with_context(|| format!("no version of {key}"))?;
            } else {
                metadata.insert("resourceVersion".into(), change.revision.into());
                captured.newest.insert(key.clone(), document.clone());
            }
            let op = if change.is_delete { Operation::Delete } else { Operation::Put };
            captured.changes.push(HistoryChange { op, key, at_ms, document });
        }
    }
}

fn key_of(key: &str) -> Option<String> {
    let rest = key.strip_prefix(PREFIX)?;
    RESOURCES.iter().find_map(|(stored, named)| {
        let name = rest.strip_prefix(stored)?.strip_prefix('/')?;
        Some(format!("{named}/{name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_etcd_is_named_by_its_resource() {
        assert_eq!(key_of("/registry/minions/worker-1").as_deref(), Some("nodes/worker-1"));
        assert_eq!(key_of("/registry/pods/a/b").as_deref(), Some("pods/a/b"));
        assert_eq!(key_of("/registry/podsecurity/a"), None);
    }
}
