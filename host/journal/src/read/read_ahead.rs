//! Reads the documents of many states ahead of the questions about them.
//!
//! A plugin that reads documents asks for those of each state, and often for the version before. Read alone, each
//! question walks back over up to [`DELTA_CHAIN`] deltas, and most of them are those of the question before. So the
//! chains of all states are walked together, one read for a step of all. A chain ends at a version that was restored
//! lately: the version before is one, as a rule. Documents are restored on a thread that may block.
//!
//! An answer may be incomplete. What is damaged, not visible, or too much for the bounds is left out, and the caller
//! asks for it alone. So this module returns no reason for what it leaves out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use kubewitness_core::document::GenerationCache;
use kubewitness_core::limits::DELTA_CHAIN;
use kubewitness_core::ports::{JournalError, ReadDocument, StateDocuments};
use kubewitness_core::{Change, Seq};

use super::documents::{anchor_document, restore_document};
use super::shared_rows::SharedNames;
use crate::report::DOUBTFUL;
use crate::store::StoreConnection;
use crate::store::rows::{DocumentEncoding, DocumentRow, StateEnvelope, StoreResult};

/// Over a network each step of the chains is a round trip, and for fewer states than these, single questions take fewer.
const FEWEST_FROM_A_SERVER: usize = 16;
/// How many states one answer covers.
const STATES: usize = 256;
/// The bytes of the rows that are read, and of the documents of an answer. One row and one document may exceed it.
const BYTES: usize = 4 << 20;
/// The bytes that are restored for one answer. All but the last document of a chain are dropped at once.
const WORK_BYTES: usize = 64 << 20;
/// The steps of one chain: its deltas, and a few states without a document before it.
const STEPS: usize = DELTA_CHAIN as usize + 8;
/// The bytes of [`RestoredDocuments`].
const KEPT_BYTES: usize = 16 << 20;

/// Documents that were restored lately, by position and checksum. A row is always read before it is compared with one
/// of these, so a state that was removed or written anew is not found here.
pub(crate) struct RestoredDocuments(Mutex<GenerationCache<(Seq, u32), Bytes>>);

impl Default for RestoredDocuments {
    fn default() -> Self {
        Self(Mutex::new(GenerationCache::with_bytes(KEPT_BYTES)))
    }
}

impl RestoredDocuments {
    fn lock_cache(&self) -> MutexGuard<'_, GenerationCache<(Seq, u32), Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, envelope: &StateEnvelope) -> Option<Bytes> {
        self.lock_cache().get(&(envelope.seq, envelope.checksum)).cloned()
    }

    fn keep(&self, envelope: &StateEnvelope, document: &Bytes) {
        let (mut cache, key) = (self.lock_cache(), (envelope.seq, envelope.checksum));
        if cache.get(&key).is_none() {
            cache.insert(key, document.clone(), document.len());
        }
    }
}

pub(super) async fn read_documents(
    connection: &mut dyn StoreConnection,
    names: &SharedNames,
    seqs: &[Seq],
    has_before: bool,
    known: Arc<RestoredDocuments>,
) -> StoreResult<Vec<StateDocuments>> {
    if connection.is_on_a_server() && seqs.len() < FEWEST_FROM_A_SERVER {
        return Ok(Vec::new());
    }
    let walk = |seq: &Seq| {
        let before = if has_before { WalkEnd::Next(*seq) } else { WalkEnd::Lost };
        [DocumentWalk::new(*seq, false, WalkEnd::Next(*seq)), DocumentWalk::new(*seq, true, before)]
    };
    let mut walks: Vec<DocumentWalk> = seqs.iter().take(STATES).flat_map(walk).collect();
    let rows = read_chains(connection, &mut walks, &known).await?;
    let mut anchors = HashMap::new();
    for (envelope, _) in rows.values() {
        if let Some(id) = envelope.anchor
            && let Entry::Vacant(anchor) = anchors.entry(id)
            && let Ok(document) = anchor_document(connection.store_reader(), names, envelope.seq, id).await
        {
            anchor.insert(document);
        }
    }
    let restorer =
        DocumentRestorer { rows, anchors, known, restored: HashMap::new(), kept_bytes: 0, work_bytes: 0 };
    let restored = tokio::task::spawn_blocking(move || restorer.restore_all(&walks)).await;
    restored.map_err(|error| JournalError::Fatal(format!("a restoring thread ended: {error}: {DOUBTFUL}")))
}

/// Reads one step of all chains at a time, until each has its end.
async fn read_chains(
    connection: &mut dyn StoreConnection,
    walks: &mut [DocumentWalk],
    known: &RestoredDocuments,
) -> StoreResult<HashMap<Seq, DocumentRow>> {
    let (mut rows, mut bytes): (HashMap<Seq, DocumentRow>, usize) = (HashMap::new(), 0);
    loop {
        walks.iter_mut().for_each(|walk| walk.advance(&rows, known));
        let mut wanted: Vec<i64> = walks.iter().filter_map(DocumentWalk::next_position).collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() || bytes > BYTES {
            return Ok(rows);
        }
        for (envelope, stored) in connection.rows_at(&wanted, BYTES - bytes).await? {
            bytes += stored.len();
            rows.insert(envelope.seq, (envelope, stored));
        }
        walks.iter_mut().for_each(|walk| walk.give_up_unless_read(&rows));
    }
}

/// The way from a state back to a document from which the wanted one can be restored.
struct DocumentWalk {
    of: Seq,
    /// Whether the version before is wanted, and not the state's own.
    is_before: bool,
    /// The states whose stored documents are applied, the newest first.
    links: Vec<Seq>,
    /// The document of the last link, if it is known.
    base: Option<Bytes>,
    end: WalkEnd,
    steps: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkEnd {
    /// The row at this position is needed.
    Next(Seq),
    Complete,
    /// There is no document.
    Absent,
    /// Nothing is said about the document.
    Lost,
}

impl DocumentWalk {
    fn new(of: Seq, is_before: bool, end: WalkEnd) -> Self {
        Self { of, is_before, links: Vec::new(), base: None, end, steps: 0 }
    }

    fn next_position(&self) -> Option<i64> {
        match self.end {
            WalkEnd::Next(seq) => i64::try_from(seq).ok(),
            _ => None,
        }
    }

    fn advance(&mut self, rows: &HashMap<Seq, DocumentRow>, known: &RestoredDocuments) {
        while let WalkEnd::Next(seq) = self.end
            && let Some((envelope, _)) = rows.get(&seq)
        {
            self.end = self.take_step(envelope, known);
        }
    }

    fn take_step(&mut self, envelope: &StateEnvelope, known: &RestoredDocuments) -> WalkEnd {
        self.steps += 1;
        if self.steps > STEPS {
            return WalkEnd::Lost;
        }
        let before = envelope.seq.checked_sub(envelope.back).filter(|seq| *seq < envelope.seq);
        let encoding = envelope.flags.encoding;
        let is_version = envelope.flags.change != Change::Gap && encoding != DocumentEncoding::Empty;
        if self.is_before && self.links.is_empty() && (envelope.seq == self.of || !is_version) {
            return match before {
                Some(before) => WalkEnd::Next(before),
                None if envelope.back == 0 => WalkEnd::Absent,
                None => WalkEnd::Lost,
            };
        }
        self.links.push(envelope.seq);
        self.base = known.find(envelope);
        match before {
            _ if self.base.is_some() || encoding != DocumentEncoding::Delta => WalkEnd::Complete,
            Some(before) => WalkEnd::Next(before),
            None => WalkEnd::Lost,
        }
    }

    fn give_up_unless_read(&mut self, rows: &HashMap<Seq, DocumentRow>) {
        if let WalkEnd::Next(seq) = self.end
            && !rows.contains_key(&seq)
        {
            self.end = WalkEnd::Lost;
        }
    }
}

/// Makes documents from the rows of their chains.
struct DocumentRestorer {
    rows: HashMap<Seq, DocumentRow>,
    anchors: HashMap<i64, Bytes>,
    known: Arc<RestoredDocuments>,
    restored: HashMap<Seq, Bytes>,
    kept_bytes: usize,
    work_bytes: usize,
}

impl DocumentRestorer {
    fn restore_all(mut self, walks: &[DocumentWalk]) -> Vec<StateDocuments> {
        let pairs = walks.chunks_exact(2);
        pairs
            .map(|pair| {
                // The own document is mostly a delta on the one before.
                let before = self.restore(&pair[1]);
                let own = match self.restore(&pair[0]) {
                    ReadDocument::Found(empty) if empty.is_empty() => ReadDocument::Absent,
                    own => own,
                };
                if let (ReadDocument::Found(document), Some((envelope, _))) =
                    (&own, self.rows.get(&pair[0].of))
                {
                    self.known.keep(envelope, document);
                }
                StateDocuments { seq: pair[0].of, own, before }
            })
            .collect()
    }

    fn restore(&mut self, walk: &DocumentWalk) -> ReadDocument {
        match walk.end {
            WalkEnd::Absent => ReadDocument::Absent,
            WalkEnd::Complete => self.restore_chain(walk).map_or(ReadDocument::Unread, ReadDocument::Found),
            WalkEnd::Next(_) | WalkEnd::Lost => ReadDocument::Unread,
        }
    }

    /// `None` if it is damaged, or too much.
    fn restore_chain(&mut self, walk: &DocumentWalk) -> Option<Bytes> {
        let (first, last) = (walk.links.first()?, walk.links.len() - 1);
        let is_known = self.restored.contains_key(first);
        if self.work_bytes > WORK_BYTES || self.kept_bytes > BYTES && !is_known {
            return None;
        }
        let shared = walk.links.iter().position(|seq| self.restored.contains_key(seq));
        let (applied, mut document) = match (shared, &walk.base) {
            (Some(place), _) => (place, self.restored.get(&walk.links[place]).cloned()),
            (None, Some(base)) => (last, Some(base.clone())),
            (None, None) => (last + 1, None),
        };
        for seq in walk.links[..applied].iter().rev() {
            let (envelope, stored) = self.rows.get(seq)?;
            let anchor = envelope.anchor.and_then(|id| self.anchors.get(&id));
            let next = restore_document(envelope.into(), stored, document.as_ref(), anchor).ok()?;
            self.work_bytes += next.len();
            document = (self.work_bytes <= WORK_BYTES).then_some(next);
            document.as_ref()?;
        }
        let document = document?;
        if !is_known {
            self.kept_bytes += document.len();
            self.restored.insert(*first, document.clone());
        }
        Some(document)
    }
}
