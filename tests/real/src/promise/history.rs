//! etcd's history of a resource, read along from the beginning, because a compaction takes what nobody has read.
//!
//! A restore of etcd begins another history. It has what the one before had up to the backup's revision, and then its own.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use kubewitness_faults::{ResourceHistory, ServerTruth, TruthEvent, TruthFloor, WrittenEntry};
use kubewitness_harness::until;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cluster::{EtcdChange, EtcdStream};

/// etcd tells an event within milliseconds.
const TOLD_WITHIN: Duration = Duration::from_secs(60);
/// An etcd that was killed is back within seconds; otherwise the run fails elsewhere first.
const AWAY_PAUSE: Duration = Duration::from_millis(100);
const AWAY_TRIES: u32 = 1200;

/// The part of the present history that was read, and where reading goes on after etcd was away.
#[derive(Default)]
struct HistoryCursor {
    entries: Vec<WrittenEntry>,
    next_revision: u64,
}

/// Reads along until it is dropped.
pub struct EtcdHistory {
    etcd: String,
    prefix: String,
    /// Those that another one took the place of.
    over: Vec<ResourceHistory>,
    /// How the present one begins: what it inherited, up to which revision, and what was compacted.
    inherited: ResourceHistory,
    reading: Arc<Mutex<HistoryCursor>>,
    task: JoinHandle<Result<()>>,
}

impl Drop for EtcdHistory {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EtcdHistory {
    /// Begins to read the history of all objects of a resource, such as `jobs`.
    pub async fn of(etcd: &str, resource: &str) -> Result<Self> {
        let (etcd, prefix) = (etcd.to_owned(), format!("/registry/{resource}/"));
        let reading = Arc::new(Mutex::new(HistoryCursor { next_revision: 1, ..HistoryCursor::default() }));
        let stream = EtcdStream::of(&etcd, &prefix).await?;
        let task = spawn_reader(etcd.clone(), prefix.clone(), stream, reading.clone());
        let inherited = ResourceHistory::new(Vec::new(), 0);
        Ok(Self { etcd, prefix, over: Vec::new(), inherited, reading, task })
    }

    /// Waits until the first version of this object was read, which is written last: revisions are told in their order.
    /// Returns its version.
    pub async fn read_until(&self, last: &str) -> Result<u64> {
        until(TOLD_WITHIN, &format!("etcd to tell of {last}"), async || {
            ensure!(!self.task.is_finished(), "the reader of etcd's history ended");
            let reading = lock(&self.reading)?;
            let entry = reading.entries.iter().find(|entry| &*entry.name == last);
            Ok(entry.map(|entry| entry.version))
        })
        .await
    }

    /// etcd is asked to compact up to a revision, from `since` on. All of it was read.
    pub fn compacted(&mut self, since: SystemTime, version: u64) -> Result<()> {
        let since = since.duration_since(SystemTime::UNIX_EPOCH).context("a time after 1970")?;
        let since_ms = u64::try_from(since.as_millis())?;
        self.inherited.floors.push(TruthFloor { since_ms, version });
        let mut reading = lock(&self.reading)?;
        reading.next_revision = reading.next_revision.max(version + 1);
        Ok(())
    }

    /// Returns the floors that were compacted by now. A backup of this moment has lost as much.
    pub fn floors(&self) -> Vec<TruthFloor> {
        self.inherited.floors.clone()
    }

    /// Stops reading: another history is about to take this one's place.
    pub fn ends(&self) {
        self.task.abort();
    }

    /// Reads the history that is there now. It has what the one before had up to a revision, and `floors` were compacted.
    pub async fn read_restored(&mut self, revision: u64, floors: Vec<TruthFloor>) -> Result<()> {
        let mut old = self.present()?;
        let mut entries = old.entries.clone();
        entries.retain(|entry| entry.version <= revision);
        old.over = true;
        self.over.push(old);
        let (listed, listed_until) = (revision, revision);
        self.inherited = ResourceHistory { entries, listed, listed_until, floors, over: false };
        let reading = HistoryCursor { next_revision: revision + 1, ..HistoryCursor::default() };
        self.reading = Arc::new(Mutex::new(reading));
        let stream = EtcdStream::from(&self.etcd, &self.prefix, revision + 1).await?;
        self.task = spawn_reader(self.etcd.clone(), self.prefix.clone(), stream, self.reading.clone());
        Ok(())
    }

    pub fn restores(&self) -> u32 {
        u32::try_from(self.over.len()).unwrap_or(u32::MAX)
    }

    /// All that was read.
    pub fn truth(&self) -> Result<ServerTruth> {
        let mut histories = self.over.clone();
        histories.push(self.present()?);
        Ok(ServerTruth { histories })
    }

    fn present(&self) -> Result<ResourceHistory> {
        let mut present = self.inherited.clone();
        present.entries.extend(lock(&self.reading)?.entries.iter().cloned());
        Ok(present)
    }
}

fn lock(reading: &Mutex<HistoryCursor>) -> Result<MutexGuard<'_, HistoryCursor>> {
    reading.lock().map_err(|_| anyhow!("the reader of etcd's history panicked"))
}

#[allow(clippy::disallowed_methods, reason = "the task of a test ends with it")]
fn spawn_reader(
    etcd: String,
    prefix: String,
    stream: EtcdStream,
    reading: Arc<Mutex<HistoryCursor>>,
) -> JoinHandle<Result<()>> {
    tokio::spawn(async move {
        let mut stream = Some(stream);
        let mut tries = 0;
        loop {
            let changes = match &mut stream {
                Some(stream) => stream.next().await,
                None => Err(anyhow!("etcd is away")),
            };
            match changes {
                Ok(changes) => {
                    tries = 0;
                    keep(&changes, &reading)?;
                }
                Err(error) => {
                    tries += 1;
                    ensure!(tries < AWAY_TRIES, "etcd did not come back: {error:#}");
                    tokio::time::sleep(AWAY_PAUSE).await;
                    let from = lock(&reading)?.next_revision;
                    stream = EtcdStream::from(&etcd, &prefix, from).await.ok();
                }
            }
        }
    })
}

fn keep(changes: &[EtcdChange], reading: &Mutex<HistoryCursor>) -> Result<()> {
    let entries = changes.iter().map(entry).collect::<Result<Vec<_>>>()?;
    let mut reading = lock(reading)?;
    if let Some(last) = entries.last() {
        reading.next_revision = reading.next_revision.max(last.version + 1);
    }
    reading.entries.extend(entries);
    Ok(())
}

/// An object's resourceVersion is the revision that wrote it.
fn entry(change: &EtcdChange) -> Result<WrittenEntry> {
    let object = change.object()?;
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    Ok(WrittenEntry {
        version: change.revision.parse().with_context(|| format!("the revision {}", change.revision))?,
        event: if change.is_delete { TruthEvent::Deleted } else { TruthEvent::Written },
        namespace: text("namespace").into(),
        name: text("name").into(),
        uid: text("uid").into(),
        in_scope: true,
        document: (!change.is_delete).then(|| Arc::new(content(&object))),
    })
}

/// The part that etcd and the API server show alike. The API server adds fields about the object to what etcd has, and labels to a Job
/// that has none, so of labels only the one that is written here is compared.
pub(super) fn content(object: &Value) -> Value {
    json!({"turn": object["metadata"]["labels"]["turn"], "spec": object["spec"], "status": object["status"]})
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;
    use crate::cluster::changes_of;

    fn pair(revision: u64, value: &str) -> Value {
        json!({
            "key": STANDARD.encode("/registry/jobs/a/b"), "mod_revision": revision.to_string(),
            "value": STANDARD.encode(value),
        })
    }

    #[test]
    fn a_put_and_a_delete_are_versions_of_the_object_that_the_value_names() {
        let value = r#"{"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "status": {"active": 1}}"#;
        let line = json!({"result": {"events": [
            {"kv": pair(7, value)},
            {"type": "DELETE", "kv": {"key": STANDARD.encode("/registry/jobs/a/b"), "mod_revision": "9"},
                "prev_kv": pair(7, value)},
        ]}});
        let changes = changes_of(line.to_string().as_bytes()).expect("two changes");
        let reading = Mutex::new(HistoryCursor::default());
        keep(&changes, &reading).expect("two entries");
        let reading = reading.into_inner().expect("nobody panicked");
        let shown: Vec<_> =
            reading.entries.iter().map(|entry| (entry.event, entry.version, &*entry.uid)).collect();
        assert_eq!(shown, [(TruthEvent::Written, 7, "u"), (TruthEvent::Deleted, 9, "u")]);
        assert_eq!(reading.next_revision, 10);
        let documents: Vec<_> = reading.entries.iter().map(|entry| entry.document.as_deref()).collect();
        let written = json!({"turn": null, "spec": null, "status": {"active": 1}});
        assert_eq!(documents, [Some(&written), None]);
    }
}
