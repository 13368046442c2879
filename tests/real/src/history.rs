//! etcd's history: each put and each delete under a prefix, revision by revision. It is read along from the beginning,
//! because a compaction takes what nobody has read.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_harness::{Truth, TruthEntry, TruthObject, until};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

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

#[derive(Deserialize)]
struct WatchAnswer {
    result: Option<WatchResult>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct WatchResult {
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    events: Vec<EtcdEvent>,
}

#[derive(Deserialize)]
struct EtcdEvent {
    /// Left out for a put.
    #[serde(default, rename = "type")]
    kind: String,
    kv: KeyValue,
    prev_kv: Option<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    /// 64-bit numbers are texts in this API.
    mod_revision: String,
    #[serde(default)]
    value: String,
}

impl EtcdHistory {
    /// Begins to read the history of all objects of a resource, such as `jobs`.
    #[allow(clippy::disallowed_methods, reason = "the task of a test ends with it")]
    pub async fn of(etcd: &str, resource: &str) -> Result<Self> {
        let prefix = format!("/registry/{resource}/");
        let end = format!("/registry/{resource}0");
        let ask = json!({"create_request": {
            "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end), "start_revision": "1", "prev_kv": true,
        }});
        let client = reqwest::Client::builder().no_proxy().build()?;
        let answer = client.post(format!("{etcd}/v3/watch")).body(ask.to_string()).send().await?;
        ensure!(answer.status().is_success(), "etcd answered {} to a watch", answer.status());
        let entries = Arc::new(Mutex::new(Vec::new()));
        let reading = tokio::spawn(read(answer, entries.clone()));
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

async fn read(mut answer: reqwest::Response, entries: Arc<Mutex<Vec<TruthEntry>>>) -> Result<()> {
    let mut unread = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        unread.extend_from_slice(&chunk);
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            let told = events_of(&line)?;
            entries.lock().map_err(|_| anyhow::anyhow!("a reader panicked"))?.extend(told);
        }
    }
    bail!("etcd ended the watch")
}

fn events_of(line: &[u8]) -> Result<Vec<TruthEntry>> {
    let answer: WatchAnswer = serde_json::from_slice(line)
        .with_context(|| format!("etcd told {}", String::from_utf8_lossy(line).trim()))?;
    let result = answer.result.with_context(|| format!("etcd told {:?}", answer.error))?;
    ensure!(!result.canceled, "etcd ended the watch");
    result.events.into_iter().map(entry).collect()
}

/// An object's resourceVersion is the revision that wrote it.
fn entry(event: EtcdEvent) -> Result<TruthEntry> {
    let is_deleted = event.kind == "DELETE";
    let holder =
        if is_deleted { event.prev_kv.as_ref().context("a value before its end")? } else { &event.kv };
    let key = String::from_utf8(STANDARD.decode(&event.kv.key)?)?;
    let object: Value = serde_json::from_slice(&STANDARD.decode(&holder.value)?)
        .with_context(|| format!("the value of {key}"))?;
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Ok(TruthEntry {
        event: if is_deleted { "DELETED" } else { "MODIFIED" }.into(),
        version: event.kv.mod_revision,
        object: TruthObject { namespace: text("namespace"), name: text("name"), uid: text("uid") },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let told = events_of(line.to_string().as_bytes()).expect("two events");
        let shown: Vec<_> =
            told.iter().map(|it| (it.event.as_str(), it.version.as_str(), it.object.uid.as_str())).collect();
        assert_eq!(shown, [("MODIFIED", "7", "u"), ("DELETED", "9", "u")]);
    }

    #[test]
    fn an_end_and_what_is_no_answer_are_errors() {
        events_of(br#"{"result": {"canceled": true}}"#).expect_err("ended");
        events_of(br#"{"error": {"message": "compacted"}}"#).expect_err("refused");
        events_of(b"nonsense").expect_err("no answer");
    }
}
