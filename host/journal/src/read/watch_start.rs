//! Reads what the watch of a source needs at startup: the live objects with their documents, and the
//! checkpoint.
//!
//! An object's document is that of its newest state: its snapshot, with the few deltas since then applied.
//! Without a snapshot, the chain is read from its beginning. Objects are read in parts, and all chains of a
//! part advance one step at a time, so that a step is one query.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::document::{self, PackedDocument};
use kubewitness_core::ports::{CurrentObject, WarmStart};
use kubewitness_core::{Seq, State, Version};
use tokio::sync::mpsc;

use super::documents::{self, restore_document};
use super::shared_rows::SharedNames;
use crate::store::rows::{
    CurrentRow, DocumentEncoding, DocumentStorage, StoreResult, StoredDocument, damaged_state,
};
use crate::store::{StoreConnection, StoreReader};

/// Objects of one part. Up to 32 deltas of each are in memory at once, some megabytes.
const PART: i64 = 1024;

/// Sends the objects to `parts` as long as somebody receives them.
pub(super) async fn send_current_objects(
    connection: &mut dyn StoreConnection,
    names: &SharedNames,
    source: &str,
    parts: mpsc::Sender<Vec<CurrentObject>>,
) -> StoreResult<WarmStart> {
    // In one snapshot, because objects and checkpoint must belong together.
    connection.begin_snapshot().await?;
    let warm = read(connection.store_reader(), names, source, parts).await?;
    connection.end_snapshot().await?;
    Ok(warm)
}

async fn read(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    source: &str,
    parts: mpsc::Sender<Vec<CurrentObject>>,
) -> StoreResult<WarmStart> {
    let newest = rows
        .source_streams()
        .await?
        .into_iter()
        .filter(|stream| stream.source == source)
        .max_by_key(|s| s.epoch);
    let Some(newest) = newest else { return Ok(WarmStart::default()) };
    newest.check()?;
    let mut part = read_object_part(rows, names, source, 0).await?;
    loop {
        let Some(after) = part.after else {
            // The receiver may be gone by now.
            parts.send(part.into_objects()?).await.ok();
            let checkpoint = newest.checkpoint.as_deref().map(Version::new);
            return Ok(WarmStart { epoch: newest.epoch, checkpoint, ..WarmStart::default() });
        };
        // The store searches for the next part while the documents of this one are assembled.
        let given = async { Ok(parts.send(part.into_objects()?).await) };
        let (next, given): (_, StoreResult<_>) =
            tokio::join!(read_object_part(rows, names, source, after), given);
        given?.ok();
        part = next?;
    }
}

/// Objects with everything that their documents are made from.
struct ObjectPart {
    states: Vec<Arc<State>>,
    chains: Vec<DocumentChain>,
    anchors: HashMap<i64, Bytes>,
    /// The number after which the next part begins, if there is one.
    after: Option<i64>,
}

async fn read_object_part(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    source: &str,
    after: i64,
) -> StoreResult<ObjectPart> {
    let part = rows.current_objects(source, after, PART).await?;
    let after = part.last().map(|row| row.object).filter(|_| part.len() as i64 == PART);
    let envelopes: Vec<_> = part.iter().map(|row| row.newest.clone()).collect();
    let states = names.states_of(rows, &envelopes).await?;
    let mut chains: Vec<DocumentChain> = part.into_iter().map(DocumentChain::new).collect();
    while step_chains(rows, &mut chains).await? {}
    let mut anchors = HashMap::new();
    for kept in chains.iter().flat_map(|chain| &chain.links).map(|link| link.kept) {
        if let Some(id) = kept.anchor
            && let Entry::Vacant(anchor) = anchors.entry(id)
        {
            anchor.insert(documents::anchor_document(rows, names, kept.seq, id).await?);
        }
    }
    Ok(ObjectPart { states, chains, anchors, after })
}

impl ObjectPart {
    fn into_objects(self) -> StoreResult<Vec<CurrentObject>> {
        let Self { states, chains, anchors, .. } = self;
        let object = |(state, chain): (Arc<State>, DocumentChain)| {
            Ok(CurrentObject {
                object: state.object.clone(),
                owner: state.owner.clone(),
                resource_version: state.resource_version.clone(),
                status: state.status.clone(),
                seq: state.seq,
                observed_ms: state.observed_ms,
                packed: chain.restore_document(&anchors)?,
            })
        };
        states.into_iter().zip(chains).map(object).collect()
    }
}

/// Reads one more step of each chain that needs it; returns `false` if none does.
async fn step_chains(rows: &mut dyn StoreReader, chains: &mut [DocumentChain]) -> StoreResult<bool> {
    let wanted = chains.iter_mut().enumerate().filter_map(|(place, chain)| Some((chain.next.take()?, place)));
    let mut wanted: Vec<(Seq, usize)> = wanted.collect();
    if wanted.is_empty() {
        return Ok(false);
    }
    wanted.sort_unstable();
    let seqs: Vec<Seq> = wanted.iter().map(|(seq, _)| *seq).collect();
    // A missing row is reported when the document is assembled.
    for link in rows.stored_documents(&seqs).await? {
        if let Ok(index) = seqs.binary_search(&link.kept.seq) {
            chains[wanted[index].1].push(link);
        }
    }
    Ok(true)
}

/// The chain from an object's newest state back to a full document.
struct DocumentChain {
    /// The newest first.
    links: Vec<StoredDocument>,
    snapshot: Option<(Seq, Vec<u8>)>,
    /// The next state that is needed.
    next: Option<Seq>,
}

impl DocumentChain {
    fn new(row: CurrentRow) -> Self {
        let CurrentRow { newest, stored, snapshot, .. } = row;
        let before = newest.seq.saturating_sub(newest.back);
        let mut chain = Self { links: Vec::new(), snapshot, next: None };
        if !chain.has_snapshot_of(newest.seq) {
            chain.push(StoredDocument { kept: (&newest).into(), before, stored });
        }
        chain
    }

    fn has_snapshot_of(&self, seq: Seq) -> bool {
        self.snapshot.as_ref().is_some_and(|(kept, _)| *kept == seq)
    }

    fn push(&mut self, link: StoredDocument) {
        let goes_on = link.kept.encoding == DocumentEncoding::Delta && link.before != link.kept.seq;
        self.next = (goes_on && !self.has_snapshot_of(link.before)).then_some(link.before);
        self.links.push(link);
    }

    fn restore_document(mut self, anchors: &HashMap<i64, Bytes>) -> StoreResult<PackedDocument> {
        // A full document is stored in the form that the cache uses.
        if let [
            StoredDocument { kept: DocumentStorage { encoding: DocumentEncoding::Full, .. }, stored, .. },
        ] = &mut *self.links
        {
            return Ok(std::mem::take(stored).into());
        }
        let Some(lowest) = self.links.last() else {
            return Ok(self.snapshot.map(|(_, packed)| packed).unwrap_or_default().into());
        };
        let mut base: Option<Bytes> = None;
        if let Some((seq, packed)) = self.snapshot.filter(|(seq, _)| *seq == lowest.before) {
            base = Some(document::unpack_document(&packed).map_err(|error| damaged_state(seq, error))?);
        }
        for link in self.links.iter().rev() {
            let anchor = link.kept.anchor.and_then(|id| anchors.get(&id));
            base = Some(restore_document(link.kept, &link.stored, base.as_ref(), anchor)?);
        }
        // Startup waits for all of them, and documents that change are packed again later.
        Ok(document::pack_quickly(&base.unwrap_or_default()))
    }
}
