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
    OwedPage, PluginPause, PluginProgress, PresentPage, ProgressSave, StateWitness, WarmStart,
};
use kubewitness_core::views::LetterQuery;
use kubewitness_core::{ObjectRef, Seq, State, Version};
use tokio::sync::{mpsc, watch};

use super::Journal;
use crate::append::group::GroupWork;
use crate::read::account;
use crate::report::ReplayRecord;
use crate::store::rows::{OperatorAct, bounded};

/// Letters of one look, for which the journal's writer waits.
const LETTERS: usize = 1024;

#[async_trait]
impl StateWitness for Journal {
    async fn append(&self, append: AppendBatch) -> Result<AppendResult, JournalError> {
        self.inner.group.submit(|answer| GroupWork::Append(append, answer)).await
    }

    async fn warm(&self, source: &str) -> Result<WarmStart, JournalError> {
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
        let warm = self.reader().await?.warm(source, parts).await?;
        Ok(WarmStart { through, ..warm })
    }

    async fn standing(&self, source: &str) -> Result<Option<(u32, Option<Version>)>, JournalError> {
        if !self.inner.is_shared {
            return Ok(None);
        }
        let newest = self.reader().await?.newest_stream(source).await?;
        Ok(newest.map(|stream| (stream.epoch, stream.checkpoint.as_deref().map(Version::new))))
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared
    }

    fn watches(&self, source: &str, since: Option<(u32, Version)>) {
        self.inner.store.watches(source, since);
    }

    async fn watched_elsewhere(
        &self,
        source: &str,
        epoch: u32,
        before: &Version,
    ) -> Result<Option<String>, JournalError> {
        self.inner.store.watched_elsewhere(source, epoch, before).await
    }

    async fn discrepancies(&self, source: &str) -> Result<AuditDifferences, JournalError> {
        self.reader().await?.discrepancies(source).await
    }

    async fn fate(&self, source: &str, epoch: u32, uid: &str) -> Result<FormerEnd, JournalError> {
        self.reader().await?.fate(source, epoch, uid).await
    }

    async fn former(
        &self,
        source: &str,
        epoch: u32,
        within: RangeInclusive<u64>,
    ) -> Result<Option<FormerVersion>, JournalError> {
        self.reader().await?.former(source, epoch, &within).await
    }
}

#[async_trait]
impl Backlog for Journal {
    fn newest(&self) -> watch::Receiver<Seq> {
        self.inner.group.newest()
    }

    async fn read(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, JournalError> {
        let newest = self.inner.group.newest_now();
        if after >= newest {
            return Ok(Vec::new());
        }
        let recent = self.inner.recent.read().unwrap_or_else(PoisonError::into_inner).after(after, limit);
        match recent {
            Some(states) => Ok(states),
            None => self.reader().await?.after(after, limit, newest).await,
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
        let recent = self.inner.recent.read().unwrap_or_else(PoisonError::into_inner).after(after, limit);
        match recent {
            Some(states) => Ok(OtherNamespaces::of(states, through, limit, namespaces)),
            None => self.reader().await?.outside((after, through), limit, namespaces, newest).await,
        }
    }

    async fn read_at(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError> {
        let newest = self.inner.group.newest_now();
        self.reader().await?.at(seqs, newest).await
    }

    async fn present(&self, source: &str, from: u64, limit: usize) -> Result<PresentPage, JournalError> {
        self.reader().await?.present(source, from, limit, self.inner.group.newest_now()).await
    }

    async fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Result<u64, JournalError> {
        let newest = self.inner.group.newest_now();
        let recent =
            self.inner.recent.read().unwrap_or_else(PoisonError::into_inner).count(sources, after, through);
        match recent {
            Some(count) => Ok(count),
            None => self.reader().await?.count(sources, after, through, newest).await,
        }
    }

    async fn progress(&self, plugin: &str) -> Result<Option<PluginProgress>, JournalError> {
        self.inner.group.ask(plugin, |rows, plugin| rows.progress(plugin)).await
    }

    async fn save(&self, plugin: &str, save: ProgressSave) -> Result<(), JournalError> {
        self.inner.group.submit(|answer| GroupWork::Save(plugin.to_owned(), save, answer)).await
    }

    async fn dead_letters(&self, plugin: &str) -> Result<Vec<DeadLetter>, JournalError> {
        let (mut letters, mut cursor) = (Vec::new(), None);
        loop {
            let query = LetterQuery { cursor, limit: Some(LETTERS), ..LetterQuery::of(plugin) };
            let asked =
                self.inner.group.ask(plugin, |rows, _| Box::pin(async move { rows.letters(&query).await }));
            let part = asked.await?;
            let is_last = part.len() < LETTERS;
            cursor = part.last().map(LetterCursor::from);
            letters.extend(part);
            if is_last {
                return Ok(letters);
            }
        }
    }

    async fn owed(&self, plugin: &str, from: Seq, limit: usize) -> Result<OwedPage, JournalError> {
        let most = bounded(limit as u64);
        let asked = self.inner.group.ask(plugin, move |rows, plugin| rows.owed(plugin, bounded(from), most));
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
        self.act(OperatorAct::Replay, plugin, seqs, who, why).await
    }

    async fn mark_dropped(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.act(OperatorAct::Drop, plugin, seqs, who, why).await
    }

    async fn paused(&self, plugin: &str) -> Result<Option<PluginPause>, JournalError> {
        let pauses = self.inner.group.ask(plugin, |rows, _| rows.pauses()).await?;
        Ok(pauses.into_iter().find(|record| record.plugin == plugin).map(ReplayRecord::paused))
    }

    async fn mark_paused(
        &self,
        plugin: &str,
        pauses: bool,
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        let act = if pauses { OperatorAct::Pause } else { OperatorAct::Resume };
        self.act(act, plugin, &[], who, why).await
    }

    async fn kv(&self, plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
        self.inner.group.ask(plugin, |rows, plugin| rows.kv(plugin)).await
    }

    async fn settle(&self) -> Result<(), JournalError> {
        self.inner.group.submit(GroupWork::Settle).await
    }
}

#[async_trait]
impl NoteStore for Journal {
    async fn note(
        &self,
        plugin: &str,
        notes: Vec<KvWrite>,
        kept: NoteDurability,
    ) -> Result<(), JournalError> {
        self.inner.group.submit(|answer| GroupWork::Note(plugin.to_owned(), notes, kept, answer)).await
    }

    fn note_later(&self, plugin: &str, notes: Vec<KvWrite>) {
        self.inner.group.note_later(plugin, notes);
    }
}

#[async_trait]
impl Ledgers for Journal {
    async fn reached(&self, ledger: &str) -> Result<Option<LedgerProgress>, JournalError> {
        account::reached(self.kv(account::LEDGERS).await?, ledger)
    }

    async fn reach(&self, ledger: &str, reached: &LedgerProgress) -> Result<(), JournalError> {
        let value = serde_json::to_vec(reached).map_err(|error| JournalError::Invalid(error.to_string()))?;
        let note = KvWrite { key: account::ledger_key(ledger), value: Some(value) };
        self.note(account::LEDGERS, vec![note], NoteDurability::ProcessCrash).await
    }
}

#[async_trait]
impl DocumentReader for Journal {
    async fn document(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        let found = self.reader().await?.document(seq, self.inner.group.newest_now()).await?;
        Ok(found.filter(|document| !document.is_empty()))
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.reader().await?.document_before(seq, self.inner.group.newest_now()).await
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        self.reader().await?.newest_of(object).await
    }
}
