//! The way of a state from the journal to a receiver: dispatcher, notification plugin in its sandbox, request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use kubewitness_bench::PATIENCE;
use kubewitness_capability::PluginServices;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::{ComponentsSpec, DeliverySpec, LimitsSpec};
use kubewitness_core::ports::{
    AppliedStates, CallError, CallOutcome, NoteStore, PluginHandler, StateDelivery, StateWitness,
};
use kubewitness_dispatch::{DispatchOptions, LongestPauses, PluginDispatcher};
use kubewitness_journal::{Journal, JournalOptions};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, PluginComponent, SandboxEngine};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::granted::{self, NoJournal, backing};
use crate::subscribed::every_job;
use crate::support::{component, witnessed};
use crate::{CALLS, receive};

/// Each is news once.
pub const JOBS: usize = 5_000;
/// The best one counts.
pub const ROUNDS: usize = 3;
/// States of one append.
const APPEND: usize = 250;

pub struct PostPlugin {
    component: PluginComponent,
}

/// Each call is a task of its own, as in the host.
struct SpawnedCalls(Arc<kubewitness_sandbox::SandboxPlugin>);

#[async_trait]
impl PluginHandler for SpawnedCalls {
    #[allow(clippy::disallowed_methods)]
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        let (plugin, batch) = (self.0.clone(), batch.to_vec());
        let call = tokio::spawn(async move { plugin.handle_batch(&batch).await });
        call.await.map_err(|error| CallError::Protocol(error.to_string()))?
    }

    async fn find_applied(&self, batch: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        self.0.find_applied(batch).await
    }
}

impl PostPlugin {
    pub async fn load() -> Result<Self> {
        let options =
            EngineOptions { cache: None, compiler: ComponentCompiler::InProcess, is_unattended: false };
        let bytes = component("notification").into();
        Ok(Self { component: SandboxEngine::new(options)?.load(&bytes, &ComponentsSpec::default()).await? })
    }

    /// Posts a second.
    pub async fn rate(&self, millis: u64, is_noted: bool) -> Result<f64> {
        let folder = tempfile::tempdir()?;
        let journal = Journal::open(&folder.path().join("journal.db"), JournalOptions::default()).await?;
        let now = SystemClock::default().now_ms();
        for first in (0..JOBS).step_by(APPEND) {
            let mut append = witnessed(first, APPEND);
            // Of what is old nobody is told.
            append.states.iter_mut().for_each(|state| state.observed_ms = now);
            journal.append_batch(append).await?;
        }
        let count = Arc::new(AtomicUsize::new(0));
        let url = receive(Duration::from_millis(millis), count.clone()).await?;
        let destinations = json!({"destinations": [{"name": "people", "url": url}]});
        let plugin = json!({"grants": {"http": [{"name": "people", "destination": "people"}]}});
        let notes: Arc<dyn NoteStore> =
            if is_noted { Arc::new(journal.clone()) } else { Arc::new(NoJournal) };
        let backing = PluginServices { notes, documents: Arc::new(journal.clone()), ..backing() };
        let grants = granted::grants(&destinations, &plugin, folder.path(), backing).await?;
        let plugin = self.component.make_plugin("bench", &LimitsSpec::default(), grants)?;
        let handler = Arc::new(SpawnedCalls(Arc::new(plugin)));
        let (dispatcher, _handle) = PluginDispatcher::new(
            options(),
            Arc::new(journal.clone()),
            handler,
            Arc::new(SystemClock::default()),
        );
        let (stop, begun) = (CancellationToken::new(), Instant::now());
        let told = async {
            while count.load(Ordering::SeqCst) < JOBS && begun.elapsed() < PATIENCE {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let took = begun.elapsed();
            stop.cancel();
            took
        };
        let (took, ended) = tokio::join!(told, dispatcher.run(stop.clone(), CancellationToken::new()));
        ended.context("dispatching")?;
        let count = count.load(Ordering::SeqCst);
        ensure!(count == JOBS, "{count} posts of {JOBS} Jobs");
        journal.close().await?;
        Ok(JOBS as f64 / took.as_secs_f64())
    }
}

fn options() -> DispatchOptions {
    DispatchOptions {
        plugin: "bench".into(),
        subscriptions: vec![every_job()],
        delivery: DeliverySpec::default(),
        concurrency: CALLS as u32,
        tick: None,
        pauses: LongestPauses::default(),
    }
}
