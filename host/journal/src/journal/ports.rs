//! The journal as the watch, the dispatcher and the portal see it: it implements the traits of `core::ports`.

use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::ledger::LedgerProgress;
use kubewitness_core::ports::{
    AppendBatch, AppendResult, AuditDifferences, Backlog, CurrentObject, DeadLetter, DocumentReader,
    FormerEnd, FormerVersion, JournalError, KvWrite, Ledgers, NoteDurability, NoteStore, OtherNamespaces,
    OwedPage, PluginPause, PluginProgress, PresentPage, ProgressSave, StateDocuments, StateWitness,
    WarmStart,
};
use kubewitness_core::views::LetterQuery;
use kubewitness_core::{ObjectRef, Seq, State, Version};
use tokio::sync::{mpsc, watch};

use super::Journal;
use crate::append::group::GroupWork;
use crate::read::account;
use crate::report::ReplayRecord;
use crate::store::rows::{OperatorAct, bounded_i64};

/// Letters of one look, for which the journal's writer waits.
const LETTERS: usize = 1024;

#[async_trait]
impl StateWitness for Journal {
    async fn append_batch(&self, append: AppendBatch) -> Result<AppendResult, JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::Append(append, answer)).await
    }

    async fn load_warm_start(&self, source: &str) -> Result<WarmStart, JournalError> {
        let (parts, mut given) = mpsc::channel(1);
        let collect = async {
            let mut objects = Vec::new();
            while let Some(part) = given.recv().await {
                objects.extend(part);
            }
            objects
        };
        let (warm, objects) = tokio::join!(self.warm_by_parts(source, parts), collect);
        Ok(WarmStart { objects, ..warm? })
    }

    async fn warm_by_parts(
        &self,
        source: &str,
        parts: mpsc::Sender<Vec<CurrentObject>>,
    ) -> Result<WarmStart, JournalError> {
        // Another witness of a shared journal may write states of it meanwhile.
        let through = self.inner.group.newest_now();
        let warm = self.open_reader().await?.load_warm_start(source, parts).await?;
        Ok(WarmStart { through, ..warm })
    }

    async fn shared_standing(&self, source: &str) -> Result<Option<(u32, Option<Version>)>, JournalError> {
        if !self.inner.is_shared {
            return Ok(None);
        }
        let newest = self.open_reader().await?.newest_stream(source).await?;
        Ok(newest.map(|stream| (stream.epoch, stream.checkpoint.as_deref().map(Version::new))))
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared
    }

    fn announce_watch(&self, source: &str, since: Option<(u32, Version)>) {
        self.inner.store.announce_watch(source, since);
    }

    async fn watched_elsewhere(
        &self,
        source: &str,
        epoch: u32,
        before: &Version,
    ) -> Result<Option<String>, JournalError> {
        self.inner.store.watched_elsewhere(source, epoch, before).await
    }

    async fn audit_differences(&self, source: &str) -> Result<AuditDifferences, JournalError> {
        self.open_reader().await?.audit_differences(source).await
    }

    async fn end_of_former(&self, source: &str, epoch: u32, uid: &str) -> Result<FormerEnd, JournalError> {
        self.open_reader().await?.end_of_former(source, epoch, uid).await
    }

    async fn newest_version_within(
        &self,
        source: &str,
        epoch: u32,
        within: RangeInclusive<u64>,
    ) -> Result<Option<FormerVersion>, JournalError> {
        self.open_reader().await?.newest_version_within(source, epoch, &within).await
    }
}

#[async_trait]
impl Backlog for Journal {
    fn newest_position(&self) -> watch::Receiver<Seq> {
        self.inner.group.newest_position()
    }

    async fn read(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, JournalError> {
        let newest = self.inner.group.newest_now();
        if after >= newest {
            return Ok(Vec::new());
        }
        let recent =
            self.inner.recent.read().unwrap_or_else(PoisonError::into_inner).states_after(after, limit);
        match recent {
            Some(states) => Ok(states),
            None => self.open_reader().await?.states_after(after, limit, newest).await,
        }
    }

    async fn read_outside(
        &self,
        after: Seq,
        through: Seq,
        limit: usize,
        namespaces: &[String],
    ) -> Result<OtherNamespaces, JournalError> {
        let newest = self.inner.group.newest_now();
        let recent =
            self.inner.recent.read().unwrap_or_else(PoisonError::into_inner).states_after(after, limit);
        match recent {
            Some(states) => Ok(OtherNamespaces::of(states, through, limit, namespaces)),
            None => {
                self.open_reader().await?.states_outside((after, through), limit, namespaces, newest).await
            }
        }
    }

    async fn read_at(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError> {
        let newest = self.inner.group.newest_now();
        self.open_reader().await?.states_at(seqs, newest).await
    }

    async fn present_objects(
        &self,
        source: &str,
        from: u64,
        limit: usize,
    ) -> Result<PresentPage, JournalError> {
        self.open_reader().await?.present_objects(source, from, limit, self.inner.group.newest_now()).await
    }

    async fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Result<u64, JournalError> {
        let newest = self.inner.group.newest_now();
        let recent =
            self.inner.recent.read().unwrap_or_else(PoisonError::into_inner).count(sources, after, through);
        match recent {
            Some(count) => Ok(count),
            None => self.open_reader().await?.count(sources, after, through, newest).await,
        }
    }

    async fn plugin_progress(&self, plugin: &str) -> Result<Option<PluginProgress>, JournalError> {
        let asked = self.inner.group.query_plugin_data(plugin, |rows, plugin| {
            Box::pin(async move {
                let Some(mut progress) = rows.plugin_progress(plugin).await? else { return Ok(None) };
                let removed = rows.retention_reader().removed_counts().await?.letters;
                progress.removed_letters = removed.get(plugin).copied().unwrap_or_default();
                Ok(Some(progress))
            })
        });
        asked.await
    }

    async fn save(&self, plugin: &str, save: ProgressSave) -> Result<(), JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::Save(plugin.to_owned(), save, answer)).await
    }

    async fn dead_letters(&self, plugin: &str) -> Result<Vec<DeadLetter>, JournalError> {
        let (mut letters, mut cursor) = (Vec::new(), None);
        loop {
            let query = LetterQuery { cursor, limit: Some(LETTERS), ..LetterQuery::of(plugin) };
            let asked = self.inner.group.query_plugin_data(plugin, |rows, _| {
                Box::pin(async move { rows.dead_letters(&query).await })
            });
            let part = asked.await?;
            let is_last = part.len() < LETTERS;
            cursor = part.last().map(LetterCursor::from);
            letters.extend(part);
            if is_last {
                return Ok(letters);
            }
        }
    }

    async fn owed_states(&self, plugin: &str, from: Seq, limit: usize) -> Result<OwedPage, JournalError> {
        let most = bounded_i64(limit as u64);
        let asked = self.inner.group.query_plugin_data(plugin, move |rows, plugin| {
            rows.owed_positions(plugin, bounded_i64(from), most)
        });
        let seqs: Vec<Seq> = asked.await?.into_iter().map(|seq| seq as Seq).collect();
        let end = seqs.last().copied().filter(|_| seqs.len() >= limit);
        Ok(OwedPage { states: self.read_at(&seqs).await?, end })
    }

    async fn mark_replaying(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.record_operator_act(OperatorAct::Replay, plugin, seqs, who, why).await
    }

    async fn mark_dropped(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.record_operator_act(OperatorAct::Drop, plugin, seqs, who, why).await
    }

    async fn plugin_pause(&self, plugin: &str) -> Result<Option<PluginPause>, JournalError> {
        let pauses = self.inner.group.query_plugin_data(plugin, |rows, _| rows.pauses_in_force()).await?;
        Ok(pauses.into_iter().find(|record| record.plugin == plugin).map(ReplayRecord::into_pause))
    }

    async fn mark_paused(
        &self,
        plugin: &str,
        pauses: bool,
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        let act = if pauses { OperatorAct::Pause } else { OperatorAct::Resume };
        self.record_operator_act(act, plugin, &[], who, why).await
    }

    async fn plugin_kv(&self, plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
        self.inner.group.query_plugin_data(plugin, |rows, plugin| rows.plugin_kv(plugin)).await
    }

    async fn await_earlier_writes(&self) -> Result<(), JournalError> {
        self.inner.group.submit_work(GroupWork::Settle).await
    }
}

#[async_trait]
impl NoteStore for Journal {
    async fn save_notes(
        &self,
        plugin: &str,
        notes: Vec<KvWrite>,
        kept: NoteDurability,
    ) -> Result<(), JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::Note(plugin.to_owned(), notes, kept, answer)).await
    }

    fn note_later(&self, plugin: &str, notes: Vec<KvWrite>) {
        self.inner.group.note_later(plugin, notes);
    }
}

#[async_trait]
impl Ledgers for Journal {
    async fn ledger_progress(&self, ledger: &str) -> Result<Option<LedgerProgress>, JournalError> {
        account::ledger_progress_in(self.plugin_kv(account::LEDGERS).await?, ledger)
    }

    async fn save_ledger_progress(&self, ledger: &str, reached: &LedgerProgress) -> Result<(), JournalError> {
        let value = serde_json::to_vec(reached).map_err(|error| JournalError::Invalid(error.to_string()))?;
        let note = KvWrite { key: account::ledger_key(ledger), value: Some(value) };
        self.save_notes(account::LEDGERS, vec![note], NoteDurability::ProcessCrash).await
    }
}

#[async_trait]
impl DocumentReader for Journal {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        let found = self.open_reader().await?.document_at(seq, self.inner.group.newest_now()).await?;
        Ok(found.filter(|document| !document.is_empty()))
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.open_reader().await?.document_before(seq, self.inner.group.newest_now()).await
    }

    async fn read_ahead(&self, seqs: &[Seq], has_before: bool) -> Result<Vec<StateDocuments>, JournalError> {
        let known = Arc::clone(&self.inner.documents);
        self.open_reader().await?.documents_ahead(seqs, has_before, known).await
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        self.open_reader().await?.newest_of(object).await
    }
}
