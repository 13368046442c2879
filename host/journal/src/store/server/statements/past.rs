//! The trait `RetentionReader`: the queries of retention about the history of a source.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::ports::PluginProgress;

use super::read::{AFTER_ENVELOPE, decode_envelope, envelope_columns};
use crate::store::rows::removal::{
    LinkRow, ObjectEnd, RemovedCounts, SegmentTally, SharedRows, StateReferences,
};
use crate::store::rows::{MarkedLetter, StateEnvelope, StoreResult, bounded_i64, decode_column};
use crate::store::server::connect::session::ServerSession;
use crate::store::server::engine::link::{SqlParam, SqlRow};
use crate::store::{RetentionReader, StoreReader};

macro_rules! link_columns {
    () => {
        "s.seq, s.back, s.object, o.stream, s.observed_ms, CAST(length(s.document) AS @BIGINT), s.flags, s.version, \
         s.at, c.newest, o.newest, o.tail"
    };
}

fn decode_link(mut row: SqlRow) -> StoreResult<LinkRow> {
    let position = |number: Option<i64>| number.unwrap_or_default() as Seq;
    let (seq, back) = (row.int_at(0)? as Seq, row.int_at(1)? as Seq);
    let end = match row.optional_int(9)? {
        Some(newest) => ObjectEnd { live: true, newest: newest as Seq, tail: 0 },
        None => {
            let (newest, tail) = (row.optional_int(10)?, row.optional_int(11)?);
            ObjectEnd { live: false, newest: position(newest), tail: position(tail) }
        }
    };
    Ok(LinkRow {
        seq,
        before: if back == 0 { 0 } else { seq.saturating_sub(back) },
        object: row.int_at(2)?,
        stream: row.int_at(3)?,
        observed_ms: row.int_at(4)? as u64,
        document_bytes: row.int_at(5)? as u64,
        flags: row.int_at(6)?,
        key: row.optional_key(7)?,
        version: row.optional_key(8)?,
        end,
    })
}

fn numbers_param(seqs: &[Seq]) -> SqlParam {
    SqlParam::Numbers(seqs.iter().map(|seq| *seq as i64).collect())
}

/// Engines differ in the largest allowed limit.
fn limit_param(limit: usize) -> SqlParam {
    (limit.min(i32::MAX as usize) as i64).into()
}

fn two_ints(row: &SqlRow) -> StoreResult<(i64, i64)> {
    Ok((row.int_at(0)?, row.int_at(1)?))
}

impl ServerSession {
    /// One number.
    async fn fetch_figure(&mut self, text: &str, params: Vec<SqlParam>) -> StoreResult<i64> {
        Ok(self.fetch_numbers(text, params).await?.first().copied().unwrap_or_default())
    }

    /// The end of the newest chain of an object's uid among these streams.
    async fn end_of(&mut self, streams: &[i64], object: i64) -> StoreResult<Option<i64>> {
        let text = "SELECT s.seq, o.stream FROM kw_objects m \
             @JOIN kw_objects o ON o.uid_key = m.uid_key AND o.uid = m.uid AND o.kind = m.kind \
             LEFT JOIN kw_current c ON c.object = o.id @JOIN kw_states s ON s.seq = coalesce(c.tail, o.tail) \
             WHERE m.id = ? ORDER BY s.seq DESC";
        for row in self.fetch_rows(text, vec![object.into()]).await? {
            let (seq, stream) = two_ints(&row)?;
            if streams.contains(&stream) {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl RetentionReader for ServerSession {
    async fn streams_of(&mut self, source: &str) -> StoreResult<Vec<(i64, u32, Option<String>)>> {
        let text = "SELECT id, epoch, checkpoint FROM kw_streams WHERE source = ? ORDER BY epoch";
        let rows = self.fetch_rows(text, vec![source.into()]).await?;
        rows.into_iter()
            .map(|mut row| Ok((row.int_at(0)?, row.int_at(1)? as u32, row.optional_text(2)?)))
            .collect()
    }

    async fn tallies_of(&mut self, streams: &[i64]) -> StoreResult<Vec<SegmentTally>> {
        let text = "SELECT t.segment, CAST(sum(t.states) AS @BIGINT), CAST(sum(t.bytes) AS @BIGINT) \
                    FROM @numbers @JOIN kw_tallies t ON t.stream = q.v GROUP BY t.segment ORDER BY t.segment";
        let tally = |row: SqlRow| {
            Ok(SegmentTally {
                segment: row.int_at(0)? as u64,
                states: row.int_at(1)? as u64,
                bytes: row.int_at(2)?.max(0) as u64,
            })
        };
        self.fetch_rows(text, vec![streams.into()]).await?.into_iter().map(tally).collect()
    }

    async fn progress_of_all(&mut self) -> StoreResult<Vec<(String, PluginProgress)>> {
        let parse = |(plugin, body): (String, String)| {
            let progress = decode_column(&body, || format!("the progress of {plugin}"))?;
            Ok((plugin, progress))
        };
        self.plugin_rows().await?.into_iter().map(parse).collect()
    }

    async fn letters_between(&mut self, from: Seq, through: Seq) -> StoreResult<Vec<MarkedLetter>> {
        // Plugin by plugin: the key begins with the plugin, and millions of states may be owed.
        let text = "SELECT l.plugin, l.seq, l.replaying FROM kw_plugins p @JOIN kw_letters l \
                    ON l.plugin = p.name WHERE l.seq >= ? AND l.seq <= ?";
        let rows = self.fetch_rows(text, vec![(from as i64).into(), (through as i64).into()]).await?;
        let marked = |mut row: SqlRow| {
            Ok(MarkedLetter { plugin: row.text(0)?, seq: row.int_at(1)? as Seq, mark: row.int_at(2)? })
        };
        rows.into_iter().map(marked).collect()
    }

    /// States of other streams are few, so they are filtered out here.
    async fn links_between(&mut self, streams: &[i64], from: Seq, through: Seq) -> StoreResult<Vec<LinkRow>> {
        let text = concat!(
            "SELECT ",
            link_columns!(),
            " FROM kw_states s @JOIN kw_objects o ON o.id = s.object LEFT JOIN kw_current c ON c.object = o.id \
             WHERE s.seq >= ? AND s.seq <= ? ORDER BY s.seq"
        );
        let rows = self.fetch_rows(text, vec![(from as i64).into(), (through as i64).into()]).await?;
        let links = rows.into_iter().map(decode_link);
        links.filter(|link| link.as_ref().map_or(true, |link| streams.contains(&link.stream))).collect()
    }

    async fn links_to(&mut self, object: i64, from: Seq, limit: usize) -> StoreResult<Vec<LinkRow>> {
        let text = concat!(
            "WITH RECURSIVE chain (seq, back, step) AS ( \
               SELECT s.seq, s.back, 1 FROM kw_objects o @JOIN kw_states s ON s.seq = o.tail \
                 WHERE o.id = ? AND s.object = o.id \
               UNION ALL \
               SELECT n.seq, n.back, h.step + 1 FROM chain h @JOIN kw_states n ON n.seq = h.seq - h.back \
                 WHERE h.back > 0 AND h.seq - h.back >= ? AND n.object = ? AND h.step < ?) SELECT ",
            link_columns!(),
            " FROM chain h @JOIN kw_states s ON s.seq = h.seq @JOIN kw_objects o ON o.id = s.object \
             LEFT JOIN kw_current c ON c.object = o.id ORDER BY s.seq"
        );
        let params = vec![object.into(), (from as i64).into(), object.into(), limit_param(limit)];
        self.fetch_rows(text, params).await?.into_iter().map(decode_link).collect()
    }

    async fn chain_after(
        &mut self,
        streams: &[i64],
        object: i64,
        seq: Seq,
        limit: usize,
    ) -> StoreResult<Vec<(Seq, Seq)>> {
        let Some(end) = self.end_of(streams, object).await? else { return Ok(Vec::new()) };
        let text = "WITH RECURSIVE chain (seq, back, step) AS ( \
               SELECT seq, back, 1 FROM kw_states WHERE seq = ? \
               UNION ALL \
               SELECT n.seq, n.back, h.step + 1 FROM chain h @JOIN kw_states n ON n.seq = h.seq - h.back \
                 WHERE h.back > 0 AND h.seq - h.back > ? AND h.step < ?) \
             SELECT seq, back FROM chain WHERE seq > ? ORDER BY seq DESC";
        let seq = seq as i64;
        let rows =
            self.fetch_rows(text, vec![end.into(), seq.into(), limit_param(limit), seq.into()]).await?;
        let step = |row: &SqlRow| two_ints(row).map(|(seq, back)| (seq as Seq, (seq - back) as Seq));
        rows.iter().map(step).collect()
    }

    async fn states_pointing_to(
        &mut self,
        seqs: &[Seq],
        after: Seq,
        through: Seq,
    ) -> StoreResult<Vec<(Seq, Seq)>> {
        let text = "SELECT s.seq - s.back, s.seq FROM kw_states s WHERE s.seq > ? AND s.seq <= ? AND s.back > 0 \
                    AND s.seq - s.back IN (SELECT q.v FROM @numbers)";
        let params = vec![(after as i64).into(), (through as i64).into(), numbers_param(seqs)];
        let rows = self.fetch_rows(text, params).await?;
        rows.iter().map(|row| two_ints(row).map(|(before, seq)| (before as Seq, seq as Seq))).collect()
    }

    async fn stored_at(&mut self, seq: Seq) -> StoreResult<Option<(StateEnvelope, Vec<u8>, i64)>> {
        let text = concat!(
            "SELECT ",
            envelope_columns!(),
            ", s.document, o.stream FROM kw_states s @JOIN kw_objects o ON o.id = s.object WHERE s.seq = ?"
        );
        let row = self.fetch_rows(text, vec![(seq as i64).into()]).await?.pop();
        let stored = |mut row: SqlRow| {
            let (document, stream) = (row.bytes_at(AFTER_ENVELOPE)?, row.int_at(AFTER_ENVELOPE + 1)?);
            Ok((decode_envelope(&mut row)?, document, stream))
        };
        row.map(stored).transpose()
    }

    async fn count_existing(&mut self, seqs: &[Seq]) -> StoreResult<usize> {
        let text = "SELECT count(*) FROM @numbers @JOIN kw_states s ON s.seq = q.v";
        Ok(self.fetch_figure(text, vec![numbers_param(seqs)]).await? as usize)
    }

    async fn still_ended(&mut self, streams: &[i64], ends: &[(i64, Seq, bool)]) -> StoreResult<usize> {
        let objects: Vec<i64> = ends.iter().map(|(object, ..)| *object).collect();
        let text = "SELECT o.id, o.tail FROM @numbers @JOIN kw_objects o ON o.id = q.v \
                    WHERE o.tail IS NOT NULL AND NOT EXISTS (SELECT 1 FROM kw_current c WHERE c.object = o.id)";
        let rows = self.fetch_rows(text, vec![objects[..].into()]).await?;
        let tails: HashMap<i64, i64> = rows.iter().map(two_ints).collect::<StoreResult<_>>()?;
        let text = "SELECT o.id, l.stream FROM @numbers @JOIN kw_objects o ON o.id = q.v \
                    @JOIN kw_objects l ON l.uid_key = o.uid_key AND l.uid = o.uid AND l.kind = o.kind \
                    WHERE l.id > o.id";
        let rows = self.fetch_rows(text, vec![objects[..].into()]).await?;
        let later: Vec<(i64, i64)> = rows.iter().map(two_ints).collect::<StoreResult<_>>()?;
        let goes_on =
            |object: i64| later.iter().any(|(before, stream)| *before == object && streams.contains(stream));
        let is_still = |(object, tail, goes): &&(i64, Seq, bool)| {
            tails.get(object) == Some(&(*tail as i64)) && (*goes || !goes_on(*object))
        };
        Ok(ends.iter().filter(is_still).count())
    }

    async fn taken_of_streams(&mut self) -> StoreResult<BTreeMap<i64, u64>> {
        let rows = self.fetch_rows("SELECT id, taken FROM kw_streams", Vec::new()).await?;
        rows.iter().map(|row| two_ints(row).map(|(stream, taken)| (stream, taken as u64))).collect()
    }

    async fn segment_sizes(&mut self) -> StoreResult<BTreeMap<(u64, i64), u64>> {
        let rows = self.fetch_rows("SELECT segment, stream, bytes FROM kw_tallies", Vec::new()).await?;
        rows.iter().map(|row| Ok(((row.int_at(0)? as u64, row.int_at(1)?), row.int_at(2)? as u64))).collect()
    }

    async fn objects_of(&mut self, streams: &[i64]) -> StoreResult<(u64, u64, u64)> {
        let known = "SELECT count(*) FROM kw_objects WHERE stream IN (SELECT q.v FROM @numbers)";
        let existing = "SELECT count(*) FROM kw_current c @JOIN kw_objects o ON o.id = c.object \
                     WHERE o.stream IN (SELECT q.v FROM @numbers)";
        let anchors = "SELECT CAST(coalesce(sum(length(document)), 0) AS @BIGINT) FROM kw_anchors \
                       WHERE stream IN (SELECT q.v FROM @numbers)";
        let known = self.fetch_figure(known, vec![streams.into()]).await? as u64;
        let existing = self.fetch_figure(existing, vec![streams.into()]).await? as u64;
        Ok((known, existing, self.fetch_figure(anchors, vec![streams.into()]).await? as u64))
    }

    async fn newest_object(&mut self) -> StoreResult<i64> {
        self.fetch_figure("SELECT coalesce(max(id), 0) FROM kw_objects", Vec::new()).await
    }

    /// A server does not report its free space.
    async fn free_bytes(&mut self) -> StoreResult<u64> {
        Ok(0)
    }

    async fn references_after(&mut self, after: Seq, limit: usize) -> StoreResult<StateReferences> {
        let text = "SELECT seq, status, previous, anchor FROM kw_states WHERE seq > ? ORDER BY seq LIMIT ?";
        let rows = self.fetch_rows(text, vec![(after as i64).into(), limit_param(limit)]).await?;
        let row =
            |row: SqlRow| Ok((row.int_at(0)?, row.int_at(1)?, row.optional_int(2)?, row.optional_int(3)?));
        Ok(StateReferences::of(rows.into_iter().map(row).collect::<StoreResult<_>>()?))
    }

    async fn shared_row_numbers(
        &mut self,
        which: SharedRows,
        after: i64,
        limit: usize,
    ) -> StoreResult<Vec<i64>> {
        let text = match which {
            SharedRows::Statuses => {
                "SELECT id FROM kw_statuses WHERE id > ? AND id < (SELECT max(m.id) FROM kw_statuses m) \
                 ORDER BY id LIMIT ?"
            }
            SharedRows::Anchors => {
                "SELECT id FROM kw_anchors WHERE id > ? \
                 AND id NOT IN (SELECT max(m.id) FROM kw_anchors m GROUP BY m.stream) ORDER BY id LIMIT ?"
            }
            SharedRows::Owners => {
                "SELECT o.id FROM kw_objects o WHERE o.id > ? AND o.stream = 0 \
                 AND o.id < (SELECT max(m.id) FROM kw_objects m) \
                 AND NOT EXISTS (SELECT 1 FROM kw_owned d WHERE d.owner = o.id) ORDER BY o.id LIMIT ?"
            }
        };
        self.fetch_numbers(text, vec![after.into(), limit_param(limit)]).await
    }

    async fn orphaned_owners(&mut self, limit: usize) -> StoreResult<Vec<(i64, i64)>> {
        let text = "SELECT d.owner, d.object FROM kw_owned d \
                    WHERE NOT EXISTS (SELECT 1 FROM kw_objects o WHERE o.id = d.object) LIMIT ?";
        self.fetch_rows(text, vec![limit_param(limit)]).await?.iter().map(two_ints).collect()
    }

    async fn old_poison(&mut self, streams: &[i64], before_ms: u64, limit: usize) -> StoreResult<Vec<i64>> {
        let text = "SELECT p.id FROM kw_poison p WHERE p.stream IN (SELECT q.v FROM @numbers) AND p.observed_ms < ? \
                    AND p.id < (SELECT max(m.id) FROM kw_poison m) ORDER BY p.id LIMIT ?";
        let before = before_ms.min(i64::MAX as u64) as i64;
        self.fetch_numbers(text, vec![streams.into(), before.into(), limit_param(limit)]).await
    }

    async fn records_after(
        &mut self,
        streams: &[i64],
        after: i64,
        limit: usize,
    ) -> StoreResult<Vec<(i64, String)>> {
        let text = "SELECT g.id, g.body FROM kw_gaps g WHERE g.seq = 0 AND g.id > ? \
                    AND g.id < (SELECT max(m.id) FROM kw_gaps m) AND g.stream IN (SELECT q.v FROM @numbers) \
                    ORDER BY g.id LIMIT ?";
        let rows = self.fetch_rows(text, vec![after.into(), streams.into(), limit_param(limit)]).await?;
        rows.into_iter().map(|mut row| Ok((row.int_at(0)?, row.text(1)?))).collect()
    }

    async fn old_records(&mut self, before_ms: u64, limit: usize) -> StoreResult<Vec<i64>> {
        let text = "SELECT r.id FROM kw_replays r WHERE r.at_ms < ? \
                    AND r.id < (SELECT max(m.id) FROM kw_replays m) AND r.id NOT IN \
                    (SELECT max(p.id) FROM kw_replays p WHERE p.what IN ('pause', 'resume') GROUP BY p.plugin) \
                    ORDER BY r.id LIMIT ?";
        self.fetch_numbers(text, vec![bounded_i64(before_ms).into(), limit_param(limit)]).await
    }

    async fn existing_records(&mut self, numbers: &[i64]) -> StoreResult<Vec<i64>> {
        let text = "SELECT r.id FROM @numbers @JOIN kw_replays r ON r.id = q.v";
        self.fetch_numbers(text, vec![numbers.into()]).await
    }

    async fn removed_counts(&mut self) -> StoreResult<RemovedCounts> {
        let rows = self.fetch_rows("SELECT plugin, finished, untold FROM kw_taken", Vec::new()).await?;
        let counts = |mut row: SqlRow| Ok((row.text(0)?, row.int_at(1)?, row.int_at(2)?));
        Ok(RemovedCounts::of(rows.into_iter().map(counts).collect::<StoreResult<Vec<_>>>()?))
    }
}
