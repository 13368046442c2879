//! The trait `StoreReader`: the statements that read, by name.

use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::ports::{DeadLetter, PluginProgress};
use kubewitness_core::views::{EpochView, GapQuery, JournalView, LetterQuery, PoisonQuery, PoisonView};
use kubewitness_core::{Gap, Seq, reports};

use super::read::{AFTER_ENVELOPE, decode_envelope, envelope_columns};
use crate::report::{PoisonRecord, ReplayRecord, SourceCounters};
use crate::store::rows::checksum::{SumCell, SummedTable};
use crate::store::rows::{
    ChainStep, CurrentRow, DocumentRow, DocumentStorage, EndRow, KeptSnapshot, LiveRow, NamedObject,
    OWED_STATE, ObjectChoice, ObjectEnds, PlacedObject, RowFlags, SnapshotRow, SourceEpoch, StateEnvelope,
    StoreResult, StoredDocument, StoredRow, damaged_state,
};
use crate::store::server::connect::session::ServerSession;
use crate::store::server::engine::link::{SqlParam, SqlRow};
use crate::store::{OwnedKind, RetentionReader, StoreConnection, StoreReader};

fn key_and_value(mut row: SqlRow) -> StoreResult<(String, Vec<u8>)> {
    Ok((row.text(0)?, row.bytes_at(1)?))
}

#[async_trait]
impl StoreConnection for ServerSession {
    fn store_reader(&mut self) -> &mut dyn StoreReader {
        self
    }

    fn is_on_a_server(&self) -> bool {
        true
    }

    async fn rows_at(&mut self, seqs: &[i64], most_bytes: usize) -> StoreResult<Vec<DocumentRow>> {
        self.read_rows_at(seqs, most_bytes).await
    }

    async fn begin_snapshot(&mut self) -> StoreResult<()> {
        Self::open_snapshot(self).await
    }

    async fn end_snapshot(&mut self) -> StoreResult<()> {
        Self::close_snapshot(self).await
    }
}

#[async_trait]
impl StoreReader for ServerSession {
    async fn states_after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        self.read_after(after, limit).await
    }

    async fn positions_outside(
        &mut self,
        after: i64,
        through: i64,
        limit: i64,
        namespaces: &[String],
    ) -> StoreResult<Vec<i64>> {
        self.read_outside(after, through, limit, namespaces).await
    }

    async fn newest_within(&mut self, stream: i64, from: i64, upto: i64) -> StoreResult<Option<i64>> {
        self.read_newest_within(stream, from, upto).await
    }

    async fn end_of(&mut self, object: i64) -> StoreResult<Option<i64>> {
        self.read_end_of(object).await
    }

    async fn states_at(&mut self, seqs: &[i64]) -> StoreResult<Vec<StateEnvelope>> {
        self.read_at(seqs).await
    }

    async fn document_chain(&mut self, seq: i64, most: u32) -> StoreResult<Vec<(StateEnvelope, Vec<u8>)>> {
        self.read_chain(seq, most).await
    }

    async fn find_objects(&mut self, which: ObjectChoice<'_>) -> StoreResult<Vec<(i64, NamedObject)>> {
        self.read_objects(which).await
    }

    async fn status_rows(&mut self, numbers: &[i64]) -> StoreResult<Vec<(i64, String, i64)>> {
        self.read_statuses(numbers).await
    }

    async fn source_streams(&mut self) -> StoreResult<Vec<SourceEpoch>> {
        self.read_streams().await
    }

    async fn anchor_row(&mut self, number: i64) -> StoreResult<Option<(i64, Vec<u8>)>> {
        self.read_anchor(number).await
    }

    async fn current_objects(
        &mut self,
        source: &str,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<CurrentRow>> {
        let text = concat!(
            "SELECT ",
            envelope_columns!(),
            ", s.document, c.object, p.seq, p.packed FROM kw_current c @JOIN kw_objects o ON o.id = c.object \
             @JOIN kw_streams t ON t.id = o.stream @JOIN kw_states s ON s.seq = c.newest \
             LEFT JOIN kw_snapshots p ON p.object = c.object \
             WHERE c.object > ? AND t.source = ? ORDER BY c.object LIMIT ?"
        );
        let rows = self.fetch_rows(text, vec![after.into(), source.into(), limit.into()]).await?;
        let row = |mut row: SqlRow| {
            let snapshot = row.optional_int(AFTER_ENVELOPE + 2)?.map(|seq| seq as u64);
            Ok(CurrentRow {
                object: row.int_at(AFTER_ENVELOPE + 1)?,
                stored: row.bytes_at(AFTER_ENVELOPE)?,
                snapshot: snapshot.zip(row.optional_bytes(AFTER_ENVELOPE + 3)?),
                newest: decode_envelope(&mut row)?,
            })
        };
        rows.into_iter().map(row).collect()
    }

    async fn stored_documents(&mut self, seqs: &[Seq]) -> StoreResult<Vec<StoredDocument>> {
        let text = "SELECT s.seq, s.flags, s.back, s.anchor, s.sums, s.document \
                    FROM @numbers @JOIN kw_states s ON s.seq = q.v";
        let seqs = seqs.iter().map(|seq| *seq as i64).collect();
        let link = |mut row: SqlRow| {
            let (seq, before) =
                (row.int_at(0)? as u64, (row.int_at(0)? as u64).saturating_sub(row.int_at(2)? as u64));
            let flags = RowFlags::unpack_bits(row.int_at(1)?);
            let flags = flags.ok_or_else(|| damaged_state(seq, "its flags are not of this format"))?;
            let (anchor, checksum) = (row.optional_int(3)?, row.int_at(4)? as u32);
            let kept = DocumentStorage { seq, encoding: flags.encoding, anchor, checksum };
            Ok(StoredDocument { kept, before, stored: row.bytes_at(5)? })
        };
        self.fetch_rows(text, vec![SqlParam::Numbers(seqs)]).await?.into_iter().map(link).collect()
    }

    async fn present_objects(
        &mut self,
        source: &str,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<(i64, StateEnvelope)>> {
        let text = concat!(
            "SELECT ",
            envelope_columns!(),
            ", c.object FROM kw_current c @JOIN kw_objects o ON o.id = c.object \
             @JOIN kw_streams t ON t.id = o.stream @JOIN kw_states s ON s.seq = c.newest \
             WHERE c.object > ? AND t.source = ? ORDER BY c.object LIMIT ?"
        );
        let rows = self.fetch_rows(text, vec![after.into(), source.into(), limit.into()]).await?;
        let pair = |mut row: SqlRow| Ok((row.int_at(AFTER_ENVELOPE)?, decode_envelope(&mut row)?));
        rows.into_iter().map(pair).collect()
    }

    async fn owned_objects(
        &mut self,
        owners: &[i64],
        which: OwnedKind,
        below: i64,
        limit: i64,
    ) -> StoreResult<Vec<i64>> {
        macro_rules! of {
            ($kinds:literal) => {
                concat!(
                    "SELECT DISTINCT d.object FROM @numbers @JOIN kw_objects m ON m.id = q.v \
                     @JOIN kw_objects r ON r.uid_key = m.uid_key AND r.uid = m.uid AND length(r.uid) > 0 \
                     @JOIN kw_owned d ON d.owner = r.id @JOIN kw_objects o ON o.id = d.object \
                     @JOIN kw_kinds k ON k.id = o.kind \
                     WHERE (length(m.namespace) = 0 OR o.namespace = m.namespace) \
                     AND (m.tail IS NOT NULL OR EXISTS (SELECT 1 FROM kw_current c WHERE c.object = m.id) \
                       OR NOT EXISTS (SELECT 1 FROM kw_objects w LEFT JOIN kw_current c ON c.object = w.id \
                         WHERE w.uid_key = m.uid_key AND w.uid = m.uid \
                         AND (w.tail IS NOT NULL OR c.object IS NOT NULL))) AND ",
                    $kinds,
                    " (k.kind = 'Event' AND k.api_group IN ('', 'events.k8s.io')) AND d.object < ? \
                     ORDER BY d.object DESC LIMIT ?"
                )
            };
        }
        let text = match which {
            OwnedKind::Events => of!("(length(m.namespace) > 0 OR o.namespace = 'default') AND "),
            OwnedKind::Others => of!("NOT"),
        };
        self.fetch_numbers(text, vec![owners.into(), below.into(), limit.into()]).await
    }

    async fn story_positions(
        &mut self,
        objects: &[i64],
        before: i64,
        limit: i64,
        walked: i64,
    ) -> StoreResult<Vec<i64>> {
        self.read_story(objects, before, limit, walked).await
    }

    async fn observation_times(&mut self, from: i64, limit: i64) -> StoreResult<Vec<(i64, i64)>> {
        self.read_moments(from, limit).await
    }

    async fn ended_objects(&mut self, ends: ObjectEnds) -> StoreResult<Vec<PlacedObject>> {
        self.read_ended(ends).await
    }

    async fn living_objects(
        &mut self,
        streams: &[i64],
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<PlacedObject>> {
        self.read_living(streams, after, limit).await
    }

    async fn walk_chains(&mut self, heads: &[Seq], through: Seq, steps: i64) -> StoreResult<Vec<ChainStep>> {
        self.read_walk(heads, through, steps).await
    }

    async fn letters_at(&mut self, plugin: &str, seqs: &[Seq]) -> StoreResult<Vec<(Seq, i64)>> {
        self.read_letters_at(plugin, seqs).await
    }

    async fn owed_positions(&mut self, plugin: &str, from: i64, limit: i64) -> StoreResult<Vec<i64>> {
        let text =
            "SELECT seq FROM kw_letters WHERE plugin = ? AND seq >= ? AND replaying = ? ORDER BY seq LIMIT ?";
        self.fetch_numbers(text, vec![plugin.into(), from.into(), OWED_STATE.into(), limit.into()]).await
    }

    async fn journal_stats(&mut self, bytes: u64) -> StoreResult<JournalView> {
        self.read_stats(bytes).await
    }

    async fn source_counters(&mut self) -> StoreResult<Vec<SourceCounters>> {
        self.read_source_counters().await
    }

    async fn all_gaps(&mut self) -> StoreResult<Vec<Gap>> {
        self.read_gaps().await
    }

    async fn gaps_of(&mut self, query: &GapQuery) -> StoreResult<Vec<(u64, Gap)>> {
        self.read_gaps_of(query).await
    }

    async fn poison_records(&mut self, source: Option<&str>, limit: usize) -> StoreResult<Vec<PoisonRecord>> {
        self.read_poison(source, limit).await
    }

    async fn poison_of(&mut self, query: &PoisonQuery) -> StoreResult<Vec<PoisonView>> {
        self.read_poison_of(query).await
    }

    async fn poison_raw(&mut self, number: u64) -> StoreResult<Option<Vec<u8>>> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        let row = self.fetch_rows("SELECT raw FROM kw_poison WHERE id = ?", vec![number.into()]).await?.pop();
        row.map(|mut row| row.bytes_at(0)).transpose()
    }

    async fn audit_findings(&mut self, source: &str) -> StoreResult<Vec<(i64, i64, String)>> {
        self.read_discrepancies(source).await
    }

    async fn source_epochs(&mut self) -> StoreResult<Vec<(String, EpochView)>> {
        self.read_epochs().await
    }

    async fn count(&mut self, sources: &[Arc<str>], after: Seq, through: Seq) -> StoreResult<u64> {
        self.read_count(sources, after, through).await
    }

    async fn plugin_progress(&mut self, plugin: &str) -> StoreResult<Option<PluginProgress>> {
        self.read_progress(plugin).await
    }

    async fn dead_letters(&mut self, query: &LetterQuery) -> StoreResult<Vec<DeadLetter>> {
        self.read_letters(query).await
    }

    async fn plugin_kv(&mut self, plugin: &str) -> StoreResult<Vec<(String, Vec<u8>)>> {
        let text = "SELECT name, value FROM kw_kv WHERE plugin = ? \
                    AND (name < ? OR name >= ? OR name NOT LIKE 'report/%/%') ORDER BY name";
        let asked = vec![plugin.into(), reports::PREFIX.into(), reports::BEYOND.into()];
        self.fetch_rows(text, asked).await?.into_iter().map(key_and_value).collect()
    }

    async fn report_rows(
        &mut self,
        plugin: &str,
        (from, below): (&str, &str),
        limit: i64,
    ) -> StoreResult<Vec<(String, Vec<u8>)>> {
        let text =
            "SELECT name, value FROM kw_kv WHERE plugin = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?";
        let asked = vec![plugin.into(), from.into(), below.into(), limit.into()];
        self.fetch_rows(text, asked).await?.into_iter().map(key_and_value).collect()
    }

    async fn report_bytes(&mut self, plugin: &str) -> StoreResult<i64> {
        let text = "SELECT CAST(COALESCE(SUM(LENGTH(name) + LENGTH(value)), 0) AS @BIGINT) FROM kw_kv \
                    WHERE plugin = ? AND name >= ? AND name < ?";
        let asked = vec![plugin.into(), reports::PREFIX.into(), reports::BEYOND.into()];
        let rows = self.fetch_rows(text, asked).await?;
        rows.into_iter().next().map_or(Ok(0), |row| row.int_at(0))
    }

    async fn pauses_in_force(&mut self) -> StoreResult<Vec<ReplayRecord>> {
        self.read_pauses().await
    }

    async fn replay_records(
        &mut self,
        plugin: Option<&str>,
        before: i64,
        limit: i64,
    ) -> StoreResult<Vec<ReplayRecord>> {
        self.read_replays(plugin, before, limit).await
    }

    fn retention_reader(&mut self) -> &mut dyn RetentionReader {
        self
    }

    async fn structure_findings(&mut self) -> StoreResult<Vec<String>> {
        // The operator of a server checks its files. Each row's checksum is compared in any case.
        Ok(Vec::new())
    }

    async fn stored_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StoredRow>> {
        let text = concat!(
            "SELECT ",
            envelope_columns!(),
            ", s.document FROM kw_states s WHERE s.seq > ? ORDER BY s.seq LIMIT ?"
        );
        let rows = self.fetch_rows(text, vec![after.into(), limit.into()]).await?;
        let row = |mut row: SqlRow| {
            let (seq, document) = (row.int_at(0)?, row.bytes_at(AFTER_ENVELOPE)?);
            Ok((seq, decode_envelope(&mut row), document))
        };
        rows.into_iter().map(row).collect()
    }

    async fn live_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<LiveRow>> {
        let text = "SELECT c.object, c.tail, c.newest, s.version, s.object FROM kw_current c \
                    LEFT JOIN kw_states s ON s.seq = c.newest WHERE c.object > ? ORDER BY c.object LIMIT ?";
        let rows = self.fetch_rows(text, vec![after.into(), limit.into()]).await?;
        let row = |mut row: SqlRow| {
            Ok(LiveRow {
                object: row.int_at(0)?,
                tail: row.int_at(1)? as u64,
                newest: row.int_at(2)? as u64,
                version: row.optional_key(3)?,
                newest_object: row.optional_int(4)?,
            })
        };
        rows.into_iter().map(row).collect()
    }

    async fn snapshot_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<KeptSnapshot>> {
        let text = "SELECT p.object, p.seq, p.packed, s.object, s.sums, c.object FROM kw_snapshots p \
                    LEFT JOIN kw_states s ON s.seq = p.seq LEFT JOIN kw_current c ON c.object = p.object \
                    WHERE p.object > ? ORDER BY p.object LIMIT ?";
        let rows = self.fetch_rows(text, vec![after.into(), limit.into()]).await?;
        let row = |mut row: SqlRow| {
            let (object, seq, packed) = (row.int_at(0)?, row.int_at(1)? as u64, row.bytes_at(2)?.into());
            Ok(KeptSnapshot {
                snapshot: SnapshotRow { object, seq, packed },
                state_object: row.optional_int(3)?,
                checksum: row.optional_int(4)?.map(|sums| sums as u32),
                is_current: row.optional_int(5)?.is_some(),
            })
        };
        rows.into_iter().map(row).collect()
    }

    async fn end_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<EndRow>> {
        self.read_ends(after, limit).await
    }

    async fn object_keys(&mut self, after: i64, limit: i64) -> StoreResult<Vec<(i64, i64, i64)>> {
        self.read_object_keys(after, limit).await
    }

    async fn sealed_rows(
        &mut self,
        table: &SummedTable,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<Vec<SumCell>>> {
        self.read_sealed(table, after, limit).await
    }

    async fn wrong_owner_links(&mut self) -> StoreResult<Vec<(i64, i64)>> {
        self.read_misowned().await
    }

    async fn missing_owner_links(&mut self) -> StoreResult<Vec<i64>> {
        self.read_unowned().await
    }

    async fn segment_tallies(&mut self) -> StoreResult<Vec<(i64, i64, i64)>> {
        let rows = self.fetch_rows("SELECT segment, stream, states FROM kw_tallies", Vec::new()).await?;
        rows.into_iter().map(|row| Ok((row.int_at(0)?, row.int_at(1)?, row.int_at(2)?))).collect()
    }

    async fn plugin_rows(&mut self) -> StoreResult<Vec<(String, String)>> {
        let rows = self.fetch_rows("SELECT name, progress FROM kw_plugins ORDER BY name", Vec::new()).await?;
        rows.into_iter().map(|mut row| Ok((row.text(0)?, row.text(1)?))).collect()
    }

    async fn letter_counts(&mut self, plugin: &str) -> StoreResult<(i64, i64)> {
        let text = "SELECT count(*), CAST(coalesce(sum(CASE WHEN replaying = 0 THEN 1 ELSE 0 END), 0) AS @BIGINT) FROM kw_letters \
                    WHERE plugin = ?";
        let rows = self.fetch_rows(text, vec![plugin.into()]).await?;
        rows.first().map_or(Ok((0, 0)), |row| Ok((row.int_at(0)?, row.int_at(1)?)))
    }

    async fn orphaned_letters(&mut self, plugin: &str) -> StoreResult<Vec<i64>> {
        let text = "SELECT l.seq FROM kw_letters l LEFT JOIN kw_states s ON s.seq = l.seq \
                    WHERE l.plugin = ? AND s.seq IS NULL LIMIT 100";
        self.fetch_numbers(text, vec![plugin.into()]).await
    }
}
