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
    ChainStep, CurrentRow, DocumentRow, EndRow, KeptSnapshot, LiveRow, NamedObject, ObjectChoice, ObjectEnds,
    PlacedObject, SourceEpoch, StateEnvelope, StoreResult, StoredDocument, StoredRow,
};
use crate::store::sqlite::block_reader::BlockReader;
use crate::store::sqlite::fault::classify_error;
use crate::store::{OwnedKind, RetentionReader, StoreConnection, StoreReader};

async fn begin_snapshot(connection: &mut SqliteConnection) -> StoreResult<()> {
    sqlx::raw_sql("BEGIN").execute(connection).await.map(drop).map_err(classify_error)
}

async fn end_snapshot(connection: &mut SqliteConnection) -> StoreResult<()> {
    sqlx::raw_sql("ROLLBACK").execute(connection).await.map(drop).map_err(classify_error)
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
    fn store_reader(&mut self) -> &mut dyn StoreReader {
        &mut *self.connection
    }

    async fn block_after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        match self.in_snapshot {
            true => self.store_reader().states_after(after, limit).await,
            false => self.blocks.states_after(after, limit).await,
        }
    }

    async fn rows_at(&mut self, seqs: &[i64], most_bytes: usize) -> StoreResult<Vec<DocumentRow>> {
        match self.in_snapshot {
            true => StoreConnection::rows_at(&mut *self.connection, seqs, most_bytes).await,
            false => self.blocks.rows_at(seqs.to_vec(), most_bytes).await,
        }
    }

    async fn begin_snapshot(&mut self) -> StoreResult<()> {
        self.in_snapshot = true;
        begin_snapshot(&mut self.connection).await
    }

    async fn end_snapshot(&mut self) -> StoreResult<()> {
        end_snapshot(&mut self.connection).await?;
        self.in_snapshot = false;
        Ok(())
    }
}

#[async_trait]
impl StoreConnection for SqliteConnection {
    fn store_reader(&mut self) -> &mut dyn StoreReader {
        self
    }

    async fn begin_snapshot(&mut self) -> StoreResult<()> {
        begin_snapshot(self).await
    }

    async fn end_snapshot(&mut self) -> StoreResult<()> {
        end_snapshot(self).await
    }
}

#[async_trait]
impl StoreReader for SqliteConnection {
    async fn states_after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        read::states_after(self, after, limit).await
    }

    async fn positions_outside(
        &mut self,
        after: i64,
        through: i64,
        limit: i64,
        namespaces: &[String],
    ) -> StoreResult<Vec<i64>> {
        read::positions_outside(self, after, through, limit, namespaces).await
    }

    async fn newest_within(&mut self, stream: i64, from: i64, upto: i64) -> StoreResult<Option<i64>> {
        read::newest_within(self, stream, from, upto).await
    }

    async fn end_of(&mut self, object: i64) -> StoreResult<Option<i64>> {
        read::end_of(self, object).await
    }

    async fn states_at(&mut self, seqs: &[i64]) -> StoreResult<Vec<StateEnvelope>> {
        read::states_at(self, seqs).await
    }

    async fn document_chain(&mut self, seq: i64, most: u32) -> StoreResult<Vec<(StateEnvelope, Vec<u8>)>> {
        read::document_chain(self, seq, most).await
    }

    async fn find_objects(&mut self, which: ObjectChoice<'_>) -> StoreResult<Vec<(i64, NamedObject)>> {
        read::find_objects(self, which).await
    }

    async fn status_rows(&mut self, numbers: &[i64]) -> StoreResult<Vec<(i64, String, i64)>> {
        read::status_rows(self, numbers).await
    }

    async fn source_streams(&mut self) -> StoreResult<Vec<SourceEpoch>> {
        read::source_streams(self).await
    }

    async fn anchor_row(&mut self, number: i64) -> StoreResult<Option<(i64, Vec<u8>)>> {
        read::anchor_row(self, number).await
    }

    async fn current_objects(
        &mut self,
        source: &str,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<CurrentRow>> {
        query::current_objects(self, source, after, limit).await
    }

    async fn stored_documents(&mut self, seqs: &[Seq]) -> StoreResult<Vec<StoredDocument>> {
        query::stored_documents(self, seqs).await
    }

    async fn present_objects(
        &mut self,
        source: &str,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<(i64, StateEnvelope)>> {
        query::present_objects(self, source, after, limit).await
    }

    async fn owned_objects(
        &mut self,
        owners: &[i64],
        which: OwnedKind,
        below: i64,
        limit: i64,
    ) -> StoreResult<Vec<i64>> {
        query::owned_objects(self, owners, which, below, limit).await
    }

    /// A file needs no limit on steps.
    async fn story_positions(
        &mut self,
        objects: &[i64],
        before: i64,
        limit: i64,
        _: i64,
    ) -> StoreResult<Vec<i64>> {
        query::story_positions(self, objects, before, limit).await
    }

    async fn observation_times(&mut self, from: i64, limit: i64) -> StoreResult<Vec<(i64, i64)>> {
        query::observation_times(self, from, limit).await
    }

    async fn ended_objects(&mut self, ends: ObjectEnds) -> StoreResult<Vec<PlacedObject>> {
        query::ended_objects(self, ends).await
    }

    async fn living_objects(
        &mut self,
        streams: &[i64],
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<PlacedObject>> {
        query::living_objects(self, streams, after, limit).await
    }

    async fn walk_chains(&mut self, heads: &[Seq], through: Seq, steps: i64) -> StoreResult<Vec<ChainStep>> {
        query::walk_chains(self, heads, through, steps).await
    }

    async fn letters_at(&mut self, plugin: &str, seqs: &[Seq]) -> StoreResult<Vec<(Seq, i64)>> {
        query::letters_at(self, plugin, seqs).await
    }

    async fn owed_positions(&mut self, plugin: &str, from: i64, limit: i64) -> StoreResult<Vec<i64>> {
        backlog::owed_positions(self, plugin, from, limit).await
    }

    async fn journal_stats(&mut self, bytes: u64) -> StoreResult<JournalView> {
        query::journal_stats(self, bytes).await
    }

    async fn source_counters(&mut self) -> StoreResult<Vec<SourceCounters>> {
        query::source_counters(self).await
    }

    async fn all_gaps(&mut self) -> StoreResult<Vec<Gap>> {
        query::all_gaps(self).await
    }

    async fn gaps_of(&mut self, query: &GapQuery) -> StoreResult<Vec<(u64, Gap)>> {
        findings::find_gaps(self, query).await
    }

    async fn poison_records(&mut self, source: Option<&str>, limit: usize) -> StoreResult<Vec<PoisonRecord>> {
        query::poison_records(self, source, limit).await
    }

    async fn poison_of(&mut self, query: &PoisonQuery) -> StoreResult<Vec<PoisonView>> {
        findings::find_poison(self, query).await
    }

    async fn poison_raw(&mut self, number: u64) -> StoreResult<Option<Vec<u8>>> {
        findings::poison_raw(self, number).await
    }

    async fn audit_findings(&mut self, source: &str) -> StoreResult<Vec<(i64, i64, String)>> {
        findings::audit_findings(self, source).await
    }

    async fn source_epochs(&mut self) -> StoreResult<Vec<(String, EpochView)>> {
        findings::source_epochs(self).await
    }

    async fn count(&mut self, sources: &[Arc<str>], after: Seq, through: Seq) -> StoreResult<u64> {
        backlog::count(self, sources, after, through).await
    }

    async fn plugin_progress(&mut self, plugin: &str) -> StoreResult<Option<PluginProgress>> {
        backlog::plugin_progress(self, plugin).await
    }

    async fn dead_letters(&mut self, query: &LetterQuery) -> StoreResult<Vec<DeadLetter>> {
        backlog::dead_letters(self, query).await
    }

    async fn plugin_kv(&mut self, plugin: &str) -> StoreResult<Vec<(String, Vec<u8>)>> {
        backlog::plugin_kv(self, plugin).await
    }

    async fn report_rows(
        &mut self,
        plugin: &str,
        keys: (&str, &str),
        limit: i64,
    ) -> StoreResult<Vec<(String, Vec<u8>)>> {
        backlog::report_rows(self, plugin, keys, limit).await
    }

    async fn report_bytes(&mut self, plugin: &str) -> StoreResult<i64> {
        backlog::report_bytes(self, plugin).await
    }

    async fn pauses_in_force(&mut self) -> StoreResult<Vec<ReplayRecord>> {
        backlog::pauses_in_force(self).await
    }

    async fn replay_records(
        &mut self,
        plugin: Option<&str>,
        before: i64,
        limit: i64,
    ) -> StoreResult<Vec<ReplayRecord>> {
        backlog::replay_records(self, plugin, before, limit).await
    }

    fn retention_reader(&mut self) -> &mut dyn RetentionReader {
        self
    }

    async fn structure_findings(&mut self) -> StoreResult<Vec<String>> {
        proof::structure_findings(self).await
    }

    async fn stored_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StoredRow>> {
        proof::stored_rows(self, after, limit).await
    }

    async fn live_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<LiveRow>> {
        proof::live_rows(self, after, limit).await
    }

    async fn snapshot_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<KeptSnapshot>> {
        proof::snapshot_rows(self, after, limit).await
    }

    async fn end_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<EndRow>> {
        proof::end_rows(self, after, limit).await
    }

    async fn object_keys(&mut self, after: i64, limit: i64) -> StoreResult<Vec<(i64, i64, i64)>> {
        proof::object_keys(self, after, limit).await
    }

    async fn sealed_rows(
        &mut self,
        table: &SummedTable,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<Vec<SumCell>>> {
        checksums::sealed_rows(self, table, after, limit).await
    }

    async fn wrong_owner_links(&mut self) -> StoreResult<Vec<(i64, i64)>> {
        proof::wrong_owner_links(self).await
    }

    async fn missing_owner_links(&mut self) -> StoreResult<Vec<i64>> {
        proof::missing_owner_links(self).await
    }

    async fn segment_tallies(&mut self) -> StoreResult<Vec<(i64, i64, i64)>> {
        proof::segment_tallies(self).await
    }

    async fn plugin_rows(&mut self) -> StoreResult<Vec<(String, String)>> {
        proof::plugin_rows(self).await
    }

    async fn letter_counts(&mut self, plugin: &str) -> StoreResult<(i64, i64)> {
        proof::letter_counts(self, plugin).await
    }

    async fn orphaned_letters(&mut self, plugin: &str) -> StoreResult<Vec<i64>> {
        proof::orphaned_letters(self, plugin).await
    }
}
