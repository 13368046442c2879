//! Decisions of the plugin `notification`: states a second through the component, beside the same code called natively.
//! Each is an outcome whose labels and annotations are read, and that no route fits, so that nothing is kept or sent.
// The peer is the plugin's own code, of which a decision is a part.
#![allow(dead_code)]

#[path = "../../../plugins/notification/src/answer.rs"]
mod answer;
#[path = "../../../plugins/notification/src/channels/mod.rs"]
mod channels;
#[path = "../../../plugins/notification/src/config/mod.rs"]
mod config;
#[path = "../../../plugins/notification/src/decide/mod.rs"]
mod decide;
#[path = "../../../plugins/notification/src/direct.rs"]
mod direct;
#[path = "../../../plugins/notification/src/facts.rs"]
mod facts;
mod granted;
#[path = "../../../plugins/notification/src/mutes.rs"]
mod mutes;
#[path = "../../../plugins/notification/src/report.rs"]
mod report;
mod support;
#[path = "../../../plugins/notification/src/telling/mod.rs"]
mod telling;
#[path = "../../../plugins/notification/src/template.rs"]
mod template;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_bench::{job, ratio, wanted};
use kubewitness_capability::{Backing, Capabilities};
use kubewitness_core::config::{ComponentsSpec, HostSpec, LimitsSpec, PluginSpec};
use kubewitness_core::ports::{Delivery, Documents, Handler, JournalError, Verdict};
use kubewitness_core::{ObjectRef, Seq, State, Status};
use kubewitness_sandbox::{Compiler, Engine, EngineOptions};
use kubewitness_sdk::{Error, testing};
use serde_json::{Value, json};

const BATCH: usize = 256;
const JOBS: usize = 2_000;
/// Fewer for a first look: `KUBEWITNESS_BENCH_STATES`.
const STATES: usize = 64 * 1024;

fn config() -> Value {
    json!({
        "channels": [{"name": "ops", "kind": "slack"}],
        "routes": [{"to": ["ops"], "namespaces": ["prod-*"], "labels": {"tier": "1"}}],
    })
}

fn main() -> Result<()> {
    if !wanted("decisions") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    let states = std::env::var("KUBEWITNESS_BENCH_STATES").map_or(Ok(STATES), |text| text.parse())?;
    let ours = tokio::runtime::Runtime::new()?.block_on(ours(states))?;
    let native = native(states)?;
    println!("decisions: {states} outcomes, batch {BATCH}");
    println!(
        "  component {ours:>8.0} states/s  the same natively {native:>8.0} states/s  {}",
        ratio(ours, native)
    );
    Ok(())
}

/// States a second through the component.
async fn ours(states: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let host: HostSpec = serde_json::from_value(json!({
        "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
        "destinations": [{"name": "ops", "url": "http://127.0.0.1:1"}],
    }))?;
    let spec: PluginSpec = serde_json::from_value(json!({
        "module": {"file": "p.wasm"},
        "subscribe": [{"source": "jobs"}],
        "grants": {"http": [{"name": "ops", "destination": "ops"}], "kv": true},
        "config": config(),
    }))?;
    let capabilities =
        Capabilities::open(&host, folder.path()).await.map_err(|faults| anyhow!("{faults:?}"))?;
    let backing = Backing { documents: Arc::new(Paper), ..granted::backing() };
    let grants = capabilities.grants("notification", &spec, backing).await?;
    let engine = Engine::new(EngineOptions { cache: None, compiler: Compiler::InProcess })?;
    let component =
        engine.load(&support::component("notification").into(), &ComponentsSpec::default()).await?;
    let plugin = component.plugin("notification", &LimitsSpec::default(), grants)?;
    let all: Vec<_> = support::deliveries(states, JOBS).into_iter().map(failed).collect();
    let begun = Instant::now();
    for batch in all.chunks(BATCH) {
        let outcome = plugin.handle(batch).await?;
        ensure!(
            outcome.verdicts.iter().all(|verdict| *verdict == Verdict::Done),
            "{:?}",
            outcome.verdicts[0]
        );
        ensure!(outcome.kv.is_empty(), "nothing is told, so nothing is kept");
    }
    Ok(states as f64 / begun.elapsed().as_secs_f64())
}

fn failed(delivery: Delivery) -> Delivery {
    let state = &*delivery.state;
    let status = Status { phase: "Failed".into(), ..(*state.status).clone() };
    let previous = Some(state.status.clone());
    Delivery { state: Arc::new(State { status: Arc::new(status), previous, ..state.clone() }), ..delivery }
}

/// The document of every state.
struct Paper;

#[async_trait]
impl Documents for Paper {
    async fn document(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(Some(job(seq as usize % JOBS, 1, seq).into()))
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn newest_documents(&self, _: &ObjectRef) -> Result<Vec<Bytes>, JournalError> {
        Ok(Vec::new())
    }
}

/// The same document, as the host of a native call gives values of it.
struct Native;

impl testing::Host for Native {
    fn document_value(&self, seq: u64, pointer: &str) -> Result<Option<String>, Error> {
        let document: Value = serde_json::from_str(&job(seq as usize % JOBS, 1, seq)).unwrap_or_default();
        Ok(document.pointer(pointer).map(Value::to_string))
    }
}

fn native(states: usize) -> Result<f64> {
    let config: config::Config = serde_json::from_value(config())?;
    let of = |seq: usize| {
        let mut state = testing::state(seq as u64, &format!("train-{:05}", seq % JOBS), "Failed");
        state.previous = Some(testing::status("Running"));
        state
    };
    let all: Vec<_> = (1..=states).map(of).collect();
    let begun = Instant::now();
    for batch in all.chunks(BATCH) {
        let verdicts = testing::with_host(Rc::new(Native), || telling::handle(&config, batch));
        ensure!(
            verdicts.iter().all(|verdict| *verdict == kubewitness_sdk::Verdict::Done),
            "a state is not done"
        );
    }
    Ok(states as f64 / begun.elapsed().as_secs_f64())
}
