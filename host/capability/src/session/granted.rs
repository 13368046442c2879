//! One plugin: its grants, and the receipts of the states that it has applied.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::SqlAccess;
use kubewitness_core::intents::commits::SurvivingCommits;
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::ports::{
    CallPause, DocumentReader, DurableCursor, EffectSession, GrantError, GrantProvider, StateDelivery,
};
use kubewitness_core::{Seq, State};

use super::CallSession;
use super::commits::{CommitWatch, KEPT};
use super::open_calls::{CommitPlace, OpenCalls};
use super::outbound::RequestOutbox;
use super::uses::GrantUses;
use crate::http::HttpDestination;
use crate::kv::PluginKv;
use crate::ledger::{LedgerDatabases, PluginLedger};
use crate::mail::MailRelay;
use crate::objects::call_documents::ReadingHabit;
use crate::objects::lister;
use crate::objects::outcomes::GrantedOutcomes;
use crate::objects::subscribed::SubscribedKinds;
use crate::receipts::{AppliedReceipts, ReceiptMark, SavedCursors};
use crate::secrets::redaction::RedactedDocuments;
use crate::secrets::signing_keys::SigningKey;
use crate::sql::TransactionMode;
use crate::sql::guard::RenderedStatements;
use crate::{log, sql};

/// How often receipts are pruned. Unneeded receipts are harmless, and deleting them costs a transaction.
const FORGET_EVERY: Seq = 4096;

/// Each journal counts positions from 1, so a row with a newer position may come from another journal.
const ELSEWHERE: &str = "the database has receipts of states that this journal does not have: this journal lost its \
    newest commits, or another journal wrote to the database under this plugin's name. `object_status` may keep that \
    journal's rows. Give each journal its own database; if the other journal is gone, empty `object_status` and the plugin's rows of `kubewitness_receipts`";

/// The part that outlives a change of the plugin's configuration: its receipts.
#[derive(Default)]
pub struct ReceiptTracker {
    pub applied: AppliedReceipts,
    /// The number of readings of the receipts, counted at their beginning.
    readings: AtomicU64,
    /// Doubts after which the receipts must be read before the next call: the result of a commit is unknown,
    /// or a server was not asked yet.
    doubts: AtomicU64,
    /// How many doubts are settled.
    settled: AtomicU64,
    /// Held by the one call that reads the receipts; concurrent calls wait for its result.
    reading: tokio::sync::Mutex<()>,
    cursor: AtomicU64,
    /// The newest position that the journal had or the plugin received. Its own receipts are not beyond it.
    newest: AtomicU64,
    /// The last position that the plugin had ever finished when it started.
    furthest: AtomicU64,
    /// The furthest cursor that the plugin had ever had when it started.
    furthest_cursor: AtomicU64,
    /// Whether receipts of another journal were logged.
    has_logged_other_journal: AtomicBool,
    forgotten: AtomicU64,
    saved_cursors: Mutex<SavedCursors>,
    stores: Mutex<ReceiptStores>,
    pub commits: Arc<CommitWatch>,
    /// From this position on, states may be applied and not yet finished, wherever the cursor is. It is 0
    /// until the dispatcher has reported its position.
    needed_from: AtomicU64,
    /// The states of all commits since the start.
    committed: AtomicU64,
    open_calls: Mutex<OpenCalls>,
    /// Held while receipts are removed. A call with a state below the cursor waits for that.
    pruning: tokio::sync::Mutex<()>,
}

/// A call with states, until it has ended.
pub struct OpenCall {
    standing: Arc<ReceiptTracker>,
    number: u64,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.standing.lock_open_calls().end(self.number);
    }
}

/// The receipts of a plugin that exist in a database that lost commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivingReceipts {
    /// The controller's name of the database.
    pub database: String,
    /// The position after which states can be delivered again without applying any of them twice.
    pub after: Option<Seq>,
    /// Whether a lost commit has states that are not delivered again.
    pub beneath: bool,
    /// See [`DatabaseLoss::former_floor`](kubewitness_core::intents::commits::DatabaseLoss::former_floor).
    pub former_floor: Option<Seq>,
    pub commits: SurvivingCommits,
}

/// The positions at which a plugin starts.
#[derive(Clone, Copy, Debug)]
pub struct StartPositions {
    /// Every state up to here is finished.
    pub cursor: Seq,
    /// The furthest cursor that there ever was.
    pub furthest_cursor: Seq,
    /// The last position that was ever finished.
    pub furthest: Seq,
    /// The newest position of the journal.
    pub newest: Seq,
}

/// The stores of the plugin's receipts.
#[derive(Clone, Default)]
pub struct ReceiptStores {
    /// Whether the plugin may write into its databases.
    pub writes: bool,
    pub databases: Vec<sql::SharedEngine>,
    pub ledgers: Vec<Arc<PluginLedger>>,
    /// All databases of the controller, for ledgers whose appends a database decides.
    pub deciders: LedgerDatabases,
}

impl ReceiptTracker {
    /// The number of readings that have begun. The receipts that a call knows are incomplete once another
    /// reading has begun.
    pub fn count_readings(&self) -> u64 {
        self.readings.load(Ordering::Acquire)
    }

    pub fn mark_stale(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// Every state up to here is finished.
    pub fn finished_cursor(&self) -> Seq {
        self.cursor.load(Ordering::Acquire)
    }

    /// The newest position that is known.
    pub fn newest_position(&self) -> Seq {
        self.newest.load(Ordering::Acquire).max(self.finished_cursor())
    }

    /// Every state up to here is finished, and none of them is to be delivered again.
    pub fn settled_cursor(&self) -> Seq {
        let needed = self.needed_from.load(Ordering::Acquire).min(self.lock_open_calls().first_state());
        self.finished_cursor().min(needed.saturating_sub(1))
    }

    fn lock_open_calls(&self) -> MutexGuard<'_, OpenCalls> {
        self.open_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call that begins, and its first state. Its receipts are not removed before the dispatcher
    /// knows its end, even if a pruning had already read the cursor.
    async fn begin_call(self: &Arc<Self>, first: Seq) -> OpenCall {
        let place = CommitPlace { newest_ms: self.commits.newest_ms(), states: self.count_committed() };
        let number = self.lock_open_calls().begin(first, place);
        let call = OpenCall { standing: Arc::clone(self), number };
        if first <= self.finished_cursor() {
            drop(self.pruning.lock().await);
        }
        call
    }

    fn count_committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Takes in the receipts of a commit.
    pub fn note_applied(&self, marks: &[ReceiptMark]) {
        self.committed.fetch_add(marks.len() as u64, Ordering::AcqRel);
        self.applied.add(marks);
    }

    fn has_receipt(&self, (seq, print): (Seq, IdPrint)) -> bool {
        self.applied.contains(ReceiptMark { seq, print })
    }

    #[cfg(test)]
    pub fn met_another_journal(&self) -> bool {
        self.has_logged_other_journal.load(Ordering::Acquire)
    }

    fn receipt_stores(&self) -> ReceiptStores {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the cursor. It moves back when the plugin receives the backfill of an added source. Receipts of
    /// that part may not be removed because an earlier cursor had passed their positions.
    fn begin_at(&self, cursor: Seq) {
        self.needed_from.store(0, Ordering::Release);
        if self.cursor.swap(cursor, Ordering::AcqRel) > cursor {
            self.applied.pass_cursor(cursor);
            *self.saved_cursors.lock().unwrap_or_else(PoisonError::into_inner) = SavedCursors::default();
            self.forgotten.fetch_min(cursor, Ordering::AcqRel);
        }
    }

    /// Reads the receipts from every store that the plugin may write to.
    pub async fn load(
        &self,
        plugin: &str,
        stores: ReceiptStores,
        positions: StartPositions,
    ) -> Result<(), GrantError> {
        let StartPositions { cursor, furthest_cursor, furthest, newest } = positions;
        self.begin_at(cursor);
        self.commits.pass_cursor(cursor);
        self.newest.fetch_max(newest, Ordering::AcqRel);
        self.furthest.store(furthest, Ordering::Release);
        self.furthest_cursor.store(furthest_cursor, Ordering::Release);
        let remote = stores.databases.iter().any(|database| database.is_remote());
        *self.stores.lock().unwrap_or_else(PoisonError::into_inner) = stores;
        if remote {
            // A server may be unreachable: then only this plugin waits.
            self.mark_stale();
            return Ok(());
        }
        self.read(plugin).await
    }

    async fn read(&self, plugin: &str) -> Result<(), GrantError> {
        self.readings.fetch_add(1, Ordering::AcqRel);
        let stores = self.receipt_stores();
        for database in &stores.databases {
            let survey = self.survey_database(plugin, database, stores.writes).await?;
            if stores.writes && !survey.is_behind() && self.needs_floor(&survey) {
                // Pruning sets the floor later.
                if let Err(error) = self.lay_floor(plugin, database).await {
                    tracing::debug!(plugin, %error, "the database can't keep up to where receipts were removed");
                }
            }
            let marks = survey.marks;
            let newest = self.newest.load(Ordering::Acquire);
            if marks.iter().any(|mark| mark.seq > newest)
                && !self.has_logged_other_journal.swap(true, Ordering::AcqRel)
            {
                tracing::warn!(plugin, "{ELSEWHERE}");
            }
            self.applied.add(&marks);
        }
        for ledger in &stores.ledgers {
            self.applied.add(&ledger.receipts_of_plugin(plugin, &stores.deciders).await?);
        }
        Ok(())
    }

    async fn survey_database(
        &self,
        plugin: &str,
        database: &sql::SharedEngine,
        writes: bool,
    ) -> Result<sql::ReceiptSurvey, GrantError> {
        if !writes {
            let survey = database.survey_receipts(plugin, TransactionMode::ReadOnly, &[]).await?;
            self.commits.pass_survey();
            return Ok(survey);
        }
        if self.commits.check_intact().is_err() {
            database.forget_connections();
        }
        let expected = self.commits.expected_commits();
        let survey = database.survey_receipts(plugin, TransactionMode::ReadWrite, &expected).await?;
        self.commits.take_survey(plugin, &survey);
        if !survey.is_behind() {
            self.commits.count_done(&survey, self.furthest_cursor());
        }
        Ok(survey)
    }

    /// The last position that was ever finished.
    fn furthest_position(&self) -> Seq {
        self.furthest.load(Ordering::Acquire).max(self.finished_cursor())
    }

    /// The furthest cursor that there ever was. Dead letters may lie above it.
    fn furthest_cursor(&self) -> Seq {
        self.furthest_cursor.load(Ordering::Acquire).max(self.finished_cursor())
    }

    /// Whether the database has no floor for this journal, or a floor at positions that the journal no longer
    /// has, as beside an older copy of the journal. For positions that the journal took back, the floor is
    /// still true.
    fn needs_floor(&self, survey: &sql::ReceiptSurvey) -> bool {
        let known = self.furthest_position().max(self.commits.done_through());
        self.commits.own_floor(survey).is_none_or(|floor| floor > known)
    }

    /// Sets the floor to the last position that was ever finished: no version has pruned a receipt above it.
    /// The cursor may be far below it while the backfill of an added source is delivered.
    async fn lay_floor(&self, plugin: &str, database: &sql::SharedEngine) -> Result<(), GrantError> {
        let floor = self.furthest_position();
        self.prune_database(plugin, database, self.commits.plan_floor(plugin, floor)).await
    }

    async fn prune_database(
        &self,
        plugin: &str,
        database: &sql::SharedEngine,
        pruning: sql::ReceiptPruning,
    ) -> Result<(), GrantError> {
        let mut transaction = database.begin_in(TransactionMode::ReadWrite, plugin).await?;
        self.commits.expect_commits(plugin, &mut *transaction).await?;
        let (floor, pruned_before_ms) = (pruning.floor, pruning.pruned_before_ms);
        transaction.prune_receipts(pruning).await?;
        self.commits.note_pruning(floor, pruned_before_ms);
        Ok(())
    }

    /// Surveys the plugin's database once more after it lacked commits. `None` if it has them after all.
    pub async fn survey_survivors(&self, plugin: &str) -> Result<Option<SurvivingReceipts>, GrantError> {
        let stores = self.receipt_stores();
        let Some(database) = stores.databases.first() else { return Ok(None) };
        // An open connection may lead to the previous server.
        database.forget_connections();
        let expected = self.commits.expected_commits();
        let survey = database.survey_receipts(plugin, TransactionMode::ReadWrite, &expected).await?;
        if !survey.is_behind() {
            self.commits.take_survey(plugin, &survey);
            return Ok(None);
        }
        // A ledger has the records of calls whose rows are lost. If their states were delivered again, these
        // records would be duplicated. The same holds for rows whose receipts alone were deleted.
        let may_come_again = stores.ledgers.is_empty() && survey.newest.is_some();
        let after = self.commits.own_floor(&survey).filter(|_| may_come_again);
        Ok(Some(SurvivingReceipts {
            database: self.commits.database_name(),
            after,
            beneath: self.commits.has_lost_beneath(&survey),
            former_floor: self.commits.surveyed_floor(),
            commits: self.commits.surviving_commits(&survey),
        }))
    }

    /// Forgets everything that was read from the database.
    pub fn forget_database(&self) {
        self.applied.clear();
        self.commits.reset();
        self.mark_stale();
    }

    fn is_settled(&self, doubts: u64) -> bool {
        doubts == self.settled.load(Ordering::Acquire)
    }

    /// Reads the receipts again if they are in doubt. Returns the number of the valid reading, and whether
    /// this call made it.
    async fn ensure_known(&self, plugin: &str) -> Result<(u64, bool), GrantError> {
        let mut is_new = false;
        loop {
            is_new |= self.refresh_receipts(plugin).await?;
            let reading = self.count_readings();
            // No reading with this number or an earlier one is in progress.
            if self.is_settled(self.doubts.load(Ordering::Acquire)) {
                return Ok((reading, is_new));
            }
        }
    }

    /// Returns whether the receipts were read again.
    async fn refresh_receipts(&self, plugin: &str) -> Result<bool, GrantError> {
        if self.is_settled(self.doubts.load(Ordering::Acquire)) {
            return Ok(false);
        }
        let _reading = self.reading.lock().await;
        // Doubts that arise during the reading are not settled by its result.
        let doubts = self.doubts.load(Ordering::Acquire);
        if !self.is_settled(doubts) {
            self.read(plugin).await?;
            self.settled.store(doubts, Ordering::Release);
        }
        Ok(true)
    }

    /// Ledgers first: they need a database's receipt until their own is on disk.
    pub async fn prune_receipts(
        &self,
        plugin: &str,
        DurableCursor { cursor, receipts_from }: DurableCursor,
        now: Duration,
    ) -> Result<(), GrantError> {
        let _pruning = self.pruning.lock().await;
        let cursor = self.cursor.fetch_max(cursor, Ordering::AcqRel).max(cursor);
        self.applied.pass_cursor(cursor);
        self.commits.pass_cursor(cursor);
        let needed = receipts_from.unwrap_or(Seq::MAX);
        self.needed_from.store(needed, Ordering::Release);
        let now_at = CommitPlace { newest_ms: u64::MAX, states: self.count_committed() };
        let first = self.lock_open_calls().take_first_place().unwrap_or(now_at);
        let through = self.saved_cursors.lock().unwrap_or_else(PoisonError::into_inner).save(now, cursor);
        let through = through.min(needed.saturating_sub(1));
        if through < self.forgotten.load(Ordering::Acquire).saturating_add(FORGET_EVERY) {
            return Ok(());
        }
        let stores = self.receipt_stores();
        // Receipts are read first, because a database that has lost commits must not be pruned.
        if self.commits.check_intact().is_err()
            || !(stores.databases.is_empty() || self.commits.is_surveyed())
        {
            return Ok(());
        }
        self.applied.prune_through(through);
        let since = self.count_committed().saturating_sub(first.states);
        let newest = KEPT.saturating_add(usize::try_from(since).unwrap_or(usize::MAX));
        for ledger in &stores.ledgers {
            ledger.forget_receipts(plugin, through, newest, &stores.deciders).await?;
        }
        for database in &stores.databases {
            let pruning = self.commits.plan_pruning(plugin, through, first.newest_ms);
            self.prune_database(plugin, database, pruning).await?;
        }
        self.forgotten.store(through, Ordering::Release);
        Ok(())
    }
}

/// The services that one plugin may reach, by the names that it uses itself.
pub struct PluginAccess {
    pub plugin: String,
    pub config: String,
    pub standing: Arc<ReceiptTracker>,
    pub sql: BTreeMap<String, GrantedDatabase>,
    pub http: BTreeMap<String, Arc<HttpDestination>>,
    pub mail: BTreeMap<String, Arc<MailRelay>>,
    pub ledgers: BTreeMap<String, Arc<PluginLedger>>,
    pub keys: BTreeMap<String, Arc<SigningKey>>,
    pub kv: Option<PluginKv>,
    pub outbox: RequestOutbox,
    /// How long a tick may take.
    pub tick_timeout: Duration,
    pub deciders: LedgerDatabases,
    pub lister: lister::GrantedLister,
    pub outcomes: GrantedOutcomes,
    /// Documents as the API server sent them.
    pub raw: Arc<dyn DocumentReader>,
    pub reading_habit: Arc<ReadingHabit>,
    pub has_digest: bool,
    pub subscribed: SubscribedKinds,
    /// `None` for a plugin that may see secrets.
    pub redacted: Option<RedactedDocuments>,
    pub clock: Arc<dyn Clock>,
    pub uses: Arc<GrantUses>,
    pub log: log::PluginLog,
    pub statements: RenderedStatements,
}

pub struct GrantedDatabase {
    /// The controller's name of the database.
    pub name: String,
    pub engine: sql::SharedEngine,
    pub access: SqlAccess,
}

impl PluginAccess {
    /// After the receipts were read: writes to `kv` whose call has a receipt count, even if the call itself
    /// was cut off.
    pub fn settle_kv(&self) {
        if let Some(kv) = &self.kv {
            kv.apply_committed(|mark| self.standing.has_receipt(mark));
        }
    }

    /// For a plugin with whole documents, each read counts as a use of the grant.
    pub fn count_document(&self) {
        if self.redacted.is_none() {
            self.uses.count("documents", "");
        }
    }
}

/// The grants in the form that the sandbox holds.
pub struct PluginGrants(pub Arc<PluginAccess>);

#[async_trait]
impl GrantProvider for PluginGrants {
    fn plugin_config(&self) -> &str {
        &self.0.config
    }

    fn begin_version(&self, version: &str) {
        self.0.outbox.begin_version(version);
    }

    fn pause_before_call(&self) -> Option<CallPause> {
        self.0.kv.as_ref()?.pause_before_call(self.0.clock.elapsed())
    }

    async fn open(&self, batch: &[StateDelivery]) -> Result<Box<dyn EffectSession>, GrantError> {
        if let Some(redacted) = &self.0.redacted {
            let ready = redacted.redaction.check_ready();
            ready.map_err(|error| GrantError::Unavailable(error.to_string()))?;
        }
        let standing = &self.0.standing;
        if let Some(newest) = batch.iter().map(|delivery| delivery.state.seq).max() {
            standing.newest.fetch_max(newest, Ordering::AcqRel);
        }
        let owed = batch.iter().filter(|delivery| !delivery.resync).map(|delivery| delivery.state.seq);
        let open_call = match owed.clone().min() {
            Some(first) => Some(standing.begin_call(first).await),
            None => None,
        };
        self.0.outbox.keep_notes(owed);
        let (reading, is_new) = standing.ensure_known(&self.0.plugin).await?;
        standing.commits.check_intact()?;
        if is_new {
            self.0.settle_kv();
        }
        // A state below the cursor may be what holds it.
        let is_after_cursor = |one: &StateDelivery| one.state.seq > standing.finished_cursor();
        if standing.applied.is_full() && batch.iter().all(is_after_cursor) {
            let message = "too many states are finished above the plugin's cursor: a lane holds it";
            return Err(GrantError::Unavailable(message.into()));
        }
        if batch.is_empty() {
            return Ok(Box::new(CallSession::of_tick(self.0.clone(), self.0.tick_timeout)));
        }
        self.0.lister.await_shown(batch).await?;
        let marks: HashMap<Seq, ReceiptMark> =
            batch.iter().map(|delivery| (delivery.state.seq, ReceiptMark::of(&delivery.state))).collect();
        // Finished states up to the cursor are delivered again only by a resync, and are then applied again.
        // Other states up to it are owed.
        let cursor = standing.finished_cursor();
        let done_through = standing.commits.done_through();
        let is_applied = |state: &State| {
            ((cursor + 1..=done_through).contains(&state.seq) && standing.commits.has_done(state.seq))
                || marks.get(&state.seq).is_some_and(|mark| standing.applied.contains_state(*mark, &state.id))
        };
        let waiting = batch
            .iter()
            .filter(|delivery| !delivery.resync || delivery.state.seq > cursor)
            .map(|delivery| &delivery.state);
        let applied = waiting.filter(|state| is_applied(state)).map(|state| state.seq).collect();
        let only = match batch {
            [delivery] => Some(delivery.state.id.clone()),
            _ => None,
        };
        // A resync of finished states.
        let is_repeated = batch.iter().any(|one| one.resync && one.state.seq <= cursor);
        let seqs = batch.iter().map(|one| one.state.seq).collect();
        let session = CallSession::new(self.0.clone(), seqs, marks, applied, only);
        Ok(Box::new(CallSession { reading, is_repeated, _open_call: open_call, ..session }))
    }
}
