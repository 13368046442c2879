//! What people ask: one object's story, figures, holes; and what a source starts from.

use std::sync::Arc;

use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::{Current, JournalError, Present, Warm};
use kubewitness_core::views::{JournalView, TimelineQuery, TimelineView};
use kubewitness_core::{Gap, Seq, State, Version};
use sqlx::{Connection, SqliteConnection};

use super::fault::{classify, damaged};
use super::findings::moment;
use super::read::{Names, envelope, envelope_column, object, object_column};
use super::{read, uid};
use crate::report::{PoisonRecord, SourceCounters};

/// States of one answer where the question names no limit. An object with more is read in parts
/// by position.
const TIMELINE: usize = 1000;
const TIMELINE_MOST: usize = 10_000;

/// A Job's pods, a workflow's jobs' pods; deeper owners are not followed.
const OWNER_STEPS: usize = 4;

/// Objects of one answer: a Job with more pods than this shows the newest of them.
const RELATED_OBJECTS: usize = 2000;

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
    let states = names.states(&mut reading, &envelopes).await?;
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

/// By the objects' own numbers, so that a part goes on where the one before ended, whatever was
/// written in between. The documents stay where they are.
pub(super) async fn present(
    connection: &mut SqliteConnection,
    names: &Names,
    source: &str,
    from: u64,
    limit: usize,
) -> Result<Present, JournalError> {
    let text = concat!(
        "SELECT c.object, ",
        envelope_column!(),
        " FROM current c CROSS JOIN objects o ON o.id = c.object CROSS JOIN states s ON s.seq = c.newest \
         WHERE c.object > ? AND o.stream IN (SELECT id FROM streams WHERE source = ?) ORDER BY c.object LIMIT ?"
    );
    let query = sqlx::query_as(text).bind(from.min(i64::MAX as u64) as i64).bind(source);
    let query = query.bind(limit.min(i64::MAX as usize) as i64);
    let rows: Vec<(i64, String)> = query.fetch_all(&mut *connection).await.map_err(classify)?;
    let next = rows.last().filter(|_| rows.len() == limit).map(|(object, _)| *object as u64);
    let envelopes = rows.iter().map(|(_, text)| envelope(text)).collect::<Result<Vec<_>, _>>()?;
    Ok(Present { states: names.states(connection, &envelopes).await?, next })
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

pub(super) async fn timeline(
    connection: &mut SqliteConnection,
    names: &Names,
    query: &TimelineQuery,
) -> Result<TimelineView, JournalError> {
    let limit = query.limit.unwrap_or(TIMELINE).min(TIMELINE_MOST);
    let mine = named(connection, query).await?;
    let related = owned(connection, &mine).await?;
    let states = story(connection, names, &mine, limit).await?;
    let related = story(connection, names, &related, limit).await?;
    Ok(TimelineView { states, related })
}

/// The objects that a question names, over all epochs and sources.
async fn named(connection: &mut SqliteConnection, query: &TimelineQuery) -> Result<Vec<i64>, JournalError> {
    let (column, text) = match (&query.uid, &query.name) {
        (Some(uid), _) => ("uid_key", uid),
        (None, Some(name)) => ("name_key", name),
        (None, None) => {
            return Err(JournalError::Invalid("name an object: a uid, or a kind and a name".into()));
        }
    };
    let sql = match column {
        "uid_key" => concat!(
            "SELECT ",
            object_column!(),
            " FROM objects o JOIN kinds k ON k.id = o.kind WHERE o.uid_key = ? ORDER BY o.id"
        ),
        _ => concat!(
            "SELECT ",
            object_column!(),
            " FROM objects o JOIN kinds k ON k.id = o.kind WHERE o.name_key = ? ORDER BY o.id"
        ),
    };
    let asked = sqlx::query_scalar(sql).bind(uid::key(text));
    let rows: Vec<String> = asked.fetch_all(connection).await.map_err(classify)?;
    let mut ids = Vec::new();
    for row in &rows {
        let (id, known) = object(row)?;
        let found = &known.object;
        let is_it = match &query.uid {
            Some(uid) => found.uid == *uid,
            None => {
                Some(&found.name) == query.name.as_ref()
                    && query.kind.as_ref().is_none_or(|kind| is_kind(&found.group, &found.kind, kind))
                    && query.namespace.as_ref().is_none_or(|namespace| found.namespace == *namespace)
            }
        };
        if is_it {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Objects that have one of these in the chain of their owners. The rows of an owner are found
/// by its uid: it is there once as an owner, and once more if it is watched itself.
async fn owned(connection: &mut SqliteConnection, mine: &[i64]) -> Result<Vec<i64>, JournalError> {
    let text = "SELECT DISTINCT d.object FROM objects m \
         CROSS JOIN objects r ON r.uid_key = m.uid_key AND r.uid = m.uid AND r.uid <> '' \
         CROSS JOIN owned d ON d.owner = r.id \
         WHERE m.id IN (SELECT value FROM json_each(?1)) ORDER BY d.object DESC LIMIT ?2";
    let mut all: Vec<i64> = Vec::new();
    let mut level = mine.to_vec();
    for _ in 0..OWNER_STEPS {
        let ids = serde_json::to_string(&level).expect("numbers always serialize");
        let found: Vec<i64> = sqlx::query_scalar(text)
            .bind(ids)
            .bind(RELATED_OBJECTS as i64)
            .fetch_all(&mut *connection)
            .await
            .map_err(classify)?;
        level = found.into_iter().filter(|id| !all.contains(id) && !mine.contains(id)).collect();
        all.extend(&level);
        if level.is_empty() || all.len() >= RELATED_OBJECTS {
            break;
        }
    }
    all.truncate(RELATED_OBJECTS);
    Ok(all)
}

/// The newest states of these objects, oldest first: along the chains, from their ends.
async fn story(
    connection: &mut SqliteConnection,
    names: &Names,
    objects: &[i64],
    limit: usize,
) -> Result<Vec<Arc<State>>, JournalError> {
    if objects.is_empty() || limit == 0 {
        return Ok(Vec::new());
    }
    // In descending order, and cut at the limit: the walk ends where the answer does.
    let text = "WITH RECURSIVE chain (seq, back) AS ( \
           SELECT s.seq, s.back FROM objects o LEFT JOIN current c ON c.object = o.id \
             JOIN states s ON s.seq = coalesce(c.tail, o.tail) \
             WHERE o.id IN (SELECT value FROM json_each(?1)) \
           UNION \
           SELECT s.seq, s.back FROM chain c JOIN states s ON s.seq = c.seq - c.back WHERE c.back > 0 \
           ORDER BY 1 DESC LIMIT ?2) \
         SELECT seq FROM chain";
    let ids = serde_json::to_string(objects).expect("numbers always serialize");
    let seqs: Vec<i64> = sqlx::query_scalar(text)
        .bind(ids)
        .bind(limit as i64)
        .fetch_all(&mut *connection)
        .await
        .map_err(classify)?;
    let seqs: Vec<Seq> = seqs.into_iter().map(|seq| seq as u64).collect();
    read::at(connection, names, &seqs).await
}
