//! Rows back into states. Each row is compared with its seal, and what rows share (objects,
//! statuses, streams) is read once and kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use kubewitness_core::document::checksum;
use kubewitness_core::ports::JournalError;
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Status};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection, TypeInfo, ValueRef};

use super::fault::{classify, damaged};
use super::{uid, write};
use crate::rows::{Envelope, Flags, Key, ObjectRow, parse_status};

/// The columns that [`envelope`] reads, in its order.
macro_rules! envelope_columns {
    () => {
        "s.seq, s.object, s.version, s.flags, s.back, s.status, s.previous, s.owner, s.observed_ms, s.at, \
         s.anchor, s.sums"
    };
}
pub(super) use envelope_columns;

/// Columns before any others that a query adds.
pub(super) const ENVELOPE_COLUMNS: usize = 12;

/// Objects and statuses that readers keep; beyond it they start over.
const OBJECTS: usize = 64 * 1024;
const STATUSES: usize = 16 * 1024;
/// Anchors are few, and up to 64 KiB each.
const ANCHORS: usize = 64;

pub(super) fn key(row: &SqliteRow, column: usize) -> Result<Option<Key>, sqlx::Error> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(None);
    }
    Ok(Some(match raw.type_info().name() {
        "TEXT" => Key::Text(row.try_get_unchecked::<String, _>(column)?.into()),
        _ => Key::Number(row.try_get_unchecked(column)?),
    }))
}

/// Reads the columns of [`envelope_columns`] and compares them with their seal.
pub(super) fn envelope(row: &SqliteRow) -> Result<Envelope, JournalError> {
    let (envelope, sums) = parts(row).map_err(classify)?;
    let Some(envelope) = envelope else {
        return Err(damaged(
            row.try_get::<i64, _>(0).unwrap_or_default() as u64,
            "its flags are not of this format",
        ));
    };
    match envelope.sums() == sums {
        true => Ok(envelope),
        false => Err(damaged(envelope.seq, "its envelope is not what was written")),
    }
}

fn parts(row: &SqliteRow) -> Result<(Option<Envelope>, i64), sqlx::Error> {
    let sums: i64 = row.try_get(11)?;
    let Some(flags) = Flags::unpack(row.try_get(3)?) else { return Ok((None, sums)) };
    let Some(version) = key(row, 2)? else { return Ok((None, sums)) };
    let envelope = Envelope {
        seq: row.try_get::<i64, _>(0)? as u64,
        object: row.try_get(1)?,
        key: version,
        flags,
        back: row.try_get::<i64, _>(4)? as u64,
        status: row.try_get(5)?,
        previous: row.try_get(6)?,
        owner: row.try_get(7)?,
        observed_ms: row.try_get(8)?,
        version: key(row, 9)?,
        anchor: row.try_get(10)?,
        checksum: sums as u32,
    };
    Ok((Some(envelope), sums))
}

/// The columns of an object that [`object`] reads.
macro_rules! object_columns {
    () => {
        "o.id, o.stream, o.kind, o.namespace, o.name, o.uid, o.owner, o.sum, k.api_group, k.version, k.kind"
    };
}
pub(super) use object_columns;
pub(super) const OBJECT_COLUMNS: usize = 11;

/// An object as it was first seen.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub object: Arc<ObjectRef>,
    pub stream: i64,
    /// 0: none.
    pub owner: i64,
}

/// Reads the columns of [`object_columns`], which begin at `first`.
pub(super) fn object(row: &SqliteRow, first: usize) -> Result<(i64, Known), JournalError> {
    let (stored, sum, group, version, kind) = object_parts(row, first).map_err(classify)?;
    if write::object_sum(&stored) != sum {
        return Err(JournalError::Fatal(format!("object {}: its row is not what was written", stored.id)));
    }
    let ObjectRow { id, stream, namespace, name, uid, owner, .. } = stored;
    let object = Arc::new(ObjectRef { group, version, kind, namespace, name, uid });
    Ok((id, Known { object, stream, owner }))
}

fn object_parts(
    row: &SqliteRow,
    first: usize,
) -> Result<(ObjectRow, u32, String, String, String), sqlx::Error> {
    let raw = row.try_get_raw(first + 5)?;
    let uid = match raw.type_info().name() {
        "BLOB" => uid::from_bytes(row.try_get_unchecked(first + 5)?).unwrap_or_default(),
        _ => row.try_get_unchecked(first + 5)?,
    };
    let stored = ObjectRow {
        id: row.try_get(first)?,
        stream: row.try_get(first + 1)?,
        kind: row.try_get(first + 2)?,
        namespace: row.try_get(first + 3)?,
        name: row.try_get(first + 4)?,
        uid,
        owner: row.try_get(first + 6)?,
    };
    let sum = row.try_get::<i64, _>(first + 7)? as u32;
    Ok((stored, sum, row.try_get(first + 8)?, row.try_get(first + 9)?, row.try_get(first + 10)?))
}

#[derive(Default)]
struct Shared {
    objects: HashMap<i64, Known>,
    statuses: HashMap<i64, Arc<Status>>,
    streams: HashMap<i64, (Arc<str>, u32)>,
    anchors: HashMap<i64, Bytes>,
}

/// What rows share. All of it is append-only on disk, so what is here stays true.
#[derive(Default)]
pub(crate) struct Names {
    shared: Mutex<Shared>,
}

fn json(numbers: &[i64]) -> String {
    serde_json::to_string(numbers).expect("numbers always serialize")
}

impl Names {
    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        // Only whole entries are inserted: a panic in between leaves nothing half done.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self, numbers: impl Iterator<Item = i64>, has: fn(&Shared, i64) -> bool) -> Vec<i64> {
        let shared = self.lock();
        let mut missing: Vec<_> = numbers.filter(|number| !has(&shared, *number)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Of an object that was resolved; 0 where it was not.
    pub fn stream_of(&self, object: i64) -> i64 {
        self.lock().objects.get(&object).map_or(0, |known| known.stream)
    }

    async fn load_objects(
        &self,
        connection: &mut SqliteConnection,
        missing: &[i64],
    ) -> Result<(), JournalError> {
        if missing.is_empty() {
            return Ok(());
        }
        let text = concat!(
            "SELECT ",
            object_columns!(),
            " FROM objects o JOIN kinds k ON k.id = o.kind WHERE o.id IN (SELECT value FROM json_each(?))"
        );
        let rows = sqlx::query(text).bind(json(missing)).fetch_all(connection).await.map_err(classify)?;
        let known = rows.iter().map(|row| object(row, 0)).collect::<Result<Vec<_>, _>>()?;
        self.lock().objects.extend(known);
        Ok(())
    }

    async fn load_statuses(
        &self,
        connection: &mut SqliteConnection,
        missing: &[i64],
    ) -> Result<(), JournalError> {
        if missing.is_empty() {
            return Ok(());
        }
        let text = "SELECT id, body, sum FROM statuses WHERE id IN (SELECT value FROM json_each(?))";
        let rows: Vec<(i64, String, i64)> =
            sqlx::query_as(text).bind(json(missing)).fetch_all(connection).await.map_err(classify)?;
        for (id, body, sum) in rows {
            let parsed = parse_status(&body).ok().filter(|_| i64::from(checksum(body.as_bytes())) == sum);
            let status =
                parsed.ok_or_else(|| JournalError::Fatal(format!("status {id}: not what was written")))?;
            self.lock().statuses.insert(id, Arc::new(status));
        }
        Ok(())
    }

    async fn load_streams(&self, connection: &mut SqliteConnection) -> Result<(), JournalError> {
        let rows: Vec<(i64, String, u32)> = sqlx::query_as("SELECT id, source, epoch FROM streams")
            .fetch_all(connection)
            .await
            .map_err(classify)?;
        let mut shared = self.lock();
        for (id, source, epoch) in rows {
            shared.streams.insert(id, (source.into(), epoch));
        }
        Ok(())
    }

    /// Objects, their owners and streams, and statuses of these envelopes.
    async fn load(
        &self,
        connection: &mut SqliteConnection,
        envelopes: &[Envelope],
    ) -> Result<(), JournalError> {
        {
            let mut shared = self.lock();
            if shared.objects.len() > OBJECTS {
                shared.objects.clear();
            }
            if shared.statuses.len() > STATUSES {
                shared.statuses.clear();
            }
        }
        let has_object = |shared: &Shared, id| shared.objects.contains_key(&id);
        let ids = envelopes
            .iter()
            .map(|e| e.object)
            .chain(envelopes.iter().filter_map(|e| e.owner))
            .filter(|id| *id > 0);
        let missing = self.missing(ids, has_object);
        self.load_objects(connection, &missing).await?;
        let owners: Vec<_> = {
            let shared = self.lock();
            envelopes.iter().filter_map(|e| shared.objects.get(&e.object)).map(|known| known.owner).collect()
        };
        let missing = self.missing(owners.into_iter().filter(|id| *id > 0), has_object);
        self.load_objects(connection, &missing).await?;
        let statuses = envelopes.iter().map(|e| e.status).chain(envelopes.iter().filter_map(|e| e.previous));
        let missing = self.missing(statuses, |shared, id| shared.statuses.contains_key(&id));
        self.load_statuses(connection, &missing).await?;
        let unknown_stream = {
            let shared = self.lock();
            let mut objects = envelopes.iter().filter_map(|e| shared.objects.get(&e.object));
            objects.any(|known| !shared.streams.contains_key(&known.stream))
        };
        if unknown_stream {
            self.load_streams(connection).await?;
        }
        Ok(())
    }

    pub async fn states(
        &self,
        connection: &mut SqliteConnection,
        envelopes: &[Envelope],
    ) -> Result<Vec<Arc<State>>, JournalError> {
        // A load may start the maps over only before it fills them, so chunks below their bounds
        // are always whole.
        let mut states = Vec::with_capacity(envelopes.len());
        for chunk in envelopes.chunks(4096) {
            self.load(connection, chunk).await?;
            let shared = self.lock();
            for envelope in chunk {
                let state = shared.state(envelope);
                states.push(
                    state.ok_or_else(|| damaged(envelope.seq, "it points to rows that are not there"))?,
                );
            }
        }
        Ok(states)
    }

    /// The document that states of this anchor are stored against.
    pub async fn anchor(
        &self,
        connection: &mut SqliteConnection,
        id: i64,
    ) -> Result<Option<Bytes>, JournalError> {
        if let Some(document) = self.lock().anchors.get(&id) {
            return Ok(Some(document.clone()));
        }
        let row: Option<(i64, Vec<u8>)> =
            sqlx::query_as("SELECT checksum, document FROM anchors WHERE id = ?")
                .bind(id)
                .fetch_optional(connection)
                .await
                .map_err(classify)?;
        let Some((sum, packed)) = row else { return Ok(None) };
        let document = kubewitness_core::document::unpack(&packed).ok();
        let Some(document) = document.filter(|document| i64::from(checksum(document)) == sum) else {
            return Ok(None);
        };
        let mut shared = self.lock();
        if shared.anchors.len() >= ANCHORS {
            shared.anchors.clear();
        }
        shared.anchors.insert(id, document.clone());
        Ok(Some(document))
    }
}

impl Shared {
    fn state(&self, envelope: &Envelope) -> Option<Arc<State>> {
        let known = self.objects.get(&envelope.object)?;
        let (source, epoch) = self.streams.get(&known.stream)?;
        let owner = match envelope.owner.unwrap_or(known.owner) {
            0 => None,
            owner => Some(self.objects.get(&owner)?.object.clone()),
        };
        let previous = match envelope.previous {
            None => None,
            Some(id) => Some(self.statuses.get(&id)?.clone()),
        };
        Some(Arc::new(State {
            id: id(envelope, source, *epoch, &known.object)?,
            seq: envelope.seq,
            source: source.clone(),
            epoch: *epoch,
            change: envelope.flags.change,
            object: known.object.clone(),
            owner,
            resource_version: envelope.version()?,
            status: self.statuses.get(&envelope.status)?.clone(),
            previous,
            observed_ms: envelope.observed_ms as u64,
            late: envelope.flags.late,
        }))
    }
}

/// Put together from its parts, as [`StateId::of`] does.
pub(super) fn id(envelope: &Envelope, source: &str, epoch: u32, object: &ObjectRef) -> Option<StateId> {
    let base = format!("{source}/{epoch}/{}/{}/{}", object.group, object.kind, object.uid);
    Some(StateId::parse(&match envelope.flags.change {
        Change::Gone => format!("{base}/gone"),
        Change::Gap => format!("{base}/gap:{}", envelope.key.gap_bounds()?),
        Change::Present | Change::Left => format!("{base}/{}", envelope.key.version()?),
    }))
}

/// States after a position, in order.
pub(super) async fn after(
    connection: &mut SqliteConnection,
    names: &Names,
    after: Seq,
    limit: usize,
) -> Result<Vec<Arc<State>>, JournalError> {
    let text =
        concat!("SELECT ", envelope_columns!(), " FROM states s WHERE s.seq > ? ORDER BY s.seq LIMIT ?");
    let query =
        sqlx::query(text).bind(after.min(i64::MAX as u64) as i64).bind(limit.min(i64::MAX as usize) as i64);
    let rows = query.fetch_all(&mut *connection).await.map_err(classify)?;
    let envelopes = rows.iter().map(envelope).collect::<Result<Vec<_>, _>>()?;
    names.states(connection, &envelopes).await
}

/// Single states, in order; unknown positions are left out.
pub(super) async fn at(
    connection: &mut SqliteConnection,
    names: &Names,
    seqs: &[Seq],
) -> Result<Vec<Arc<State>>, JournalError> {
    let text = concat!(
        "SELECT ",
        envelope_columns!(),
        " FROM states s WHERE s.seq IN (SELECT value FROM json_each(?)) ORDER BY s.seq"
    );
    let seqs: Vec<_> = seqs.iter().filter_map(|seq| i64::try_from(*seq).ok()).collect();
    let rows = sqlx::query(text).bind(json(&seqs)).fetch_all(&mut *connection).await.map_err(classify)?;
    let envelopes = rows.iter().map(envelope).collect::<Result<Vec<_>, _>>()?;
    names.states(connection, &envelopes).await
}
