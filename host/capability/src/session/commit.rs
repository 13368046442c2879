//! Commits the effects of a call together. The parent module describes the order.

use kubewitness_core::Seq;
use kubewitness_core::ports::{GrantError, KvWrites};
use ring::rand::{SecureRandom, SystemRandom};

use super::CallSession;
use super::granted::{PluginAccess, ReceiptTracker};
use crate::kv;
use crate::ledger::book::DecidingTransaction;
use crate::ledger::{LedgerHold, PendingRecords};
use crate::receipts::ReceiptMark;
use crate::sql::receipt::{StoredReceipt, TICK};
use crate::sql::{CommitError, SqlTransaction};

/// Unless it is dropped as resolved, the receipts are read again before the next call.
struct CommitDoubt<'a>(Option<&'a ReceiptTracker>);

impl Drop for CommitDoubt<'_> {
    fn drop(&mut self) {
        if let Some(standing) = self.0 {
            standing.mark_stale();
        }
    }
}

impl CallSession {
    /// Fails if the call must not count, whatever the plugin answered.
    async fn check_may_count(&mut self) -> Result<(), GrantError> {
        if let Some(error) = self.unreachable.take().or_else(|| self.outbound.needs_split()) {
            return Err(error);
        }
        if let Some(idle) = self.sql.take_if(|transaction| !transaction.has_writes()) {
            idle.roll_back().await;
        }
        self.sql.as_ref().map_or(Ok(()), |transaction| transaction.check_intact())
    }

    /// The answer to a request stays noted until the verdict of its state counts, so that a state that is
    /// delivered again does not send it twice.
    pub(super) async fn discard_effects(
        mut self: Box<Self>,
        settled: &[Seq],
    ) -> Result<KvWrites, GrantError> {
        self.check_may_count().await?;
        if let Some(transaction) = self.sql.take() {
            transaction.roll_back().await;
        }
        let granted = self.granted.clone();
        let mut writes = KvWrites::default();
        if let Some(kv) = &granted.kv {
            let nothing = kv.open();
            let turn = nothing.take_turn().await;
            writes = nothing.commit_writes(settled, None, turn, granted.clock.elapsed());
        }
        writes.extend(granted.outbox.remove_notes(settled));
        Ok(writes)
    }

    pub(super) async fn commit_done(mut self: Box<Self>, done: &[Seq]) -> Result<KvWrites, GrantError> {
        let mut receipt = self.make_receipt(self.receipt_marks(done)?)?;
        self.check_may_count().await?;
        if let Some(kv) = &self.kv {
            kv.check_size()?;
        }
        let wrote = self.sql.is_some() || self.ledger.as_ref().is_some_and(LedgerHold::has_records);
        let granted = self.granted.clone();
        if self.outbound.has_sent() {
            granted.outbox.flush_answers().await;
        }
        let (mut noted, mut late, mut doubt) = (None, None, CommitDoubt(None));
        if wrote {
            noted = note_kv(&granted, self.kv.as_ref(), &receipt).await?;
            doubt.0 = Some(&granted.standing);
            let written = self.write_ledger(&receipt).await?;
            let commits = &granted.standing.commits;
            let sent = self.sql.as_ref().map(|_| commits.begin_commit(&mut receipt, self.is_repeated));
            commit_rows_and_records(self.sql.take(), written, &receipt).await?;
            granted.standing.note_applied(&receipt.marks);
            if let Some(sent) = sent {
                commits.note_commit(sent, &receipt);
                late = Some(commits.clone());
            }
        }
        let seqs = self.batch_seqs();
        let mut writes = KvWrites::default();
        if let Some(kv) = self.kv.take() {
            // The lock is taken this late because a holder could wait for locks that a database releases only
            // for the next call.
            let turn = kv.take_turn().await;
            writes = kv.commit_writes(&seqs, noted, turn, granted.clock.elapsed());
        }
        doubt.0 = None;
        if late.is_none() && granted.standing.commits.is_note_due() {
            late = Some(granted.standing.commits.clone());
        }
        writes.extend(granted.outbox.remove_notes(&seqs));
        if self.ends.is_some() {
            writes.extend(granted.outbox.end_tick(&self.outbound));
        }
        if let Some(late) = late {
            writes.end_with_late(late);
        }
        Ok(writes)
    }

    /// The receipts of the done states, in order of position.
    pub(super) fn receipt_marks(&self, done: &[Seq]) -> Result<Vec<ReceiptMark>, GrantError> {
        let mark = |seq: &Seq| match self.batch.get(seq) {
            Some(mark) => Ok(*mark),
            None => Err(GrantError::Other(format!("state {seq} is not one of this call's"))),
        };
        let mut marks = done.iter().map(mark).collect::<Result<Vec<_>, _>>()?;
        marks.sort_unstable_by_key(|mark| mark.seq);
        marks.dedup();
        Ok(marks)
    }

    pub(super) fn make_receipt(&self, marks: Vec<ReceiptMark>) -> Result<StoredReceipt, GrantError> {
        let mut random = [0; 16];
        let filled = SystemRandom::new().fill(&mut random);
        filled.map_err(|_| GrantError::Unavailable("the machine has no randomness".into()))?;
        let kind = if self.ends.is_some() { TICK } else { "" };
        let token = format!("{}.{kind}{}", self.granted.plugin, hex::encode(random));
        let (plugin, claims) = (self.granted.plugin.clone(), self.claims.clone());
        let (position, at_ms) = (self.granted.standing.newest_position(), self.granted.clock.now_ms());
        Ok(StoredReceipt { plugin, marks, token, position, at_ms, replaces: Vec::new(), claims })
    }

    /// Writes the ledger's records to disk; they count once the database, if any, commits.
    pub(super) async fn write_ledger(
        &mut self,
        receipt: &StoredReceipt,
    ) -> Result<Option<PendingRecords>, GrantError> {
        let Some(held) = self.ledger.take().filter(LedgerHold::has_records) else { return Ok(None) };
        let decider = match (&self.sql, self.granted.sql.values().next()) {
            // Without a receipt, no decider could be asked about the append.
            (Some(_), Some(database)) if !receipt.marks.is_empty() => {
                Some(DecidingTransaction { database: database.name.clone(), token: receipt.token.clone() })
            }
            _ => None,
        };
        held.write(&receipt.plugin, &receipt.marks, decider).await.map(Some)
    }
}

/// Notes the writes to `kv` before the receipt: the receipt commits before `kv` is saved.
async fn note_kv(
    granted: &PluginAccess,
    kv: Option<&kv::CallOverlay>,
    receipt: &StoredReceipt,
) -> Result<Option<u64>, GrantError> {
    let marks: Vec<_> = receipt.marks.iter().map(|mark| (mark.seq, mark.print)).collect();
    let Some((number, note)) = kv.and_then(|kv| kv.note_before_commit(&marks, granted.clock.elapsed()))
    else {
        return Ok(None);
    };
    granted.outbox.save_note(note).await?;
    Ok(Some(number))
}

/// Commits the rows; the ledger follows the result.
async fn commit_rows_and_records(
    transaction: Option<Box<dyn SqlTransaction>>,
    written: Option<PendingRecords>,
    receipt: &StoredReceipt,
) -> Result<(), GrantError> {
    if let Some(transaction) = transaction {
        transaction.commit_with_receipt(receipt).await.map_err(|error| match error {
            CommitError::RolledBack(error) => error,
            CommitError::InDoubt(error) => {
                GrantError::Unavailable(format!("the commit is in doubt: {error}"))
            }
        })?;
    }
    match written {
        Some(written) => written.keep_records().await,
        None => Ok(()),
    }
}
