//! Decides what a batch of appends means: positions, duplicates, lateness, deltas, and the rows for these.
//! Pure: the caller first reads what [`unknown_objects`] and [`key_questions`] ask for, and writes the rows afterwards.
//!
//! Two witnesses, a replay after a crash or an import may bring the same state twice. So the plan compares
//! each state with the end of its object's chain: a known key gets no new position, and an older version is
//! marked as late. The invariant is one position for each id, in the order of the journal.

mod lookups;
mod placed;

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use kubewitness_core::document;
use kubewitness_core::ports::{AppendBatch, PoisonMessage, WitnessedState};
use kubewitness_core::{Change, ObjectRef, Seq, State, Status};

use crate::store::memory::anchors::EncodedDocument;
use crate::store::memory::chain_ends::{ChainEnd, ObjectMark};
use crate::store::memory::{ObjectIdentity, StoreMemory};
use crate::store::rows::discrepancies::FoundDifferences;
use crate::store::rows::{
    AnchorRow, DocumentEncoding, GapRow, KnownKeys, ObjectOutcome, ObjectRow, PoisonRow, ROW_BYTES, RowBatch,
    RowFlags, SEGMENT, SnapshotRow, StateEnvelope, StateKey, StateRow, StreamRow, status_text,
};
pub(crate) use lookups::{MarkedAppend, check, epoch_over_error, key_questions, unknown_objects};
use lookups::{id_prefix, id_rest, is_version, key_of};
pub(crate) use placed::PlacedStates;
use placed::StatePlace;

/// The number of steps between two snapshots of a live object. At startup, at most this many deltas are
/// applied for each object. A smaller number would store whole documents more often.
const SNAPSHOT_STEPS: u8 = 8;

/// A batch that is being planned. Planning changes the memory; if the transaction fails, both are discarded.
pub(crate) struct BatchPlan<'a> {
    memory: &'a mut StoreMemory,
    known: &'a KnownKeys,
    pub rows: RowBatch,
    pub states: Vec<Arc<State>>,
    pub ended: Vec<ObjectMark>,
    /// Keys of states in this batch.
    keys: KnownKeys,
    /// The documents at the ends of the chains that this batch has touched.
    documents: HashMap<i64, Bytes>,
}

impl<'a> BatchPlan<'a> {
    pub fn new(memory: &'a mut StoreMemory, known: &'a KnownKeys) -> Self {
        let (rows, states, ended) = (RowBatch::default(), Vec::new(), Vec::new());
        Self { memory, known, rows, states, ended, keys: KnownKeys::new(), documents: HashMap::new() }
    }

    pub fn plan_append(&mut self, marked: &MarkedAppend<'_>) -> PlacedStates {
        let append = marked.append;
        let stream = self.plan_stream(append);
        let prefix = id_prefix(append);
        let mut placed = PlacedStates::default();
        for (state, mark) in marked.marked_states() {
            let place = self.plan_state(append, stream, &prefix, state, mark);
            placed.through = placed.through.max(place.map_or(0, StatePlace::seq));
            placed.seqs.push(place.and_then(StatePlace::as_fresh));
        }
        for gap in &append.gaps {
            let body = serde_json::to_string(gap).expect("strings and numbers always serialize");
            let key = format!("{}-{}", gap.after, gap.before);
            self.rows.gaps.push(GapRow { stream: i64::from(stream), seq: 0, key, body });
        }
        for poison in &append.poison {
            self.rows.poison.push(poison_row(i64::from(stream), poison));
        }
        if !append.discrepancies.is_empty() {
            self.rows.differences.push(FoundDifferences::of(i64::from(stream), &append.discrepancies));
        }
        self.stream_row(append, stream, &placed.seqs);
        placed
    }

    /// The stream's new row, if anything in it has changed.
    fn stream_row(&mut self, append: &AppendBatch, stream: u32, seqs: &[Option<Seq>]) {
        let fresh = append.states.iter().zip(seqs).filter(|(_, seq)| seq.is_some());
        let states = fresh.clone().count() as u64;
        let observed = fresh.map(|(state, _)| state.observed_ms);
        let last_event_ms = observed.chain(append.poison.iter().map(|poison| poison.observed_ms)).max();
        let source = self.memory.sources.entry(append.source.clone()).or_default();
        let before = (source.checkpoint.clone(), source.last_event_ms);
        if let Some(version) =
            append.checkpoint.as_ref().filter(|version| source.may_move_checkpoint(version, append))
        {
            source.checkpoint = Some(version.as_str().to_owned());
        }
        source.last_event_ms = source.last_event_ms.max(last_event_ms.map(|ms| ms as i64));
        let is_new = std::mem::take(&mut source.is_new);
        if states == 0 && !is_new && before == (source.checkpoint.clone(), source.last_event_ms) {
            return;
        }
        self.rows.streams.push(StreamRow {
            id: i64::from(stream),
            source: append.source.to_string(),
            epoch: append.epoch,
            checkpoint: source.checkpoint.clone(),
            states,
            last_event_ms: source.last_event_ms,
        });
    }

    fn plan_stream(&mut self, append: &AppendBatch) -> u32 {
        let next = &mut self.memory.next.stream;
        let source = self.memory.sources.entry(append.source.clone()).or_default();
        match source.streams.last() {
            Some((epoch, id)) if *epoch == append.epoch => *id,
            _ => {
                let id = *next;
                *next += 1;
                source.streams.push((append.epoch, id));
                (source.checkpoint, source.last_event_ms, source.is_new) = (None, None, true);
                id
            }
        }
    }

    fn plan_state(
        &mut self,
        append: &AppendBatch,
        stream: u32,
        prefix: &str,
        state: &WitnessedState,
        mark: ObjectMark,
    ) -> Option<StatePlace> {
        let rest = id_rest(prefix, state)?;
        let key = key_of(state, rest);
        let mut tail = self.take_chain_end(stream, state, mark);
        let place = (tail.object, key);
        if let Some(seen) = self.known.get(&place).or_else(|| self.keys.get(&place)).copied() {
            self.note_known_state(&mut tail, state, seen);
            self.put_chain_end(mark, tail);
            return Some(StatePlace::Known(seen));
        }
        let key = place.1.clone();
        let seq = self.memory.next.seq;
        self.memory.next.seq += 1;
        self.keys.insert(place, seq);

        let late =
            is_version(state.change) && tail.compare_version(&state.resource_version) == Some(Ordering::Less);
        let row = self.state_row(append, &mut tail, state, seq, key, late);
        self.states.push(Arc::new(State {
            id: state.id.clone(),
            seq,
            source: append.source.clone(),
            epoch: append.epoch,
            change: state.change,
            object: state.object.clone(),
            owner: state.owner.clone(),
            resource_version: state.resource_version.clone(),
            status: state.status.clone(),
            previous: state.previous.clone(),
            observed_ms: state.observed_ms,
            late,
            quotes_none_under: row.envelope.flags.quotes_none_under,
        }));
        let place = (seq / SEGMENT, i64::from(stream));
        *self.rows.tallies.entry(place).or_default() += 1;
        *self.rows.sizes.entry(place).or_default() += row.document.len() as u64 + ROW_BYTES;
        if state.change == Change::Gap {
            let body = String::from_utf8_lossy(&state.document).into_owned();
            self.rows.gaps.push(GapRow { stream: i64::from(stream), seq, key: rest.to_owned(), body });
        }
        self.rows.states.push(row);
        self.update_object(&mut tail, state, seq, late);
        self.put_chain_end(mark, tail);
        Some(StatePlace::Fresh(seq))
    }

    /// The end of the object's chain in this epoch, with a new row if it has none yet. It is out of the
    /// memory until it is [kept](Self::put_chain_end).
    fn take_chain_end(&mut self, stream: u32, state: &WitnessedState, mark: ObjectMark) -> ChainEnd {
        let mut tail = match self.memory.objects.take(mark) {
            Some(tail) if tail.stream == stream => return tail,
            before => before.unwrap_or_default(),
        };
        let owner = state.owner.as_ref().map_or(0, |owner| self.owner_number(owner));
        let object = self.object_row(i64::from(stream), &state.object, owner);
        self.link_to_owners(state, owner, object);
        // A new epoch continues the chain of the previous one, because the uid is the same.
        if let Some(document) = self.documents.remove(&tail.object) {
            self.documents.insert(object, document);
        }
        tail.set_older(tail.as_older());
        tail.set_newest(None, 0);
        (tail.object, tail.stream, tail.owner, tail.live) = (object, stream, owner, false);
        tail
    }

    /// Links the object to its outermost owner, which may become known late, and to its direct one.
    fn link_to_owners(&mut self, state: &WitnessedState, owner: i64, object: i64) {
        if owner != 0 {
            self.rows.owned.push((owner, object));
        }
        if let Some(controller) = &state.controller {
            let controller = self.owner_number(controller);
            self.rows.owned.push((controller, object));
        }
    }

    fn put_chain_end(&mut self, mark: ObjectMark, tail: ChainEnd) {
        if !tail.live {
            self.ended.push(mark);
        }
        self.memory.objects.insert(mark, tail);
    }

    fn object_row(&mut self, stream: i64, object: &ObjectRef, owner: i64) -> i64 {
        let kind = self.kind_number(object);
        let id = self.memory.next.object;
        self.memory.next.object += 1;
        let ObjectRef { namespace, name, uid, .. } = object.clone();
        self.rows.objects.push(ObjectRow { id, stream, kind, namespace, name, uid, owner });
        id
    }

    fn kind_number(&mut self, object: &ObjectRef) -> i64 {
        let kind = (object.group.clone(), object.version.clone(), object.kind.clone());
        if let Some(id) = self.memory.kinds.get(&kind) {
            return *id;
        }
        let id = self.memory.next.kind;
        self.memory.next.kind += 1;
        self.rows.kinds.push((id, kind.0.clone(), kind.1.clone(), kind.2.clone()));
        self.memory.kinds.insert(kind, id);
        id
    }

    fn owner_number(&mut self, owner: &Arc<ObjectRef>) -> i64 {
        let identity = ObjectIdentity::owner(owner);
        if let Some(id) = self.memory.owners.get(&identity) {
            return *id;
        }
        let id = self.object_row(0, owner, 0);
        self.memory.owners.insert(identity, id);
        id
    }

    fn status_number(&mut self, status: &Arc<Status>) -> i64 {
        if let Some(id) = self.memory.statuses.get(status) {
            return *id;
        }
        let id = self.memory.next.status;
        self.memory.next.status += 1;
        self.rows.statuses.push((id, status_text(status)));
        self.memory.statuses.insert(status.clone(), id);
        id
    }

    fn state_row(
        &mut self,
        append: &AppendBatch,
        tail: &mut ChainEnd,
        state: &WitnessedState,
        seq: Seq,
        key: StateKey,
        late: bool,
    ) -> StateRow {
        // The caller's base is a hint. It is used only if it is the end of the chain.
        let base = state.base.as_ref().filter(|base| document::checksum(base) == tail.checksum);
        let quotes_none_under = state.quotes_none_under.filter(|_| base.is_some() == state.base.is_some());
        let encoded = self.encode(&append.source, tail, state, base);
        let owner = state.owner.as_ref().map_or(0, |owner| self.owner_number(owner));
        if owner != tail.owner {
            self.link_to_owners(state, owner, tail.object);
        }
        let envelope = StateEnvelope {
            seq,
            object: tail.object,
            key,
            flags: RowFlags {
                change: state.change,
                late,
                encoding: encoded.encoding,
                depth: encoded.depth,
                quotes_none_under,
            },
            back: if tail.seq == 0 { 0 } else { seq - tail.seq },
            status: self.status_number(&state.status),
            previous: state.previous.as_ref().map(|status| self.status_number(status)),
            owner: (owner != tail.owner).then_some(owner),
            observed_ms: state.observed_ms as i64,
            version: (!is_version(state.change)).then(|| StateKey::of_version(&state.resource_version)),
            anchor: encoded.anchor,
            checksum: document::checksum(&state.document),
        };
        tail.seq = seq;
        // A chain has fewer steps than 256.
        tail.depth = encoded.depth as u8;
        tail.checksum = envelope.checksum;
        tail.has_document = encoded.encoding != DocumentEncoding::Empty;
        self.documents.insert(tail.object, state.document.clone());
        StateRow { envelope, document: encoded.bytes }
    }

    fn encode(
        &mut self,
        source: &Arc<str>,
        tail: &ChainEnd,
        state: &WitnessedState,
        hint: Option<&Bytes>,
    ) -> EncodedDocument {
        let base = self.documents.get(&tail.object).or(hint).filter(|_| tail.has_document);
        let source = self.memory.sources.entry(source.clone()).or_default();
        let stream = source.streams.last().map_or(0, |(_, id)| i64::from(*id));
        let (encoded, anchor) = source.anchors.encode(base.map(|base| (base, u32::from(tail.depth))), state);
        if let Some(document) = anchor {
            let id = self.memory.next.anchor;
            self.memory.next.anchor += 1;
            let checksum = document::checksum(&document);
            self.rows.anchors.push(AnchorRow {
                id,
                stream,
                checksum,
                packed: document::pack_document(&document),
            });
            source.anchors.set_anchor(id, document);
        }
        encoded
    }

    /// Updates the row of an object for a new state.
    fn update_object(&mut self, tail: &mut ChainEnd, state: &WitnessedState, seq: Seq, late: bool) {
        let certain = state.change != Change::Gap && !late;
        // A deletion may come without a version, or with an older one than was seen before. The object still
        // ends, but its newest version never decreases.
        let known = is_version(state.change) || !state.resource_version.as_str().is_empty();
        if certain && known && tail.compare_version(&state.resource_version) != Some(Ordering::Less) {
            tail.set_newest(Some(&state.resource_version), seq);
        }
        self.record_chain_end(tail, certain.then_some(state));
        if certain && tail.live && tail.depth > 0 && tail.depth.is_multiple_of(SNAPSHOT_STEPS) {
            self.plan_snapshot(tail.object, seq, state);
        }
    }

    /// A whole document, so that few deltas are applied at startup. The next snapshot replaces it: its bytes
    /// matter less than that time.
    fn plan_snapshot(&mut self, object: i64, seq: Seq, state: &WitnessedState) {
        let packed = document::pack_quickly(&state.document);
        self.rows.snapshots.insert(object, SnapshotRow { object, seq, packed });
    }

    /// Updates the chain for a state that was already stored. It can still change something: the object may
    /// have counted as deleted.
    fn note_known_state(&mut self, tail: &mut ChainEnd, state: &WitnessedState, seen: Seq) {
        let stale = tail.compare_version(&state.resource_version) == Some(Ordering::Less);
        let was_live = tail.live;
        let is_live = match state.change {
            Change::Gap => was_live,
            _ if stale => was_live,
            Change::Present => true,
            Change::Gone | Change::Left => false,
        };
        if was_live != is_live {
            if is_live {
                tail.set_newest(Some(&state.resource_version), seen);
            }
            self.record_chain_end(tail, Some(state));
            // The known state may be the last one seen of the object, without content.
            if tail.live {
                self.plan_snapshot(tail.object, seen, state);
            }
        }
    }

    /// Records the end of the object's chain, and its present state if that is certain.
    fn record_chain_end(&mut self, tail: &mut ChainEnd, certain: Option<&WitnessedState>) {
        if let Some(state) = certain {
            tail.live = state.change == Change::Present;
            if let Some(older) = tail.older_ends() {
                tail.set_older(None);
                self.record_object_end(older.object, older.newest, older.end);
            }
        }
        if tail.live {
            let live = ObjectOutcome::Live { newest: tail.newest_seq, tail: tail.seq };
            self.rows.outcomes.insert(tail.object, live);
        } else {
            self.record_object_end(tail.object, tail.newest_seq, tail.seq);
        }
    }

    fn record_object_end(&mut self, object: i64, newest: Seq, tail: Seq) {
        self.rows.outcomes.insert(object, ObjectOutcome::Ended { newest, tail });
        self.rows.snapshots.remove(&object);
    }
}

fn poison_row(stream: i64, poison: &PoisonMessage) -> PoisonRow {
    let mut hasher = DefaultHasher::new();
    hasher.write(&poison.raw);
    PoisonRow {
        stream,
        digest: hasher.finish() as i64,
        checksum: document::checksum(&poison.raw),
        raw: poison.raw.to_vec(),
        error: poison.error.clone(),
        observed_ms: poison.observed_ms as i64,
    }
}
