//! Whom the notification plugin tells of a state: decisions a second, of outcomes and of progress. The peer, in the same
//! run, is a plugin that decides nothing: the call alone.

#[path = "../fixtures/granted.rs"]
mod granted;
#[allow(dead_code, reason = "each benchmark uses its part")]
#[path = "../fixtures/support.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use granted::{backing, delivery};
use kubewitness_bench::{job, wanted};
use kubewitness_capability::PluginServices;
use kubewitness_core::config::{ComponentsSpec, LimitsSpec};
use kubewitness_core::ports::{DocumentReader, JournalError, PluginHandler, StateDelivery, Verdict};
use kubewitness_core::{ObjectRef, Seq, Status};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine};
use serde_json::{Value, json};

/// States of one call, as many as the example for people has.
const BATCH: u64 = 256;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    if !wanted("decisions") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    println!(
        "decisions: calls of {BATCH} states of as many Jobs, each with its document, the best of {ROUNDS} rounds"
    );
    let nothing = json!({"command": "done"});
    let people = json!({
        "channels": [{"name": "ops", "kind": "slack"}, {"name": "vision", "kind": "feishu"}],
        "routes": [{"to": ["ops"], "phases": ["Failed"], "namespaces": ["prod-*", "team-1*"]}],
        "namespaces": {"team-7": {"to": ["vision"]}},
    });
    let peer = decisions("probe", &nothing, "Failed").await?;
    println!("  the call alone   {peer:>8.0} states/s");
    for (what, phase) in [("outcomes", "Failed"), ("progress", "Running")] {
        let rate = decisions("notification", &people, phase).await?;
        println!("  {what:<16} {rate:>8.0} decisions/s  × {:.3} of the peer's", rate / peer);
    }
    Ok(())
}

/// The same states come again and again: a plugin decides each time, and notes nothing new.
async fn decisions(component: &str, config: &Value, phase: &str) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let url = json!("http://127.0.0.1:9");
    let settings = json!({"destinations": [{"name": "slack", "url": url}, {"name": "feishu", "url": url}]});
    let http = json!([{"name": "ops", "destination": "slack"}, {"name": "vision", "destination": "feishu"}]);
    let plugin = json!({"grants": {"http": http, "kv": true}, "config": config});
    let backing = PluginServices { documents: Arc::new(JobStates), ..backing() };
    let grants = granted::grants(&settings, &plugin, folder.path(), backing).await?;

    let engine = SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })?;
    let bytes = support::component(component).into();
    let component = engine.load(&bytes, &ComponentsSpec::default()).await?;
    let plugin = component.make_plugin("bench", &LimitsSpec::default(), grants)?;
    let batch: Vec<StateDelivery> = (1..=BATCH).map(|seq| of_phase(seq, phase)).collect();
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < ROUND {
            let verdicts = plugin.handle_batch(&batch).await.context("a call")?.verdicts;
            ensure!(verdicts.iter().all(|verdict| *verdict == Verdict::Done), "{verdicts:?}");
            done += verdicts.len();
        }
        best = best.max(done as f64 / began.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn of_phase(seq: Seq, phase: &str) -> StateDelivery {
    let mut delivery = delivery(seq);
    let state = Arc::make_mut(&mut delivery.state);
    let (namespace, name) = (format!("team-{}", seq % 20), format!("train-{seq:05}"));
    let (group, version, kind, uid) = ("batch".into(), "v1".into(), "Job".into(), format!("uid-{seq}"));
    state.object = Arc::new(ObjectRef { group, version, kind, namespace, name, uid });
    state.status = Arc::new(Status { phase: phase.into(), ..Status::default() });
    delivery
}

struct JobStates;

#[async_trait]
impl DocumentReader for JobStates {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(Some(job(seq as usize, 1, seq).into()))
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn newest_of(&self, _: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        Ok(Vec::new())
    }
}
