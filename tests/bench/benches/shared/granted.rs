//! What a plugin is granted, without the plugin: calls are made as the sandbox makes them, and nothing else is measured.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_capability::{Backing, Capabilities};
use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::{HostSpec, PluginSpec};
use kubewitness_core::ports::{
    Current, Delivery, Documents, Grants, JournalError, Kept, KvWrite, Lister, Notes, SelectError, Selected,
    Selection,
};
use kubewitness_core::views::Counts;
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Version};
use serde_json::{Value, json};

pub fn backing() -> Backing {
    Backing {
        documents: Arc::new(Nothing),
        lister: Arc::new(Nothing),
        subscribed: Default::default(),
        clock: Arc::new(SystemClock::default()),
        uses: Arc::default(),
        kv: Vec::new(),
        told: Default::default(),
        notes: Arc::new(Nothing),
        version: "bench".into(),
        cursor: 0,
        newest: 0,
    }
}

/// `settings` are fields of the host's settings, and `plugin` those of the manifest.
pub async fn grants(
    settings: &Value,
    plugin: &Value,
    folder: &Path,
    backing: Backing,
) -> Result<Arc<dyn Grants>> {
    let mut host = json!({"sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}]});
    for (field, value) in settings.as_object().into_iter().flatten() {
        host[field] = value.clone();
    }
    let host: HostSpec = serde_json::from_value(host)?;
    let mut spec = json!({"module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}]});
    for (field, value) in plugin.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let spec: PluginSpec = serde_json::from_value(spec)?;
    let capabilities = Capabilities::open(&host, folder).await;
    let capabilities = capabilities.map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
    Ok(capabilities.grants("bench", &spec, backing).await?)
}

pub fn delivery(seq: Seq) -> Delivery {
    let state = State {
        id: StateId::parse(&format!("jobs/0/batch/Job/00000000-0000-4000-8000-{seq:012}/{seq}")),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change: Change::Present,
        object: Arc::default(),
        owner: None,
        resource_version: Version::new("1"),
        status: Arc::default(),
        previous: None,
        observed_ms: 0,
        late: false,
    };
    Delivery { state: Arc::new(state), attempt: 1, resync: false }
}

/// Stands in for what is not measured, and for a journal that notes nothing.
pub struct Nothing;

#[async_trait]
impl Notes for Nothing {
    async fn note(&self, _: &str, _: Vec<KvWrite>, _: Kept) -> Result<(), JournalError> {
        Ok(())
    }

    fn note_later(&self, _: &str, _: Vec<KvWrite>) {}
}

#[async_trait]
impl Documents for Nothing {
    async fn document(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn newest_documents(&self, _: &ObjectRef) -> Result<Vec<Bytes>, JournalError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Lister for Nothing {
    fn get(&self, _: &str, _: &str, _: &str) -> Result<Option<Current>, SelectError> {
        Ok(None)
    }

    fn select(&self, _: &str, _: &Selection) -> Result<Selected, SelectError> {
        Ok(Selected::default())
    }

    fn tally(&self, _: &str, _: &Selection, _: &mut Counts) -> Result<(), SelectError> {
        Ok(())
    }

    fn count(&self, _: &str) -> usize {
        0
    }

    async fn shows(&self, _: &str, _: Seq) {}
}
