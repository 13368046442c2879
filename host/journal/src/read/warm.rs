//! What a source starts from: its live objects with their documents, and its checkpoint.
//!
//! An object's document is that of its newest state. It is its snapshot, or what the few deltas
//! since its snapshot, or since the beginning of its chain, make of it. Objects are taken part by
//! part, and the chains of a part step by step together, so that a step is one query.

use bytes::Bytes;
use kubewitness_core::document::{self, Packed};
use kubewitness_core::ports::{Current, Warm};
use kubewitness_core::{Seq, Version};

use super::documents::{Kept, decode};
use super::names::Names;
use crate::rows::Encoding;
use crate::store::{Answer, Connection, CurrentRow, Fetch, Link, damaged};

/// Objects of one part. Up to 32 deltas of each are in memory at once, some megabytes.
const PART: i64 = 1024;

pub(super) async fn warm(connection: &mut dyn Connection, names: &Names, source: &str) -> Answer<Warm> {
    // One snapshot: objects and checkpoint must belong together.
    connection.begin().await?;
    let warm = read(connection.rows(), names, source).await?;
    connection.end().await?;
    Ok(warm)
}

async fn read(rows: &mut dyn Fetch, names: &Names, source: &str) -> Answer<Warm> {
    let newest =
        rows.streams().await?.into_iter().filter(|stream| stream.source == source).max_by_key(|s| s.epoch);
    let Some(newest) = newest else { return Ok(Warm::default()) };
    newest.check()?;
    let mut objects = Vec::new();
    let mut after = 0;
    loop {
        let part = rows.current(source, after, PART).await?;
        let is_last = (part.len() as i64) < PART;
        after = part.last().map_or(after, |row| row.object);
        let envelopes: Vec<_> = part.iter().map(|row| row.newest.clone()).collect();
        let states = names.states(rows, &envelopes).await?;
        let documents = documents(rows, names, part).await?;
        objects.extend(states.into_iter().zip(documents).map(|(state, packed)| Current {
            object: state.object.clone(),
            owner: state.owner.clone(),
            resource_version: state.resource_version.clone(),
            status: state.status.clone(),
            seq: state.seq,
            observed_ms: state.observed_ms,
            packed,
        }));
        if is_last {
            let checkpoint = newest.checkpoint.as_deref().map(Version::new);
            return Ok(Warm { epoch: newest.epoch, checkpoint, objects });
        }
    }
}

/// Of each object, in their order.
async fn documents(rows: &mut dyn Fetch, names: &Names, part: Vec<CurrentRow>) -> Answer<Vec<Packed>> {
    let mut chains: Vec<Chain> = part.into_iter().map(Chain::new).collect();
    while step(rows, &mut chains).await? {}
    let mut documents = Vec::with_capacity(chains.len());
    for chain in chains {
        documents.push(chain.document(rows, names).await?);
    }
    Ok(documents)
}

/// One step further down each chain that needs it; `false` once there is none.
async fn step(rows: &mut dyn Fetch, chains: &mut [Chain]) -> Answer<bool> {
    let wanted = chains.iter_mut().enumerate().filter_map(|(place, chain)| Some((chain.next.take()?, place)));
    let mut wanted: Vec<(Seq, usize)> = wanted.collect();
    if wanted.is_empty() {
        return Ok(false);
    }
    wanted.sort_unstable();
    let seqs: Vec<Seq> = wanted.iter().map(|(seq, _)| *seq).collect();
    // What is not found is missed when the document is put together.
    for link in rows.links(&seqs).await? {
        if let Ok(index) = seqs.binary_search(&link.kept.seq) {
            chains[wanted[index].1].push(link);
        }
    }
    Ok(true)
}

/// From an object's newest state down to something whole.
struct Chain {
    /// The newest first.
    links: Vec<Link>,
    snapshot: Option<(Seq, Vec<u8>)>,
    /// The state that is still wanted.
    next: Option<Seq>,
}

impl Chain {
    fn new(row: CurrentRow) -> Self {
        let CurrentRow { newest, stored, snapshot, .. } = row;
        let before = newest.seq.saturating_sub(newest.back);
        let mut chain = Self { links: Vec::new(), snapshot, next: None };
        if !chain.has(newest.seq) {
            chain.push(Link { kept: (&newest).into(), before, stored });
        }
        chain
    }

    fn has(&self, seq: Seq) -> bool {
        self.snapshot.as_ref().is_some_and(|(kept, _)| *kept == seq)
    }

    fn push(&mut self, link: Link) {
        let goes_on = link.kept.encoding == Encoding::Delta && link.before != link.kept.seq;
        self.next = (goes_on && !self.has(link.before)).then_some(link.before);
        self.links.push(link);
    }

    async fn document(mut self, rows: &mut dyn Fetch, names: &Names) -> Answer<Packed> {
        // What is stored whole is stored as the cache wants it.
        if let [Link { kept: Kept { encoding: Encoding::Full, .. }, stored, .. }] = &mut *self.links {
            return Ok(std::mem::take(stored).into());
        }
        let Some(lowest) = self.links.last() else {
            return Ok(self.snapshot.map(|(_, packed)| packed).unwrap_or_default().into());
        };
        let mut base: Option<Bytes> = None;
        if let Some((seq, packed)) = self.snapshot.filter(|(seq, _)| *seq == lowest.before) {
            base = Some(document::unpack(&packed).map_err(|error| damaged(seq, error))?);
        }
        for link in self.links.iter().rev() {
            base = Some(decode(rows, names, link.kept, &link.stored, base.as_ref()).await?);
        }
        Ok(document::pack(&base.unwrap_or_default()))
    }
}
