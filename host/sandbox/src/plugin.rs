//! A plugin that accepts batches: a component with its limits and grants, and a pool of its instances.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use kubewitness_core::config::LimitsSpec;
use kubewitness_core::ports::{
    AppliedStates, CallError, CallOutcome, CallPause, EffectSession, GrantError, GrantProvider, KvWrite,
    KvWrites, PluginHandler, ScheduledCall, ShownState, StateDelivery, Verdict, WritesFate,
};
use kubewitness_core::{Change, ObjectRef, Seq, State, Status};
use tokio::sync::Semaphore;

use crate::bindings::types;
use crate::capability::clip_error_text;
use crate::component::PluginComponent;
use crate::guest::batch::CallStates;
use crate::instance::GuestInstance;
use crate::tally::PluginTally;
use crate::turns::CpuTicket;

/// How many batches one instance handles. A guest's leaks end with the instance, and an instance costs about
/// as much as one batch.
const BATCHES_OF_INSTANCE: u32 = 1000;

/// An instance that was idle for this long belonged to a burst. Its memory does not shrink, and a new
/// instance takes less than a millisecond.
pub const IDLE_LIMIT: Duration = Duration::from_secs(60);

pub struct SandboxPlugin {
    name: Arc<str>,
    component: PluginComponent,
    limits: LimitsSpec,
    grants: Arc<dyn GrantProvider>,
    config: Arc<str>,
    /// Idle instances, each with the time since which it is idle. The last one is used first, so the first
    /// has been idle longest.
    idle: Mutex<Vec<(Instant, GuestInstance)>>,
    /// One for each concurrent batch.
    permits: Semaphore,
    tally: Arc<PluginTally>,
}

impl SandboxPlugin {
    pub(crate) fn new(
        name: &str,
        component: PluginComponent,
        limits: LimitsSpec,
        grants: Arc<dyn GrantProvider>,
    ) -> Self {
        let config = grants.plugin_config().into();
        let permits = Semaphore::new(limits.concurrency.max(1) as usize);
        let (idle, tally) = (Mutex::default(), Arc::default());
        Self { name: name.into(), component, limits, grants, config, idle, permits, tally }
    }

    /// Continues the figures of the plugin's previous version.
    pub fn counted_by(self, tally: Arc<PluginTally>) -> Self {
        tally.begin_version(self.component.compile_time());
        Self { tally, ..self }
    }

    pub fn plugin_tally(&self) -> &PluginTally {
        &self.tally
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn plugin_component(&self) -> &PluginComponent {
        &self.component
    }

    /// The number of idle instances.
    pub fn count_idle(&self) -> usize {
        self.lock_pool().len()
    }

    /// Drops instances that were not needed lately, except one, so that the next call finds it ready.
    pub fn drop_idle_instances(&self, now: Instant) {
        let mut idle = self.lock_pool();
        let unused = idle.partition_point(|(since, _)| now.saturating_duration_since(*since) >= IDLE_LIMIT);
        let surplus = unused.min(idle.len().saturating_sub(1));
        let gone: Vec<_> = idle.drain(..surplus).collect();
        // Releasing memory takes a while, and no call waits for it.
        drop(idle);
        drop(gone);
    }

    fn lock_pool(&self) -> MutexGuard<'_, Vec<(Instant, GuestInstance)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ticket with which one call waits for its turns: all versions of a plugin share its turns.
    fn cpu_ticket(&self) -> Arc<CpuTicket> {
        self.component.sandbox_engine().cpu_turns().issue_ticket(&self.name)
    }

    async fn take(&self, seat: &Arc<CpuTicket>) -> Result<GuestInstance, CallError> {
        let idle = self.lock_pool().pop();
        if let Some((_, mut instance)) = idle {
            instance.attach_ticket(seat.clone());
            return Ok(instance);
        }
        let (config, tally) = (self.config.clone(), self.tally.clone());
        GuestInstance::new(&self.component, config, &self.limits, tally, seat.clone()).await
    }

    /// The number of instances never exceeds the number of permits, so neither does the number of idle ones.
    fn return_instance(&self, instance: GuestInstance) {
        if instance.batches < BATCHES_OF_INSTANCE {
            let mut idle = self.lock_pool();
            // The time is read under the lock, so that the times stay in order.
            idle.push((Instant::now(), instance));
        }
    }

    /// Calls the guest and reads its answer. The instance survives only a correct answer.
    async fn call_guest(
        &self,
        mut session: Box<dyn EffectSession>,
        fresh: &[&StateDelivery],
    ) -> (Option<Box<dyn EffectSession>>, Result<Vec<Verdict>, CallError>) {
        let mut shown = Vec::with_capacity(fresh.len());
        for delivery in fresh {
            match session.show_state(&delivery.state).await {
                Ok(state) => shown.push(state),
                Err(error) => return (Some(session), Err(unavailable_call(&error))),
            }
        }
        let seat = self.cpu_ticket();
        let mut instance = match self.take(&seat).await {
            Ok(instance) => instance,
            Err(error) => return (Some(session), Err(error)),
        };
        let batch = CallStates::of(shown.iter().map(|shown| Arc::clone(&shown.state)));
        let epochs: Vec<String> = fresh.iter().map(|delivery| epoch_text(delivery)).collect();
        let extras: Vec<Vec<(&str, &str)>> = fresh
            .iter()
            .zip(&epochs)
            .zip(&shown)
            .map(|((delivery, epoch), shown)| extra_fields(delivery, epoch, shown))
            .collect();
        let states: Vec<_> = fresh
            .iter()
            .zip(&extras)
            .zip(&shown)
            .map(|((delivery, extra), shown)| lend_state(&shown.state, delivery.attempt, extra))
            .collect();
        let (session, answer) = instance.call_handle(session, batch, &states).await;
        self.tally.add_wait(seat.time_waited());
        let verdicts = answer.and_then(|verdicts| read(verdicts, fresh.len()));
        if let Ok(verdicts) = &verdicts {
            self.tally.note_verdicts(verdicts);
            self.return_instance(instance);
        }
        (session, verdicts)
    }

    /// Calls the guest for one tick. The session keeps its writes.
    async fn call_tick(
        &self,
        due_ms: u64,
        seat: &Arc<CpuTicket>,
    ) -> Result<Box<dyn EffectSession>, CallError> {
        let session = self.grants.open(&[]).await.map_err(|error| unavailable_call(&error))?;
        let mut instance = match self.take(seat).await {
            Ok(instance) => instance,
            Err(error) => {
                session.roll_back_effects().await;
                return Err(error);
            }
        };
        let (session, answer) = instance.call_tick(session, due_ms).await;
        let session = session.ok_or_else(lost_session)?;
        let failed = match answer {
            Ok(Ok(())) => None,
            Ok(Err(mut why)) => {
                clip_error_text(&mut why);
                Some(CallError::Failed(why))
            }
            Err(error) => {
                session.roll_back_effects().await;
                return Err(error);
            }
        };
        self.return_instance(instance);
        match failed {
            None => Ok(session),
            Some(error) => {
                session.roll_back_effects().await;
                Err(error)
            }
        }
    }

    async fn deliver_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        let closed = |_| CallError::Unavailable("the plugin is being taken out".to_string());
        let _permit = self.permits.acquire().await.map_err(closed)?;
        let session = self.grants.open(batch).await.map_err(|error| unavailable_call(&error))?;
        let is_fresh: Vec<bool> =
            batch.iter().map(|delivery| !session.applied_states().contains(&delivery.state.seq)).collect();
        let fresh: Vec<&StateDelivery> =
            batch.iter().zip(&is_fresh).filter(|(_, fresh)| **fresh).map(|(delivery, _)| delivery).collect();
        let (session, answer) = match fresh.as_slice() {
            // Committed nevertheless: receipts may prove writes that must still be passed on.
            [] => (Some(session), Ok(Vec::new())),
            fresh => self.call_guest(session, fresh).await,
        };
        let mut session = session.ok_or_else(lost_session)?;
        let doubts = session.in_doubt();
        let verdicts = match answer {
            Ok(verdicts) => park_doubtful(verdicts, &fresh, &doubts),
            Err(error) => {
                let outcome = outcome_if_alone(&mut *session, &is_fresh, &doubts);
                session.roll_back_effects().await;
                return outcome.ok_or(error);
            }
        };
        let keeping = WritesFate::of(&verdicts);
        let seqs = |batch: &mut dyn Iterator<Item = &StateDelivery>| batch.map(|one| one.state.seq).collect();
        let settled: Vec<Seq> = match keeping {
            // A resync may be delivered twice, so it gets no receipt. Otherwise receipts would accumulate
            // while the cursor does not move.
            WritesFate::Commit => seqs(&mut fresh.iter().copied().filter(|delivery| !delivery.resync)),
            WritesFate::RollBack => seqs(&mut batch.iter()),
            WritesFate::Apart => Vec::new(),
        };
        let ended = match keeping {
            WritesFate::Commit => session.commit_effects(&settled).await,
            WritesFate::RollBack | WritesFate::Apart => session.undo_effects(&settled).await,
        };
        let kv = ended.map_err(|error| with_plugin_reason(refused_call(error), &verdicts))?;
        let is_apart = keeping == WritesFate::Apart;
        Ok(CallOutcome { verdicts: verdicts_of_all(&is_fresh, verdicts), kv, is_apart })
    }
}

/// Adds the plugin's reason to a refusal: the server rolls back the whole call and gives no reason.
fn with_plugin_reason(error: CallError, verdicts: &[Verdict]) -> CallError {
    match (error, verdicts.first()) {
        (CallError::Unavailable(why), Some(Verdict::Retry { reason, .. })) => {
            CallError::Unavailable(format!("{reason} ({why})"))
        }
        (error, _) => error,
    }
}

/// The verdicts of all states of a call: those that were already applied are done.
fn verdicts_of_all(is_fresh: &[bool], verdicts: Vec<Verdict>) -> Vec<Verdict> {
    let mut verdicts = verdicts.into_iter();
    let verdict = |fresh: &bool| match fresh {
        true => verdicts.next().unwrap_or(Verdict::Done),
        false => Verdict::Done,
    };
    is_fresh.iter().map(verdict).collect()
}

/// Rejects each state whose request must not be sent again, whatever the plugin makes of the refusal. It
/// becomes a dead letter with the reason.
fn park_doubtful(verdicts: Vec<Verdict>, fresh: &[&StateDelivery], doubts: &[(Seq, String)]) -> Vec<Verdict> {
    let doubt = |seq| doubts.iter().find(|(doubtful, _)| *doubtful == seq);
    let verdict = |(delivery, verdict): (&&StateDelivery, Verdict)| match doubt(delivery.state.seq) {
        Some((_, reason)) => Verdict::Reject(reason.clone()),
        None => verdict,
    };
    fresh.iter().zip(verdicts).map(verdict).collect()
}

/// The outcome of a failed call whose only fresh state is doubtful. Larger calls are split until this
/// applies.
fn outcome_if_alone(
    session: &mut dyn EffectSession,
    is_fresh: &[bool],
    doubts: &[(Seq, String)],
) -> Option<CallOutcome> {
    let is_alone = is_fresh.iter().filter(|fresh| **fresh).count() == 1;
    let (seq, reason) = doubts.first().filter(|_| is_alone)?;
    let verdicts = verdicts_of_all(is_fresh, vec![Verdict::Reject(reason.clone())]);
    Some(CallOutcome { verdicts, kv: session.writes_if_undone(&[*seq]).into(), is_apart: false })
}

fn lost_session() -> CallError {
    CallError::Unavailable("the session was lost".to_string())
}

#[async_trait]
impl PluginHandler for SandboxPlugin {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        let called = self.deliver_batch(batch).await;
        self.tally.note_outcome(&called);
        called
    }

    async fn find_applied(&self, batch: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        let refused = |error: GrantError| unavailable_call(&error);
        let session = self.grants.open(batch).await.map_err(refused)?;
        let applied: Vec<StateDelivery> =
            batch.iter().filter(|one| session.applied_states().contains(&one.state.seq)).cloned().collect();
        session.roll_back_effects().await;
        if applied.is_empty() {
            return Ok(AppliedStates::default());
        }
        // As for a batch whose states are all applied: there may be writes that receipts prove and that must be passed on.
        let session = self.grants.open(&applied).await.map_err(refused)?;
        let seqs = session.applied_states().clone();
        if seqs.len() < applied.len() {
            session.roll_back_effects().await;
            return Err(CallError::Unavailable("receipts were lost meanwhile".into()));
        }
        let kv = session.commit_effects(&[]).await.map_err(refused)?;
        Ok(AppliedStates { seqs, kv })
    }

    /// The time limit ends before the commit: an interrupted commit would be in doubt, and it has its own
    /// limits.
    async fn handle_tick(
        &self,
        ScheduledCall { due_ms, timeout }: ScheduledCall,
    ) -> Result<Vec<KvWrite>, CallError> {
        let closed = |_| CallError::Unavailable("the plugin is being taken out".to_string());
        let _permit = self.permits.acquire().await.map_err(closed)?;
        let limit_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let seat = self.cpu_ticket();
        let called = run_within(timeout, &seat, self.call_tick(due_ms, &seat)).await;
        self.tally.add_wait(seat.time_waited());
        let session = called.unwrap_or(Err(CallError::Timeout { limit_ms }))?;
        // No other call is in progress, so nothing else commits before the dispatcher has these writes.
        session.commit_effects(&[]).await.map(KvWrites::take).map_err(refused_call)
    }

    fn pause_before_call(&self) -> Option<CallPause> {
        self.grants.pause_before_call()
    }
}

/// Limits a call, not counting the time in which it waited for its turns. `None` if it took longer.
async fn run_within<T>(limit: Duration, seat: &CpuTicket, call: impl Future<Output = T>) -> Option<T> {
    let (begun, mut call) = (Instant::now(), pin!(call));
    loop {
        let end = begun + limit + seat.time_waited();
        match tokio::time::timeout_at(end.into(), &mut call).await {
            Ok(answer) => return Some(answer),
            // The call waits for a turn, or has waited since.
            Err(_) if begun + limit + seat.time_waited() > Instant::now() => {}
            Err(_) => return None,
        }
    }
}

/// The error of a failed commit. If the database complains about rows, the call's states are at fault, and
/// splitting the call finds the state.
fn refused_call(error: GrantError) -> CallError {
    match error {
        GrantError::Invalid(why) => CallError::Refused(why),
        other => unavailable_call(&other),
    }
}

fn unavailable_call(error: &GrantError) -> CallError {
    CallError::Unavailable(error.to_string())
}

fn epoch_text(delivery: &StateDelivery) -> String {
    match delivery.state.epoch {
        0 => String::new(),
        epoch => epoch.to_string(),
    }
}

/// The fields for values that the record does not contain, which are rare.
fn extra_fields<'a>(
    delivery: &StateDelivery,
    epoch: &'a str,
    shown: &'a ShownState,
) -> Vec<(&'a str, &'a str)> {
    let late = delivery.state.late.then_some(("late", "true"));
    let epoch = (!epoch.is_empty()).then_some(("epoch", epoch));
    let resync = delivery.resync.then_some(("resync", "true"));
    let digest = shown.document_digest.as_deref().map(|digest| ("documentDigest", digest));
    let owner = (!shown.has_subscribed_owner).then_some(("ownerSubscribed", "false"));
    late.into_iter().chain(epoch).chain(resync).chain(digest).chain(owner).collect()
}

fn lend_state<'a>(state: &'a State, attempt: u32, extra: &'a [(&'a str, &'a str)]) -> types::State<'a> {
    types::State {
        id: state.id.as_str(),
        seq: state.seq,
        source: &state.source,
        change: match state.change {
            Change::Present => types::Change::Present,
            Change::Gone => types::Change::Gone,
            Change::Left => types::Change::Left,
            Change::Gap => types::Change::Gap,
        },
        object: lend_object(&state.object),
        owner: state.owner.as_deref().map(lend_object),
        resource_version: state.resource_version.as_str(),
        status: lend_status(&state.status),
        previous: state.previous.as_deref().map(lend_status),
        observed_ms: state.observed_ms,
        attempt,
        extra,
    }
}

fn lend_object(object: &ObjectRef) -> types::ObjectRefParam<'_> {
    types::ObjectRefParam {
        group: &object.group,
        version: &object.version,
        kind: &object.kind,
        namespace: &object.namespace,
        name: &object.name,
        uid: &object.uid,
    }
}

fn lend_status(status: &Status) -> types::Status<'_> {
    types::Status {
        phase: &status.phase,
        reason: &status.reason,
        message: &status.message,
        terminal: status.terminal,
        attempt: status.attempt,
        ready: status.ready,
        total: status.total,
        exit_code: status.exit_code,
    }
}

/// Reads the verdicts: one for each state, each of a kind that the host knows.
fn read(verdicts: Vec<types::Verdict>, states: usize) -> Result<Vec<Verdict>, CallError> {
    if verdicts.len() != states {
        let given = verdicts.len();
        return Err(CallError::Protocol(format!("{given} verdicts for {states} states")));
    }
    verdicts.into_iter().map(from_wit_verdict).collect()
}

/// Puts a reason on one line: in logs, tables and Events, each line would look like a separate entry.
fn put_on_one_line(text: &mut String) {
    if text.contains(char::is_control) {
        *text = text.replace(char::is_control, " ");
    }
}

fn from_wit_verdict(verdict: types::Verdict) -> Result<Verdict, CallError> {
    match verdict {
        types::Verdict::Done => Ok(Verdict::Done),
        types::Verdict::Retry(mut retry) => {
            clip_error_text(&mut retry.reason);
            put_on_one_line(&mut retry.reason);
            Ok(Verdict::Retry { after_ms: retry.after_ms, reason: retry.reason })
        }
        types::Verdict::Reject(mut reason) => {
            clip_error_text(&mut reason);
            put_on_one_line(&mut reason);
            Ok(Verdict::Reject(reason))
        }
        types::Verdict::Other(mut word) => {
            clip_error_text(&mut word);
            put_on_one_line(&mut word);
            Err(CallError::Protocol(format!("the verdict `{word}`, which this controller doesn't know")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_without_control_characters() {
        let reason = "no such table\nERROR forged: entry\r\u{1b}[2J\u{85}".to_owned();
        let verdict = from_wit_verdict(types::Verdict::Reject(reason)).unwrap();
        assert_eq!(verdict, Verdict::Reject("no such table ERROR forged: entry  [2J ".into()));
    }
}
