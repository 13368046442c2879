//! What a batch of appends means: positions, duplicates, lateness, deltas, and the rows that follow
//! from them. Touches no disk: the caller first reads what [`strangers`] and [`questions`] ask for.

mod lookups;
mod placed;

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use kubewitness_core::document;
use kubewitness_core::ports::{Append, Poison, Witnessed};
use kubewitness_core::{Change, ObjectRef, Seq, State, Status};

use crate::store::memory::anchors::Encoded;
use crate::store::memory::chain_ends::{ChainEnd, Mark};
use crate::store::memory::{Identity, Memory};
use crate::store::rows::discrepancies::Found;
use crate::store::rows::{
    AnchorRow, Encoding, Envelope, Flags, GapRow, Key, Known, ObjectRow, Outcome, PoisonRow, ROW_BYTES, Rows,
    SEGMENT, SnapshotRow, StateRow, StreamRow, status_text,
};
pub(crate) use lookups::{Marked, check, epoch_is_over, questions, strangers};
use lookups::{id_rest, is_version, key_of, prefix};
use placed::Place;
pub(crate) use placed::Placed;

/// Steps of a chain between two snapshots of a live object. A start applies as many deltas to each
/// object at most, and a state costs that much less than one that carried its object whole.
const SNAPSHOT_STEPS: u8 = 8;

/// One batch in the making. Planning changes the memory; should the transaction fail, both are
/// thrown away.
pub(crate) struct Plan<'a> {
    memory: &'a mut Memory,
    known: &'a Known,
    pub rows: Rows,
    pub states: Vec<Arc<State>>,
    pub ended: Vec<Mark>,
    /// Keys of this very batch.
    keys: Known,
    /// The documents at the ends of the chains that this batch has touched.
    documents: HashMap<i64, Bytes>,
}

impl<'a> Plan<'a> {
    pub fn new(memory: &'a mut Memory, known: &'a Known) -> Self {
        let (rows, states, ended) = (Rows::default(), Vec::new(), Vec::new());
        Self { memory, known, rows, states, ended, keys: Known::new(), documents: HashMap::new() }
    }

    pub fn append(&mut self, marked: &Marked<'_>) -> Placed {
        let append = marked.append;
        let stream = self.stream(append);
        let prefix = prefix(append);
        let mut placed = Placed::default();
        for (state, mark) in marked.states() {
            let place = self.state(append, stream, &prefix, state, mark);
            placed.through = placed.through.max(place.map_or(0, Place::seq));
            placed.seqs.push(place.and_then(Place::fresh));
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
            self.rows.differences.push(Found::of(i64::from(stream), &append.discrepancies));
        }
        self.stream_row(append, stream, &placed.seqs);
        placed
    }

    /// How the stream stands now, where that is news.
    fn stream_row(&mut self, append: &Append, stream: u32, seqs: &[Option<Seq>]) {
        let fresh = append.states.iter().zip(seqs).filter(|(_, seq)| seq.is_some());
        let states = fresh.clone().count() as u64;
        let observed = fresh.map(|(state, _)| state.observed_ms);
        let last_event_ms = observed.chain(append.poison.iter().map(|poison| poison.observed_ms)).max();
        let source = self.memory.sources.entry(append.source.clone()).or_default();
        let before = (source.checkpoint.clone(), source.last_event_ms);
        if let Some(version) = append.checkpoint.as_ref().filter(|version| source.goes_to(version, append)) {
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

    fn stream(&mut self, append: &Append) -> u32 {
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

    fn state(
        &mut self,
        append: &Append,
        stream: u32,
        prefix: &str,
        state: &Witnessed,
        mark: Mark,
    ) -> Option<Place> {
        let rest = id_rest(prefix, state)?;
        let key = key_of(state, rest);
        let mut tail = self.enter(stream, state, mark);
        let place = (tail.object, key);
        if let Some(seen) = self.known.get(&place).or_else(|| self.keys.get(&place)).copied() {
            self.again(&mut tail, state, seen);
            self.keep(mark, tail);
            return Some(Place::Known(seen));
        }
        let key = place.1.clone();
        let seq = self.memory.next.seq;
        self.memory.next.seq += 1;
        self.keys.insert(place, seq);

        let late = is_version(state.change) && tail.compare(&state.resource_version) == Some(Ordering::Less);
        let row = self.row(append, &mut tail, state, seq, key, late);
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
        self.settle(&mut tail, state, seq, late);
        self.keep(mark, tail);
        Some(Place::Fresh(seq))
    }

    /// The object's tail in this epoch, with a new row where it has none yet. It is out of the
    /// memory until it is [kept](Self::keep).
    fn enter(&mut self, stream: u32, state: &Witnessed, mark: Mark) -> ChainEnd {
        let mut tail = match self.memory.objects.take(mark) {
            Some(tail) if tail.stream == stream => return tail,
            before => before.unwrap_or_default(),
        };
        let owner = state.owner.as_ref().map_or(0, |owner| self.owner(owner));
        let object = self.object_row(i64::from(stream), &state.object, owner);
        self.belongs(state, owner, object);
        // A new epoch goes on with the chain of the one before: the uid is the same.
        if let Some(document) = self.documents.remove(&tail.object) {
            self.documents.insert(object, document);
        }
        tail.set_older(tail.as_older());
        tail.set_newest(None, 0);
        (tail.object, tail.stream, tail.owner, tail.live) = (object, stream, owner, false);
        tail
    }

    /// To its outermost owner, which may become known late, and to its direct one.
    fn belongs(&mut self, state: &Witnessed, owner: i64, object: i64) {
        if owner != 0 {
            self.rows.owned.push((owner, object));
        }
        if let Some(controller) = &state.controller {
            let controller = self.owner(controller);
            self.rows.owned.push((controller, object));
        }
    }

    fn keep(&mut self, mark: Mark, tail: ChainEnd) {
        if !tail.live {
            self.ended.push(mark);
        }
        self.memory.objects.insert(mark, tail);
    }

    fn object_row(&mut self, stream: i64, object: &ObjectRef, owner: i64) -> i64 {
        let kind = self.kind(object);
        let id = self.memory.next.object;
        self.memory.next.object += 1;
        let ObjectRef { namespace, name, uid, .. } = object.clone();
        self.rows.objects.push(ObjectRow { id, stream, kind, namespace, name, uid, owner });
        id
    }

    fn kind(&mut self, object: &ObjectRef) -> i64 {
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

    fn owner(&mut self, owner: &Arc<ObjectRef>) -> i64 {
        let identity = Identity::owner(owner);
        if let Some(id) = self.memory.owners.get(&identity) {
            return *id;
        }
        let id = self.object_row(0, owner, 0);
        self.memory.owners.insert(identity, id);
        id
    }

    fn status(&mut self, status: &Arc<Status>) -> i64 {
        if let Some(id) = self.memory.statuses.get(status) {
            return *id;
        }
        let id = self.memory.next.status;
        self.memory.next.status += 1;
        self.rows.statuses.push((id, status_text(status)));
        self.memory.statuses.insert(status.clone(), id);
        id
    }

    fn row(
        &mut self,
        append: &Append,
        tail: &mut ChainEnd,
        state: &Witnessed,
        seq: Seq,
        key: Key,
        late: bool,
    ) -> StateRow {
        // The caller's base is a hint: it counts only if it is what the chain ends with.
        let base = state.base.as_ref().filter(|base| document::checksum(base) == tail.checksum);
        let quotes_none_under = state.quotes_none_under.filter(|_| base.is_some() == state.base.is_some());
        let encoded = self.encode(&append.source, tail, state, base);
        let owner = state.owner.as_ref().map_or(0, |owner| self.owner(owner));
        if owner != tail.owner {
            self.belongs(state, owner, tail.object);
        }
        let envelope = Envelope {
            seq,
            object: tail.object,
            key,
            flags: Flags {
                change: state.change,
                late,
                encoding: encoded.encoding,
                depth: encoded.depth,
                quotes_none_under,
            },
            back: if tail.seq == 0 { 0 } else { seq - tail.seq },
            status: self.status(&state.status),
            previous: state.previous.as_ref().map(|status| self.status(status)),
            owner: (owner != tail.owner).then_some(owner),
            observed_ms: state.observed_ms as i64,
            version: (!is_version(state.change)).then(|| Key::of_version(&state.resource_version)),
            anchor: encoded.anchor,
            checksum: document::checksum(&state.document),
        };
        tail.seq = seq;
        // A chain has fewer steps than that.
        tail.depth = encoded.depth as u8;
        tail.checksum = envelope.checksum;
        tail.has_document = encoded.encoding != Encoding::Empty;
        self.documents.insert(tail.object, state.document.clone());
        StateRow { envelope, document: encoded.bytes }
    }

    fn encode(
        &mut self,
        source: &Arc<str>,
        tail: &ChainEnd,
        state: &Witnessed,
        hint: Option<&Bytes>,
    ) -> Encoded {
        let base = self.documents.get(&tail.object).or(hint).filter(|_| tail.has_document);
        let source = self.memory.sources.entry(source.clone()).or_default();
        let stream = source.streams.last().map_or(0, |(_, id)| i64::from(*id));
        let (encoded, anchor) = source.anchors.encode(base.map(|base| (base, u32::from(tail.depth))), state);
        if let Some(document) = anchor {
            let id = self.memory.next.anchor;
            self.memory.next.anchor += 1;
            let checksum = document::checksum(&document);
            self.rows.anchors.push(AnchorRow { id, stream, checksum, packed: document::pack(&document) });
            source.anchors.set(id, document);
        }
        encoded
    }

    /// What a new state makes of its object.
    fn settle(&mut self, tail: &mut ChainEnd, state: &Witnessed, seq: Seq, late: bool) {
        let certain = state.change != Change::Gap && !late;
        // A deletion may come without a version, or with one that was outrun: its end still counts,
        // but the newest never goes back.
        let known = is_version(state.change) || !state.resource_version.as_str().is_empty();
        if certain && known && tail.compare(&state.resource_version) != Some(Ordering::Less) {
            tail.set_newest(Some(&state.resource_version), seq);
        }
        self.place(tail, certain.then_some(state));
        if certain && tail.live && tail.depth > 0 && tail.depth.is_multiple_of(SNAPSHOT_STEPS) {
            self.snapshot(tail.object, seq, state);
        }
    }

    /// A whole document, so that a start has few deltas to apply. The next one replaces it: bytes count
    /// less than the time.
    fn snapshot(&mut self, object: i64, seq: Seq, state: &Witnessed) {
        let packed = document::pack_quickly(&state.document);
        self.rows.snapshots.insert(object, SnapshotRow { object, seq, packed });
    }

    /// A state that is there already can still be news: the object may have been taken for gone.
    fn again(&mut self, tail: &mut ChainEnd, state: &Witnessed, seen: Seq) {
        let stale = tail.compare(&state.resource_version) == Some(Ordering::Less);
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
            self.place(tail, Some(state));
            // What is there may be the last that was seen of it, without a content.
            if tail.live {
                self.snapshot(tail.object, seen, state);
            }
        }
    }

    /// Writes down where the object's chain ends, and what it is now if that is certain.
    fn place(&mut self, tail: &mut ChainEnd, certain: Option<&Witnessed>) {
        if let Some(state) = certain {
            tail.live = state.change == Change::Present;
            if let Some(older) = tail.older() {
                tail.set_older(None);
                self.end(older.object, older.newest, older.end);
            }
        }
        if tail.live {
            let live = Outcome::Live { newest: tail.newest_seq, tail: tail.seq };
            self.rows.outcomes.insert(tail.object, live);
        } else {
            self.end(tail.object, tail.newest_seq, tail.seq);
        }
    }

    fn end(&mut self, object: i64, newest: Seq, tail: Seq) {
        self.rows.outcomes.insert(object, Outcome::Ended { newest, tail });
        self.rows.snapshots.remove(&object);
    }
}

fn poison_row(stream: i64, poison: &Poison) -> PoisonRow {
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
