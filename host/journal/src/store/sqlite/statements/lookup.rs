//! Reads what the writer needs before it plans a batch: everything at startup; later the ends of chains that
//! it forgot, and keys that may already exist.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kubewitness_core::ports::JournalError;
use serde_json::{Value, json};
use sqlx::{Row, SqliteConnection};

use super::read::{decode_object, key, object_column, source_streams};
use crate::store::memory::chain_ends::ChainEnd;
use crate::store::memory::{FoundObject, NextNumbers, ObjectIdentity, SourceMemory, StoreMemory};
use crate::store::rows::{DocumentEncoding, KnownKeys, RowFlags, StateKey, uid};
use crate::store::sqlite::fault::classify_error;

/// How many statuses are loaded at startup; others are loaded when they are needed.
const STATUSES: i64 = 2048;

pub(crate) async fn load_memory(connection: &mut SqliteConnection) -> Result<StoreMemory, JournalError> {
    let mut memory = StoreMemory { next: next(connection).await?, ..StoreMemory::default() };
    let kinds: Vec<(i64, String, String, String)> =
        sqlx::query_as("SELECT id, api_group, version, kind FROM kinds")
            .fetch_all(&mut *connection)
            .await
            .map_err(classify_error)?;
    memory.kinds = kinds.into_iter().map(|(id, group, version, kind)| ((group, version, kind), id)).collect();
    let statuses: Vec<(i64, String, i64)> =
        sqlx::query_as("SELECT id, body, sum FROM statuses ORDER BY id DESC LIMIT ?")
            .bind(STATUSES)
            .fetch_all(&mut *connection)
            .await
            .map_err(classify_error)?;
    statuses.iter().for_each(|(id, body, sum)| memory.learn_status(*id, body, *sum));
    load_sources(connection, &mut memory).await?;
    Ok(memory)
}

async fn next(connection: &mut SqliteConnection) -> Result<NextNumbers, JournalError> {
    let text = "SELECT coalesce((SELECT max(seq) FROM states), 0), coalesce((SELECT max(id) FROM objects), 0), \
                coalesce((SELECT max(id) FROM statuses), 0), coalesce((SELECT max(id) FROM streams), 0), \
                coalesce((SELECT max(id) FROM kinds), 0), coalesce((SELECT max(id) FROM anchors), 0)";
    let (seq, object, status, stream, kind, anchor): (i64, i64, i64, u32, i64, i64) =
        sqlx::query_as(text).fetch_one(connection).await.map_err(classify_error)?;
    Ok(NextNumbers {
        seq: seq as u64 + 1,
        object: object + 1,
        status: status + 1,
        stream: stream + 1,
        kind: kind + 1,
        anchor: anchor + 1,
    })
}

async fn load_sources(
    connection: &mut SqliteConnection,
    memory: &mut StoreMemory,
) -> Result<(), JournalError> {
    let newest: Vec<(i64, i64)> = sqlx::query_as("SELECT stream, max(id) FROM anchors GROUP BY stream")
        .fetch_all(&mut *connection)
        .await
        .map_err(classify_error)?;
    let newest: HashMap<i64, i64> = newest.into_iter().collect();
    // Ordered by source and epoch, so the last entry of a source stays.
    for stream in source_streams(connection).await? {
        let source: &mut SourceMemory = memory.sources.entry(stream.source.as_str().into()).or_default();
        let number = stream.id;
        source.resume_epoch(stream)?;
        let Some(anchor) = newest.get(&number).copied() else { continue };
        let (sum, packed): (i64, Vec<u8>) =
            sqlx::query_as("SELECT checksum, document FROM anchors WHERE id = ?")
                .bind(anchor)
                .fetch_one(&mut *connection)
                .await
                .map_err(classify_error)?;
        source.anchors.resume_from_row(anchor, sum, &packed);
    }
    Ok(())
}

/// The rows of these objects, with the ends of their chains.
pub(crate) async fn find_chain_ends(
    connection: &mut SqliteConnection,
    memory: &StoreMemory,
    strangers: Vec<ObjectIdentity>,
) -> Result<Vec<FoundObject>, JournalError> {
    if strangers.is_empty() {
        return Ok(Vec::new());
    }
    let keys: HashSet<_> = strangers.iter().map(|identity| uid::key(&identity.object.uid)).collect();
    let keys = serde_json::to_string(&keys).expect("numbers always serialize");
    let strangers: HashSet<_> = strangers.into_iter().collect();
    let text = concat!(
        "SELECT ",
        object_column!(),
        ", coalesce(c.tail, o.tail, 0), coalesce(c.newest, o.newest, 0), c.object IS NOT NULL, \
         t.flags, t.sums, n.version, n.at, n.flags \
         FROM json_each(?) u CROSS JOIN objects o ON o.uid_key = u.value JOIN kinds k ON k.id = o.kind \
         LEFT JOIN current c ON c.object = o.id \
         LEFT JOIN states t ON t.seq = coalesce(c.tail, o.tail) \
         LEFT JOIN states n ON n.seq = coalesce(c.newest, o.newest)"
    );
    let rows = sqlx::query(text).bind(keys).fetch_all(connection).await.map_err(classify_error)?;
    let streams = memory.stream_sources();
    let mut found = Vec::new();
    for row in &rows {
        let (id, known) = decode_object(row.try_get(0).map_err(classify_error)?)?;
        let stream = streams.get(&known.stream).cloned();
        let (source, epoch) = stream.unwrap_or_else(|| (Arc::from(""), 0));
        let identity = ObjectIdentity { source, object: known.object };
        if strangers.contains(&identity) {
            let tail = decode_chain_end(row, id, known.stream as u32, known.owner).map_err(classify_error)?;
            found.push(FoundObject { identity, epoch, tail });
        }
    }
    Ok(found)
}

fn decode_chain_end(
    row: &sqlx::sqlite::SqliteRow,
    object: i64,
    stream: u32,
    owner: i64,
) -> Result<ChainEnd, sqlx::Error> {
    const FIRST: usize = 1;
    let flags = row.try_get::<Option<i64>, _>(FIRST + 3)?.and_then(RowFlags::unpack_bits);
    let newest_flags = row.try_get::<Option<i64>, _>(FIRST + 7)?.and_then(RowFlags::unpack_bits);
    // The key of a deletion is not its version.
    let version = match newest_flags.map(|flags| flags.change) {
        Some(kubewitness_core::Change::Gone | kubewitness_core::Change::Gap) => key(row, FIRST + 6)?,
        _ => key(row, FIRST + 5)?,
    };
    let mut tail = ChainEnd::of(object, stream, owner);
    tail.seq = row.try_get::<i64, _>(FIRST)? as u64;
    tail.depth = flags.map_or(0, |flags| flags.depth as u8);
    tail.checksum = row.try_get::<Option<i64>, _>(FIRST + 4)?.unwrap_or_default() as u32;
    tail.has_document = flags.is_some_and(|flags| flags.encoding != DocumentEncoding::Empty);
    tail.live = row.try_get::<i64, _>(FIRST + 2)? != 0;
    let newest = version.and_then(|key| key.version());
    tail.set_newest(newest.as_ref(), row.try_get::<i64, _>(FIRST + 1)? as u64);
    Ok(tail)
}

/// The positions of those keys that already exist.
pub(crate) async fn find_known_keys(
    connection: &mut SqliteConnection,
    questions: Vec<(i64, StateKey)>,
) -> Result<KnownKeys, JournalError> {
    if questions.is_empty() {
        return Ok(KnownKeys::new());
    }
    let asked: Vec<Value> = questions
        .into_iter()
        .map(|(object, key)| match key {
            StateKey::Number(number) => json!([object, number]),
            StateKey::Text(text) => json!([object, &*text]),
        })
        .collect();
    let text = "SELECT s.object, s.version, s.seq FROM json_each(?) q CROSS JOIN states s \
                ON s.version = q.value ->> 1 AND s.object = q.value ->> 0";
    let asked = Value::Array(asked).to_string();
    let rows = sqlx::query(text).bind(asked).fetch_all(connection).await.map_err(classify_error)?;
    let mut known = KnownKeys::new();
    for row in &rows {
        if let Some(key) = key(row, 1).map_err(classify_error)? {
            let seq: i64 = row.try_get(2).map_err(classify_error)?;
            known.insert((row.try_get(0).map_err(classify_error)?, key), seq as u64);
        }
    }
    Ok(known)
}
