//! Checks that a plugin's newest commits exist, on each new connection to its database, before anything else
//! is done there. A database that lacks them has failed over to a standby without them, or was restored from
//! a copy. Then the plugin is not called until the controller has asked the database once more and taken back
//! the lost commits.
//!
//! `core::intents::commits` decides which commits are the newest. The cost is one small row in each save of
//! the plugin's progress, and one lookup of each of these commits for each connection.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::intents::commits::{
    CommitFrontier, CommitNote, CommitNotes, CommitTicket, DatabaseCommits, DatabaseLoss, NotedCommit,
    SurvivingCommits, was_unfinished,
};
use kubewitness_core::limits;
use kubewitness_core::ports::{GrantError, KvWrite, LateWrite};
use tokio::time::Instant;

use crate::sql::receipt::StoredReceipt;
use crate::sql::{ReceiptPruning, ReceiptSurvey, SqlTransaction};

/// The number of states whose receipts are never pruned, counted from the newest commit. The journal may name
/// any of these commits until it has saved a newer one, and dispatch stops before as many states wait for a
/// save.
pub const KEPT: usize = limits::READ_AHEAD;
/// The most connections that are remembered, which is more than a database may have.
const CONNECTIONS: usize = 256;
/// How long a database may take to show its newest commits: behind a load balancer, a connection may reach a
/// server that is still catching up.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The most tick receipts that one tick removes.
const REPLACED: usize = 64;

const LACKING: &str = "the database lacks commits that it had answered: the controller asks it once more, and hands \
    over again what it has lost";

#[derive(Default)]
pub struct CommitWatch {
    known: Mutex<KnownCommits>,
}

#[derive(Default)]
struct KnownCommits {
    /// The controller's name of the database.
    database: String,
    frontier: CommitFrontier,
    /// See [`DatabaseCommits::beneath`].
    beneath: Option<NotedCommit>,
    /// The notes of other databases.
    earlier: Vec<DatabaseCommits>,
    /// The connections that were found to have the newest commits.
    asked: BTreeSet<u64>,
    /// The newest commits: the time of each, and how many states it has.
    made: VecDeque<(u64, usize)>,
    /// The sum of these states.
    made_states: usize,
    /// The time of the newest commit.
    newest_ms: u64,
    /// The receipts of ticks in the database.
    ticks: Vec<String>,
    /// As the database reported them when its receipts were read.
    floor: Seq,
    pruned_before_ms: u64,
    /// The plugin has written to no other database since the floor was set, so the floor covers this journal's
    /// commits.
    has_own_floor: bool,
    /// See [`DatabaseCommits::done_through`].
    done_through: Option<Seq>,
    /// The losses of this database that the journal has recorded.
    losses: Vec<DatabaseLoss>,
    is_surveyed: bool,
    /// A survey or the cursor has changed the note, so the next save must store it.
    is_note_due: bool,
    /// When a commit was first found missing.
    lacking_since: Option<Instant>,
}

/// A commit that is being sent.
pub struct SentCommit {
    ticket: CommitTicket,
    commit: NotedCommit,
    states: usize,
    is_beneath: bool,
}

impl KnownCommits {
    fn push_made(&mut self, at_ms: u64, states: usize) {
        // A tick finishes no state.
        let states = states.max(1);
        self.made.push_back((at_ms, states));
        self.made_states += states;
        while let Some((_, oldest)) =
            self.made.front().copied().filter(|(_, oldest)| self.made_states - oldest >= KEPT)
        {
            self.made.pop_front();
            self.made_states -= oldest;
        }
    }

    fn expected_commits(&self) -> Vec<NotedCommit> {
        let newest = self.frontier.newest_commits();
        let older = self.beneath.iter().filter(|beneath| !self.frontier.has_commit(beneath));
        newest.chain(older).cloned().collect()
    }

    /// Expects the commits that a survey found in place of pruned ones.
    fn follow_survey(&mut self, survey: &ReceiptSurvey) {
        let is_removed = |commit: &NotedCommit| survey.absent.contains(commit);
        self.is_note_due |= self.frontier.replace_commits(is_removed, survey.newest.as_ref());
        if self.beneath.as_ref().is_some_and(is_removed) {
            self.beneath.clone_from(&survey.newest_tick);
            self.is_note_due = true;
        }
    }

    fn as_note(&self) -> CommitNote {
        let commits = self.frontier.newest_commits().cloned().collect();
        let Self { database, beneath, done_through, .. } = self;
        let (database, beneath, done_through) = (database.clone(), beneath.clone(), *done_through);
        let current = DatabaseCommits { database, commits, beneath, done_through };
        CommitNote { current: Some(current), earlier: self.earlier.clone() }
    }
}

impl CommitWatch {
    fn lock(&self) -> MutexGuard<'_, KnownCommits> {
        // The data is consistent even after a panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the expectations from the journal's note.
    pub fn load_note(&self, database: &str, notes: CommitNotes) {
        let CommitNotes { newest, losses } = notes;
        let note = newest.unwrap_or_default();
        let losses = losses.into_iter().map(|(_, loss)| loss).filter(|loss| loss.database == database);
        let has_own_floor = note.is_current(database);
        let in_database = note.commits_in(database).cloned().unwrap_or_default();
        let DatabaseCommits { commits, beneath, done_through, .. } = in_database;
        let newest_ms = commits.iter().chain(&beneath).map(|commit| commit.at_ms).max();
        let mut known = self.lock();
        let is_same = known.database == database;
        *known = KnownCommits {
            database: database.to_owned(),
            frontier: CommitFrontier::from_commits(commits),
            beneath,
            earlier: note.notes_besides(database),
            newest_ms: known.newest_ms.max(newest_ms.unwrap_or_default()),
            has_own_floor,
            done_through: done_through.filter(|_| has_own_floor),
            losses: losses.collect(),
            lacking_since: known.lacking_since.filter(|_| is_same),
            ..KnownCommits::default()
        };
    }

    /// The commits that the database must have.
    pub fn expected_commits(&self) -> Vec<NotedCommit> {
        self.lock().expected_commits()
    }

    /// Call this before a commit is sent. `is_repeated` is set if its states were finished before, such as
    /// those of a resync.
    pub fn begin_commit(&self, receipt: &mut StoredReceipt, is_repeated: bool) -> SentCommit {
        let mut known = self.lock();
        // The clock may have been set back.
        known.newest_ms = receipt.at_ms.max(known.newest_ms + 1);
        receipt.at_ms = known.newest_ms;
        let is_tick = receipt.is_tick();
        if is_tick {
            receipt.replaces = known.ticks.iter().take(REPLACED).cloned().collect();
        }
        let commit = NotedCommit { token: receipt.token.clone(), at_ms: receipt.at_ms, is_tick };
        let is_below = receipt.marks.first().is_some_and(|mark| mark.seq <= known.floor);
        let (ticket, states) = (known.frontier.begin_commit(), receipt.marks.len());
        SentCommit { ticket, commit, states, is_beneath: states == 0 || is_below || is_repeated }
    }

    pub fn note_commit(&self, sent: SentCommit, receipt: &StoredReceipt) {
        let SentCommit { ticket, commit, states, is_beneath } = sent;
        let mut known = self.lock();
        known.push_made(commit.at_ms, states);
        if commit.is_tick {
            known.ticks.retain(|token| !receipt.replaces.contains(token));
            known.ticks.push(commit.token.clone());
        }
        if is_beneath && known.beneath.as_ref().is_none_or(|newest| newest.at_ms < commit.at_ms) {
            known.beneath = Some(commit.clone());
        }
        known.frontier.note_commit(ticket, commit);
    }

    /// The moment of the newest commit: every later commit has a later moment.
    pub fn newest_ms(&self) -> u64 {
        self.lock().newest_ms
    }

    /// Plans to prune the receipts up to a position, except those of the newest commits and those after a
    /// moment.
    pub fn plan_pruning(&self, plugin: &str, through: Seq, after_ms: u64) -> ReceiptPruning {
        let known = self.lock();
        let before_ms = known.made.iter().map(|(at_ms, _)| *at_ms).min().unwrap_or_default();
        let before_ms = before_ms.min(after_ms.saturating_add(1));
        ReceiptPruning {
            plugin: plugin.to_owned(),
            through,
            before_ms,
            floor: known.floor.max(through),
            pruned_before_ms: known.pruned_before_ms.max(before_ms),
        }
    }

    /// Plans to set a floor without removing receipts.
    pub fn plan_floor(&self, plugin: &str, floor: Seq) -> ReceiptPruning {
        let pruned_before_ms = self.lock().pruned_before_ms;
        ReceiptPruning { plugin: plugin.to_owned(), through: 0, before_ms: 0, floor, pruned_before_ms }
    }

    /// Applies a completed pruning.
    pub fn note_pruning(&self, floor: Seq, pruned_before_ms: u64) {
        let mut known = self.lock();
        (known.floor, known.pruned_before_ms, known.has_own_floor) = (floor, pruned_before_ms, true);
    }

    /// Checks the newest commits if this is the first transaction on its connection.
    pub async fn expect_commits(
        &self,
        plugin: &str,
        transaction: &mut dyn SqlTransaction,
    ) -> Result<(), GrantError> {
        self.check_intact()?;
        let connection = transaction.connection_number();
        let expected: Vec<NotedCommit> = {
            let known = self.lock();
            if known.asked.contains(&connection) {
                return Ok(());
            }
            known.frontier.newest_commits().cloned().collect()
        };
        for commit in &expected {
            if transaction.has_token(&commit.token).await? {
                continue;
            }
            // It may have been removed.
            let survey = transaction.survey_receipts(plugin, &expected).await?;
            if survey.is_behind() {
                self.note_lack(plugin);
                return self.check_intact();
            }
            self.lock().follow_survey(&survey);
            break;
        }
        let mut known = self.lock();
        if known.asked.len() >= CONNECTIONS {
            known.asked.clear();
        }
        known.asked.insert(connection);
        Ok(())
    }

    /// Applies the database's survey of the plugin's receipts.
    pub fn take_survey(&self, plugin: &str, survey: &ReceiptSurvey) {
        if survey.is_behind() {
            return self.note_lack(plugin);
        }
        let mut known = self.lock();
        known.follow_survey(survey);
        if known.made.is_empty() {
            let newest: Vec<u64> = known.frontier.newest_commits().map(|commit| commit.at_ms).collect();
            newest.into_iter().for_each(|at_ms| known.push_made(at_ms, 1));
        }
        let (pruned, newest) = (survey.history.pruned_before_ms, survey.newest.as_ref());
        known.newest_ms = known.newest_ms.max(pruned).max(newest.map_or(0, |commit| commit.at_ms));
        known.ticks.clone_from(&survey.ticks);
        (known.floor, known.pruned_before_ms) = (survey.floor.unwrap_or_default(), pruned);
        (known.is_surveyed, known.lacking_since) = (true, None);
    }

    /// Skips the survey of a database that the plugin may not write to: it may be a replica.
    pub fn pass_survey(&self) {
        self.lock().is_surveyed = true;
    }

    /// Returns `true` once a survey has shown that the database has the newest commits, or none is needed.
    pub fn is_surveyed(&self) -> bool {
        self.lock().is_surveyed
    }

    /// The floor that a survey found, if it covers this journal's commits.
    pub fn own_floor(&self, survey: &ReceiptSurvey) -> Option<Seq> {
        survey.floor.filter(|_| self.lock().has_own_floor)
    }

    /// Treats states up to the surveyed floor as applied, if the journal once finished them and then took
    /// them back. Their receipts may have been pruned, so only the floor proves that they are in this
    /// database.
    pub fn count_done(&self, survey: &ReceiptSurvey, finished: Seq) {
        let mut known = self.lock();
        let Some(floor) = survey.floor.filter(|floor| known.has_own_floor && *floor > finished) else {
            return;
        };
        if known.losses.iter().any(|loss| loss.has_taken_back(floor)) {
            known.done_through = known.done_through.max(Some(floor));
            known.is_note_due = true;
        }
    }

    /// The position after the cursor up to which states are in the database: see
    /// [`DatabaseCommits::done_through`].
    pub fn done_through(&self) -> Seq {
        self.lock().done_through.unwrap_or_default()
    }

    /// The database has the rows of a state up to [`done_through`](Self::done_through), unless the state was
    /// unfinished when the address led away.
    pub fn has_done(&self, seq: Seq) -> bool {
        let known = self.lock();
        known.done_through.is_some_and(|floor| seq <= floor && !was_unfinished(&known.losses, floor, seq))
    }

    /// The floor of the server whose receipts were read.
    pub fn surveyed_floor(&self) -> Option<Seq> {
        let known = self.lock();
        (known.is_surveyed && known.has_own_floor).then_some(known.floor)
    }

    /// Applies a new cursor.
    pub fn pass_cursor(&self, cursor: Seq) {
        let mut known = self.lock();
        known.is_note_due |= known.done_through.take_if(|through| *through <= cursor).is_some();
    }

    /// A survey or the cursor has changed the note, so the next save must store it.
    pub fn is_note_due(&self) -> bool {
        self.lock().is_note_due
    }

    /// The surveyed commits that are valid after a loss.
    pub fn surviving_commits(&self, survey: &ReceiptSurvey) -> SurvivingCommits {
        let beneath = self.lock().beneath.clone().filter(|commit| !survey.absent.contains(commit));
        SurvivingCommits { newest: survey.newest.clone(), beneath }
    }

    /// Whether a lost commit has states that are not delivered again.
    pub fn has_lost_beneath(&self, survey: &ReceiptSurvey) -> bool {
        let known = self.lock();
        let ticks = known.frontier.newest_commits().filter(|commit| commit.is_tick);
        known.beneath.iter().chain(ticks).any(|commit| survey.has_lost(commit))
    }

    fn note_lack(&self, plugin: &str) {
        let mut known = self.lock();
        if known.lacking_since.is_none() {
            known.lacking_since = Some(Instant::now());
            tracing::warn!(plugin, database = known.database, "{LACKING}");
        }
    }

    pub fn database_name(&self) -> String {
        self.lock().database.clone()
    }

    /// Whether a commit was missing and the database has had time to show it. Then the caller asks it once
    /// more.
    pub fn is_lacking_for_long(&self) -> bool {
        self.lock().lacking_since.is_some_and(|since| since.elapsed() >= CATCH_UP)
    }

    /// Call this once the journal no longer expects the lost commits, or if the plugin no longer has a
    /// database.
    pub fn reset(&self) {
        let mut known = self.lock();
        *known = KnownCommits { newest_ms: known.newest_ms, ..KnownCommits::default() };
    }

    /// Refuses every call of the plugin while commits are missing.
    pub fn check_intact(&self) -> Result<(), GrantError> {
        match self.lock().lacking_since {
            Some(_) => Err(GrantError::Unavailable(LACKING.into())),
            None => Ok(()),
        }
    }
}

impl LateWrite for CommitWatch {
    fn current_write(&self) -> Option<KvWrite> {
        let mut known = self.lock();
        if known.lacking_since.is_some() {
            return None;
        }
        known.is_note_due = false;
        Some(known.as_note().as_write())
    }
}
