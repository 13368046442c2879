//! The one connection that writes. It holds a lock, and compares the journal's epoch and its commits in every
//! transaction.

use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::ports::JournalError;

use super::connect::commits::{self, AFTER_A_COPY, CommitIdentity, emptied_table_error};
use super::connect::lock::{
    LockAttempt, LockRight, acquire_lock, describe_this_process, end_own, holding_session, own_number,
    own_number_expression, release_lock,
};
use super::connect::pooler;
use super::connect::replicas::{self, ReplicaSharing};
use super::connect::server::{ServerAddress, SessionRefusal};
use super::connect::session::ServerSession;
use super::connect::watches::{self, ReplicaWatches, WatchEdition};
use super::schema;
use super::statements::lookup;
use crate::store::format::with_mark;
use crate::store::memory::{FoundObject, ObjectIdentity, StoreMemory};
use crate::store::rows::removal::{RemovalPlan, RemovedCounts, UnusedRows};
use crate::store::rows::{KnownKeys, RowBatch, StateKey, StoreResult};
use crate::store::{PluginWrites, StoreReader, StoreWriter, TransactionStart};

const COMMIT: &str = "COMMIT";
const REMOVED: &str = "DELETE FROM kw_taken WHERE plugin = ?";
/// Runs if other processes have to learn of the commit.
const COMMIT_NEWS: &str = "UPDATE kw_journal SET epoch = epoch + 1 WHERE id = 1; COMMIT";

/// A replica's share of a journal.
pub(super) struct ReplicaShare {
    sharing: ReplicaSharing,
    slot: u8,
    /// The term in which it writes what plugins save.
    term: Option<i64>,
    watches: Arc<ReplicaWatches>,
    /// The announcement in the current transaction.
    announcing: Option<WatchEdition>,
}

impl ReplicaShare {
    pub fn new(sharing: ReplicaSharing, slot: u8) -> Self {
        let watches = ReplicaWatches::of(&sharing.name).into();
        Self { sharing, slot, term: None, watches, announcing: None }
    }

    pub fn replica_watches(&self) -> Arc<ReplicaWatches> {
        Arc::clone(&self.watches)
    }
}

pub(crate) struct ServerWriter {
    server: ServerAddress,
    session: ServerSession,
    /// The server's number of the session.
    number: i64,
    /// Its own epoch. For a replica, the epoch up to which it knows what was written.
    epoch: i64,
    /// The epoch that the present transaction found.
    found: i64,
    /// The commits that are known.
    known: CommitIdentity,
    /// The commits that will be known once the present transaction is committed.
    under_way: CommitIdentity,
    clock: Arc<dyn Clock>,
    /// `None` if it has the journal for itself.
    share: Option<ReplicaShare>,
}

impl ServerWriter {
    /// Makes the writer from a session that holds the lock, on tables of this format. A writer that does not
    /// share the journal begins a new epoch.
    pub(super) async fn new(
        server: ServerAddress,
        mut session: ServerSession,
        clock: Arc<dyn Clock>,
        share: Option<ReplicaShare>,
    ) -> StoreResult<Self> {
        let number = own_number(&mut session).await?;
        let rows = session.fetch_rows("SELECT epoch FROM kw_journal WHERE id = 1", Vec::new()).await?;
        let last = rows.first().map_or(Ok(0), |row| row.int_at(0))?;
        let known = commits::begin_line(&mut session, None).await?;
        let (epoch, found, under_way) = (last, last, known);
        let mut writer = Self { server, session, number, epoch, found, known, under_way, clock, share };
        if writer.share.is_none() {
            writer.next_epoch().await?;
        }
        Ok(writer)
    }

    /// Only from the known epoch, because another process may have begun one.
    async fn next_epoch(&mut self) -> StoreResult<()> {
        let session = &mut self.session;
        let text = "UPDATE kw_journal SET epoch = ?, holder = ?, since_ms = ? WHERE id = 1 AND epoch = ?";
        let (next, now) = (self.epoch + 1, self.clock.now_ms() as i64);
        let params =
            vec![next.into(), describe_this_process().as_str().into(), now.into(), self.epoch.into()];
        session.fetch_rows(text, params).await?;
        let rows =
            session.fetch_rows("SELECT epoch, holder FROM kw_journal WHERE id = 1", Vec::new()).await?;
        let Some(mut row) = rows.into_iter().next() else {
            return Err(emptied_table_error());
        };
        let (epoch, holder) = (row.int_at(0)?, row.text(1)?);
        if epoch != next || holder != describe_this_process() {
            return Err(taken_over_error(&holder, epoch, self.epoch));
        }
        (self.epoch, self.found) = (next, next);
        Ok(())
    }

    fn lock_right(&self) -> LockRight {
        self.share.as_ref().map_or(LockRight::Whole, |share| LockRight::Replica(share.slot))
    }

    /// Ends the transaction. `news` is set if others have to learn of it.
    async fn finish_transaction(&mut self, news: bool) -> StoreResult<()> {
        let news = news && self.share.is_some();
        self.session.run_script(if news { COMMIT_NEWS } else { COMMIT }).await?;
        self.known = self.under_way;
        // Nobody else has written in between.
        if news && self.epoch == self.found {
            self.epoch += 1;
        }
        if let Some(share) = &mut self.share {
            share.watches.mark_announced(share.announcing.take());
        }
        Ok(())
    }

    /// Announces changes of this replica's watches to the other replicas.
    async fn announce_watches(&mut self) -> StoreResult<()> {
        let Some(share) = &mut self.share else { return Ok(()) };
        let Some((edition, text)) = share.watches.unannounced_changes() else { return Ok(()) };
        watches::announce_watches(&mut self.session, share.slot, &text).await?;
        share.announcing = Some(edition);
        Ok(())
    }

    /// Takes a replica's seat again after a reconnect. Only the holder of the journal's own lock may join.
    async fn rejoin_replicas(&mut self, session: &mut ServerSession) -> StoreResult<()> {
        replicas::end_stalled(session, self.lock_right()).await?;
        let Some(share) = &self.share else { return Ok(()) };
        if let LockAttempt::Others(holder) = replicas::join_replicas(session, &share.sharing).await? {
            return Err(replicas::cannot_join_error(&holder.name));
        }
        // As long as the old session lives, the fate of its transaction is undecided.
        let old = holding_session(session, self.lock_right()).await?;
        if old == Some(self.number) {
            return Err(JournalError::Unavailable(
                "the server has not ended the lost session of this process yet".into(),
            ));
        }
        let Some(share) = &mut self.share else { return Ok(()) };
        let slot =
            replicas::take_replica_slot(session, &share.sharing, share.term, self.clock.now_ms()).await?;
        let full = || JournalError::Unavailable(format!("{} replicas share the journal", replicas::MOST));
        share.slot = slot.ok_or_else(full)?;
        share.announcing = None;
        share.watches.forget_watches();
        release_lock(session, LockRight::Whole).await
    }

    /// Takes the journal's lock again after a reconnect.
    async fn reacquire_lock(&mut self, session: &mut ServerSession) -> StoreResult<()> {
        let LockAttempt::Others(holder) = acquire_lock(session, LockRight::Whole).await? else {
            return Ok(());
        };
        // The epoch shows who it is, and whether it is a writer.
        let rows = session.fetch_rows("SELECT epoch FROM kw_journal WHERE id = 1", Vec::new()).await?;
        let epoch = rows.first().map_or(Ok(0), |row| row.int_at(0))?;
        if epoch != self.epoch {
            return Err(taken_over_error(&holder.name, epoch, self.epoch));
        }
        Err(JournalError::Unavailable("another session has the journal's lock".into()))
    }

    /// Begins a transaction in which nobody else can become the writer.
    async fn begin_fenced(&mut self) -> StoreResult<TransactionFence> {
        // The second statement sees what was committed while the first one waited.
        let number = own_number_expression(self.session.dialect());
        let newest = if self.share.is_some() { ", (SELECT max(seq) FROM kw_states)" } else { "" };
        let text = format!(
            "START TRANSACTION; {}; SELECT epoch, holder, term, {number}, moves, line{newest} FROM kw_journal \
             WHERE id = 1",
            commits::MOVE
        );
        let Some(mut row) = self.session.run_script_for_rows(&text).await?.into_iter().next() else {
            return Err(emptied_table_error());
        };
        // The lock belongs to the session that opened the journal.
        if row.int_at(3)? != self.number {
            return Err(JournalError::Unavailable(format!("{}; {}", pooler::LENT, pooler::REMEDY)));
        }
        let epoch = row.int_at(0)?;
        if epoch < self.epoch || (epoch != self.epoch && self.share.is_none()) {
            return Err(taken_over_error(&row.text(1)?, epoch, self.epoch));
        }
        let found = CommitIdentity::before_move(row.int_at(4)?, row.int_at(5)?);
        commits::expect_known_commit(&mut self.session, found, self.known).await?;
        (self.found, self.known, self.under_way) = (epoch, found, found.next());
        let newest = if self.share.is_some() { row.optional_int(6)? } else { None };
        Ok(TransactionFence { term: row.int_at(2)?, newest: newest.unwrap_or(0) as Seq })
    }
}

/// The facts that a transaction reads as it begins.
struct TransactionFence {
    term: i64,
    /// The newest state, if others may write as well.
    newest: Seq,
}

/// The error for an epoch that is not ours. Epochs only ascend: an earlier one comes from another time or
/// another journal.
fn taken_over_error(holder: &str, epoch: i64, mine: i64) -> JournalError {
    if epoch < mine {
        return JournalError::Fatal(format!(
            "the journal's epoch is {epoch}, and it was {mine}: somebody put an older copy in its place, or began a \
             new journal there, while this process wrote. {AFTER_A_COPY}"
        ));
    }
    JournalError::Fatal(format!(
        "{holder} writes to this journal now (its epoch {epoch} came after ours, {mine}): this process has stopped \
         writing, and nothing that it acknowledged is lost; stop one of the two"
    ))
}

#[async_trait]
impl StoreWriter for ServerWriter {
    /// The lock decides: as long as the old session lives, it holds the lock.
    async fn reconnect(&mut self) -> StoreResult<()> {
        let mut session = self.server.dial_directly().await.map_err(SessionRefusal::into_error)?;
        self.server.make_durable(&mut session).await?;
        let number = own_number(&mut session).await?;
        end_own(&mut session, self.lock_right(), self.number).await?;
        match self.share {
            Some(_) => self.rejoin_replicas(&mut session).await?,
            None => self.reacquire_lock(&mut session).await?,
        }
        (self.session, self.number) = (session, number);
        // The previous transaction may have been committed, and others may have written since.
        self.known = commits::begin_line(&mut self.session, Some(self.known)).await?;
        match self.share {
            Some(_) => Ok(()),
            None => self.next_epoch().await,
        }
    }

    async fn begin_transaction(&mut self) -> StoreResult<TransactionStart> {
        let TransactionFence { term, newest } = self.begin_fenced().await?;
        self.announce_watches().await?;
        Ok(match &self.share {
            None => TransactionStart::ALONE,
            Some(share) => TransactionStart {
                is_stale: self.found != self.epoch,
                dispatches: share.term == Some(term),
                newest: Some(newest),
            },
        })
    }

    /// A term that does not belong to this process is left alone, because it may already be the next one's.
    async fn set_leadership(&mut self, leads: bool) -> StoreResult<()> {
        let Some(share) = &mut self.share else { return Ok(()) };
        let (slot, mine) = (share.slot, share.term.take());
        let TransactionFence { term, .. } = self.begin_fenced().await?;
        if leads {
            replicas::begin_term(&mut self.session, slot, term + 1).await?;
        } else if mine == Some(term) {
            replicas::end_term(&mut self.session).await?;
        }
        self.finish_transaction(false).await?;
        if let Some(share) = self.share.as_mut().filter(|_| leads) {
            share.term = Some(term + 1);
        }
        Ok(())
    }

    async fn elect_by(&mut self, lease: &str) -> StoreResult<()> {
        let Some(share) = &mut self.share else { return Ok(()) };
        lease.clone_into(&mut share.sharing.lease);
        let slot = share.slot;
        self.begin_fenced().await?;
        replicas::elect_by(&mut self.session, slot, lease).await?;
        self.finish_transaction(false).await
    }

    async fn mark_import(&mut self, unfinished: bool) -> StoreResult<()> {
        self.begin_fenced().await?;
        let format = with_mark(schema::VERSION, unfinished);
        self.session.fetch_rows("UPDATE kw_journal SET format = ? WHERE id = 1", vec![format.into()]).await?;
        self.finish_transaction(false).await
    }

    async fn forget_plugin(&mut self, plugin: &str) -> StoreResult<()> {
        self.begin_fenced().await?;
        for text in [
            "DELETE FROM kw_plugins WHERE name = ?",
            "DELETE FROM kw_letters WHERE plugin = ?",
            "DELETE FROM kw_kv WHERE plugin = ?",
            REMOVED,
        ] {
            self.session.fetch_rows(text, vec![plugin.into()]).await?;
        }
        let letters = RemovedCounts::letters_key(plugin);
        self.session.fetch_rows(REMOVED, vec![letters.as_str().into()]).await?;
        self.finish_transaction(false).await
    }

    async fn load_memory(&mut self) -> StoreResult<StoreMemory> {
        let memory = lookup::load_memory(&mut self.session).await?;
        self.epoch = self.found;
        Ok(memory)
    }

    async fn find_chain_ends(
        &mut self,
        memory: &StoreMemory,
        strangers: Vec<ObjectIdentity>,
    ) -> StoreResult<Vec<FoundObject>> {
        lookup::find_chain_ends(&mut self.session, memory, strangers).await
    }

    async fn find_known_keys(&mut self, questions: Vec<(i64, StateKey)>) -> StoreResult<KnownKeys> {
        lookup::find_known_keys(&mut self.session, questions).await
    }

    /// An error leaves the session as it is: the next batch begins with another session, and the open
    /// transaction of this one is rolled back.
    async fn commit_rows(&mut self, rows: Option<RowBatch>, left: &PluginWrites<'_>) -> StoreResult<()> {
        let news = rows.is_some();
        self.session.write(rows, left).await?;
        self.finish_transaction(news).await
    }

    async fn end_transaction(&mut self) -> StoreResult<()> {
        match self.share.as_ref().is_some_and(|share| share.announcing.is_some()) {
            true => self.finish_transaction(false).await,
            false => self.session.run_script("ROLLBACK").await,
        }
    }

    fn store_reader(&mut self) -> &mut dyn StoreReader {
        &mut self.session
    }

    /// Nothing has to be announced: replicas don't cache rows that retention removes.
    async fn remove(&mut self, removal: &RemovalPlan) -> StoreResult<()> {
        self.session.remove(removal).await?;
        self.finish_transaction(false).await
    }

    async fn sweep_unused_rows(&mut self, sweep: &UnusedRows) -> StoreResult<()> {
        self.session.sweep_unused_rows(sweep).await?;
        self.finish_transaction(true).await
    }

    async fn maintain_store(&mut self) {}

    async fn close(self: Box<Self>) -> StoreResult<()> {
        // The lock ends with the session.
        drop(self);
        Ok(())
    }

    fn abandon_store(self: Box<Self>) {}

    #[cfg(test)]
    async fn limit_pages(&mut self, _: Option<i64>) -> StoreResult<()> {
        Err(JournalError::Invalid("only a file has pages".into()))
    }
}
