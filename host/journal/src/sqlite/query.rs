//! What people ask: one object's story, figures, holes; and what a source starts from.

use kubewitness_core::ports::{Current, JournalError, Warm};
use kubewitness_core::views::JournalView;
use kubewitness_core::{Gap, Version};
use sqlx::{Connection, SqliteConnection};

use super::fault::classify;
use super::findings::moment;
use super::read::{envelope, envelope_column, json};
use crate::read::Names;
use crate::report::{PoisonRecord, SourceCounters};
use crate::rows::Envelope;
use crate::store::damaged;

pub(super) async fn warm(
    connection: &mut SqliteConnection,
    names: &Names,
    source: &str,
) -> Result<Warm, JournalError> {
    // One transaction: objects and checkpoint must belong together.
    let mut reading = connection.begin().await.map_err(classify)?;
    let text = "SELECT epoch, checkpoint FROM streams WHERE source = ? ORDER BY epoch DESC LIMIT 1";
    let newest: Option<(u32, Option<String>)> =
        sqlx::query_as(text).bind(source).fetch_optional(&mut *reading).await.map_err(classify)?;
    let Some((epoch, checkpoint)) = newest else { return Ok(Warm::default()) };
    let text = concat!(
        "SELECT ",
        envelope_column!(),
        ", c.packed FROM current c CROSS JOIN objects o ON o.id = c.object CROSS JOIN states s ON s.seq = c.newest \
         WHERE o.stream IN (SELECT id FROM streams WHERE source = ?) ORDER BY c.object"
    );
    let query = sqlx::query_as(text).bind(source);
    let rows: Vec<(String, Option<Vec<u8>>)> = query.fetch_all(&mut *reading).await.map_err(classify)?;
    let envelopes = rows.iter().map(|(text, _)| envelope(text)).collect::<Result<Vec<_>, _>>()?;
    let states = names.states(&mut *reading, &envelopes).await?;
    let mut objects = Vec::with_capacity(states.len());
    for ((_, packed), state) in rows.into_iter().zip(states) {
        let packed = packed.ok_or_else(|| damaged(state.seq, "its object is current and has no document"))?;
        objects.push(Current {
            object: state.object.clone(),
            owner: state.owner.clone(),
            resource_version: state.resource_version.clone(),
            status: state.status.clone(),
            seq: state.seq,
            observed_ms: state.observed_ms,
            packed: packed.into(),
        });
    }
    reading.rollback().await.map_err(classify)?;
    Ok(Warm { epoch, checkpoint: checkpoint.as_deref().map(Version::new), objects })
}

/// The documents stay where they are.
pub(super) async fn present(
    connection: &mut SqliteConnection,
    source: &str,
    after: i64,
    limit: i64,
) -> Result<Vec<(i64, Envelope)>, JournalError> {
    let text = concat!(
        "SELECT c.object, ",
        envelope_column!(),
        " FROM current c CROSS JOIN objects o ON o.id = c.object CROSS JOIN states s ON s.seq = c.newest \
         WHERE c.object > ? AND o.stream IN (SELECT id FROM streams WHERE source = ?) ORDER BY c.object LIMIT ?"
    );
    let query = sqlx::query_as(text).bind(after).bind(source).bind(limit);
    let rows: Vec<(i64, String)> = query.fetch_all(connection).await.map_err(classify)?;
    rows.into_iter().map(|(object, text)| Ok((object, envelope(&text)?))).collect()
}

pub(super) async fn stats(
    connection: &mut SqliteConnection,
    bytes: u64,
) -> Result<JournalView, JournalError> {
    let text = "SELECT (SELECT coalesce(sum(states), 0) FROM tallies), \
                coalesce((SELECT min(seq) FROM states), 0), coalesce((SELECT max(seq) FROM states), 0), \
                (SELECT observed_ms FROM states ORDER BY seq LIMIT 1)";
    let (states, oldest, newest, begun): (i64, i64, i64, Option<i64>) =
        sqlx::query_as(text).fetch_one(connection).await.map_err(classify)?;
    Ok(JournalView {
        states: states as u64,
        bytes,
        oldest_seq: oldest as u64,
        newest_seq: newest as u64,
        oldest_at: moment(begun),
    })
}

/// Of whole sources and of single objects, in the order in which they were recorded.
pub(super) async fn gaps(connection: &mut SqliteConnection) -> Result<Vec<Gap>, JournalError> {
    let rows: Vec<(i64, String)> = sqlx::query_as("SELECT id, body FROM gaps ORDER BY id")
        .fetch_all(connection)
        .await
        .map_err(classify)?;
    let parse = |(id, body): (i64, String)| {
        serde_json::from_str(&body)
            .map_err(|error| JournalError::Fatal(format!("gap {id} does not decode: {error}")))
    };
    rows.into_iter().map(parse).collect()
}

pub(super) async fn source_counters(
    connection: &mut SqliteConnection,
) -> Result<Vec<SourceCounters>, JournalError> {
    type Counters = (String, u32, Option<String>, i64, i64, i64, Option<i64>);
    // Of the bare columns, SQLite takes those of the row that has the maximum.
    let text = "SELECT source, max(epoch), checkpoint, sum(states), \
         (SELECT count(*) FROM gaps g JOIN streams t ON t.id = g.stream WHERE t.source = s.source), \
         (SELECT count(*) FROM poison p JOIN streams t ON t.id = p.stream WHERE t.source = s.source), \
         (SELECT max(last_event_ms) FROM streams t WHERE t.source = s.source) \
         FROM streams s GROUP BY source ORDER BY source";
    let rows: Vec<Counters> = sqlx::query_as(text).fetch_all(connection).await.map_err(classify)?;
    let counters = |(source, epoch, checkpoint, states, gaps, poison, last): Counters| SourceCounters {
        source,
        epoch,
        checkpoint: checkpoint.unwrap_or_default(),
        states: states as u64,
        gaps: gaps as u64,
        poison: poison as u64,
        last_event_ms: last.filter(|ms| *ms > 0).map(|ms| ms as u64),
    };
    Ok(rows.into_iter().map(counters).collect())
}

pub(super) async fn poison(
    connection: &mut SqliteConnection,
    source: Option<&str>,
    limit: usize,
) -> Result<Vec<PoisonRecord>, JournalError> {
    type Record = (i64, String, u32, String, i64, Vec<u8>);
    let text = "SELECT p.id, t.source, t.epoch, p.error, p.observed_ms, p.raw FROM poison p \
                JOIN streams t ON t.id = p.stream WHERE ?1 IS NULL OR t.source = ?1 ORDER BY p.id DESC LIMIT ?2";
    let query = sqlx::query_as(text).bind(source).bind(limit.min(i64::MAX as usize) as i64);
    let rows: Vec<Record> = query.fetch_all(connection).await.map_err(classify)?;
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

/// The rows of an owner are found by its uid: it is there once as an owner, and once more if it
/// is watched itself.
pub(super) async fn owned(
    connection: &mut SqliteConnection,
    owners: &[i64],
    limit: i64,
) -> Result<Vec<i64>, JournalError> {
    let text = "SELECT DISTINCT d.object FROM objects m \
         CROSS JOIN objects r ON r.uid_key = m.uid_key AND r.uid = m.uid AND r.uid <> '' \
         CROSS JOIN owned d ON d.owner = r.id \
         WHERE m.id IN (SELECT value FROM json_each(?1)) ORDER BY d.object DESC LIMIT ?2";
    let query = sqlx::query_scalar(text).bind(json(owners)).bind(limit);
    query.fetch_all(connection).await.map_err(classify)
}

/// In descending order, and cut at the limit: the walk ends where the answer does.
pub(super) async fn story(
    connection: &mut SqliteConnection,
    objects: &[i64],
    limit: i64,
) -> Result<Vec<i64>, JournalError> {
    let text = "WITH RECURSIVE chain (seq, back) AS ( \
           SELECT s.seq, s.back FROM objects o LEFT JOIN current c ON c.object = o.id \
             JOIN states s ON s.seq = coalesce(c.tail, o.tail) \
             WHERE o.id IN (SELECT value FROM json_each(?1)) \
           UNION \
           SELECT s.seq, s.back FROM chain c JOIN states s ON s.seq = c.seq - c.back WHERE c.back > 0 \
           ORDER BY 1 DESC LIMIT ?2) \
         SELECT seq FROM chain";
    sqlx::query_scalar(text).bind(json(objects)).bind(limit).fetch_all(connection).await.map_err(classify)
}
