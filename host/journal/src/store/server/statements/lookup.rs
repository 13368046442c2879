//! Reads what the writer needs before it plans a batch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kubewitness_core::Change;
use kubewitness_core::ports::JournalError;

use super::read::{AFTER_OBJECT, decode_object, object_columns};
use crate::store::memory::chain_ends::ChainEnd;
use crate::store::memory::{FoundObject, NextNumbers, ObjectIdentity, SourceMemory, StoreMemory};
use crate::store::rows::{DocumentEncoding, KnownKeys, RowFlags, StateKey, StoreResult, uid};
use crate::store::server::connect::session::ServerSession;
use crate::store::server::engine::link::{SqlParam, SqlRow, key_bytes};

/// How many statuses are loaded at startup; others are loaded when they are needed.
const STATUSES: i64 = 2048;

pub(crate) async fn load_memory(session: &mut ServerSession) -> StoreResult<StoreMemory> {
    let mut memory = StoreMemory { next: next(session).await?, ..StoreMemory::default() };
    let kinds = session.fetch_rows("SELECT id, api_group, version, kind FROM kw_kinds", Vec::new()).await?;
    for mut row in kinds {
        memory.kinds.insert((row.text(1)?, row.text(2)?, row.text(3)?), row.int_at(0)?);
    }
    let text = "SELECT id, body, sum FROM kw_statuses ORDER BY id DESC LIMIT ?";
    for mut row in session.fetch_rows(text, vec![STATUSES.into()]).await? {
        memory.learn_status(row.int_at(0)?, &row.text(1)?, row.int_at(2)?);
    }
    load_sources(session, &mut memory).await?;
    Ok(memory)
}

async fn next(session: &mut ServerSession) -> StoreResult<NextNumbers> {
    let text = "SELECT coalesce((SELECT max(seq) FROM kw_states), 0), \
                coalesce((SELECT max(id) FROM kw_objects), 0), coalesce((SELECT max(id) FROM kw_statuses), 0), \
                coalesce((SELECT max(id) FROM kw_streams), 0), coalesce((SELECT max(id) FROM kw_kinds), 0), \
                coalesce((SELECT max(id) FROM kw_anchors), 0)";
    let rows = session.fetch_rows(text, Vec::new()).await?;
    let row = rows.first().ok_or_else(|| JournalError::Fatal("the server answered nothing".into()))?;
    Ok(NextNumbers {
        seq: row.int_at(0)? as u64 + 1,
        object: row.int_at(1)? + 1,
        status: row.int_at(2)? + 1,
        stream: row.int_at(3)? as u32 + 1,
        kind: row.int_at(4)? + 1,
        anchor: row.int_at(5)? + 1,
    })
}

async fn load_sources(session: &mut ServerSession, memory: &mut StoreMemory) -> StoreResult<()> {
    let text = "SELECT stream, max(id) FROM kw_anchors GROUP BY stream";
    let mut newest = HashMap::new();
    for row in session.fetch_rows(text, Vec::new()).await? {
        newest.insert(row.int_at(0)?, row.int_at(1)?);
    }
    // Ordered by source and epoch, so the last entry of a source stays.
    for stream in session.read_streams().await? {
        let number = stream.id;
        let source: &mut SourceMemory = memory.sources.entry(stream.source.as_str().into()).or_default();
        source.resume_epoch(stream)?;
        let Some(anchor) = newest.get(&number).copied() else { continue };
        let Some((sum, packed)) = session.read_anchor(anchor).await? else { continue };
        source.anchors.resume_from_row(anchor, sum, &packed);
    }
    Ok(())
}

/// The rows of these objects, with the ends of their chains.
pub(crate) async fn find_chain_ends(
    session: &mut ServerSession,
    memory: &StoreMemory,
    strangers: Vec<ObjectIdentity>,
) -> StoreResult<Vec<FoundObject>> {
    if strangers.is_empty() {
        return Ok(Vec::new());
    }
    let keys: HashSet<i64> =
        strangers.iter().map(|identity| i64::from(uid::key(&identity.object.uid))).collect();
    let strangers: HashSet<_> = strangers.into_iter().collect();
    let text = concat!(
        "SELECT ",
        object_columns!(),
        ", coalesce(c.tail, o.tail, 0), coalesce(c.newest, o.newest, 0), c.object, t.flags, t.sums, n.version, n.at, \
         n.flags FROM @numbers @JOIN kw_objects o ON o.uid_key = q.v @JOIN kw_kinds k ON k.id = o.kind \
         LEFT JOIN kw_current c ON c.object = o.id \
         LEFT JOIN kw_states t ON t.seq = coalesce(c.tail, o.tail) \
         LEFT JOIN kw_states n ON n.seq = coalesce(c.newest, o.newest)"
    );
    let rows = session.fetch_rows(text, vec![SqlParam::Numbers(keys.into_iter().collect())]).await?;
    let streams = memory.stream_sources();
    let mut found = Vec::new();
    for mut row in rows {
        let (id, named) = decode_object(&mut row)?;
        let stream = streams.get(&named.stream).cloned();
        let (source, epoch) = stream.unwrap_or_else(|| (Arc::from(""), 0));
        let identity = ObjectIdentity { source, object: named.object };
        if strangers.contains(&identity) {
            let tail = decode_chain_end(&mut row, ChainEnd::of(id, named.stream as u32, named.owner))?;
            found.push(FoundObject { identity, epoch, tail });
        }
    }
    Ok(found)
}

fn decode_chain_end(row: &mut SqlRow, mut tail: ChainEnd) -> StoreResult<ChainEnd> {
    const FIRST: usize = AFTER_OBJECT;
    let flags = row.optional_int(FIRST + 3)?.and_then(RowFlags::unpack_bits);
    let newest_flags = row.optional_int(FIRST + 7)?.and_then(RowFlags::unpack_bits);
    // The key of a deletion is not its version.
    let version = match newest_flags.map(|flags| flags.change) {
        Some(Change::Gone | Change::Gap) => row.optional_key(FIRST + 6)?,
        _ => row.optional_key(FIRST + 5)?,
    };
    tail.seq = row.int_at(FIRST)? as u64;
    tail.depth = flags.map_or(0, |flags| flags.depth as u8);
    tail.checksum = row.optional_int(FIRST + 4)?.unwrap_or_default() as u32;
    tail.has_document = flags.is_some_and(|flags| flags.encoding != DocumentEncoding::Empty);
    tail.live = row.optional_int(FIRST + 2)?.is_some();
    let newest = version.and_then(|key| key.version());
    tail.set_newest(newest.as_ref(), row.int_at(FIRST + 1)? as u64);
    Ok(tail)
}

/// The positions of those keys that already exist.
pub(crate) async fn find_known_keys(
    session: &mut ServerSession,
    questions: Vec<(i64, StateKey)>,
) -> StoreResult<KnownKeys> {
    let mut known = KnownKeys::new();
    if questions.is_empty() {
        return Ok(known);
    }
    let text = "SELECT s.object, s.version, s.seq FROM @pairs @JOIN kw_states s \
                ON s.version = @b AND s.object = q.n";
    let pairs = questions.iter().map(|(object, key)| (*object, key_bytes(key))).collect();
    for mut row in session.fetch_rows(text, vec![SqlParam::Pairs(pairs)]).await? {
        known.insert((row.int_at(0)?, row.key(1)?), row.int_at(2)? as u64);
    }
    Ok(known)
}
