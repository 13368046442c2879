//! Compares the next version of a plugin with the one at work, on live states. Switching traffic to it was
//! rejected: its effects would be real. So after a call of the plugin, its states go to both versions again,
//! one at a time, with the effects of both held back. It slows no call: states that come faster than they are
//! compared are skipped and counted.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use async_trait::async_trait;
use kubewitness_capability::SecretRedaction;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::{Bytes, DocumentsGrant, PluginSpec};
use kubewitness_core::ports::{
    AppliedStates, Backlog, CallError, CallOutcome, CallPause, KvWrite, NOTE, PluginHandler, ScheduledCall,
    StateDelivery,
};
use kubewitness_core::views::{ShadowActView, ShadowDifferenceView, ShadowSideView, ShadowView};
use kubewitness_core::{Seq, State, calendar, shorten_text};
use kubewitness_journal::Journal;
use kubewitness_sandbox::{PluginComponent, PluginTally};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use super::candidate::PluginCandidate;
use crate::config::component::PulledFrom;
use crate::controller::shared::SharedStatus;
use crate::controller::trial::{
    EffectKeep, NotedEffects, SecretHiding, TrialPlugin, TrialServices, object_of,
};
use crate::tasks::{TaskFate, TaskSupervisor};

/// How many states may wait to be compared. Further ones are skipped.
const QUEUE: usize = 256;
/// How many offered positions are remembered: more than all concurrent calls of a plugin have.
const OFFERED: usize = 1 << 17;
/// How long the first call waits until the plugin's stored data is read.
const READ: Duration = Duration::from_secs(1);
/// How many differing states are shown. The counts include all of them.
const TOLD: usize = 10;
/// How many bytes of effects are shown for one version and state.
const TOLD_BYTES: usize = 8 << 10;
/// How many bytes of a failure are shown and compared. A guest's text may be very long.
const FAILURE: usize = 1024;
/// How much a round may leave in databases, ledgers and `kv` of a trial. After that, both versions begin with
/// empty ones.
const ROUND_BYTES: usize = 16 << 20;
const ROUND_STATES: u64 = 10_000;
/// The size limit of a round's file. One statement of a plugin may double a table.
const DATABASE: Bytes = Bytes(32 << 20);
/// The pause before opening is retried.
const AGAIN: Duration = Duration::from_secs(10);

/// The version at work, and the one that is compared with it.
pub struct VersionPair {
    pub active: PluginCandidate,
    pub shadow: PluginCandidate,
}

/// Ends with the last call.
pub struct ShadowTask {
    states: mpsc::Sender<Arc<State>>,
    view: watch::Sender<ShadowView>,
    /// A batch that fails is halved, and each half is a first attempt. The smallest positions are forgotten first.
    offered: Mutex<BTreeSet<Seq>>,
    /// Cancelled once the plugin's stored data is read: both versions begin with the data from before their
    /// first state.
    read: CancellationToken,
    _stop: DropGuard,
}

impl ShadowTask {
    pub fn start(
        pair: VersionPair,
        folder: Option<PathBuf>,
        journal: Journal,
        shared: Arc<SharedStatus>,
        clock: &Arc<dyn Clock>,
        tasks: &TaskSupervisor,
    ) -> Self {
        let (states, queue) = mpsc::channel(QUEUE);
        let view = watch::Sender::new(ShadowView {
            digest: pair.shadow.component.file_digest().to_owned(),
            module: pair.shadow.pulled.as_ref().map(PulledFrom::source_label),
            since: calendar::format_rfc3339(clock.now_ms()),
            ..ShadowView::default()
        });
        let (stop, name) = (CancellationToken::new(), format!("the shadow of {}", pair.active.parsed.name));
        let sides = [ShadowSide::new(&pair.active, clock), ShadowSide::new(&pair.shadow, clock)];
        let plugin = pair.active.parsed.name;
        let mut comparing = ShadowComparison {
            plugin,
            sides,
            folder,
            journal,
            shared,
            view: view.clone(),
            stored: None,
            round: None,
        };
        let (stopped, read) = (stop.clone(), CancellationToken::new());
        let reads = read.clone().drop_guard();
        tasks.spawn_task(name, TaskFate::Finite, async move {
            stopped.run_until_cancelled(comparing.run(queue, reads)).await;
            Ok(())
        });
        Self { states, view, offered: Mutex::default(), read, _stop: stop.drop_guard() }
    }

    /// The state that people see.
    pub fn subscribe_view(&self) -> watch::Receiver<ShadowView> {
        self.view.subscribe()
    }

    /// Retries and resyncs repeat the same states.
    fn offer_batch(&self, batch: &[StateDelivery]) {
        let first = batch.iter().filter(|delivery| delivery.attempt == 1 && !delivery.resync);
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let new = first.filter(|delivery| offered.insert(delivery.state.seq));
        let missed = new.filter(|delivery| self.states.try_send(delivery.state.clone()).is_err()).count();
        while offered.len() > OFFERED {
            offered.pop_first();
        }
        drop(offered);
        if missed > 0 {
            self.view.send_modify(|view| view.missed += missed as u64);
        }
    }
}

/// Passes calls on, and afterwards their states to the shadow.
pub struct ShadowedHandler {
    pub handler: Arc<dyn PluginHandler>,
    pub shadow: ShadowTask,
}

#[async_trait]
impl PluginHandler for ShadowedHandler {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        // Without this wait, the first call's writes to `kv` would be present before its states are compared.
        // A slow journal delays calls no longer than this.
        let read = self.shadow.read.cancelled();
        if tokio::time::timeout(READ, read).await.is_err() {
            self.shadow.read.cancel();
            warn!(
                "the `kv` of a plugin is not read yet: the first comparisons with its next version may be wrong"
            );
        }
        let called = self.handler.handle_batch(batch).await;
        self.shadow.offer_batch(batch);
        called
    }

    async fn find_applied(&self, batch: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        self.handler.find_applied(batch).await
    }

    /// A shadow is not called on a schedule.
    async fn handle_tick(&self, tick: ScheduledCall) -> Result<Vec<KvWrite>, CallError> {
        self.handler.handle_tick(tick).await
    }

    fn pause_before_call(&self) -> Option<CallPause> {
        self.handler.pause_before_call()
    }
}

/// One of the two versions.
struct ShadowSide {
    component: PluginComponent,
    spec: PluginSpec,
    tally: Arc<PluginTally>,
}

impl ShadowSide {
    fn new(candidate: &PluginCandidate, clock: &Arc<dyn Clock>) -> Self {
        let mut spec = candidate.parsed.spec.clone();
        spec.limits.concurrency = 1;
        // People see these texts, so they may contain no secrets of documents.
        if spec.grants.documents == DocumentsGrant::Raw {
            spec.grants.documents = DocumentsGrant::Digest;
        }
        let component = candidate.component.clone();
        Self { component, spec, tally: Arc::new(PluginTally::new(clock.clone())) }
    }
}

/// The clock of a trial, which shows the time of the state.
#[derive(Default)]
struct TrialMoment {
    ms: AtomicU64,
    running: SystemClock,
}

impl Clock for TrialMoment {
    fn now_ms(&self) -> u64 {
        self.ms.load(Ordering::Relaxed)
    }

    fn elapsed(&self) -> Duration {
        self.running.elapsed()
    }
}

/// Both versions with empty databases and ledgers, and a copy of the plugin's stored data.
struct ShadowRound {
    now: Arc<TrialMoment>,
    stages: [TrialPlugin; 2],
    redaction: Arc<SecretRedaction>,
    states: u64,
    bytes: usize,
}

/// The effects of one version for one state.
struct SideAct {
    noted: NotedEffects,
    verdict: Value,
    took: Duration,
}

struct ShadowComparison {
    plugin: String,
    sides: [ShadowSide; 2],
    /// The folder for the files of its trials.
    folder: Option<PathBuf>,
    journal: Journal,
    shared: Arc<SharedStatus>,
    view: watch::Sender<ShadowView>,
    /// The plugin's stored data before the first state, for the first round.
    stored: Option<Vec<(String, Vec<u8>)>>,
    round: Option<ShadowRound>,
}

impl ShadowComparison {
    async fn run(&mut self, mut queue: mpsc::Receiver<Arc<State>>, read: DropGuard) {
        match self.plugin_kv().await {
            Ok(stored) => self.stored = Some(stored),
            // The first round reads again, and reports the error.
            Err(error) => warn!(plugin = self.plugin, "{error:#}"),
        }
        drop(read);
        while let Some(state) = queue.recv().await {
            let begun = Instant::now();
            let pause = match self.compare_state(&state).await {
                // So it uses at most half of one processor.
                Ok(()) => begun.elapsed(),
                Err(error) => {
                    self.note_failure(&error);
                    AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn note_failure(&self, error: &anyhow::Error) {
        let message = format!("nothing can be compared now: {error:#}");
        warn!(plugin = self.plugin, "the next version of the plugin, in its shadow: {message}");
        self.view.send_modify(|view| {
            view.missed += 1;
            view.message = Some(message);
        });
    }

    async fn compare_state(&mut self, state: &Arc<State>) -> Result<()> {
        let mut round = match self.round.take() {
            Some(round) => round,
            None => self.open().await?,
        };
        round.now.ms.store(state.observed_ms, Ordering::Relaxed);
        let [active, shadow] = &round.stages;
        let acts = [act_on_state(active, state).await, act_on_state(shadow, state).await];
        round.states += 1;
        round.bytes += acts.iter().map(|act| act.noted.bytes).max().unwrap_or_default();
        let tallies = [&self.sides[0].tally, &self.sides[1].tally];
        self.view.send_modify(|view| {
            view.message = None;
            add(&mut view.active, &acts[0], tallies[0]);
            add(&mut view.shadow, &acts[1], tallies[1]);
            take(view, state, acts, &round.redaction);
        });
        self.round = Some(round).filter(|it| it.states < ROUND_STATES && it.bytes < ROUND_BYTES);
        Ok(())
    }

    async fn open(&mut self) -> Result<ShadowRound> {
        let redaction = self.shared.redaction().context("the host's settings are not taken yet")?;
        let now = Arc::new(TrialMoment::default());
        let stored = match &self.stored {
            Some(stored) => stored.clone(),
            None => self.plugin_kv().await?,
        };
        let [active, shadow] = &self.sides;
        let stages = [
            self.stage_plugin(active, &now, &redaction, stored.clone()).await?,
            self.stage_plugin(shadow, &now, &redaction, stored).await?,
        ];
        self.stored = None;
        Ok(ShadowRound { now, stages, redaction, states: 0, bytes: 0 })
    }

    async fn plugin_kv(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let kv = self.journal.plugin_kv(&self.plugin).await.context("reading its kv")?;
        Ok(kv.into_iter().filter(|(key, _)| !key.starts_with(NOTE)).collect())
    }

    async fn stage_plugin(
        &self,
        side: &ShadowSide,
        now: &Arc<TrialMoment>,
        redaction: &Arc<SecretRedaction>,
        kv: Vec<(String, Vec<u8>)>,
    ) -> Result<TrialPlugin> {
        let lent = TrialServices {
            documents: Arc::new(self.journal.clone()),
            lister: Arc::new(self.shared.listers.clone()),
            outcomes: self.shared.outcomes(),
            subscribed: self.shared.subscribed(&side.spec),
            clock: now.clone(),
            kv,
            newest: *self.journal.newest_position().borrow(),
            database: Some(DATABASE),
            folder: self.folder.clone(),
        };
        let (hiding, keep) =
            (SecretHiding::Same(redaction.clone()), EffectKeep::Bytes(TOLD_BYTES, Vec::new()));
        let stage = TrialPlugin::open(&self.plugin, &side.spec, &side.component, lent, hiding, keep).await?;
        Ok(stage.counted_by(side.tally.clone()))
    }
}

async fn act_on_state(stage: &TrialPlugin, state: &Arc<State>) -> SideAct {
    let begun = Instant::now();
    let mut verdict = stage.deliver_state(state).await;
    // The rest of a trap's text contains only addresses in the component.
    if let Some(failed) = verdict["failed"].as_str() {
        verdict = json!({"failed": shorten_text(failed.lines().next().unwrap_or_default(), FAILURE)});
    }
    SideAct { noted: stage.recorder.take(), verdict, took: begun.elapsed() }
}

fn add(side: &mut ShadowSideView, act: &SideAct, tally: &PluginTally) {
    let calls = tally.calls_view();
    side.not_done += u64::from(act.verdict != "done");
    side.effects += act.noted.count as u64;
    side.seconds += act.took.as_secs_f64();
    side.guest_seconds = calls.guest_seconds;
    side.peak_memory = side.peak_memory.max(calls.peak_memory);
}

fn take(view: &mut ShadowView, state: &State, [active, shadow]: [SideAct; 2], redaction: &SecretRedaction) {
    view.states += 1;
    let same =
        active.verdict == shadow.verdict && active.noted.digest().as_ref() == shadow.noted.digest().as_ref();
    if same {
        view.same += 1;
        return;
    }
    view.different += 1;
    if view.differences.len() < TOLD {
        view.differences.push(ShadowDifferenceView {
            id: state.id.as_str().to_owned(),
            seq: state.seq,
            object: object_of(state),
            change: state.change.as_str().to_owned(),
            phase: state.status.phase.to_string(),
            active: act_view(active, redaction),
            shadow: act_view(shadow, redaction),
        });
    }
}

/// Effects that can't be shown without secrets are only counted.
fn act_view(SideAct { noted, verdict, .. }: SideAct, redaction: &SecretRedaction) -> ShadowActView {
    let all = json!({"effects": noted.effects});
    let shown = all.as_object().and_then(|all| redaction.redact_settings(all).ok());
    let effects = match shown.and_then(|mut shown| shown.remove("effects")) {
        Some(Value::Array(effects)) => effects,
        _ => Vec::new(),
    };
    ShadowActView { more: (noted.count - effects.len()) as u64, effects, verdict }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::config::HostSpec;
    use kubewitness_core::{Change, ObjectRef, StateId, Status, Version};

    use super::*;
    use crate::controller::trial::TrialEffect;

    fn state(seq: u64) -> Arc<State> {
        let object = ObjectRef { kind: "Job".into(), name: "a".into(), ..ObjectRef::default() };
        let version = Version::new(&seq.to_string());
        Arc::new(State {
            id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
            seq,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            owner: None,
            object: Arc::new(object),
            resource_version: version,
            status: Arc::new(Status::default()),
            previous: None,
            observed_ms: 1,
            late: false,
            quotes_none_under: None,
        })
    }

    fn of_test(states: mpsc::Sender<Arc<State>>, view: watch::Sender<ShadowView>) -> ShadowTask {
        let (offered, read) = (Mutex::default(), CancellationToken::new());
        ShadowTask { states, view, offered, read, _stop: CancellationToken::new().drop_guard() }
    }

    #[test]
    fn a_batch_that_is_halved_offers_each_of_its_states_once() {
        let (states, mut queue) = mpsc::channel(QUEUE);
        let shadow = of_test(states, watch::Sender::new(ShadowView::default()));
        let batch: Vec<_> =
            (1..=8).map(|seq| StateDelivery { state: state(seq), attempt: 1, resync: false }).collect();
        for part in [&batch[..], &batch[..4], &batch[4..], &batch[4..6]] {
            shadow.offer_batch(part);
        }
        // A state whose lane had waited comes out of order.
        shadow.offer_batch(&[StateDelivery { state: state(0), attempt: 1, resync: false }]);
        let offered: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).map(|state| state.seq).collect();
        assert_eq!(offered, [1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert_eq!(shadow.subscribe_view().borrow().missed, 0);
    }

    struct SilentDocuments;

    #[async_trait]
    impl PluginHandler for SilentDocuments {
        async fn handle_batch(&self, _: &[StateDelivery]) -> Result<CallOutcome, CallError> {
            Err(CallError::Unavailable("away".into()))
        }

        async fn find_applied(&self, _: &[StateDelivery]) -> Result<AppliedStates, CallError> {
            Err(CallError::Unavailable("away".into()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_call_waits_for_what_is_stored_no_longer_than_its_bound() {
        let (states, _queue) = mpsc::channel(QUEUE);
        let shadow = of_test(states, watch::Sender::new(ShadowView::default()));
        let shadowed = ShadowedHandler { handler: Arc::new(SilentDocuments), shadow };
        let before = tokio::time::Instant::now();
        assert!(shadowed.handle_batch(&[]).await.is_err());
        assert_eq!(before.elapsed(), READ);
        assert!(shadowed.handle_batch(&[]).await.is_err());
        assert_eq!(before.elapsed(), READ, "it is given up once");
    }

    #[test]
    fn states_beyond_the_queue_are_missed_and_retries_and_resyncs_are_not_offered() {
        let (states, mut queue) = mpsc::channel(2);
        let view = watch::Sender::new(ShadowView::default());
        let shadow = of_test(states, view);
        let delivery = |seq, attempt, resync| StateDelivery { state: state(seq), attempt, resync };
        let batch = [
            delivery(1, 2, false),
            delivery(2, 1, true),
            delivery(3, 1, false),
            delivery(4, 1, false),
            delivery(5, 1, false),
        ];
        shadow.offer_batch(&batch);
        assert_eq!(shadow.subscribe_view().borrow().missed, 1);
        assert_eq!([3, 4].map(|_| queue.try_recv().unwrap().seq), [3, 4]);
    }

    fn act(verdict: &str, effects: usize) -> SideAct {
        let mut noted = NotedEffects::default();
        for number in 0..effects {
            let what = json!({"password": "hunter2", "number": number}).as_object().cloned().unwrap();
            noted.add(TrialEffect { call: "log", to: "info".into(), what, refused: None }, 120);
        }
        SideAct { noted, verdict: json!(verdict), took: Duration::ZERO }
    }

    #[tokio::test]
    async fn every_difference_is_counted_and_the_first_are_kept_without_secrets() {
        let data = tempfile::tempdir().unwrap();
        let redaction = SecretRedaction::open(&HostSpec::default(), data.path()).await.unwrap();
        let mut view = ShadowView::default();
        take(&mut view, &state(1), [act("done", 3), act("done", 3)], &redaction);
        for seq in 2..20 {
            take(&mut view, &state(seq), [act("done", 3), act("done", 4)], &redaction);
        }
        take(&mut view, &state(20), [act("done", 0), act("reject", 0)], &redaction);
        assert_eq!((view.states, view.same, view.different), (20, 1, 19));
        assert_eq!((view.differences.len(), view.differences[0].seq), (TOLD, 2));
        let shadow = &view.differences[0].shadow;
        assert_eq!((shadow.effects.len(), shadow.more), (2, 2), "{shadow:?}");
        assert!(!serde_json::to_string(&view).unwrap().contains("hunter2"));
    }
}
