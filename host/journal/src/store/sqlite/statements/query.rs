//! Reads what people query (timelines, figures, gaps, ends, past moments), and what a watch or a resync needs
//! at startup.

use kubewitness_core::ports::JournalError;
use kubewitness_core::views::JournalView;
use kubewitness_core::{Gap, Seq};
use sqlx::SqliteConnection;

use super::findings::optional_rfc3339;
use super::read::{decode_envelope, envelope_column, numbers_as_json};
use crate::report::{PoisonRecord, SourceCounters};
use crate::store::OwnedKind;
use crate::store::rows::{
    ChainStep, CurrentRow, DocumentStorage, ObjectEnds, PlacedObject, RowFlags, StateEnvelope, StoreResult,
    StoredDocument, damaged_state, decode_column,
};
use crate::store::sqlite::fault::classify_error;

pub(super) async fn current_objects(
    connection: &mut SqliteConnection,
    source: &str,
    after: i64,
    limit: i64,
) -> Result<Vec<CurrentRow>, JournalError> {
    type Columns = (i64, String, Vec<u8>, Option<i64>, Option<Vec<u8>>);
    let text = concat!(
        "SELECT c.object, ",
        envelope_column!(),
        ", s.document, p.seq, p.packed FROM current c CROSS JOIN objects o ON o.id = c.object \
         CROSS JOIN states s ON s.seq = c.newest LEFT JOIN snapshots p ON p.object = c.object \
         WHERE c.object > ? AND o.stream IN (SELECT id FROM streams WHERE source = ?) ORDER BY c.object LIMIT ?"
    );
    let query = sqlx::query_as(text).bind(after).bind(source).bind(limit);
    let rows: Vec<Columns> = query.fetch_all(connection).await.map_err(classify_error)?;
    let row = |(object, text, stored, seq, packed): Columns| {
        let snapshot = seq.map(|seq| seq as u64).zip(packed);
        Ok(CurrentRow { object, newest: decode_envelope(&text)?, stored, snapshot })
    };
    rows.into_iter().map(row).collect()
}

/// Envelopes are not checked here: the caller compares each restored document with its checksum.
pub(super) async fn stored_documents(
    connection: &mut SqliteConnection,
    seqs: &[Seq],
) -> Result<Vec<StoredDocument>, JournalError> {
    type Columns = (i64, i64, i64, Option<i64>, i64, Vec<u8>);
    let seqs = serde_json::to_string(seqs).expect("numbers always serialize");
    let text = "SELECT s.seq, s.flags, s.back, s.anchor, s.sums, s.document \
                FROM json_each(?) q CROSS JOIN states s ON s.seq = q.value";
    let rows: Vec<Columns> =
        sqlx::query_as(text).bind(seqs).fetch_all(connection).await.map_err(classify_error)?;
    let link = |(seq, flags, back, anchor, sums, stored): Columns| {
        let seq = seq as u64;
        let flags = RowFlags::unpack_bits(flags)
            .ok_or_else(|| damaged_state(seq, "its flags are not of this format"))?;
        let kept = DocumentStorage { seq, encoding: flags.encoding, anchor, checksum: sums as u32 };
        Ok(StoredDocument { kept, before: seq.saturating_sub(back as u64), stored })
    };
    rows.into_iter().map(link).collect()
}

/// Documents are not read.
pub(super) async fn present_objects(
    connection: &mut SqliteConnection,
    source: &str,
    after: i64,
    limit: i64,
) -> Result<Vec<(i64, StateEnvelope)>, JournalError> {
    let text = concat!(
        "SELECT c.object, ",
        envelope_column!(),
        " FROM current c CROSS JOIN objects o ON o.id = c.object CROSS JOIN states s ON s.seq = c.newest \
         WHERE c.object > ? AND o.stream IN (SELECT id FROM streams WHERE source = ?) ORDER BY c.object LIMIT ?"
    );
    let query = sqlx::query_as(text).bind(after).bind(source).bind(limit);
    let rows: Vec<(i64, String)> = query.fetch_all(connection).await.map_err(classify_error)?;
    rows.into_iter().map(|(object, text)| Ok((object, decode_envelope(&text)?))).collect()
}

pub(super) async fn journal_stats(
    connection: &mut SqliteConnection,
    bytes: u64,
) -> Result<JournalView, JournalError> {
    let text = "SELECT (SELECT coalesce(sum(states), 0) FROM tallies), \
                coalesce((SELECT min(seq) FROM states), 0), coalesce((SELECT max(seq) FROM states), 0), \
                (SELECT observed_ms FROM states ORDER BY seq LIMIT 1)";
    let (states, oldest, newest, begun): (i64, i64, i64, Option<i64>) =
        sqlx::query_as(text).fetch_one(connection).await.map_err(classify_error)?;
    Ok(JournalView {
        states: states as u64,
        bytes,
        oldest_seq: oldest as u64,
        newest_seq: newest as u64,
        oldest_at: optional_rfc3339(begun),
        ..JournalView::default()
    })
}

/// The gaps of sources and of single objects, in the order of their records.
pub(super) async fn all_gaps(connection: &mut SqliteConnection) -> Result<Vec<Gap>, JournalError> {
    let rows: Vec<(i64, String)> = sqlx::query_as("SELECT id, body FROM gaps ORDER BY id")
        .fetch_all(connection)
        .await
        .map_err(classify_error)?;
    let parse = |(id, body): (i64, String)| decode_column(&body, || format!("gap {id}"));
    rows.into_iter().map(parse).collect()
}

pub(super) async fn source_counters(
    connection: &mut SqliteConnection,
) -> Result<Vec<SourceCounters>, JournalError> {
    type Counters = (String, u32, Option<String>, i64, i64, i64, i64, Option<i64>);
    // For bare columns, SQLite takes the values of the row that has the maximum.
    let text = "SELECT source, max(epoch), checkpoint, sum(states), sum(taken), \
         (SELECT count(*) FROM gaps g JOIN streams t ON t.id = g.stream WHERE t.source = s.source), \
         (SELECT count(*) FROM poison p JOIN streams t ON t.id = p.stream WHERE t.source = s.source), \
         (SELECT max(last_event_ms) FROM streams t WHERE t.source = s.source) \
         FROM streams s GROUP BY source ORDER BY source";
    let rows: Vec<Counters> = sqlx::query_as(text).fetch_all(connection).await.map_err(classify_error)?;
    let counters =
        |(source, epoch, checkpoint, states, taken, gaps, poison, last): Counters| SourceCounters {
            source,
            epoch,
            checkpoint: checkpoint.unwrap_or_default(),
            states: states as u64,
            taken: taken as u64,
            gaps: gaps as u64,
            poison: poison as u64,
            last_event_ms: last.filter(|ms| *ms > 0).map(|ms| ms as u64),
        };
    Ok(rows.into_iter().map(counters).collect())
}

pub(super) async fn poison_records(
    connection: &mut SqliteConnection,
    source: Option<&str>,
    limit: usize,
) -> Result<Vec<PoisonRecord>, JournalError> {
    type Record = (i64, String, u32, String, i64, Vec<u8>);
    let text = "SELECT p.id, t.source, t.epoch, p.error, p.observed_ms, p.raw FROM poison p \
                JOIN streams t ON t.id = p.stream WHERE ?1 IS NULL OR t.source = ?1 ORDER BY p.id DESC LIMIT ?2";
    let query = sqlx::query_as(text).bind(source).bind(limit.min(i64::MAX as usize) as i64);
    let rows: Vec<Record> = query.fetch_all(connection).await.map_err(classify_error)?;
    let record = |(number, source, epoch, error, observed_ms, raw): Record| PoisonRecord {
        number: number as u64,
        source,
        epoch,
        error,
        observed_ms: observed_ms as u64,
        raw,
    };
    Ok(rows.into_iter().map(record).collect())
}

/// The rows of an owner are found by its uid: one row as an owner, and another if it is watched itself. An
/// object in another namespace merely claims to have this owner, and gets a separate owner row. If an object
/// with that uid was witnessed, its own namespace counts. The API server accepts an Event about a
/// cluster-scoped object only in the namespace `default`.
pub(super) async fn owned_objects(
    connection: &mut SqliteConnection,
    owners: &[i64],
    which: OwnedKind,
    below: i64,
    limit: i64,
) -> Result<Vec<i64>, JournalError> {
    let text = "SELECT DISTINCT d.object FROM objects m \
         CROSS JOIN objects r ON r.uid_key = m.uid_key AND r.uid = m.uid AND r.uid <> '' \
         CROSS JOIN owned d ON d.owner = r.id \
         CROSS JOIN objects o ON o.id = d.object \
         CROSS JOIN kinds k ON k.id = o.kind \
         WHERE m.id IN (SELECT value FROM json_each(?1)) \
         AND (m.namespace = '' OR o.namespace = m.namespace) \
         AND (NOT ?2 OR m.namespace <> '' OR o.namespace = 'default') \
         AND (m.tail IS NOT NULL OR EXISTS (SELECT 1 FROM current c WHERE c.object = m.id) \
           OR NOT EXISTS (SELECT 1 FROM objects w LEFT JOIN current c ON c.object = w.id \
             WHERE w.uid_key = m.uid_key AND w.uid = m.uid AND (w.tail IS NOT NULL OR c.object IS NOT NULL))) \
         AND (k.kind = 'Event' AND k.api_group IN ('', 'events.k8s.io')) = ?2 \
         AND d.object < ?3 ORDER BY d.object DESC LIMIT ?4";
    let is_event = which == OwnedKind::Events;
    let query = sqlx::query_scalar(text).bind(numbers_as_json(owners)).bind(is_event).bind(below).bind(limit);
    query.fetch_all(connection).await.map_err(classify_error)
}

/// In descending order, so the walk ends with the answer. A part of one object's story begins at the state
/// where the previous part ended: it is looked up, and nothing newer is read.
pub(super) async fn story_positions(
    connection: &mut SqliteConnection,
    objects: &[i64],
    before: i64,
    limit: i64,
) -> Result<Vec<i64>, JournalError> {
    let text = "WITH RECURSIVE chain (seq, back) AS ( \
           SELECT s.seq, s.back FROM objects o LEFT JOIN current c ON c.object = o.id \
             LEFT JOIN states a ON a.seq = ?2 AND a.object = o.id \
             LEFT JOIN states b ON b.seq = ?2 - 1 AND b.object = o.id \
             CROSS JOIN states s ON s.seq = coalesce(a.seq, b.seq, c.tail, o.tail) \
             WHERE o.id IN (SELECT value FROM json_each(?1)) \
           UNION \
           SELECT s.seq, s.back FROM chain c JOIN states s ON s.seq = c.seq - c.back WHERE c.back > 0 \
           ORDER BY 1 DESC) \
         SELECT seq FROM chain WHERE seq < ?2 LIMIT ?3";
    let query = sqlx::query_scalar(text).bind(numbers_as_json(objects)).bind(before).bind(limit);
    query.fetch_all(connection).await.map_err(classify_error)
}

// ---- what existed at a moment ----------------------------------------------------------

pub(super) async fn observation_times(
    connection: &mut SqliteConnection,
    from: i64,
    limit: i64,
) -> StoreResult<Vec<(i64, i64)>> {
    let text = "SELECT seq, observed_ms FROM states WHERE seq >= ? ORDER BY seq LIMIT ?";
    sqlx::query_as(text).bind(from).bind(limit).fetch_all(connection).await.map_err(classify_error)
}

type Columns = (i64, i64, i64, String, String);

fn decode_placed((object, stream, tail, namespace, name): Columns) -> PlacedObject {
    PlacedObject { object, stream, tail: tail as Seq, namespace, name }
}

pub(super) async fn ended_objects(
    connection: &mut SqliteConnection,
    ends: ObjectEnds,
) -> StoreResult<Vec<PlacedObject>> {
    macro_rules! by {
        ($order:literal) => {
            concat!(
                "SELECT o.id, o.stream, o.tail, o.namespace, o.name FROM objects o \
                 WHERE o.stream = ? AND o.tail > ? AND o.tail < ? \
                 AND NOT EXISTS (SELECT 1 FROM current c WHERE c.object = o.id) ORDER BY o.tail ",
                $order,
                " LIMIT ?"
            )
        };
    }
    let text = if ends.newest_first { by!("DESC") } else { by!("ASC") };
    let query = sqlx::query_as(text).bind(ends.stream).bind(ends.after).bind(ends.before).bind(ends.limit);
    let rows: Vec<Columns> = query.fetch_all(connection).await.map_err(classify_error)?;
    Ok(rows.into_iter().map(decode_placed).collect())
}

pub(super) async fn living_objects(
    connection: &mut SqliteConnection,
    streams: &[i64],
    after: i64,
    limit: i64,
) -> StoreResult<Vec<PlacedObject>> {
    let text = "SELECT o.id, o.stream, c.tail, o.namespace, o.name FROM current c \
                CROSS JOIN objects o ON o.id = c.object \
                WHERE c.object > ? AND o.stream IN (SELECT value FROM json_each(?)) ORDER BY c.object LIMIT ?";
    let query = sqlx::query_as(text).bind(after).bind(numbers_as_json(streams)).bind(limit);
    let rows: Vec<Columns> = query.fetch_all(connection).await.map_err(classify_error)?;
    Ok(rows.into_iter().map(decode_placed).collect())
}

fn seqs_json(seqs: &[Seq]) -> String {
    serde_json::to_string(seqs).expect("numbers always serialize")
}

pub(super) async fn walk_chains(
    connection: &mut SqliteConnection,
    heads: &[Seq],
    through: Seq,
    steps: i64,
) -> StoreResult<Vec<ChainStep>> {
    // The lowest three bits of the flags are change and lateness: 0, 1 and 2 are regular states.
    let text = "WITH RECURSIVE chain (head, seq, back, flags, step) AS ( \
           SELECT s.seq, s.seq, s.back, s.flags, 1 FROM json_each(?1) q CROSS JOIN states s ON s.seq = q.value \
           UNION ALL \
           SELECT c.head, s.seq, s.back, s.flags, c.step + 1 FROM chain c CROSS JOIN states s \
             ON s.seq = c.seq - c.back \
             WHERE c.back > 0 AND c.step < ?3 AND (c.seq > ?2 OR (c.flags & 7) > 2)) \
         SELECT head, seq, back, flags FROM chain";
    let query = sqlx::query_as(text).bind(seqs_json(heads)).bind(through as i64).bind(steps);
    let rows: Vec<(i64, i64, i64, i64)> = query.fetch_all(connection).await.map_err(classify_error)?;
    let step = |(head, seq, back, flags): (i64, i64, i64, i64)| ChainStep {
        head: head as Seq,
        seq: seq as Seq,
        back: back as u64,
        flags,
    };
    Ok(rows.into_iter().map(step).collect())
}

pub(super) async fn letters_at(
    connection: &mut SqliteConnection,
    plugin: &str,
    seqs: &[Seq],
) -> StoreResult<Vec<(Seq, i64)>> {
    let text = "SELECT l.seq, l.replaying FROM json_each(?2) q CROSS JOIN letters l \
                ON l.plugin = ?1 AND l.seq = q.value";
    let query = sqlx::query_as(text).bind(plugin).bind(seqs_json(seqs));
    let rows: Vec<(i64, i64)> = query.fetch_all(connection).await.map_err(classify_error)?;
    Ok(rows.into_iter().map(|(seq, mark)| (seq as Seq, mark)).collect())
}
