//! etcd's own stream of changes: each put and each delete under a prefix, revision by revision.

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::at_rest;

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

/// A put or a delete of a key.
#[derive(Debug)]
pub(crate) struct EtcdChange {
    pub key: String,
    /// An object's resourceVersion is the revision that wrote it.
    pub revision: String,
    pub is_delete: bool,
    /// The value that was put. For a delete: the value that was there before.
    value: String,
}

impl EtcdChange {
    /// The object, of which nothing but the value's form is known. It may be encrypted.
    pub(crate) fn object(&self) -> Result<Value> {
        let bytes = at_rest::decrypted(&self.key, STANDARD.decode(&self.value)?)?;
        serde_json::from_slice(&bytes).with_context(|| format!("the value of {}", self.key))
    }
}

pub(crate) struct EtcdStream {
    answer: reqwest::Response,
    unread: Vec<u8>,
}

impl EtcdStream {
    /// Begins with the first revision that etcd has.
    pub(crate) async fn of(etcd: &str, prefix: &str) -> Result<Self> {
        Self::from(etcd, prefix, 1).await
    }

    /// Begins with this revision, which must not be compacted.
    pub(crate) async fn from(etcd: &str, prefix: &str, revision: u64) -> Result<Self> {
        let mut end = prefix.as_bytes().to_vec();
        // The first key that does not begin with the prefix.
        *end.last_mut().context("a prefix")? += 1;
        let ask = json!({"create_request": {
            "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end), "start_revision": revision.to_string(), "prev_kv": true,
        }});
        let client = reqwest::Client::builder().no_proxy().build()?;
        let answer = client.post(format!("{etcd}/v3/watch")).body(ask.to_string()).send().await?;
        ensure!(answer.status().is_success(), "etcd answered {} to a watch", answer.status());
        Ok(Self { answer, unread: Vec::new() })
    }

    /// The next changes, as soon as there are some.
    pub(crate) async fn next(&mut self) -> Result<Vec<EtcdChange>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return changes_of(&line);
            }
            let Some(chunk) = self.answer.chunk().await? else { bail!("etcd ended the watch") };
            self.unread.extend_from_slice(&chunk);
        }
    }
}

pub(crate) fn changes_of(line: &[u8]) -> Result<Vec<EtcdChange>> {
    let answer: WatchAnswer = serde_json::from_slice(line)
        .with_context(|| format!("etcd told {}", String::from_utf8_lossy(line).trim()))?;
    let result = answer.result.with_context(|| format!("etcd told {:?}", answer.error))?;
    ensure!(!result.canceled, "etcd ended the watch");
    result.events.into_iter().map(change).collect()
}

fn change(event: EtcdEvent) -> Result<EtcdChange> {
    let is_delete = event.kind == "DELETE";
    let value =
        if is_delete { event.prev_kv.context("a value before its end")?.value } else { event.kv.value };
    let key = String::from_utf8(STANDARD.decode(&event.kv.key)?)?;
    Ok(EtcdChange { key, revision: event.kv.mod_revision, is_delete, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_and_what_is_no_answer_are_errors() {
        changes_of(br#"{"result": {"canceled": true}}"#).expect_err("ended");
        changes_of(br#"{"error": {"message": "compacted"}}"#).expect_err("refused");
        changes_of(b"nonsense").expect_err("no answer");
    }
}
