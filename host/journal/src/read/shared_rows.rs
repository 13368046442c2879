//! Makes states from rows. Values that many states share (objects, statuses, streams, anchors) are read once
//! and cached.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hashbrown::HashMap;
use kubewitness_core::document::checksum;
use kubewitness_core::ports::JournalError;
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Status, Version};

use crate::store::rows::{
    NamedObject, ObjectChoice, StateEnvelope, StoreResult, checksum, damaged_state, parse_status,
};
use crate::store::{StoreConnection, StoreReader};

/// How many objects and statuses readers cache, at about 400 bytes each; beyond that the cache is cleared. It
/// covers several reads: a backlog over more objects looks each of them up, with one query for each read.
const OBJECTS: usize = 8 * 1024;
const STATUSES: usize = 16 * 1024;
/// Anchors are few, with up to 64 KiB each.
const ANCHORS: usize = 64;

/// How many states one query to the store reads; longer answers take several.
const PAGE: usize = 1024;

#[derive(Default)]
struct SharedRowCache {
    objects: HashMap<i64, NamedObject>,
    statuses: HashMap<i64, Arc<Status>>,
    streams: HashMap<i64, (Arc<str>, u32)>,
    anchors: HashMap<i64, Bytes>,
}

/// Values that rows share. They are append-only on disk, so this cache stays valid.
#[derive(Default)]
pub(crate) struct SharedNames {
    shared: Mutex<SharedRowCache>,
}

impl SharedNames {
    fn lock_cache(&self) -> std::sync::MutexGuard<'_, SharedRowCache> {
        // Only complete entries are inserted, so a panic in between leaves nothing inconsistent.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing_numbers(
        &self,
        numbers: impl Iterator<Item = i64>,
        has: fn(&SharedRowCache, i64) -> bool,
    ) -> Vec<i64> {
        let shared = self.lock_cache();
        let mut missing: Vec<_> = numbers.filter(|number| !has(&shared, *number)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// The stream of a resolved object; 0 if it was not resolved.
    pub fn stream_of(&self, object: i64) -> i64 {
        self.lock_cache().objects.get(&object).map_or(0, |known| known.stream)
    }

    async fn load_objects(&self, rows: &mut dyn StoreReader, missing: &[i64]) -> StoreResult<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let found = rows.find_objects(ObjectChoice::Numbers(missing)).await?;
        self.lock_cache().objects.extend(found);
        Ok(())
    }

    async fn load_statuses(&self, rows: &mut dyn StoreReader, missing: &[i64]) -> StoreResult<()> {
        if missing.is_empty() {
            return Ok(());
        }
        for (id, body, sum) in rows.status_rows(missing).await? {
            let parsed = parse_status(&body).ok().filter(|_| checksum::sum_of_status(id, &body) == sum);
            let status = parsed.ok_or_else(|| {
                JournalError::Fatal(format!("status {id}: it differs from what was written"))
            })?;
            self.lock_cache().statuses.insert(id, Arc::new(status));
        }
        Ok(())
    }

    async fn load_streams(&self, rows: &mut dyn StoreReader) -> StoreResult<()> {
        let streams = rows.source_streams().await?;
        let mut shared = self.lock_cache();
        for stream in streams {
            shared.streams.insert(stream.id, (stream.source.into(), stream.epoch));
        }
        Ok(())
    }

    /// Loads the objects of these envelopes with their owners and streams, and the statuses.
    async fn load(&self, rows: &mut dyn StoreReader, envelopes: &[StateEnvelope]) -> StoreResult<()> {
        {
            let mut shared = self.lock_cache();
            if shared.objects.len() > OBJECTS {
                shared.objects.clear();
            }
            if shared.statuses.len() > STATUSES {
                shared.statuses.clear();
            }
        }
        let has_object = |shared: &SharedRowCache, id| shared.objects.contains_key(&id);
        let ids = envelopes
            .iter()
            .map(|e| e.object)
            .chain(envelopes.iter().filter_map(|e| e.owner))
            .filter(|id| *id > 0);
        let missing = self.missing_numbers(ids, has_object);
        self.load_objects(rows, &missing).await?;
        let owners: Vec<_> = {
            let shared = self.lock_cache();
            envelopes.iter().filter_map(|e| shared.objects.get(&e.object)).map(|known| known.owner).collect()
        };
        let missing = self.missing_numbers(owners.into_iter().filter(|id| *id > 0), has_object);
        self.load_objects(rows, &missing).await?;
        let statuses = envelopes.iter().map(|e| e.status).chain(envelopes.iter().filter_map(|e| e.previous));
        let missing = self.missing_numbers(statuses, |shared, id| shared.statuses.contains_key(&id));
        self.load_statuses(rows, &missing).await?;
        let unknown_stream = {
            let shared = self.lock_cache();
            let mut objects = envelopes.iter().filter_map(|e| shared.objects.get(&e.object));
            objects.any(|known| !shared.streams.contains_key(&known.stream))
        };
        if unknown_stream {
            self.load_streams(rows).await?;
        }
        Ok(())
    }

    pub async fn states_of(
        &self,
        rows: &mut dyn StoreReader,
        envelopes: &[StateEnvelope],
    ) -> StoreResult<Vec<Arc<State>>> {
        // A load may clear the maps only before it fills them, so chunks within their bounds are complete unless another
        // reader's load cleared them since. A cache of its own can't be cleared by others.
        let mut states = Vec::with_capacity(envelopes.len());
        for chunk in envelopes.chunks(4096) {
            self.load(rows, chunk).await?;
            let Err(incomplete) = self.push_cached(chunk, &mut states) else { continue };
            let own = Self::default();
            own.load(rows, &chunk[incomplete..]).await?;
            own.push_cached(&chunk[incomplete..], &mut states).map_err(|missing| {
                damaged_state(chunk[incomplete + missing].seq, "it refers to rows that are missing")
            })?;
        }
        Ok(states)
    }

    /// Adds the states of these envelopes, up to the first one with a row that is not cached. On failure,
    /// returns the index of that envelope.
    fn push_cached(&self, envelopes: &[StateEnvelope], states: &mut Vec<Arc<State>>) -> Result<(), usize> {
        let shared = self.lock_cache();
        for (place, envelope) in envelopes.iter().enumerate() {
            states.push(shared.state_of(envelope).ok_or(place)?);
        }
        Ok(())
    }

    /// The document of this anchor, on which the documents of states are based.
    pub async fn anchor_document(&self, rows: &mut dyn StoreReader, id: i64) -> StoreResult<Option<Bytes>> {
        if let Some(document) = self.lock_cache().anchors.get(&id) {
            return Ok(Some(document.clone()));
        }
        let Some((sum, packed)) = rows.anchor_row(id).await? else { return Ok(None) };
        let document = kubewitness_core::document::unpack_document(&packed).ok();
        let Some(document) = document.filter(|document| i64::from(checksum(document)) == sum) else {
            return Ok(None);
        };
        let mut shared = self.lock_cache();
        if shared.anchors.len() >= ANCHORS {
            shared.anchors.clear();
        }
        shared.anchors.insert(id, document.clone());
        Ok(Some(document))
    }
}

impl SharedRowCache {
    fn state_of(&self, envelope: &StateEnvelope) -> Option<Arc<State>> {
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
        let resource_version = envelope.version()?;
        Some(Arc::new(State {
            id: id(envelope, source, *epoch, &known.object, &resource_version)?,
            seq: envelope.seq,
            source: source.clone(),
            epoch: *epoch,
            change: envelope.flags.change,
            object: known.object.clone(),
            owner,
            resource_version,
            status: self.statuses.get(&envelope.status)?.clone(),
            previous,
            observed_ms: envelope.observed_ms as u64,
            late: envelope.flags.late,
            quotes_none_under: envelope.flags.quotes_none_under,
        }))
    }
}

fn id(
    envelope: &StateEnvelope,
    source: &str,
    epoch: u32,
    object: &ObjectRef,
    version: &Version,
) -> Option<StateId> {
    let change = envelope.flags.change;
    if change == Change::Gap {
        let bounds = envelope.key.gap_bounds()?;
        let base = format!("{source}/{epoch}/{}/{}/{}", object.group, object.kind, object.uid);
        return Some(StateId::parse(&format!("{base}/gap:{bounds}")));
    }
    Some(StateId::of(source, epoch, object, change, version, None))
}

/// States after a position, in order.
pub(super) async fn states_after(
    connection: &mut dyn StoreConnection,
    names: &SharedNames,
    after: Seq,
    limit: usize,
) -> StoreResult<Vec<Arc<State>>> {
    let mut states: Vec<Arc<State>> = Vec::new();
    while states.len() < limit {
        let from = states.last().map_or(after, |state| state.seq).min(i64::MAX as u64);
        let page = PAGE.min(limit - states.len());
        let envelopes = connection.block_after(from as i64, page as i64).await?;
        let found = names.states_of(connection.store_reader(), &envelopes).await?;
        let is_last = found.len() < page;
        states.extend(found);
        if is_last {
            break;
        }
    }
    Ok(states)
}

/// Single states, in order; unknown positions are left out.
pub(crate) async fn states_at(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    seqs: &[Seq],
) -> StoreResult<Vec<Arc<State>>> {
    let mut seqs: Vec<_> = seqs.iter().filter_map(|seq| i64::try_from(*seq).ok()).collect();
    seqs.sort_unstable();
    let mut states = Vec::with_capacity(seqs.len());
    for page in seqs.chunks(PAGE) {
        let envelopes = rows.states_at(page).await?;
        states.extend(names.states_of(rows, &envelopes).await?);
    }
    states.dedup_by_key(|state| state.seq);
    Ok(states)
}
