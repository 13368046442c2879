//! The paths that are counted. Each prepares what it needs, then does its work so many rounds.

use std::future::Future;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_bench::{PATIENCE, job};
use kubewitness_capability::PluginServices;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{self, ComponentsSpec, DeliverySpec, HostSpec, LimitsSpec};
use kubewitness_core::lanes::{ClockReading, LaneOptions, Lanes};
use kubewitness_core::ports::{
    AppendBatch, AppliedStates, Backlog, CallError, CallOutcome, DocumentReader, GrantError, GrantProvider,
    KvWrites, PluginHandler, PluginProgress, SqlValue, StateDelivery, StateWitness, Verdict,
};
use kubewitness_core::redact::{RedactionRules, SecretDigests};
use kubewitness_core::status::StatusRules;
use kubewitness_core::{document, project};
use kubewitness_dispatch::{DispatchOptions, LongestPauses, PluginDispatcher};
use kubewitness_journal::{Journal, JournalOptions, PhaseIndex, PhaseQuery};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, PluginComponent, SandboxEngine};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::granted::{self, backing};
use crate::subscribed::every_job;
use crate::support::{NoGrants, component, deliveries, witnessed_of};

/// States of one append, and of one call of a plugin that writes rows.
const BATCH: usize = 256;
/// As a manifest has that says nothing.
const GUEST_BATCH: usize = 64;
/// Few, so that each has many versions and chains of deltas are long.
const JOBS: usize = 64;
/// The rounds of the longer run of a path whose batches are all made before: so making them is subtracted.
const LONGEST: usize = 4;
/// States that a journal holds before it is delivered.
const BACKLOG: usize = 512;

type PathWork = Pin<Box<dyn Future<Output = Result<()>>>>;

pub struct CountedPath {
    /// As in the catalog of figures, behind `instructions.`
    pub name: &'static str,
    /// States of one round.
    pub states: usize,
    /// Rounds of the shorter run.
    pub rounds: usize,
    pub run: fn(PreparedPaths, usize) -> PathWork,
}

macro_rules! path {
    ($name:literal, $states:expr, $rounds:expr, $run:ident) => {
        CountedPath {
            name: $name,
            states: $states,
            rounds: $rounds,
            run: |prepared, rounds| Box::pin($run(prepared, rounds)),
        }
    };
}

pub const PATHS: &[CountedPath] = &[
    path!("frame", 1, 400, frame),
    path!("status", 1, 400, status),
    path!("delta", 1, 200, delta),
    path!("pack", 1, 200, pack),
    path!("redact", 1, 200, redact),
    path!("quotes", 1, 200, quotes),
    path!("lanes", BACKLOG, 8, lanes),
    path!("append", BATCH, 2, append),
    path!("phases", BACKLOG, 1, phases),
    path!("recent", BACKLOG, 1, recent),
    path!("backlog", BACKLOG, 1, backlog),
    path!("document", BATCH, 1, documents),
    path!("receipt", BATCH, 2, receipt),
    path!("guest", GUEST_BATCH, 10, guest),
    path!("audit", BACKLOG, 1, audit),
];

/// Things that are made once for all runs.
pub struct PreparedPaths {
    folder: PathBuf,
}

impl PreparedPaths {
    pub fn of(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Where the compiled code of the guest lies.
    fn code(&self) -> PathBuf {
        self.folder.join("code")
    }
}

async fn frame(_: PreparedPaths, rounds: usize) -> Result<()> {
    let line = format!(r#"{{"type":"MODIFIED","object":{}}}"#, job(1, 1, 3));
    for _ in 0..rounds {
        let (_, envelope) = project::project_frame(black_box(line.as_bytes())).context("a frame")?;
        black_box(envelope.context("an envelope")?);
    }
    Ok(())
}

async fn status(_: PreparedPaths, rounds: usize) -> Result<()> {
    let (rules, document) = (StatusRules::builtin(), job(1, 1, 3));
    for _ in 0..rounds {
        black_box(rules.status_of("batch", "Job", black_box(document.as_bytes())));
    }
    Ok(())
}

async fn delta(_: PreparedPaths, rounds: usize) -> Result<()> {
    let (before, after) = (job(1, 2, 3), job(1, 3, 4));
    for _ in 0..rounds {
        black_box(document::encode_delta(before.as_bytes(), black_box(after.as_bytes())));
    }
    Ok(())
}

async fn pack(_: PreparedPaths, rounds: usize) -> Result<()> {
    let text = job(1, 2, 3);
    for _ in 0..rounds {
        black_box(document::pack_document(black_box(text.as_bytes())));
    }
    Ok(())
}

fn redactor() -> Result<RedactionRules> {
    let host: HostSpec = serde_json::from_value(
        json!({"sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}]}),
    )?;
    host.compile_redaction_rules().map_err(|faults| anyhow::anyhow!("{faults:?}"))
}

async fn quotes(_: PreparedPaths, rounds: usize) -> Result<()> {
    let (redactor, rules) = (redactor()?, StatusRules::builtin());
    let document = job(1, 3, 4);
    let status = rules.status_of("batch", "Job", document.as_bytes());
    ensure!(SecretDigests::may_stand_in(&status), "the status has no text that is searched");
    for _ in 0..rounds {
        let mut secrets = SecretDigests::default();
        redactor.add_secret_words(black_box(document.as_bytes()), "Job", &mut secrets)?;
        ensure!(secrets.hidden_in(&status).is_none(), "a quote was found");
    }
    Ok(())
}

async fn redact(_: PreparedPaths, rounds: usize) -> Result<()> {
    let redactor = redactor()?;
    let text = job(1, 1, 3);
    for _ in 0..rounds {
        let redacted = redactor.redact_document(black_box(text.as_bytes()), |_| String::new());
        black_box(redacted.context("a document")?);
    }
    Ok(())
}

async fn lanes(_: PreparedPaths, rounds: usize) -> Result<()> {
    let states: Vec<_> = deliveries(BACKLOG, JOBS).into_iter().map(|delivery| delivery.state).collect();
    for _ in 0..rounds {
        let options = LaneOptions::new("bench", &DeliverySpec::default());
        let mut lanes = Lanes::new(options, &PluginProgress::default());
        for state in &states {
            lanes.push(state.clone(), Duration::ZERO);
        }
        let (now, mut finished) = (ClockReading::default(), 0);
        while finished < states.len() {
            for delivery in lanes.take(now.elapsed, GUEST_BATCH) {
                lanes.apply_verdict(delivery.state.seq, Verdict::Done, now);
                finished += 1;
            }
        }
        black_box(lanes.cursor());
    }
    Ok(())
}

/// A journal of a run's own. One reader, since others would wait on threads of their own.
async fn journal(folder: &Path, recent: usize) -> Result<Journal> {
    let options = JournalOptions { recent, readers: 1, ..JournalOptions::default() };
    Ok(Journal::open(&folder.join("journal.db"), options).await?)
}

/// The same with states in it.
async fn filled_journal(folder: &Path, recent: usize) -> Result<Journal> {
    let journal = journal(folder, recent).await?;
    for first in (0..BACKLOG).step_by(BATCH) {
        journal.append_batch(witnessed_of(JOBS, first, BATCH)).await?;
    }
    Ok(journal)
}

async fn append(_: PreparedPaths, rounds: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = journal(folder.path(), BACKLOG).await?;
    // After the first append every Job is known, so each further one has deltas.
    let appends: Vec<_> = (0..=LONGEST).map(|round| witnessed_of(JOBS, round * BATCH, BATCH)).collect();
    for append in appends.into_iter().take(rounds + 1) {
        journal.append_batch(append).await?;
    }
    Ok(journal.close().await?)
}

/// Each state has another phase than the one before.
async fn phases(_: PreparedPaths, rounds: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = filled_journal(folder.path(), BACKLOG * 2).await?;
    for round in 0..rounds {
        let index = PhaseIndex::new(folder.path().join(format!("phases-{round}.db")));
        while index.index_next_part(&journal, 0).await? {}
        // Times are written before the next query.
        let query = PhaseQuery {
            sources: vec!["jobs".into()],
            phase: "Suspended".into(),
            before: u64::MAX,
            looked: 1,
            ..PhaseQuery::default()
        };
        ensure!(!index.find(query).await?.times.is_empty(), "no Job was suspended");
    }
    Ok(journal.close().await?)
}

/// The journal holds the states in memory.
async fn recent(_: PreparedPaths, rounds: usize) -> Result<()> {
    deliver(BACKLOG * 2, rounds).await
}

/// The journal holds none of them.
async fn backlog(_: PreparedPaths, rounds: usize) -> Result<()> {
    deliver(0, rounds).await
}

/// From the journal through the dispatcher's lanes to a plugin that looks at each state as the sandbox does.
async fn deliver(recent: usize, rounds: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = filled_journal(folder.path(), recent).await?;
    for round in 0..rounds {
        // New ones each time: they remember in which states they have looked for secrets.
        let backing = PluginServices { documents: Arc::new(journal.clone()), ..backing() };
        let grants = granted::grants(&json!({}), &json!({}), folder.path(), backing).await?;
        let looking = Arc::new(LookingPlugin::new(grants));
        let (dispatcher, _handle) = PluginDispatcher::new(
            // A new plugin begins at the beginning.
            options(&format!("bench-{round}")),
            Arc::new(journal.clone()),
            looking.clone(),
            Arc::new(SteppingClock::default()),
        );
        let stop = CancellationToken::new();
        let all = async {
            looking.all.notified().await;
            stop.cancel();
        };
        let all = tokio::time::timeout(PATIENCE, all);
        let (done, ended) = tokio::join!(all, dispatcher.run(stop.clone(), CancellationToken::new()));
        done.context("not all states were delivered")?;
        ended?;
    }
    Ok(journal.close().await?)
}

/// A counted call takes fifty times as long as another, and a busy machine may stretch it further.
fn patient_limits() -> LimitsSpec {
    LimitsSpec { call: config::Duration(PATIENCE), ..LimitsSpec::default() }
}

fn options(plugin: &str) -> DispatchOptions {
    DispatchOptions {
        plugin: plugin.into(),
        subscriptions: vec![every_job()],
        delivery: DeliverySpec { batch: BATCH as u32, ..DeliverySpec::default() },
        concurrency: 1,
        tick: None,
        pauses: LongestPauses::default(),
    }
}

/// Time goes on by a step with each look at it: how often progress is saved would else depend on the machine's speed.
#[derive(Default)]
struct SteppingClock(AtomicU64);

const STEP_MS: u64 = 5;

impl Clock for SteppingClock {
    fn now_ms(&self) -> u64 {
        0
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(STEP_MS, Ordering::Relaxed))
    }
}

/// A plugin that does what the sandbox does before and after the guest.
struct LookingPlugin {
    grants: Arc<dyn GrantProvider>,
    seen: AtomicUsize,
    /// Every state of the journal was seen.
    all: Notify,
}

impl LookingPlugin {
    fn new(grants: Arc<dyn GrantProvider>) -> Self {
        Self { grants, seen: AtomicUsize::new(0), all: Notify::new() }
    }

    async fn look(&self, batch: &[StateDelivery]) -> Result<KvWrites, GrantError> {
        let mut session = self.grants.open(batch).await?;
        for delivery in batch {
            black_box(session.show_state(&delivery.state).await?);
        }
        session.commit_effects(&batch.iter().map(|delivery| delivery.state.seq).collect::<Vec<_>>()).await
    }
}

#[async_trait]
impl PluginHandler for LookingPlugin {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        let kv = self.look(batch).await.map_err(|error| CallError::Unavailable(error.to_string()))?;
        if self.seen.fetch_add(batch.len(), Ordering::Relaxed) + batch.len() == BACKLOG {
            self.all.notify_one();
        }
        Ok(CallOutcome { verdicts: vec![Verdict::Done; batch.len()], kv, is_apart: false })
    }

    async fn find_applied(&self, _: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        Ok(AppliedStates::default())
    }
}

async fn documents(_: PreparedPaths, rounds: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = filled_journal(folder.path(), 0).await?;
    for _ in 0..rounds {
        for seq in 1..=BATCH as u64 {
            let document = journal.document_at(BACKLOG as u64 - BATCH as u64 + seq).await?;
            ensure!(document.is_some(), "the journal has no document of {seq}");
        }
    }
    Ok(journal.close().await?)
}

async fn receipt(_: PreparedPaths, rounds: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let settings = json!({"databases": [{"name": "platform", "sqlite": {"path": "platform.db"}}]});
    let plugin = json!({"grants": {"sql": [{"name": "main", "database": "platform"}]}});
    let grants = granted::grants(&settings, &plugin, folder.path(), backing()).await?;
    let all = deliveries(BATCH * (LONGEST + 1), JOBS);
    for (round, batch) in all.chunks(BATCH).take(rounds + 1).enumerate() {
        let mut session = grants.open(batch).await?;
        if round == 0 {
            session.sql_execute("main", "CREATE TABLE seen (seq INTEGER NOT NULL)", vec![Vec::new()]).await?;
        }
        let rows = batch.iter().map(|delivery| vec![SqlValue::Integer(delivery.state.seq as i64)]).collect();
        session.sql_execute("main", "INSERT INTO seen (seq) VALUES (?)", rows).await?;
        session.commit_effects(&batch.iter().map(|delivery| delivery.state.seq).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// The plugin as people run it, over a journal that holds no state in memory: each document is read from the file.
async fn audit(prepared: PreparedPaths, rounds: usize) -> Result<()> {
    let component = load_component(&prepared, "audit").await?;
    let mut journals = Vec::new();
    for _ in 0..LONGEST {
        let folder = tempfile::tempdir()?;
        let journal = journal(folder.path(), 0).await?;
        for first in (0..BACKLOG).step_by(BATCH) {
            journal.append_batch(with_managers(witnessed_of(JOBS, first, BATCH))).await?;
        }
        journals.push((journal, folder));
    }
    for (journal, folder) in journals.iter().take(rounds) {
        let settings = json!({"ledgers": [{"name": "trail", "path": "trail.jsonl"}]});
        let manifest = json!({
            "grants": {"ledger": [{"name": "trail", "ledger": "trail"}], "documents": "digest"},
        });
        let backing = PluginServices { documents: Arc::new(journal.clone()), ..backing() };
        let grants = granted::grants(&settings, &manifest, folder.path(), backing).await?;
        let plugin = component.make_plugin("audit", &patient_limits(), grants)?;
        let states = journal.read(0, BACKLOG).await?;
        let batch: Vec<_> =
            states.into_iter().map(|state| StateDelivery { state, attempt: 1, resync: false }).collect();
        for batch in batch.chunks(GUEST_BATCH) {
            let outcome = plugin.handle_batch(black_box(batch)).await?;
            ensure!(outcome.verdicts.iter().all(|verdict| *verdict == Verdict::Done), "a state is not done");
        }
        let trail = std::fs::read_to_string(folder.path().join("trail.jsonl"))?;
        ensure!(
            trail.matches(r#""manager":"kube-controller-manager""#).count() == BACKLOG,
            "a manager is missing"
        );
    }
    for (journal, _folder) in journals {
        journal.close().await?;
    }
    Ok(())
}

/// The same states with the time of each change among the managers, as a server writes it.
fn with_managers(mut append: AppendBatch) -> AppendBatch {
    const BEGINNING: &str = r#""startTime":""#;
    const ENTRY: &str = r#""time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:status""#;
    let dated = |document: &Bytes| {
        let text = String::from_utf8_lossy(document);
        let time = text.split(BEGINNING).nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let entry = format!(r#""time":"{time}","fieldsType":"FieldsV1","fieldsV1":{{"f:status""#);
        Bytes::from(text.replace(ENTRY, &entry))
    };
    for state in &mut append.states {
        state.document = dated(&state.document);
        state.base = state.base.as_ref().map(dated);
    }
    append
}

async fn load_component(prepared: &PreparedPaths, name: &str) -> Result<PluginComponent> {
    let options = EngineOptions {
        cache: Some(prepared.code()),
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    };
    Ok(SandboxEngine::new(options)?.load(&component(name).into(), &ComponentsSpec::default()).await?)
}

async fn guest(prepared: PreparedPaths, rounds: usize) -> Result<()> {
    let component = load_component(&prepared, "probe").await?;
    let grants = Arc::new(NoGrants::new(r#"{"command":"done"}"#));
    let plugin = component.make_plugin("probe", &patient_limits(), grants)?;
    let batch = deliveries(GUEST_BATCH, GUEST_BATCH);
    for _ in 0..rounds {
        let outcome = plugin.handle_batch(black_box(&batch)).await?;
        ensure!(outcome.verdicts.len() == GUEST_BATCH, "a state has no verdict");
    }
    Ok(())
}
