//! Group commit without a task of its own. Callers queue their work, and the caller that gets the writer
//! commits for all callers that wait.
//!
//! A sync costs the same for one row as for a thousand, so many callers must share it. A timer that collects
//! work was rejected: it would delay an idle journal. Here an idle journal commits at once, and a caller
//! waits only for the transaction before its own. This module knows no SQL and decides nothing about rows:
//! `plan` does.
//!
//! A caller may be dropped at any point, even while it commits for others. Its work then stays with the
//! writer, and the next caller commits it again. So every operation here must be safe to run twice.

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
mod work;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use futures::future::BoxFuture;
use hashbrown::HashMap;
use kubewitness_core::ports::{AppendBatch, AppendResult, JournalError, KvWrite, NoteDurability};
use kubewitness_core::{Seq, State};
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};

use crate::append::plan::{self, BatchPlan, MarkedAppend, PlacedStates};
use crate::append::recent::RecentStates;
use crate::store::memory::StoreMemory;
use crate::store::rows::RowBatch;
use crate::store::rows::removal::{RemovalPlan, UnusedRows};
use crate::store::{PluginWrites, StoreReader, StoreWriter, TransactionStart};
use work::{AnswerSender, WorkDone, answer_works, not_leader_error};
pub(crate) use work::{FactsCheck, GroupWork};

/// The most states in one transaction: two full batches of the watch. A larger transaction would gain little
/// and delay its first caller.
const MOST_STATES: usize = 2 * kubewitness_core::limits::APPEND_BATCH;

/// The most saves in one transaction. A plugin has at most one save in flight.
const MOST_SAVES: usize = 256;

/// The most states that may arrive between the search for unused rows and their removal.
const STATES_SINCE_SEARCH: usize = 16 * 1024;

/// The state that only the leader may touch.
pub(crate) struct LeaderState {
    /// `None` once the journal is closed.
    pub writer: Option<Box<dyn StoreWriter>>,
    /// `None` during a transaction. If it is still `None` afterwards, the last transaction failed or was
    /// abandoned, and the state on disk must be read again.
    pub memory: Option<StoreMemory>,
    /// The work of the transaction in progress.
    under_way: Vec<GroupWork>,
}

pub(crate) struct GroupCommit {
    queue: Mutex<VecDeque<GroupWork>>,
    lead: AsyncMutex<LeaderState>,
    newest: watch::Sender<Seq>,
    pub recent: Arc<RwLock<RecentStates>>,
    /// Set by the first error that leaves a write in doubt. After that, the handle refuses all work.
    fatal: OnceLock<String>,
}

impl GroupCommit {
    pub fn new(writer: Box<dyn StoreWriter>, memory: StoreMemory, recent: Arc<RwLock<RecentStates>>) -> Self {
        let (newest, _) = watch::channel(memory.next.seq - 1);
        let lead = LeaderState { writer: Some(writer), memory: Some(memory), under_way: Vec::new() };
        let (queue, lead) = (Mutex::default(), AsyncMutex::new(lead));
        Self { queue, lead, newest, recent, fatal: OnceLock::new() }
    }

    pub fn newest_position(&self) -> watch::Receiver<Seq> {
        self.newest.subscribe()
    }

    pub fn newest_now(&self) -> Seq {
        *self.newest.borrow()
    }

    /// Drops the states in memory if the journal still ends at this position: then no reader at the end needs
    /// them.
    pub fn drop_recent_states(&self, newest: Seq) {
        let mut recent = self.recent.write().unwrap_or_else(PoisonError::into_inner);
        if self.newest_now() == newest {
            recent.forget_through(newest);
        }
    }

    fn fatal_error(&self) -> Option<JournalError> {
        self.fatal.get().map(|reason| JournalError::Fatal(reason.clone()))
    }

    /// Returns once the work is durable.
    pub async fn submit_work<T>(
        &self,
        work: impl FnOnce(AnswerSender<T>) -> GroupWork,
    ) -> Result<T, JournalError> {
        if let Some(error) = self.fatal_error() {
            return Err(error);
        }
        let (answer, mut answered) = oneshot::channel();
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(work(answer));
        let mut lead = tokio::select! {
            biased;
            answer = &mut answered => return answer.unwrap_or_else(|_| Err(closed_error())),
            lead = self.lead.lock() => lead,
        };
        loop {
            match answered.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => return Err(closed_error()),
                Err(oneshot::error::TryRecvError::Empty) => self.run_transaction(&mut lead).await,
            }
        }
    }

    /// Adds notes to the next commit. No caller waits for them.
    pub fn note_later(&self, plugin: &str, notes: Vec<KvWrite>) {
        let (unheard, _) = oneshot::channel();
        let work = GroupWork::Note(plugin.to_owned(), notes, NoteDurability::ProcessCrash, unheard);
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(work);
    }

    /// Waits for the work in progress, then releases the store. Later work is refused.
    pub async fn close(&self) -> Result<(), JournalError> {
        let mut lead = self.lead.lock().await;
        if !lead.under_way.is_empty() || !self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
        {
            self.run_transaction(&mut lead).await;
        }
        match lead.writer.take() {
            // If the last write is in doubt, the file must not be synced, written or vacuumed again.
            Some(writer) if self.fatal_error().is_some() => {
                writer.abandon_store();
                Ok(())
            }
            Some(writer) => writer.close().await,
            None => Ok(()),
        }
    }

    /// Reads what a plugin saved, once everything before it is durable. It reads on the writer's connection:
    /// a lagging replica would cause states to be delivered again.
    pub async fn query_plugin_data<T>(
        &self,
        plugin: &str,
        question: impl for<'a> FnOnce(&'a mut dyn StoreReader, &'a str) -> BoxFuture<'a, Result<T, JournalError>>,
    ) -> Result<T, JournalError> {
        self.submit_work(GroupWork::Settle).await?;
        let mut lead = self.lead.lock().await;
        let LeaderState { writer, memory: kept, .. } = &mut *lead;
        let writer = writer.as_mut().ok_or_else(closed_error)?;
        let memory = match kept.take() {
            Some(memory) => memory,
            None => {
                writer.reconnect().await?;
                writer.load_memory().await?
            }
        };
        let answer = question(writer.store_reader(), plugin).await?;
        *kept = Some(memory);
        Ok(answer)
    }

    /// Runs one transaction for all callers in the queue.
    async fn run_transaction(&self, lead: &mut LeaderState) {
        if lead.under_way.is_empty() {
            lead.under_way = self.take();
        }
        let result = match self.fatal_error() {
            Some(error) => Err(error),
            None => self.commit_works(lead).await,
        };
        let works = std::mem::take(&mut lead.under_way);
        match result {
            Ok(done) => answer_works(works, done),
            Err(error) => {
                if let JournalError::Fatal(reason) = &error {
                    self.fatal.get_or_init(|| reason.clone());
                }
                for work in works {
                    work.answer_error(copy_error(&error));
                }
            }
        }
    }

    fn take(&self) -> Vec<GroupWork> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut works = Vec::new();
        let mut weight = 0;
        // The first append is always taken, even if it exceeds the limit alone.
        while let Some(next) = queue.front()
            && (works.is_empty() || weight + next.work_weight() <= MOST_STATES)
            && works.len() < MOST_SAVES
            && !works.last().is_some_and(GroupWork::is_alone)
            && (works.is_empty() || !next.is_alone())
        {
            weight += next.work_weight();
            works.extend(queue.pop_front());
        }
        works
    }

    async fn commit_works(&self, lead: &mut LeaderState) -> Result<WorkDone, JournalError> {
        let LeaderState { writer, memory: kept, under_way } = lead;
        let writer = &mut **writer.as_mut().ok_or_else(closed_error)?;
        // The memory is taken out for the duration of the work. If the work fails, the memory stays empty and
        // is read again.
        let remembered = kept.take();
        if remembered.is_none() {
            writer.reconnect().await?;
        }
        let is_changed = match &under_way[..] {
            [GroupWork::Lead(leads, _)] => Some(writer.set_leadership(*leads).await?),
            [GroupWork::ElectBy(lease, _)] => Some(writer.elect_by(lease).await?),
            [GroupWork::Mark(unfinished, _)] => Some(writer.mark_import(*unfinished).await?),
            [GroupWork::Forget(plugin, _)] => Some(writer.forget_plugin(plugin).await?),
            _ => None,
        };
        if is_changed.is_some() {
            *kept = remembered;
            return Ok(WorkDone::Changed);
        }
        let turn = writer.begin_transaction().await?;
        let plans = under_way.iter().any(GroupWork::depends_on_rows);
        let mut memory = match remembered {
            // Work that is not planned does not depend on the latest changes of others.
            Some(memory) if !turn.is_stale || !plans => memory,
            _ => writer.load_memory().await?,
        };
        let done = match &under_way[..] {
            [GroupWork::Remove(..) | GroupWork::Sweep(..)] if !turn.dispatches => {
                return Err(not_leader_error());
            }
            [GroupWork::Remove(removal, check_facts, _)] => {
                WorkDone::Removed(self.remove(writer, removal, *check_facts).await?)
            }
            [GroupWork::Sweep(sweep, _)] => {
                WorkDone::Removed(sweep_unused_rows(writer, &mut memory, sweep).await?)
            }
            works => self.write(writer, &mut memory, turn, works).await?,
        };
        *kept = Some(memory);
        writer.maintain_store().await;
        Ok(done)
    }

    async fn write(
        &self,
        writer: &mut dyn StoreWriter,
        memory: &mut StoreMemory,
        turn: TransactionStart,
        works: &[GroupWork],
    ) -> Result<WorkDone, JournalError> {
        let planned = plan_all(writer, memory, works).await?;
        let left = if turn.dispatches { plugin_writes_of(works) } else { PluginWrites::default() };
        if planned.rows.is_some() || !left.is_empty() {
            writer.commit_rows(planned.rows, &left).await?;
        } else {
            writer.end_transaction().await?;
        }
        // The journal also contains states that other processes wrote and this one has not read yet.
        let newest = turn.newest.unwrap_or_default().max(memory.next.seq - 1);
        self.publish_states(planned.states, newest);
        let result = |answer: Result<PlacedStates, _>| {
            answer.map(|PlacedStates { seqs, through }| AppendResult { seqs, through, newest })
        };
        let appended = planned.answers.into_iter().map(result).collect();
        Ok(WorkDone::Written { appended, dispatches: turn.dispatches })
    }

    /// Executes a removal of retention, if the facts that it was decided on still hold. The writer's memory
    /// does not change: only ended objects are removed as a whole, and those are not in memory.
    async fn remove(
        &self,
        writer: &mut dyn StoreWriter,
        removal: &RemovalPlan,
        check_facts: FactsCheck,
    ) -> Result<bool, JournalError> {
        if !check_facts(writer.store_reader().retention_reader(), removal).await? {
            writer.end_transaction().await?;
            return Ok(false);
        }
        writer.remove(removal).await?;
        if let Some(last) = removal.taken.iter().map(|link| link.seq).max() {
            self.recent.write().unwrap_or_else(PoisonError::into_inner).forget_through(last);
        }
        Ok(true)
    }

    fn publish_states(&self, states: Vec<Arc<State>>, newest: Seq) {
        self.recent.write().unwrap_or_else(PoisonError::into_inner).extend_committed(states, newest);
        self.newest.send_if_modified(|known| {
            let moved = *known != newest;
            *known = newest;
            moved
        });
    }
}

/// Collects the writes of plugins, oldest first.
fn plugin_writes_of(works: &[GroupWork]) -> PluginWrites<'_> {
    let mut left = PluginWrites { is_lax: true, ..PluginWrites::default() };
    for work in works {
        match work {
            GroupWork::Save(plugin, save, _) => left.saves.push((plugin, save)),
            GroupWork::Note(plugin, notes, kept, _) => {
                left.is_lax &= *kept == NoteDurability::ProcessCrash;
                left.notes.push((plugin, notes));
            }
            GroupWork::Replay(replay, _) => left.replays.push(replay.clone()),
            _ => {}
        }
    }
    left.is_lax &= left.saves.is_empty() && left.replays.is_empty();
    left
}

struct PlannedWork {
    /// `None` if nothing in the batch is new.
    rows: Option<RowBatch>,
    states: Vec<Arc<State>>,
    answers: Vec<Result<PlacedStates, JournalError>>,
}

/// Removes the rows from memory before they are deleted. A row is kept if a state has referred to it since it
/// was found to be unused; a record is not counted if an earlier sweep removed it. Returns `false` if too many states came since. A sweep of rows that no state
/// refers to is never refused.
async fn sweep_unused_rows(
    writer: &mut dyn StoreWriter,
    memory: &mut StoreMemory,
    sweep: &UnusedRows,
) -> Result<bool, JournalError> {
    let mut sweep = sweep.clone();
    if sweep.has_referenced() {
        let since = writer
            .store_reader()
            .retention_reader()
            .references_after(sweep.through, STATES_SINCE_SEARCH)
            .await?;
        if since.last.is_some_and(|last| last >= sweep.through + STATES_SINCE_SEARCH as Seq) {
            writer.end_transaction().await?;
            return Ok(false);
        }
        sweep.statuses.retain(|id| since.statuses.binary_search(id).is_err());
        sweep.anchors.retain(|id| since.anchors.binary_search(id).is_err());
    }
    if !sweep.records.is_empty() {
        sweep.records = writer.store_reader().retention_reader().existing_records(&sweep.records).await?;
    }
    memory.statuses.retain(|_, id| !sweep.statuses.contains(id));
    memory.owners.retain(|_, id| !sweep.owners.contains(id));
    writer.sweep_unused_rows(&sweep).await?;
    Ok(true)
}

/// Plans all appends of a batch. An invalid append is refused alone; the others in its batch continue.
async fn plan_all(
    writer: &mut dyn StoreWriter,
    memory: &mut StoreMemory,
    works: &[GroupWork],
) -> Result<PlannedWork, JournalError> {
    memory.shrink_to_bounds();
    let appends: Vec<&AppendBatch> = works
        .iter()
        .filter_map(|work| match work {
            GroupWork::Append(append, _) => Some(append),
            _ => None,
        })
        .collect();
    let mut epochs: HashMap<&str, u32> = HashMap::new();
    let mut checks = Vec::with_capacity(appends.len());
    for append in &appends {
        // Also detects gaps that an earlier append of the same batch has overtaken.
        let epoch = epochs.entry(&append.source).or_insert(append.epoch);
        let check = match append.epoch < *epoch {
            true => Err(plan::epoch_over_error(append, *epoch)),
            false => plan::check(memory, append),
        };
        if check.is_ok() {
            *epoch = append.epoch;
        }
        checks.push(check);
    }
    let good: Vec<MarkedAppend<'_>> = appends
        .iter()
        .zip(&checks)
        .filter(|(_, check)| check.is_ok())
        .map(|(append, _)| MarkedAppend::of(memory, append))
        .collect();
    if good.is_empty() {
        let answers = checks.into_iter().map(|check| check.map(|()| PlacedStates::default())).collect();
        return Ok(PlannedWork { rows: None, states: Vec::new(), answers });
    }
    let found = writer.find_chain_ends(memory, plan::unknown_objects(memory, &good)).await?;
    memory.learn_objects(found)?;
    let known = writer.find_known_keys(plan::key_questions(memory, &good)).await?;
    let mut plan = BatchPlan::new(memory, &known);
    let mut good = good.iter();
    let mut answers = Vec::with_capacity(checks.len());
    for check in checks {
        answers.push(check.map(|()| good.next().map(|append| plan.plan_append(append)).unwrap_or_default()));
    }
    let BatchPlan { rows, states, ended, .. } = plan;
    memory.forget_ended(&ended);
    Ok(PlannedWork { rows: Some(rows).filter(|rows| !rows.is_empty()), states, answers })
}

fn closed_error() -> JournalError {
    JournalError::Unavailable("the journal is closed".into())
}

fn copy_error(error: &JournalError) -> JournalError {
    match error {
        JournalError::Unavailable(text) => JournalError::Unavailable(text.clone()),
        JournalError::Fatal(text) => JournalError::Fatal(text.clone()),
        JournalError::Invalid(text) => JournalError::Invalid(text.clone()),
        JournalError::Overtaken(text) => JournalError::Overtaken(text.clone()),
    }
}
