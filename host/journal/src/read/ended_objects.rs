//! Finds ended objects by the index over their ends.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kubewitness_core::{Seq, State};

use super::shared_rows::{self, SharedNames};
use crate::store::StoreReader;
use crate::store::rows::{ObjectEnds, PlacedObject, StoreResult};

/// Ends of one stream that are read at once.
const PART: i64 = 512;
/// How many ends one page examines: some 50 ms of a reader. A page that finds too few matches ends early.
pub(super) const LOOKED: usize = 20_000;

/// The most late states or gaps after an object's end.
const LATE: i64 = 512;

/// Whether an object of a stream matches, by its namespace and its name.
pub type ObjectFilter<'a> = &'a (dyn Fn(&str, &str, &str) -> bool + Send + Sync);

/// A query for ended objects.
pub struct EndedQuery<'a> {
    pub sources: &'a [String],
    /// They ended after this position
    pub after: Seq,
    /// and before this one.
    pub before: Seq,
    pub oldest_first: bool,
    pub limit: usize,
    /// Called with the names of the source, the namespace and the object.
    pub fits: ObjectFilter<'a>,
}

/// An ended object.
#[derive(Clone, Debug)]
pub struct EndedObject {
    /// The position of its last state, by which pages are ordered.
    pub position: Seq,
    /// Its end state. Versions that were read back late come after it.
    pub state: Arc<State>,
}

#[derive(Clone, Debug, Default)]
pub struct EndedPage {
    /// In the requested order.
    pub objects: Vec<EndedObject>,
    /// The position after which the next page begins; `None` after the last page.
    pub next: Option<Seq>,
}

/// The ends of several streams, in one order.
pub(super) struct EndMerge {
    newest_first: bool,
    after: Seq,
    before: Seq,
    streams: Vec<EndReadahead>,
}

/// The rows of a stream that were read and not yet used.
struct EndReadahead {
    stream: i64,
    source: Arc<str>,
    placed: VecDeque<PlacedObject>,
    is_over: bool,
}

fn as_signed(seq: Seq) -> i64 {
    seq.min(i64::MAX as u64) as i64
}

impl EndMerge {
    pub async fn new(
        rows: &mut dyn StoreReader,
        sources: &[String],
        (after, before): (Seq, Seq),
        newest_first: bool,
    ) -> StoreResult<Self> {
        let streams =
            rows.source_streams().await?.into_iter().filter(|stream| sources.contains(&stream.source));
        let ahead = streams.map(|stream| EndReadahead {
            stream: stream.id,
            source: stream.source.into(),
            placed: VecDeque::new(),
            is_over: false,
        });
        Ok(Self { newest_first, after, before, streams: ahead.collect() })
    }

    /// The next end, with its source.
    pub async fn next(
        &mut self,
        rows: &mut dyn StoreReader,
    ) -> StoreResult<Option<(Arc<str>, PlacedObject)>> {
        let (after, before, newest_first) =
            (as_signed(self.after), as_signed(self.before), self.newest_first);
        for ahead in self.streams.iter_mut().filter(|ahead| ahead.placed.is_empty() && !ahead.is_over) {
            let ends = ObjectEnds { stream: ahead.stream, after, before, newest_first, limit: PART };
            let found = rows.ended_objects(ends).await?;
            ahead.is_over = (found.len() as i64) < PART;
            ahead.placed = found.into();
        }
        let first = |ahead: &EndReadahead| ahead.placed.front().map(|placed| placed.tail);
        let with = self.streams.iter_mut().filter(|ahead| !ahead.placed.is_empty());
        let chosen = match newest_first {
            true => with.max_by_key(|ahead| first(ahead)),
            false => with.min_by_key(|ahead| first(ahead)),
        };
        let Some(chosen) = chosen else { return Ok(None) };
        let source = Arc::clone(&chosen.source);
        let Some(placed) = chosen.placed.pop_front() else { return Ok(None) };
        // The next read of the stream continues here, because everything before it was taken.
        match newest_first {
            true => self.before = placed.tail,
            false => self.after = placed.tail,
        }
        Ok(Some((source, placed)))
    }
}

pub(super) async fn ended_page(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    query: &EndedQuery<'_>,
) -> StoreResult<EndedPage> {
    let between = (query.after, query.before);
    let mut merge = EndMerge::new(rows, query.sources, between, !query.oldest_first).await?;
    let (mut found, mut looked) = (Vec::new(), 0);
    let mut next = None;
    while let Some((source, placed)) = merge.next(rows).await? {
        looked += 1;
        if (query.fits)(&source, &placed.namespace, &placed.name) {
            found.push(placed.tail);
        }
        if found.len() >= query.limit || looked >= LOOKED {
            next = Some(placed.tail);
            break;
        }
    }
    let states = end_states(rows, names, &found).await?;
    let end = |tail: Seq| Some(EndedObject { position: tail, state: states.get(&tail)?.clone() });
    Ok(EndedPage { objects: found.into_iter().filter_map(end).collect(), next })
}

/// Finds the end states from the ends of chains. Late states come after an end state.
async fn end_states(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    tails: &[Seq],
) -> StoreResult<HashMap<Seq, Arc<State>>> {
    let mut of_tail: HashMap<Seq, Seq> = HashMap::new();
    for part in tails.chunks(PART as usize) {
        // No position is greater, so the walk ends at the first state that is not late.
        for step in rows.walk_chains(part, i64::MAX as u64, LATE).await? {
            if step.is_in_turn() {
                let end = of_tail.entry(step.head).or_default();
                *end = step.seq.max(*end);
            }
        }
    }
    let mut seqs: Vec<Seq> = of_tail.values().copied().collect();
    seqs.sort_unstable();
    let states = shared_rows::states_at(rows, names, &seqs).await?;
    let state = |(tail, seq): (Seq, Seq)| {
        let index = states.binary_search_by_key(&seq, |state| state.seq).ok()?;
        Some((tail, states[index].clone()))
    };
    Ok(of_tail.into_iter().filter_map(state).collect())
}
