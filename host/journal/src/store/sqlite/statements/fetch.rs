//! The trait `StoreReader`: the statements that read, by name.

use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::ports::{DeadLetter, PluginProgress};
use kubewitness_core::views::{EpochView, GapQuery, JournalView, LetterQuery, PoisonQuery, PoisonView};
use kubewitness_core::{Gap, Seq};
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqliteConnection};

use super::{backlog, checksums, findings, proof, query, read};
use crate::report::{PoisonRecord, ReplayRecord, SourceCounters};
use crate::store::rows::checksum::{SumCell, SummedTable};
use crate::store::rows::{
    ChainStep, CurrentRow, EndRow, KeptSnapshot, LiveRow, NamedObject, ObjectChoice, ObjectEnds,
    PlacedObject, SourceEpoch, StateEnvelope, StoreResult, StoredDocument, StoredRow,
};
use crate::store::sqlite::block_reader::BlockReader;
use crate::store::sqlite::fault::classify;
use crate::store::{OwnedKind, RetentionReader, StoreConnection, StoreReader};

async fn begin(connection: &mut SqliteConnection) -> StoreResult<()> {
    sqlx::raw_sql("BEGIN").execute(connection).await.map(drop).map_err(classify)
}

async fn end(connection: &mut SqliteConnection) -> StoreResult<()> {
    sqlx::raw_sql("ROLLBACK").execute(connection).await.map(drop).map_err(classify)
}

/// A connection of the pool.
pub(crate) struct LentConnection {
    connection: PoolConnection<Sqlite>,
    blocks: Arc<BlockReader>,
    in_snapshot: bool,
}

impl LentConnection {
    pub(in crate::store::sqlite) fn new(
        connection: PoolConnection<Sqlite>,
        blocks: Arc<BlockReader>,
    ) -> Self {
        Self { connection, blocks, in_snapshot: false }
    }
}

impl Drop for LentConnection {
    fn drop(&mut self) {
        if self.in_snapshot {
            self.connection.close_on_drop();
        }
    }
}

#[async_trait]
impl StoreConnection for LentConnection {
    fn rows(&mut self) -> &mut dyn StoreReader {
        &mut *self.connection
    }

    async fn after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        match self.in_snapshot {
            true => self.rows().after(after, limit).await,
            false => self.blocks.after(after, limit).await,
        }
    }

    async fn begin(&mut self) -> StoreResult<()> {
        self.in_snapshot = true;
        begin(&mut self.connection).await
    }

    async fn end(&mut self) -> StoreResult<()> {
        end(&mut self.connection).await?;
        self.in_snapshot = false;
        Ok(())
    }
}

#[async_trait]
impl StoreConnection for SqliteConnection {
    fn rows(&mut self) -> &mut dyn StoreReader {
        self
    }

    async fn begin(&mut self) -> StoreResult<()> {
        begin(self).await
    }

    async fn end(&mut self) -> StoreResult<()> {
        end(self).await
    }
}

#[async_trait]
impl StoreReader for SqliteConnection {
    async fn after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        read::after(self, after, limit).await
    }

    async fn outside(
        &mut self,
        after: i64,
        through: i64,
        limit: i64,
        namespaces: &[String],
    ) -> StoreResult<Vec<i64>> {
        read::outside(self, after, through, limit, namespaces).await
    }

    async fn newest_within(&mut self, stream: i64, from: i64, upto: i64) -> StoreResult<Option<i64>> {
        read::newest_within(self, stream, from, upto).await
    }

    async fn end_of(&mut self, object: i64) -> StoreResult<Option<i64>> {
        read::end_of(self, object).await
    }

    async fn at(&mut self, seqs: &[i64]) -> StoreResult<Vec<StateEnvelope>> {
        read::at(self, seqs).await
    }

    async fn chain(&mut self, seq: i64, most: u32) -> StoreResult<Vec<(StateEnvelope, Vec<u8>)>> {
        read::chain(self, seq, most).await
    }

    async fn objects(&mut self, which: ObjectChoice<'_>) -> StoreResult<Vec<(i64, NamedObject)>> {
        read::objects(self, which).await
    }

    async fn statuses(&mut self, numbers: &[i64]) -> StoreResult<Vec<(i64, String, i64)>> {
        read::statuses(self, numbers).await
    }

    async fn streams(&mut self) -> StoreResult<Vec<SourceEpoch>> {
        read::streams(self).await
    }

    async fn anchor(&mut self, number: i64) -> StoreResult<Option<(i64, Vec<u8>)>> {
        read::anchor(self, number).await
    }

    async fn current(&mut self, source: &str, after: i64, limit: i64) -> StoreResult<Vec<CurrentRow>> {
        query::current(self, source, after, limit).await
    }

    async fn links(&mut self, seqs: &[Seq]) -> StoreResult<Vec<StoredDocument>> {
        query::links(self, seqs).await
    }

    async fn present(
        &mut self,
        source: &str,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<(i64, StateEnvelope)>> {
        query::present(self, source, after, limit).await
    }

    async fn owned(
        &mut self,
        owners: &[i64],
        which: OwnedKind,
        below: i64,
        limit: i64,
    ) -> StoreResult<Vec<i64>> {
        query::owned(self, owners, which, below, limit).await
    }

    /// A file needs no limit on steps.
    async fn story(&mut self, objects: &[i64], before: i64, limit: i64, _: i64) -> StoreResult<Vec<i64>> {
        query::story(self, objects, before, limit).await
    }

    async fn moments(&mut self, from: i64, limit: i64) -> StoreResult<Vec<(i64, i64)>> {
        query::moments(self, from, limit).await
    }

    async fn ended(&mut self, ends: ObjectEnds) -> StoreResult<Vec<PlacedObject>> {
        query::ended(self, ends).await
    }

    async fn living(&mut self, streams: &[i64], after: i64, limit: i64) -> StoreResult<Vec<PlacedObject>> {
        query::living(self, streams, after, limit).await
    }

    async fn walk(&mut self, heads: &[Seq], through: Seq, steps: i64) -> StoreResult<Vec<ChainStep>> {
        query::walk(self, heads, through, steps).await
    }

    async fn letters_at(&mut self, plugin: &str, seqs: &[Seq]) -> StoreResult<Vec<(Seq, i64)>> {
        query::letters_at(self, plugin, seqs).await
    }

    async fn owed(&mut self, plugin: &str, from: i64, limit: i64) -> StoreResult<Vec<i64>> {
        backlog::owed(self, plugin, from, limit).await
    }

    async fn stats(&mut self, bytes: u64) -> StoreResult<JournalView> {
        query::stats(self, bytes).await
    }

    async fn source_counters(&mut self) -> StoreResult<Vec<SourceCounters>> {
        query::source_counters(self).await
    }

    async fn gaps(&mut self) -> StoreResult<Vec<Gap>> {
        query::gaps(self).await
    }

    async fn gaps_of(&mut self, query: &GapQuery) -> StoreResult<Vec<(u64, Gap)>> {
        findings::gaps(self, query).await
    }

    async fn poison(&mut self, source: Option<&str>, limit: usize) -> StoreResult<Vec<PoisonRecord>> {
        query::poison(self, source, limit).await
    }

    async fn poison_of(&mut self, query: &PoisonQuery) -> StoreResult<Vec<PoisonView>> {
        findings::poison(self, query).await
    }

    async fn poison_raw(&mut self, number: u64) -> StoreResult<Option<Vec<u8>>> {
        findings::poison_raw(self, number).await
    }

    async fn discrepancies(&mut self, source: &str) -> StoreResult<Vec<(i64, i64, String)>> {
        findings::discrepancies(self, source).await
    }

    async fn epochs(&mut self) -> StoreResult<Vec<(String, EpochView)>> {
        findings::epochs(self).await
    }

    async fn count(&mut self, sources: &[Arc<str>], after: Seq, through: Seq) -> StoreResult<u64> {
        backlog::count(self, sources, after, through).await
    }

    async fn progress(&mut self, plugin: &str) -> StoreResult<Option<PluginProgress>> {
        backlog::progress(self, plugin).await
    }

    async fn letters(&mut self, query: &LetterQuery) -> StoreResult<Vec<DeadLetter>> {
        backlog::letters(self, query).await
    }

    async fn kv(&mut self, plugin: &str) -> StoreResult<Vec<(String, Vec<u8>)>> {
        backlog::kv(self, plugin).await
    }

    async fn reports(
        &mut self,
        plugin: &str,
        keys: (&str, &str),
        limit: i64,
    ) -> StoreResult<Vec<(String, Vec<u8>)>> {
        backlog::reports(self, plugin, keys, limit).await
    }

    async fn report_bytes(&mut self, plugin: &str) -> StoreResult<i64> {
        backlog::report_bytes(self, plugin).await
    }

    async fn pauses(&mut self) -> StoreResult<Vec<ReplayRecord>> {
        backlog::pauses(self).await
    }

    async fn replays(
        &mut self,
        plugin: Option<&str>,
        before: i64,
        limit: i64,
    ) -> StoreResult<Vec<ReplayRecord>> {
        backlog::replays(self, plugin, before, limit).await
    }

    fn retention_reader(&mut self) -> &mut dyn RetentionReader {
        self
    }

    async fn structure(&mut self) -> StoreResult<Vec<String>> {
        proof::structure(self).await
    }

    async fn stored(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StoredRow>> {
        proof::stored(self, after, limit).await
    }

    async fn live(&mut self, after: i64, limit: i64) -> StoreResult<Vec<LiveRow>> {
        proof::live(self, after, limit).await
    }

    async fn snapshots(&mut self, after: i64, limit: i64) -> StoreResult<Vec<KeptSnapshot>> {
        proof::snapshots(self, after, limit).await
    }

    async fn ends(&mut self, after: i64, limit: i64) -> StoreResult<Vec<EndRow>> {
        proof::ends(self, after, limit).await
    }

    async fn object_keys(&mut self, after: i64, limit: i64) -> StoreResult<Vec<(i64, i64, i64)>> {
        proof::object_keys(self, after, limit).await
    }

    async fn sealed(
        &mut self,
        table: &SummedTable,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<Vec<SumCell>>> {
        checksums::sealed(self, table, after, limit).await
    }

    async fn misowned(&mut self) -> StoreResult<Vec<(i64, i64)>> {
        proof::misowned(self).await
    }

    async fn unowned(&mut self) -> StoreResult<Vec<i64>> {
        proof::unowned(self).await
    }

    async fn tallies(&mut self) -> StoreResult<Vec<(i64, i64, i64)>> {
        proof::tallies(self).await
    }

    async fn plugins(&mut self) -> StoreResult<Vec<(String, String)>> {
        proof::plugins(self).await
    }

    async fn letter_counts(&mut self, plugin: &str) -> StoreResult<(i64, i64)> {
        proof::letter_counts(self, plugin).await
    }

    async fn orphans(&mut self, plugin: &str) -> StoreResult<Vec<i64>> {
        proof::orphans(self, plugin).await
    }
}
