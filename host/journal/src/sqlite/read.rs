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

/// An envelope as one column. The driver's price is by row and column: a JSON array that SQLite
/// puts together and serde takes apart costs a third of twelve columns.
macro_rules! envelope_column {
    () => {
        "json_array(s.seq, s.object, s.version, s.flags, s.back, s.status, s.previous, s.owner, s.observed_ms, \
         s.at, s.anchor, s.sums)"
    };
}
pub(super) use envelope_column;

/// Objects and statuses that readers keep, at about 400 bytes each; beyond it they start over. Some
/// reads' worth: a backlog over more objects than this looks each of them up, in one query a read.
const OBJECTS: usize = 8 * 1024;
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

type EnvelopeRow =
    (i64, i64, Key, i64, i64, i64, Option<i64>, Option<i64>, i64, Option<Key>, Option<i64>, i64);

fn checked(row: EnvelopeRow) -> Result<Envelope, JournalError> {
    let (seq, object, key, flags, back, status, previous, owner, observed_ms, version, anchor, sums) = row;
    let seq = seq as u64;
    let flags = Flags::unpack(flags).ok_or_else(|| damaged(seq, "its flags are not of this format"))?;
    let (back, checksum) = (back as u64, sums as u32);
    let envelope = Envelope {
        seq,
        object,
        key,
        flags,
        back,
        status,
        previous,
        owner,
        observed_ms,
        version,
        anchor,
        checksum,
    };
    match envelope.sums() == sums {
        true => Ok(envelope),
        false => Err(damaged(seq, "its envelope is not what was written")),
    }
}

fn malformed(error: &serde_json::Error) -> JournalError {
    JournalError::Fatal(format!("rows that are not of this format: {error}"))
}

/// What [`envelope_column`] gave, compared with its seal.
pub(super) fn envelope(text: &str) -> Result<Envelope, JournalError> {
    checked(serde_json::from_str(text).map_err(|error| malformed(&error))?)
}

/// The same of many, in one array.
fn envelopes(text: &str) -> Result<Vec<Envelope>, JournalError> {
    let rows: Vec<EnvelopeRow> = serde_json::from_str(text).map_err(|error| malformed(&error))?;
    rows.into_iter().map(checked).collect()
}

/// An object and its kind as one column.
macro_rules! object_column {
    () => {
        "json_array(o.id, o.stream, o.kind, o.namespace, o.name, iif(typeof(o.uid) = 'blob', hex(o.uid), NULL), \
         iif(typeof(o.uid) = 'text', o.uid, NULL), o.owner, o.sum, k.api_group, k.version, k.kind)"
    };
}
pub(super) use object_column;

type ObjectColumns =
    (i64, i64, i64, String, String, Option<String>, Option<String>, i64, i64, String, String, String);

/// An object as it was first seen.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub object: Arc<ObjectRef>,
    pub stream: i64,
    /// 0: none.
    pub owner: i64,
}

fn known(row: ObjectColumns) -> Result<(i64, Known), JournalError> {
    let (id, stream, kind, namespace, name, hex, text, owner, sum, group, version, kind_name) = row;
    let uid = text.or_else(|| uid::from_hex(&hex?)).unwrap_or_default();
    let stored = ObjectRow { id, stream, kind, namespace, name, uid, owner };
    if i64::from(write::object_sum(&stored)) != sum {
        return Err(JournalError::Fatal(format!("object {id}: its row is not what was written")));
    }
    let ObjectRow { namespace, name, uid, .. } = stored;
    let object = Arc::new(ObjectRef { group, version, kind: kind_name, namespace, name, uid });
    Ok((id, Known { object, stream, owner }))
}

/// What [`object_column`] gave, compared with its sum.
pub(super) fn object(text: &str) -> Result<(i64, Known), JournalError> {
    known(serde_json::from_str(text).map_err(|error| malformed(&error))?)
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
            "SELECT json_group_array(",
            object_column!(),
            ") FROM objects o JOIN kinds k ON k.id = o.kind WHERE o.id IN (SELECT value FROM json_each(?))"
        );
        let found: String =
            sqlx::query_scalar(text).bind(json(missing)).fetch_one(connection).await.map_err(classify)?;
        let rows: Vec<ObjectColumns> = serde_json::from_str(&found).map_err(|error| malformed(&error))?;
        let known = rows.into_iter().map(known).collect::<Result<Vec<_>, _>>()?;
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

/// Rows of one array; longer answers take several.
const PAGE: usize = 1024;

/// States after a position, in order.
pub(super) async fn after(
    connection: &mut SqliteConnection,
    names: &Names,
    after: Seq,
    limit: usize,
) -> Result<Vec<Arc<State>>, JournalError> {
    let text = concat!(
        "SELECT json_group_array(",
        envelope_column!(),
        " ORDER BY s.seq) FROM (SELECT seq, object, version, flags, back, status, previous, owner, observed_ms, \
         at, anchor, sums FROM states WHERE seq > ? ORDER BY seq LIMIT ?) s"
    );
    let mut states: Vec<Arc<State>> = Vec::new();
    while states.len() < limit {
        let from = states.last().map_or(after, |state| state.seq).min(i64::MAX as u64);
        let page = PAGE.min(limit - states.len());
        let query = sqlx::query_scalar(text).bind(from as i64).bind(page as i64);
        let found: String = query.fetch_one(&mut *connection).await.map_err(classify)?;
        let found = names.states(connection, &envelopes(&found)?).await?;
        let is_last = found.len() < page;
        states.extend(found);
        if is_last {
            break;
        }
    }
    Ok(states)
}

/// Single states, in order; unknown positions are left out.
pub(super) async fn at(
    connection: &mut SqliteConnection,
    names: &Names,
    seqs: &[Seq],
) -> Result<Vec<Arc<State>>, JournalError> {
    let text = concat!(
        "SELECT json_group_array(",
        envelope_column!(),
        " ORDER BY s.seq) FROM states s WHERE s.seq IN (SELECT value FROM json_each(?))"
    );
    let mut seqs: Vec<_> = seqs.iter().filter_map(|seq| i64::try_from(*seq).ok()).collect();
    seqs.sort_unstable();
    let mut states = Vec::with_capacity(seqs.len());
    for page in seqs.chunks(PAGE) {
        let query = sqlx::query_scalar(text).bind(json(page));
        let found: String = query.fetch_one(&mut *connection).await.map_err(classify)?;
        states.extend(names.states(connection, &envelopes(&found)?).await?);
    }
    states.dedup_by_key(|state| state.seq);
    Ok(states)
}
