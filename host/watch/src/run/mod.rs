//! Runs one source: it loads the source from the journal, then starts the tasks that list, watch, repair and
//! write.
//!
//! Reading, judging and writing are separate tasks, so that the socket is read while the journal syncs. This
//! folder wires them and decides nothing about objects.

mod carried;
mod load;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures::FutureExt;
use futures::future::BoxFuture;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::limits::FRAMES_IN_FLIGHT;
use kubewitness_core::ports::StateWitness;
use kubewitness_core::redact::RulesInForce;
use kubewitness_core::status::StatusRules;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::connect::ApiConnection;
use crate::read::ServerReader;
use crate::repair::audit::ListAuditor;
use crate::repair::rounds::{ROUNDS, RoundWorker};
use crate::repair::single_objects::MissedRepair;
use crate::run::load::LoadMode;
use crate::source::handle::{SharedState, SourceHandle};
use crate::source::input::WriterInput;
use crate::source::listers::CacheListers;
use crate::source::parts::{SourceError, SourceParts};
use crate::source::repair_budget::RepairBudget;
use crate::source::round::MissedObject;
use crate::tuning::WatchTuning;
use crate::write::append::BatchAppender;
use crate::write::{FLIGHTS, StateWriter};

pub struct SourceTask {
    pub(crate) parts: SourceParts,
}

/// A source as three tasks: one reads the server, one makes states, one writes them.
pub struct SourceTasks {
    pub reading: BoxFuture<'static, ()>,
    /// When this task ends, the source ends, and so do the other two.
    pub making: BoxFuture<'static, Result<(), SourceError>>,
    pub appending: BoxFuture<'static, ()>,
}

impl SourceTask {
    /// Makes a source. Add its handle to `listers`, so that the source's cache becomes readable.
    pub fn new(
        connection: &ApiConnection,
        spec: SourceSpec,
        witness: Arc<dyn StateWitness>,
        clock: Arc<dyn Clock>,
        rules: Arc<StatusRules>,
        listers: CacheListers,
    ) -> (Self, SourceHandle) {
        let shared = Arc::new(SharedState::new(&spec.name, &spec.indexes));
        let handle = SourceHandle { shared: Arc::clone(&shared) };
        let (api, secret_rules, tuning) =
            (connection.api_client(), RulesInForce::default(), WatchTuning::default());
        let (repairs, audits) = (RepairBudget::default(), Arc::new(AtomicBool::new(true)));
        let parts = SourceParts {
            api,
            spec,
            shared,
            witness,
            clock,
            rules,
            secret_rules,
            listers,
            tuning,
            repairs,
            audits,
        };
        (Self { parts }, handle)
    }

    /// Marks each state whose texts quote no secret, so that a reader need not search them again.
    pub fn with_secret_rules(mut self, rules: RulesInForce) -> Self {
        self.parts.secret_rules = rules;
        self
    }

    /// Shares one repair budget with the other sources of the connection.
    pub fn with_repair_budget(mut self, repairs: RepairBudget) -> Self {
        self.parts.repairs = repairs;
        self
    }

    /// Audits only while this is true.
    pub fn with_audits(mut self, audits: Arc<AtomicBool>) -> Self {
        self.parts.audits = audits;
        self
    }

    pub fn with_tuning(mut self, tuning: WatchTuning) -> Self {
        self.parts.tuning = tuning;
        self
    }

    /// Runs until the stop, then returns once everything received is durable. An error is final.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SourceError> {
        let SourceTasks { reading, making, appending } = self.split_tasks(stop);
        let ((), made, ()) = tokio::join!(reading, making, appending);
        made
    }

    /// Does the work of [`Self::run`] as futures for tasks of their own.
    pub fn split_tasks(self, stop: CancellationToken) -> SourceTasks {
        let parts = Arc::new(self.parts);
        let (inputs, received) = mpsc::channel(FRAMES_IN_FLIGHT);
        let (full, is_full) = watch::channel(false);
        let (loads, loading) = mpsc::channel(1);
        let (unended, is_unended) = mpsc::unbounded_channel();
        let (appends, to_append) = mpsc::channel(FLIGHTS);
        let (has_appended, appended) = mpsc::channel(FLIGHTS);
        // The reader, the repair and the audit end with the stop or with the writer. The writer ends with
        // them.
        let halt = stop.child_token();
        let read = read(Arc::clone(&parts), inputs, is_full, loading, is_unended);
        let watched = Arc::clone(&parts);
        let reading = halt.clone().run_until_cancelled_owned(read).map(move |_| {
            watched.witness.announce_watch(&watched.spec.name, None);
        });
        let appender =
            BatchAppender { parts: Arc::clone(&parts), appends: to_append, appended: has_appended };
        let appending = appender.run(stop.clone());
        let making = async move {
            let _halted = halt.drop_guard();
            let Some(warm) = load::read(&parts, loads, &stop).await? else { return Ok(()) };
            let checkpoint = warm.checkpoint.filter(|version| !version.as_str().is_empty());
            {
                let mut live = parts.shared.lock_live();
                live.epoch = warm.epoch;
                live.checkpoint = checkpoint.as_ref().map(ToString::to_string).unwrap_or_default();
            }
            let journal = (appends, appended);
            StateWriter::new(parts, warm.epoch, checkpoint, full, unended, journal).run(received).await
        };
        SourceTasks { reading: reading.boxed(), making: making.boxed(), appending: appending.boxed() }
    }
}

/// Fills the cache, then talks to the server.
async fn read(
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
    is_full: watch::Receiver<bool>,
    loading: mpsc::Receiver<LoadMode>,
    unended: mpsc::UnboundedReceiver<MissedObject>,
) {
    if !load::fill_cache(&parts, loading).await {
        return;
    }
    let (rounds, walks) = mpsc::channel(ROUNDS);
    let rounds_worker = RoundWorker::new(Arc::clone(&parts), inputs.clone());
    let auditor = ListAuditor::new(Arc::clone(&parts), inputs.clone());
    let missed = MissedRepair::new(Arc::clone(&parts), inputs.clone());
    let reader = ServerReader::new(parts, inputs, rounds, is_full);
    tokio::join!(reader.run(), rounds_worker.run(walks), auditor.run(), missed.run(unended));
}
