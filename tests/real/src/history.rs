//! etcd's history of a resource. It is read along from the beginning, because a compaction takes what nobody has read.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use kubewitness_harness::{Truth, TruthEntry, TruthObject, until};
use tokio::task::JoinHandle;

use crate::etcd::{EtcdChange, EtcdStream};

/// etcd tells an event within milliseconds.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// Reads along until it is dropped.
pub struct EtcdHistory {
    entries: Arc<Mutex<Vec<TruthEntry>>>,
    reading: JoinHandle<Result<()>>,
}

impl Drop for EtcdHistory {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl EtcdHistory {
    /// Begins to read the history of all objects of a resource, such as `jobs`.
    #[allow(clippy::disallowed_methods, reason = "the task of a test ends with it")]
    pub async fn of(etcd: &str, resource: &str) -> Result<Self> {
        let stream = EtcdStream::of(etcd, &format!("/registry/{resource}/")).await?;
        let entries = Arc::new(Mutex::new(Vec::new()));
        let reading = tokio::spawn(read(stream, entries.clone()));
        Ok(Self { entries, reading })
    }

    /// Everything up to the first version of this object, which is written last: revisions are told in their order.
    pub async fn through(&self, last: &str) -> Result<Truth> {
        until(TOLD_WITHIN, &format!("etcd to tell of {last}"), async || {
            ensure!(!self.reading.is_finished(), "etcd's history ended early");
            let entries = self.entries.lock().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
            let is_told = entries.iter().any(|entry| entry.object.name == last);
            Ok(is_told.then(|| Truth { entries: entries.clone() }))
        })
        .await
    }
}

async fn read(mut stream: EtcdStream, entries: Arc<Mutex<Vec<TruthEntry>>>) -> Result<()> {
    loop {
        let changes = stream.next().await?;
        let told = changes.iter().map(entry).collect::<Result<Vec<_>>>()?;
        entries.lock().map_err(|_| anyhow::anyhow!("a reader panicked"))?.extend(told);
    }
}

/// An object's resourceVersion is the revision that wrote it.
fn entry(change: &EtcdChange) -> Result<TruthEntry> {
    let object = change.object()?;
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Ok(TruthEntry {
        event: if change.is_delete { "DELETED" } else { "MODIFIED" }.into(),
        version: change.revision.clone(),
        object: TruthObject { namespace: text("namespace"), name: text("name"), uid: text("uid") },
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    use super::*;
    use crate::etcd::changes_of;

    fn pair(revision: u64, value: &str) -> Value {
        json!({"key": STANDARD.encode("/registry/jobs/a/b"), "mod_revision": revision.to_string(),
            "value": STANDARD.encode(value)})
    }

    #[test]
    fn a_put_and_a_delete_are_versions_of_the_object_that_the_value_names() {
        let value = r#"{"metadata": {"namespace": "a", "name": "b", "uid": "u"}}"#;
        let line = json!({"result": {"events": [
            {"kv": pair(7, value)},
            {"type": "DELETE", "kv": {"key": STANDARD.encode("/registry/jobs/a/b"), "mod_revision": "9"},
                "prev_kv": pair(7, value)},
        ]}});
        let told = changes_of(line.to_string().as_bytes()).expect("two changes");
        let told = told.iter().map(entry).collect::<Result<Vec<_>>>().expect("two entries");
        let shown: Vec<_> =
            told.iter().map(|it| (it.event.as_str(), it.version.as_str(), it.object.uid.as_str())).collect();
        assert_eq!(shown, [("MODIFIED", "7", "u"), ("DELETED", "9", "u")]);
    }
}
