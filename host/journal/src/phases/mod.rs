//! The index of phases: finds the objects that were in a phase within a range of positions, and ended objects
//! by name.
//!
//! The journal answers such a query only by reading every state. Indexes in the journal itself were rejected:
//! they would cost every append and become part of its format. So the index is a separate file, made from the
//! journal's states alone, and may be deleted at any time. A follower reads the journal in order and records
//! when each object entered and left a phase, and which objects ended badly. States that retention removed
//! are removed here as well. This module touches no document: its caller explains outcomes and passes the
//! words in.

mod causes;
mod changed;
mod ended;
mod find;
mod intake;
mod pending;
mod table;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use kubewitness_core::ports::{Backlog, ChangeQuestion, JournalError, KeptOutcome, OutcomeChanges};
use kubewitness_core::views::CauseKind;
use kubewitness_core::{Seq, StateId};
use tokio::sync::{Notify, watch};

use crate::journal::Journal;
use crate::store::rows::StoreResult;
pub use causes::{CauseQuery, OpenOutcome};
pub use ended::{NamePlace, NamedEnd, NamedEndQuery};
use table::{PhaseTable, is_broken};

/// The number of states that are read and taken in at once. That takes some milliseconds, in which no query is
/// answered.
const PART: usize = 1_024;
/// How many ended times are checked against the journal at once.
const SWEPT: usize = 512;

/// A query for times in a phase.
#[derive(Clone, Debug, Default)]
pub struct PhaseQuery {
    pub sources: Vec<String>,
    /// In the spelling of `status::PHASES`.
    pub phase: String,
    /// The times ended after this position, or have not ended.
    pub after: Seq,
    /// The times began before this position.
    pub before: Seq,
    /// The [`next`](PhasePage::next) of the previous page.
    pub cursor: Option<u64>,
    /// The most times that the query examines.
    pub looked: usize,
}

/// An object that was in a phase, with the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeInPhase {
    /// The sort key of pages: objects that are still in the phase come first, then those with the newest end.
    pub rank: u64,
    /// The state with which it entered the phase.
    pub entered: Seq,
    /// The state with which it left the phase.
    pub left: Option<Seq>,
    pub source: Arc<str>,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Its end state, if it has ended.
    pub ended: Option<Seq>,
}

/// A page of times in a phase. Each object appears once, with its last time.
#[derive(Clone, Debug, Default)]
pub struct PhasePage {
    pub times: Vec<TimeInPhase>,
    /// The rank after which the next page begins; `None` after the last page.
    pub next: Option<u64>,
}

/// The index. Clones share one.
#[derive(Clone)]
pub struct PhaseIndex {
    inner: Arc<PhasesInner>,
}

struct PhasesInner {
    path: PathBuf,
    /// `None` before it was opened, or after it became unusable.
    table: Mutex<Option<PhaseTable>>,
    /// The position up to which the journal was read.
    through: watch::Sender<Seq>,
    /// Wakes the follower: a query waits for it to read further.
    demand: Notify,
    /// Why the index can't be used.
    trouble: Mutex<Option<String>>,
    outcomes: Mutex<CountedOutcomes>,
    /// How often words were stored or withdrawn by an explanation.
    stored_words: watch::Sender<u64>,
}

/// Outcomes that were explained, by source and cause.
pub type OutcomeCounts = BTreeMap<(String, CauseKind), u64>;

#[derive(Default)]
struct CountedOutcomes {
    /// Outcomes up to here ended before this process looked, and are not counted.
    counted_after: Option<Seq>,
    counts: OutcomeCounts,
}

impl PhaseIndex {
    /// Creates the handle only: the follower opens the file.
    pub fn new(path: PathBuf) -> Self {
        let (table, trouble, outcomes) = (Mutex::new(None), Mutex::new(None), Mutex::default());
        let (through, demand, stored_words) = (watch::Sender::new(0), Notify::new(), watch::Sender::new(0));
        Self {
            inner: Arc::new(PhasesInner { path, table, through, demand, trouble, outcomes, stored_words }),
        }
    }

    /// Why the index can't be used; `None` while it can.
    pub fn why_unusable(&self) -> Option<String> {
        self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records why the follower can't continue, for queries.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Waits until the index has reached this position, at most for this long. Returns whether it has.
    pub async fn await_position(&self, seq: Seq, most: Duration) -> bool {
        let mut through = self.inner.through.subscribe();
        if *through.borrow() < seq {
            self.inner.demand.notify_one();
        }
        let reached = tokio::time::timeout(most, through.wait_for(|through| *through >= seq)).await;
        reached.is_ok_and(|reached| reached.is_ok())
    }

    /// Returns once a query waits for newer states.
    pub async fn await_demand(&self) {
        self.inner.demand.notified().await;
    }

    /// Reads the next part of the journal. Returns `false` if nothing was left.
    pub async fn index_next_part(&self, journal: &Journal, now_ms: u64) -> StoreResult<bool> {
        self.open(journal).await?;
        let after = *self.inner.through.borrow();
        let states = journal.read(after, PART).await?;
        let Some(through) = states.last().map(|state| state.seq) else {
            self.with_table(move |table| table.write_if_due(now_ms)).await?;
            return Ok(false);
        };
        self.with_table(move |table| table.take_in(&states, now_ms)).await?;
        self.inner.through.send_replace(through);
        Ok(true)
    }

    /// Removes one part of what the journal no longer has: times that ended with a state that retention
    /// removed. Returns where the next part begins; `None` after the last part.
    pub async fn sweep_next_part(
        &self,
        journal: &Journal,
        after: Option<(i64, u64)>,
    ) -> StoreResult<Option<(i64, u64)>> {
        self.open(journal).await?;
        let times = self.with_table(move |table| table.closed_times(after, SWEPT)).await?;
        let next = times.last().filter(|_| times.len() == SWEPT).map(|time| (time.object, time.rank));
        let ends: Vec<Seq> = times.iter().map(|time| time.rank).collect();
        let kept = journal.read_at(&ends).await?;
        let is_kept = |seq: Seq| kept.binary_search_by_key(&seq, |state| state.seq).is_ok();
        let taken: Vec<_> = times.into_iter().filter(|time| !is_kept(time.rank)).collect();
        if !taken.is_empty() {
            self.with_table(move |table| table.remove(&taken)).await?;
        }
        Ok(next)
    }

    /// Finds times in a phase, the newest first. Fails if the index can't be used.
    pub async fn find(&self, query: PhaseQuery) -> StoreResult<PhasePage> {
        if let Some(trouble) = self.why_unusable() {
            return Err(JournalError::Unavailable(trouble));
        }
        self.with_table(move |table| table.find(&query)).await
    }

    /// Ended objects by name. Fails if the index can't be used.
    pub async fn ended_by_name(&self, query: NamedEndQuery) -> StoreResult<Vec<NamedEnd>> {
        if let Some(trouble) = self.why_unusable() {
            return Err(JournalError::Unavailable(trouble));
        }
        self.with_table(move |table| table.ended_by_name(&query)).await
    }

    /// Outcomes that are due now: the latest due time first, and for equal times the newest.
    pub async fn due_outcomes(&self, now_ms: u64, limit: usize) -> StoreResult<Vec<OpenOutcome>> {
        self.with_table(move |table| table.due_outcomes(now_ms, limit)).await
    }

    /// When the next outcome is due, in milliseconds since 1970; `None` if none is.
    pub async fn next_due_ms(&self) -> StoreResult<Option<u64>> {
        self.with_table(|table| table.next_due_ms()).await
    }

    /// Whether an outcome of these sources has no word although it was due before this moment, or its
    /// explanation failed.
    pub async fn lacks_words(&self, sources: Vec<String>, before_ms: u64) -> StoreResult<bool> {
        self.with_table(move |table| table.lacks_words(&sources, before_ms)).await
    }

    /// Postpones an explanation that failed.
    pub async fn postpone_outcome(&self, outcome: OpenOutcome, now_ms: u64) -> StoreResult<()> {
        self.with_table(move |table| table.postpone_outcome(&outcome, now_ms)).await
    }

    /// Stores the words of outcomes, and counts the new ones. `None` means that the object has not ended
    /// badly after all.
    pub async fn keep_causes(&self, explained: Vec<(OpenOutcome, Option<CauseKind>)>) -> StoreResult<()> {
        let kept = explained.clone();
        if self.with_table(move |table| table.keep_causes(&explained)).await? {
            self.inner.stored_words.send_modify(|count| *count += 1);
        }
        let mut outcomes = self.inner.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let after = outcomes.counted_after.unwrap_or(Seq::MAX);
        for (outcome, kind) in kept.into_iter().filter(|(outcome, _)| outcome.is_new && outcome.seq > after) {
            if let Some(kind) = kind {
                *outcomes.counts.entry((outcome.source, kind)).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Notifies pages that show words when an explanation stored or withdrew some: words come without a state
    /// that would notify them.
    pub fn outcome_news(&self) -> watch::Receiver<u64> {
        self.inner.stored_words.subscribe()
    }

    /// Outcomes since this process opened the index.
    pub fn outcome_counts(&self) -> OutcomeCounts {
        self.inner.outcomes.lock().unwrap_or_else(PoisonError::into_inner).counts.clone()
    }

    /// The causes of these objects (source and uid), by their indexes in the list, with one lookup for all.
    /// Fails if the index can't be used.
    pub async fn causes_of(&self, objects: Vec<(String, String)>) -> StoreResult<HashMap<usize, CauseKind>> {
        if objects.is_empty() {
            return Ok(HashMap::new());
        }
        self.with_table(move |table| table.causes_of(&objects)).await
    }

    /// Outcomes whose words changed, in the order of the changes. Fails if the index can't be used.
    pub async fn changed_outcomes(&self, question: ChangeQuestion) -> StoreResult<OutcomeChanges> {
        if let Some(trouble) = self.why_unusable() {
            return Err(JournalError::Unavailable(trouble));
        }
        self.with_table(move |table| table.changed_outcomes(&question)).await
    }

    /// The outcome of one object. Fails if the index can't be used.
    pub async fn kept_outcome(&self, source: &str, uid: &str) -> StoreResult<KeptOutcome> {
        if let Some(trouble) = self.why_unusable() {
            return Err(JournalError::Unavailable(trouble));
        }
        let (source, uid) = (source.to_owned(), uid.to_owned());
        self.with_table(move |table| table.kept_outcome(&source, &uid)).await
    }

    /// Outcomes with a cause, the newest first. Fails if the index can't be used.
    pub async fn find_by_cause(&self, query: CauseQuery) -> StoreResult<PhasePage> {
        if let Some(trouble) = self.why_unusable() {
            return Err(JournalError::Unavailable(trouble));
        }
        self.with_table(move |table| table.find_by_cause(&query)).await
    }

    /// Opens the index, and rebuilds it if it was not made from this journal.
    async fn open(&self, journal: &Journal) -> StoreResult<()> {
        if self.is_open() {
            return Ok(());
        }
        self.count_after(*journal.newest_position().borrow());
        let path = self.inner.path.clone();
        let (mut table, through, id) = run_blocking(move || PhaseTable::open_indexed(&path)).await?;
        let is_of_journal = through == 0 || has_state(journal, through, &id).await?;
        if !is_of_journal {
            table = run_blocking(move || table.without_content()).await?;
        }
        self.inner.through.send_replace(if is_of_journal { through } else { 0 });
        // Queries see it only now: they would take it for complete.
        *self.lock_table() = Some(table);
        Ok(())
    }

    /// A table that is in use is open. Waiting for its user here would block a thread of the runtime.
    fn is_open(&self) -> bool {
        match self.inner.table.try_lock() {
            Ok(table) => table.is_some(),
            Err(TryLockError::Poisoned(table)) => table.into_inner().is_some(),
            Err(TryLockError::WouldBlock) => true,
        }
    }

    /// Sets, once, the position up to which outcomes are not counted.
    fn count_after(&self, newest: Seq) {
        let mut outcomes = self.inner.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.counted_after.get_or_insert(newest);
    }

    fn lock_table(&self) -> MutexGuard<'_, Option<PhaseTable>> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file that turns out to be damaged is rebuilt when it is opened next.
    async fn with_table<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut PhaseTable) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        let index = self.clone();
        run_blocking(move || {
            let mut held = index.lock_table();
            // A panic may have left a stale one.
            let Some(table) = held.as_mut().filter(|table| !table.is_stale()) else {
                *held = None;
                return Err(JournalError::Unavailable("the index of phases is being opened".into()));
            };
            let answer = ask(table);
            if answer.as_ref().is_err_and(is_broken) {
                *held = None;
                table::remove(&index.inner.path)?;
            } else if table.is_stale() {
                // The journal is read again from where the file ends.
                *held = None;
                index.inner.through.send_replace(0);
                index.inner.demand.notify_one();
            }
            answer.map_err(|error| table::index_error(&error))
        })
        .await
    }
}

/// Whether the journal has the state that was read last. Another journal, or an older copy of this one, has
/// another state there.
async fn has_state(journal: &Journal, seq: Seq, id: &str) -> StoreResult<bool> {
    let found = journal.read_at(&[seq]).await?;
    Ok(found.first().is_some_and(|state| state.id == StateId::parse(id)))
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> StoreResult<T> + Send + 'static,
) -> StoreResult<T> {
    let ended = |error| JournalError::Unavailable(format!("the index of phases: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}
