//! One connection of the readers' pool, and everything that may be asked of it.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::ports::{DeadLetter, JournalError, Present, Progress, Warm};
use kubewitness_core::views::{
    EpochView, GapQuery, JournalView, PoisonQuery, PoisonView, TimelineQuery, TimelineView,
};
use kubewitness_core::{Gap, Seq, State};
use sqlx::Sqlite;
use sqlx::pool::PoolConnection;

use super::fault::classify;
use super::open::Store;
use super::read::{self, Names};
use super::{backlog, documents, findings, query};
use crate::report::{PoisonRecord, ReplayRecord, SourceCounters};

type Answer<T> = Result<T, JournalError>;

pub(crate) struct Reader<'a> {
    connection: PoolConnection<Sqlite>,
    names: &'a Names,
}

impl Store {
    pub async fn reader<'a>(&self, names: &'a Names) -> Answer<Reader<'a>> {
        let connection = self.readers.acquire().await.map_err(classify)?;
        Ok(Reader { connection, names })
    }
}

impl Reader<'_> {
    pub async fn after(mut self, after: Seq, limit: usize) -> Answer<Vec<Arc<State>>> {
        read::after(&mut self.connection, self.names, after, limit).await
    }

    pub async fn at(mut self, seqs: &[Seq]) -> Answer<Vec<Arc<State>>> {
        read::at(&mut self.connection, self.names, seqs).await
    }

    pub async fn document(mut self, seq: Seq) -> Answer<Option<Bytes>> {
        documents::document(&mut self.connection, self.names, seq).await
    }

    pub async fn document_before(mut self, seq: Seq) -> Answer<Option<Bytes>> {
        documents::before(&mut self.connection, self.names, seq).await
    }

    pub async fn warm(mut self, source: &str) -> Answer<Warm> {
        query::warm(&mut self.connection, self.names, source).await
    }

    pub async fn present(mut self, source: &str, from: u64, limit: usize) -> Answer<Present> {
        query::present(&mut self.connection, self.names, source, from, limit).await
    }

    pub async fn timeline(mut self, query: &TimelineQuery) -> Answer<TimelineView> {
        query::timeline(&mut self.connection, self.names, query).await
    }

    pub async fn stats(mut self, bytes: u64) -> Answer<JournalView> {
        query::stats(&mut self.connection, bytes).await
    }

    pub async fn gaps(mut self) -> Answer<Vec<Gap>> {
        query::gaps(&mut self.connection).await
    }

    pub async fn source_counters(mut self) -> Answer<Vec<SourceCounters>> {
        query::source_counters(&mut self.connection).await
    }

    pub async fn poison(mut self, source: Option<&str>, limit: usize) -> Answer<Vec<PoisonRecord>> {
        query::poison(&mut self.connection, source, limit).await
    }

    pub async fn gaps_of(mut self, query: &GapQuery) -> Answer<Vec<Gap>> {
        findings::gaps(&mut self.connection, query).await
    }

    pub async fn poison_of(mut self, query: &PoisonQuery) -> Answer<Vec<PoisonView>> {
        findings::poison(&mut self.connection, query).await
    }

    pub async fn poison_raw(mut self, number: u64) -> Answer<Option<Vec<u8>>> {
        findings::poison_raw(&mut self.connection, number).await
    }

    pub async fn epochs(mut self) -> Answer<Vec<(String, EpochView)>> {
        findings::epochs(&mut self.connection).await
    }

    pub async fn count(mut self, sources: &[Arc<str>], after: Seq, through: Seq) -> Answer<u64> {
        backlog::count(&mut self.connection, sources, after, through).await
    }

    pub async fn progress(mut self, plugin: &str) -> Answer<Option<Progress>> {
        backlog::progress(&mut self.connection, plugin).await
    }

    pub async fn letters(mut self, plugin: Option<&str>) -> Answer<Vec<DeadLetter>> {
        backlog::letters(&mut self.connection, plugin).await
    }

    pub async fn letters_with_states(
        mut self,
        plugin: Option<&str>,
    ) -> Answer<Vec<(DeadLetter, Arc<State>)>> {
        let letters = backlog::letters(&mut self.connection, plugin).await?;
        let seqs: Vec<_> = letters.iter().map(|letter| letter.seq).collect();
        let states = read::at(&mut self.connection, self.names, &seqs).await?;
        let pair = |letter: DeadLetter| {
            let index = states.binary_search_by_key(&letter.seq, |state| state.seq).ok()?;
            Some((letter, states[index].clone()))
        };
        Ok(letters.into_iter().filter_map(pair).collect())
    }

    pub async fn kv(mut self, plugin: &str) -> Answer<Vec<(String, Vec<u8>)>> {
        backlog::kv(&mut self.connection, plugin).await
    }

    pub async fn replays(mut self, plugin: Option<&str>) -> Answer<Vec<ReplayRecord>> {
        backlog::replays(&mut self.connection, plugin).await
    }
}
