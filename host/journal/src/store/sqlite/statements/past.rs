//! The trait `RetentionReader`: the queries of retention about the history of a source.

use std::collections::BTreeMap;

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::ports::PluginProgress;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::proof;
use super::read::{decode_envelope, envelope_column, key};
use crate::store::RetentionReader;
use crate::store::rows::removal::{
    LinkRow, ObjectEnd, RemovedCounts, SegmentTally, SharedRows, StateReference, StateReferences,
};
use crate::store::rows::{MarkedLetter, StateEnvelope, StoreResult, bounded_i64, decode_column};
use crate::store::sqlite::fault::classify_error;

fn numbers_as_json<T: serde::Serialize>(values: &[T]) -> String {
    serde_json::to_string(values).expect("numbers always serialize")
}

macro_rules! link_columns {
    () => {
        "s.seq, s.back, s.object, o.stream, s.observed_ms, length(s.document), s.flags, s.version, s.at, \
         c.newest, o.newest, o.tail"
    };
}

fn decode_link(row: &SqliteRow) -> Result<LinkRow, sqlx::Error> {
    let number = |column: usize| row.try_get::<i64, _>(column);
    let optional =
        |column: usize| row.try_get::<Option<i64>, _>(column).map(|number| number.unwrap_or_default() as Seq);
    let current: Option<i64> = row.try_get(9)?;
    let (seq, back) = (number(0)? as Seq, number(1)? as Seq);
    Ok(LinkRow {
        seq,
        before: if back == 0 { 0 } else { seq.saturating_sub(back) },
        object: number(2)?,
        stream: number(3)?,
        observed_ms: number(4)? as u64,
        document_bytes: number(5)? as u64,
        flags: number(6)?,
        key: key(row, 7)?,
        version: key(row, 8)?,
        end: match current {
            Some(newest) => ObjectEnd { live: true, newest: newest as Seq, tail: 0 },
            None => ObjectEnd { live: false, newest: optional(10)?, tail: optional(11)? },
        },
    })
}

#[async_trait]
impl RetentionReader for SqliteConnection {
    async fn streams_of(&mut self, source: &str) -> StoreResult<Vec<(i64, u32, Option<String>)>> {
        let text = "SELECT id, epoch, checkpoint FROM streams WHERE source = ? ORDER BY epoch";
        sqlx::query_as(text).bind(source).fetch_all(&mut *self).await.map_err(classify_error)
    }

    async fn tallies_of(&mut self, streams: &[i64]) -> StoreResult<Vec<SegmentTally>> {
        let text = "SELECT segment, sum(states), sum(bytes) FROM tallies \
                    WHERE stream IN (SELECT value FROM json_each(?)) GROUP BY segment ORDER BY segment";
        let rows: Vec<(i64, i64, i64)> = sqlx::query_as(text)
            .bind(numbers_as_json(streams))
            .fetch_all(&mut *self)
            .await
            .map_err(classify_error)?;
        let tally = |(segment, states, bytes): (i64, i64, i64)| SegmentTally {
            segment: segment as u64,
            states: states as u64,
            bytes: bytes.max(0) as u64,
        };
        Ok(rows.into_iter().map(tally).collect())
    }

    async fn letters_between(&mut self, from: Seq, through: Seq) -> StoreResult<Vec<MarkedLetter>> {
        // Plugin by plugin: the key begins with the plugin, and millions of states may be owed.
        let text = "SELECT l.plugin, l.seq, l.replaying FROM plugins p CROSS JOIN letters l \
                    ON l.plugin = p.name AND l.seq BETWEEN ? AND ?";
        let query = sqlx::query_as(text).bind(from as i64).bind(through as i64);
        let letters: Vec<(String, i64, i64)> = query.fetch_all(&mut *self).await.map_err(classify_error)?;
        let marked = |(plugin, seq, mark): (String, i64, i64)| MarkedLetter { plugin, seq: seq as Seq, mark };
        Ok(letters.into_iter().map(marked).collect())
    }

    async fn links_between(&mut self, streams: &[i64], from: Seq, through: Seq) -> StoreResult<Vec<LinkRow>> {
        let text = concat!(
            "SELECT ",
            link_columns!(),
            " FROM states s CROSS JOIN objects o ON o.id = s.object LEFT JOIN current c ON c.object = o.id \
             WHERE s.seq BETWEEN ? AND ? AND o.stream IN (SELECT value FROM json_each(?)) ORDER BY s.seq"
        );
        let query = sqlx::query(text).bind(from as i64).bind(through as i64).bind(numbers_as_json(streams));
        let rows = query.fetch_all(&mut *self).await.map_err(classify_error)?;
        rows.iter().map(decode_link).collect::<Result<_, _>>().map_err(classify_error)
    }

    async fn links_to(&mut self, object: i64, from: Seq, limit: usize) -> StoreResult<Vec<LinkRow>> {
        let text = concat!(
            "WITH RECURSIVE chain (seq, back) AS ( \
               SELECT s.seq, s.back FROM objects o JOIN states s ON s.seq = o.tail WHERE o.id = ?1 AND s.object = o.id \
               UNION ALL SELECT n.seq, n.back FROM chain c JOIN states n ON n.seq = c.seq - c.back \
                 WHERE c.back > 0 AND c.seq - c.back >= ?2 AND n.object = ?1 LIMIT ?3) SELECT ",
            link_columns!(),
            " FROM chain JOIN states s ON s.seq = chain.seq CROSS JOIN objects o ON o.id = s.object \
             LEFT JOIN current c ON c.object = o.id ORDER BY s.seq"
        );
        let query = sqlx::query(text).bind(object).bind(from as i64).bind(limit as i64);
        let rows = query.fetch_all(&mut *self).await.map_err(classify_error)?;
        rows.iter().map(decode_link).collect::<Result<_, _>>().map_err(classify_error)
    }

    async fn chain_after(
        &mut self,
        streams: &[i64],
        object: i64,
        seq: Seq,
        limit: usize,
    ) -> StoreResult<Vec<(Seq, Seq)>> {
        let text = "WITH RECURSIVE chain (seq, back) AS ( \
               SELECT max(s.seq), s.back FROM objects m CROSS JOIN objects o ON o.uid_key = m.uid_key AND o.uid = m.uid \
                 AND o.kind = m.kind AND o.stream IN (SELECT value FROM json_each(?1)) \
                 LEFT JOIN current c ON c.object = o.id JOIN states s ON s.seq = coalesce(c.tail, o.tail) WHERE m.id = ?2 \
                 HAVING max(s.seq) IS NOT NULL \
               UNION ALL SELECT n.seq, n.back FROM chain c JOIN states n ON n.seq = c.seq - c.back \
                 WHERE c.back > 0 AND c.seq - c.back > ?3 LIMIT ?4) \
             SELECT seq, back FROM chain WHERE seq > ?3";
        let query = sqlx::query_as(text)
            .bind(numbers_as_json(streams))
            .bind(object)
            .bind(seq as i64)
            .bind(limit as i64);
        let rows: Vec<(i64, i64)> = query.fetch_all(&mut *self).await.map_err(classify_error)?;
        Ok(rows.into_iter().map(|(seq, back)| (seq as Seq, (seq - back) as Seq)).collect())
    }

    async fn states_pointing_to(
        &mut self,
        seqs: &[Seq],
        after: Seq,
        through: Seq,
    ) -> StoreResult<Vec<(Seq, Seq)>> {
        let text = "SELECT seq - back, seq FROM states WHERE seq > ? AND seq <= ? AND back > 0 \
                    AND seq - back IN (SELECT value FROM json_each(?))";
        let query = sqlx::query_as(text).bind(after as i64).bind(through as i64).bind(numbers_as_json(seqs));
        let rows: Vec<(i64, i64)> = query.fetch_all(&mut *self).await.map_err(classify_error)?;
        Ok(rows.into_iter().map(|(before, seq)| (before as Seq, seq as Seq)).collect())
    }

    async fn count_existing(&mut self, seqs: &[Seq]) -> StoreResult<usize> {
        let text = "SELECT count(*) FROM states WHERE seq IN (SELECT value FROM json_each(?))";
        let count: i64 = sqlx::query_scalar(text)
            .bind(numbers_as_json(seqs))
            .fetch_one(&mut *self)
            .await
            .map_err(classify_error)?;
        Ok(count as usize)
    }

    async fn stored_at(&mut self, seq: Seq) -> StoreResult<Option<(StateEnvelope, Vec<u8>, i64)>> {
        let text = concat!(
            "SELECT ",
            envelope_column!(),
            ", s.document, o.stream FROM states s JOIN objects o ON o.id = s.object WHERE s.seq = ?"
        );
        let query = sqlx::query_as(text).bind(seq as i64);
        let row: Option<(String, Vec<u8>, i64)> =
            query.fetch_optional(&mut *self).await.map_err(classify_error)?;
        row.map(|(text, document, stream)| Ok((decode_envelope(&text)?, document, stream))).transpose()
    }

    async fn still_ended(&mut self, streams: &[i64], ends: &[(i64, Seq, bool)]) -> StoreResult<usize> {
        let text = "SELECT count(*) FROM json_each(?1) e CROSS JOIN objects o ON o.id = e.value ->> 0 \
             WHERE o.tail = e.value ->> 1 AND NOT EXISTS (SELECT 1 FROM current c WHERE c.object = o.id) \
             AND (e.value ->> 2 OR NOT EXISTS (SELECT 1 FROM objects l WHERE l.uid_key = o.uid_key AND l.uid = o.uid \
               AND l.id > o.id AND l.kind = o.kind AND l.stream IN (SELECT value FROM json_each(?2))))";
        let query =
            sqlx::query_scalar::<_, i64>(text).bind(numbers_as_json(ends)).bind(numbers_as_json(streams));
        let count = query.fetch_one(&mut *self).await.map_err(classify_error)?;
        Ok(count as usize)
    }

    async fn old_records(&mut self, before_ms: u64, limit: usize) -> StoreResult<Vec<i64>> {
        let text = "SELECT id FROM replays WHERE at_ms < ? AND id < (SELECT max(id) FROM replays) AND id NOT IN \
                    (SELECT max(id) FROM replays WHERE what IN ('pause', 'resume') GROUP BY plugin) \
                    ORDER BY id LIMIT ?";
        let query = sqlx::query_scalar(text).bind(bounded_i64(before_ms)).bind(limit as i64);
        query.fetch_all(self).await.map_err(classify_error)
    }

    async fn existing_records(&mut self, numbers: &[i64]) -> StoreResult<Vec<i64>> {
        let text = "SELECT id FROM replays WHERE id IN (SELECT value FROM json_each(?))";
        let query = sqlx::query_scalar(text).bind(numbers_as_json(numbers));
        query.fetch_all(self).await.map_err(classify_error)
    }

    async fn removed_counts(&mut self) -> StoreResult<RemovedCounts> {
        let text = "SELECT plugin, finished, untold FROM taken";
        let rows: Vec<(String, i64, i64)> =
            sqlx::query_as(text).fetch_all(&mut *self).await.map_err(classify_error)?;
        Ok(RemovedCounts::of(rows))
    }

    async fn taken_of_streams(&mut self) -> StoreResult<BTreeMap<i64, u64>> {
        let rows: Vec<(i64, i64)> =
            sqlx::query_as("SELECT id, taken FROM streams").fetch_all(self).await.map_err(classify_error)?;
        Ok(rows.into_iter().map(|(stream, taken)| (stream, taken as u64)).collect())
    }

    async fn segment_sizes(&mut self) -> StoreResult<BTreeMap<(u64, i64), u64>> {
        let text = "SELECT segment, stream, bytes FROM tallies";
        let rows: Vec<(i64, i64, i64)> =
            sqlx::query_as(text).fetch_all(self).await.map_err(classify_error)?;
        Ok(rows
            .into_iter()
            .map(|(segment, stream, bytes)| ((segment as u64, stream), bytes as u64))
            .collect())
    }

    async fn objects_of(&mut self, streams: &[i64]) -> StoreResult<(u64, u64, u64)> {
        let text = "SELECT (SELECT count(*) FROM objects WHERE stream IN (SELECT value FROM json_each(?1))), \
             (SELECT count(*) FROM current c JOIN objects o ON o.id = c.object \
                WHERE o.stream IN (SELECT value FROM json_each(?1))), \
             (SELECT coalesce(sum(length(document)), 0) FROM anchors \
                WHERE stream IN (SELECT value FROM json_each(?1)))";
        let query = sqlx::query_as(text).bind(numbers_as_json(streams));
        let (known, existing, anchors): (i64, i64, i64) =
            query.fetch_one(self).await.map_err(classify_error)?;
        Ok((known as u64, existing as u64, anchors as u64))
    }

    async fn newest_object(&mut self) -> StoreResult<i64> {
        let number: Option<i64> = sqlx::query_scalar("SELECT max(id) FROM objects")
            .fetch_one(self)
            .await
            .map_err(classify_error)?;
        Ok(number.unwrap_or_default())
    }

    async fn free_bytes(&mut self) -> StoreResult<u64> {
        let text = "SELECT f.freelist_count * p.page_size FROM pragma_freelist_count f, pragma_page_size p";
        let bytes: i64 = sqlx::query_scalar(text).fetch_one(self).await.map_err(classify_error)?;
        Ok(bytes as u64)
    }

    async fn references_after(&mut self, after: Seq, limit: usize) -> StoreResult<StateReferences> {
        let text = "SELECT seq, status, previous, anchor FROM states WHERE seq > ? ORDER BY seq LIMIT ?";
        let query = sqlx::query_as(text).bind(after as i64).bind(limit as i64);
        let rows: Vec<StateReference> = query.fetch_all(self).await.map_err(classify_error)?;
        Ok(StateReferences::of(rows))
    }

    async fn shared_row_numbers(
        &mut self,
        which: SharedRows,
        after: i64,
        limit: usize,
    ) -> StoreResult<Vec<i64>> {
        let text = match which {
            SharedRows::Statuses => {
                "SELECT id FROM statuses WHERE id > ? AND id < (SELECT max(id) FROM statuses) ORDER BY id LIMIT ?"
            }
            SharedRows::Anchors => {
                "SELECT id FROM anchors WHERE id > ? AND id NOT IN (SELECT max(id) FROM anchors GROUP BY stream) \
                 ORDER BY id LIMIT ?"
            }
            SharedRows::Owners => {
                "SELECT id FROM objects o WHERE id > ? AND stream = 0 AND id < (SELECT max(id) FROM objects) \
                 AND NOT EXISTS (SELECT 1 FROM owned d WHERE d.owner = o.id) ORDER BY id LIMIT ?"
            }
        };
        let query = sqlx::query_scalar(text).bind(after).bind(limit as i64);
        query.fetch_all(self).await.map_err(classify_error)
    }

    async fn orphaned_owners(&mut self, limit: usize) -> StoreResult<Vec<(i64, i64)>> {
        let text = "SELECT d.owner, d.object FROM owned d \
                    WHERE NOT EXISTS (SELECT 1 FROM objects o WHERE o.id = d.object) LIMIT ?";
        sqlx::query_as(text).bind(limit as i64).fetch_all(self).await.map_err(classify_error)
    }

    async fn old_poison(&mut self, streams: &[i64], before_ms: u64, limit: usize) -> StoreResult<Vec<i64>> {
        let text = "SELECT id FROM poison WHERE stream IN (SELECT value FROM json_each(?)) AND observed_ms < ? \
                    AND id < (SELECT max(id) FROM poison) LIMIT ?";
        let query = sqlx::query_scalar(text)
            .bind(numbers_as_json(streams))
            .bind(before_ms.min(i64::MAX as u64) as i64);
        query.bind(limit as i64).fetch_all(self).await.map_err(classify_error)
    }

    async fn records_after(
        &mut self,
        streams: &[i64],
        after: i64,
        limit: usize,
    ) -> StoreResult<Vec<(i64, String)>> {
        let text = "SELECT id, body FROM gaps WHERE seq = 0 AND id > ? AND id < (SELECT max(id) FROM gaps) \
                    AND stream IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?";
        let query = sqlx::query_as(text).bind(after).bind(numbers_as_json(streams));
        query.bind(limit as i64).fetch_all(self).await.map_err(classify_error)
    }

    async fn progress_of_all(&mut self) -> StoreResult<Vec<(String, PluginProgress)>> {
        let parse = |(plugin, body): (String, String)| {
            let progress = decode_column(&body, || format!("the progress of {plugin}"))?;
            Ok((plugin, progress))
        };
        proof::plugin_rows(self).await?.into_iter().map(parse).collect()
    }
}
