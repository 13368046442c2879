//! Lives of objects, made through the API of the servers, and a record of what was written.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use kubewitness_core::config::SourceSpec;
use kubewitness_watch::ApiConnection;
use serde_json::{Value, json};

use crate::seeds::Dice;

/// The label that puts an object into the scope of a source that has one.
pub const TEAM: &str = "team";
pub const OURS: &str = "vision";
pub const THEIRS: &str = "speech";

/// A kind that is watched.
#[derive(Clone, Copy, Debug)]
pub struct WatchedKind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub group: &'static str,
    pub resource: &'static str,
}

pub const JOBS: WatchedKind =
    WatchedKind { api_version: "batch/v1", kind: "Job", group: "batch", resource: "jobs" };
pub const WIDGETS: WatchedKind =
    WatchedKind { api_version: "example.com/v1", kind: "Widget", group: "example.com", resource: "widgets" };

/// Their names may have nearly any character.
pub const ROLES: WatchedKind = WatchedKind {
    api_version: "rbac.authorization.k8s.io/v1",
    kind: "Role",
    group: "rbac.authorization.k8s.io",
    resource: "roles",
};

impl WatchedKind {
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "api" } else { "apis" };
        format!("/{root}/{}/namespaces/{namespace}/{}", self.api_version, self.resource)
    }

    pub fn source(&self, name: &str) -> SourceSpec {
        SourceSpec::of(name, self.api_version, self.kind)
    }

    fn object(&self, name: &str, team: &str) -> Value {
        let mut object = json!({"apiVersion": self.api_version, "kind": self.kind,
            "metadata": {"name": name, "labels": {TEAM: team}}});
        if self.kind == "Job" {
            object["spec"] = json!({"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "trainer", "image": "registry.example.com/train:1"}]}}});
        }
        object
    }
}

/// History, uid and version → what was written.
pub type WrittenObjects = HashMap<(u32, String, u64), Arc<Value>>;

/// One who writes, past the wire.
pub struct WriterHerd {
    client: kube::Client,
    pub kind: WatchedKind,
    pub dice: Dice,
    /// Names that are in use, with the number of the last change.
    pub live: BTreeMap<String, u64>,
    /// Names that a random life may take.
    pub names: u64,
    pub written: WrittenObjects,
    /// How often the servers' history was replaced.
    pub epoch: u32,
    changes: u64,
}

pub const NAMESPACE: &str = "default";

/// A name that random lives leave alone.
pub const KEPT: &str = "kept";

impl WriterHerd {
    pub fn new(connection: &ApiConnection, kind: WatchedKind, dice: Dice) -> Self {
        Self {
            client: connection.client.clone(),
            kind,
            dice,
            live: BTreeMap::new(),
            names: 8,
            written: WrittenObjects::new(),
            epoch: 0,
            changes: 0,
        }
    }

    /// When a write was made, as a server notes it: never the same as another one.
    fn managed(&mut self) -> Value {
        self.changes += 1;
        let (minutes, seconds) = (self.changes / 60, self.changes % 60);
        let time = format!("2026-01-01T{:02}:{:02}:{seconds:02}Z", minutes / 60, minutes % 60);
        json!([{"manager": "herd", "operation": "Update", "apiVersion": self.kind.api_version, "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": {}}])
    }

    /// One request as the administrator.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request =
            Request::builder().method(&method).uri(path).header("Content-Type", media).body(bytes)?;
        let text = self.client.request_text(request).await.with_context(|| format!("{method} {path}"))?;
        Ok(serde_json::from_str(&text)?)
    }

    fn path(&self, name: &str) -> String {
        let escaped: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!("{}/{escaped}", self.kind.collection(NAMESPACE))
    }

    fn wrote(&mut self, object: Value) -> Result<()> {
        let metadata = &object["metadata"];
        let version = metadata["resourceVersion"].as_str().and_then(|version| version.parse().ok());
        let uid = metadata["uid"].as_str().map(str::to_string);
        let (Some(uid), Some(version)) = (uid, version) else {
            anyhow::bail!("an answer without identity: {object}");
        };
        self.written.insert((self.epoch, uid, version), Arc::new(object));
        Ok(())
    }

    pub async fn create(&mut self, name: &str) -> Result<()> {
        self.create_in(name, OURS).await
    }

    pub async fn create_in(&mut self, name: &str, team: &str) -> Result<()> {
        let mut object = self.kind.object(name, team);
        object["metadata"]["managedFields"] = self.managed();
        let made = self.send(Method::POST, &self.kind.collection(NAMESPACE), &object).await?;
        self.live.insert(name.to_string(), 0);
        self.wrote(made)
    }

    async fn patch(&mut self, name: &str, mut patch: Value) -> Result<()> {
        patch["metadata"]["managedFields"] = self.managed();
        let made = self.send(Method::PATCH, &self.path(name), &patch).await?;
        self.wrote(made)
    }

    pub async fn touch(&mut self, name: &str) -> Result<()> {
        self.changes += 1;
        let change = self.changes.to_string();
        self.patch(name, json!({"metadata": {"annotations": {"change": change}}})).await
    }

    pub async fn grow(&mut self, name: &str, bytes: usize) -> Result<()> {
        self.changes += 1;
        let text: String =
            std::iter::repeat_with(|| char::from(b'a' + self.dice.below(26) as u8)).take(bytes).collect();
        self.patch(
            name,
            json!({"metadata": {"annotations": {"big": text, "change": self.changes.to_string()}}}),
        )
        .await
    }

    pub async fn relabel(&mut self, name: &str, team: &str) -> Result<()> {
        self.changes += 1;
        let change = self.changes.to_string();
        self.patch(name, json!({"metadata": {"labels": {TEAM: team}, "annotations": {"change": change}}}))
            .await
    }

    pub async fn delete(&mut self, name: &str) -> Result<()> {
        let path = format!("{}?propagationPolicy=Background", self.path(name));
        self.send(Method::DELETE, &path, &Value::Null).await?;
        self.live.remove(name);
        Ok(())
    }

    pub async fn create_some(&mut self, many: u64) -> Result<()> {
        for number in 0..many {
            self.create(&format!("job-{number}")).await?;
        }
        Ok(())
    }

    pub fn any(&mut self) -> Option<String> {
        let names: Vec<String> = self.live.keys().filter(|name| *name != KEPT).cloned().collect();
        self.dice.pick(&names).cloned()
    }

    /// One random thing happens: mostly changes; names are used again and again.
    pub async fn live(&mut self) -> Result<()> {
        let name = format!("job-{}", self.dice.below(self.names));
        let there = self.live.contains_key(&name);
        match (self.dice.below(10), there) {
            (0..=2, true) => self.delete(&name).await,
            (_, true) => self.touch(&name).await,
            (0..=5, false) => self.create(&name).await,
            (_, false) => match self.any() {
                Some(name) => self.touch(&name).await,
                None => self.create(&name).await,
            },
        }
    }

    pub async fn live_on(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            self.live().await?;
        }
        Ok(())
    }

    /// Several deletions that share one version, as of leases that expire together.
    pub async fn delete_together(&mut self, names: &[String]) -> Result<()> {
        let body = json!({"group": self.kind.group, "resource": self.kind.resource, "namespace": NAMESPACE,
            "names": names});
        let answer = self.send(Method::POST, "/_sim/delete-together", &body).await?;
        ensure!(answer["deleted"] == names.len(), "{answer}");
        for name in names {
            self.live.remove(name);
        }
        Ok(())
    }
}
