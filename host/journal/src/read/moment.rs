//! Reconstructs a past moment: the position of a time, and the state of each object at a position.
//!
//! Positions ascend with the observation times of states, unless the controller's clock was set back. So the
//! position of a time is found by binary search. If the clock was set back, a time has several positions: the
//! last of the nearby ones counts.
//!
//! An object's state is found along its chain, from its end backwards. Gaps and states that were read back
//! late are in the chain where they were found, not where they belong. Both make it uncertain which version
//! the object had at the moment, and the answer says so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kubewitness_core::ports::{JournalError, created_ms};
use kubewitness_core::{Change, Seq, State};

use super::documents;
use super::ended_objects::{EndMerge, LOOKED, ObjectFilter};
use super::shared_rows::{self, SharedNames};
use crate::store::StoreReader;
use crate::store::rows::{ChainStep, PlacedObject, StoreResult};

/// How many states after a crossing are searched for a clock that was set back.
const NEAR: i64 = 1024;
/// How often the clock may have been set back near a time.
const CROSSINGS: usize = 16;
/// Objects whose chains are walked together.
const PART: usize = 128;
/// How many steps of each chain one query to the store takes.
const STEPS: i64 = 512;
/// The most states that one page walks over, about a second of a reader. A larger query must be narrowed.
pub const WALKED: usize = 200_000;
/// How many irregular states of one object are read.
const IRREGULAR: usize = 64;

/// The position of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimePosition {
    /// The last state that was observed by then; 0 if there was none.
    pub seq: Seq,
    /// When the oldest state in the journal was observed.
    pub oldest_ms: Option<u64>,
}

pub(super) async fn position_of_time(rows: &mut dyn StoreReader, at_ms: u64) -> StoreResult<TimePosition> {
    let Some(&(oldest, oldest_ms)) = rows.observation_times(0, 1).await?.first() else {
        return Ok(TimePosition::default());
    };
    let at_ms = at_ms.min(i64::MAX as u64) as i64;
    let newest = rows.journal_stats(0).await?.newest_seq as i64;
    // States up to `low` count as observed by then, and `high` comes after it.
    let (mut low, mut high) = (oldest - 1, newest + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match rows.observation_times(middle, 1).await?.first() {
            Some((seq, observed_ms)) if *seq < high && *observed_ms <= at_ms => low = *seq,
            _ => high = middle,
        }
    }
    for _ in 0..CROSSINGS {
        let near = rows.observation_times(low + 1, NEAR).await?;
        match near.iter().rfind(|(_, observed_ms)| *observed_ms <= at_ms) {
            Some((seq, _)) => low = *seq,
            None => break,
        }
    }
    let seq = if low < oldest { 0 } else { low as Seq };
    Ok(TimePosition { seq, oldest_ms: Some(oldest_ms as u64) })
}

/// A query for objects at a moment.
pub struct AtQuery<'a> {
    pub sources: &'a [String],
    pub seq: Seq,
    /// The time that belongs to `seq`.
    pub at_ms: u64,
    pub after: Option<AtCursor>,
    pub limit: usize,
    /// The most states that the page walks over: [`WALKED`] for people.
    pub walked: usize,
    pub fits: ObjectFilter<'a>,
}

/// The progress through the objects: first those that have ended since, by their ends, and then the living
/// ones, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtCursor {
    Ended(Seq),
    Living(u64),
}

#[derive(Clone, Debug)]
pub struct ObjectAt {
    /// The object's state at the moment. If retention removed it, the first remaining one.
    pub state: Arc<State>,
    /// The next witnessed version.
    pub next: Option<Arc<State>>,
    pub known: MomentKnowledge,
}

/// How certain a state at a moment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentKnowledge {
    Exact,
    /// Versions in between are missing.
    Missing,
    /// Versions in between were read back later, so it is unknown when each came.
    ReadBack,
    /// The object existed, but the journal has no state from that time.
    Taken,
}

#[derive(Clone, Debug, Default)]
pub struct AtPage {
    pub rows: Vec<ObjectAt>,
    pub next: Option<AtCursor>,
}

pub(super) async fn objects_at(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    query: &AtQuery<'_>,
) -> StoreResult<AtPage> {
    let mut candidates = MomentCandidates::new(rows, query).await?;
    let mut page = AtPage::default();
    let (mut looked, mut walked) = (0, 0);
    while page.rows.len() < query.limit {
        let most = PART.min(query.limit - page.rows.len());
        let (part, cursor) = candidates.next_part(rows, most, query.fits).await?;
        let chains = chains_of(rows, part, query).await?;
        walked += chains.iter().map(Vec::len).sum::<usize>();
        page.rows.extend(judge_chains(rows, names, chains, query).await?);
        looked += most;
        page.next = cursor;
        if cursor.is_none() || looked >= LOOKED || walked >= query.walked {
            break;
        }
    }
    Ok(page)
}

/// The objects that may have existed.
struct MomentCandidates {
    ended: Option<EndMerge>,
    streams: Vec<i64>,
    sources: HashMap<i64, Arc<str>>,
    living_after: u64,
}

impl MomentCandidates {
    async fn new(rows: &mut dyn StoreReader, query: &AtQuery<'_>) -> StoreResult<Self> {
        let streams = rows.source_streams().await?.into_iter().filter(|s| query.sources.contains(&s.source));
        let sources: HashMap<i64, Arc<str>> = streams.map(|s| (s.id, Arc::from(s.source))).collect();
        let (ended, living_after) = match query.after {
            Some(AtCursor::Living(after)) => (None, after),
            after => {
                let from = match after {
                    Some(AtCursor::Ended(seq)) => seq.max(query.seq),
                    _ => query.seq,
                };
                (Some(EndMerge::new(rows, query.sources, (from, Seq::MAX), false).await?), 0)
            }
        };
        Ok(Self { ended, streams: sources.keys().copied().collect(), sources, living_after })
    }

    /// The next candidates, at most about `most`, and the cursor after them; no cursor at the end.
    async fn next_part(
        &mut self,
        rows: &mut dyn StoreReader,
        most: usize,
        fits: ObjectFilter<'_>,
    ) -> StoreResult<(Vec<PlacedObject>, Option<AtCursor>)> {
        let mut part = Vec::new();
        if let Some(merge) = &mut self.ended {
            let mut looked = 0;
            while let Some((source, placed)) = merge.next(rows).await? {
                let cursor = AtCursor::Ended(placed.tail);
                looked += 1;
                if fits(&source, &placed.namespace, &placed.name) {
                    part.push(placed);
                }
                if part.len() >= most || looked >= LOOKED {
                    return Ok((part, Some(cursor)));
                }
            }
            self.ended = None;
            if !part.is_empty() {
                return Ok((part, Some(AtCursor::Living(0))));
            }
        }
        let after = self.living_after.min(i64::MAX as u64) as i64;
        let living = rows.living_objects(&self.streams, after, most as i64).await?;
        let is_over = living.len() < most;
        if let Some(last) = living.last() {
            self.living_after = last.object as u64;
        }
        let fits = |placed: &PlacedObject| {
            let source = self.sources.get(&placed.stream);
            source.is_some_and(|source| fits(source, &placed.namespace, &placed.name))
        };
        part.extend(living.into_iter().filter(fits));
        Ok((part, (!is_over).then_some(AtCursor::Living(self.living_after))))
    }
}

/// The chains of these objects, from their ends back to the first regular state by then. The newest comes
/// first.
async fn chains_of(
    rows: &mut dyn StoreReader,
    part: Vec<PlacedObject>,
    query: &AtQuery<'_>,
) -> StoreResult<Vec<Vec<ChainStep>>> {
    let (through, mut walked) = (query.seq, 0);
    let mut chains: Vec<Vec<ChainStep>> = part.iter().map(|_| Vec::new()).collect();
    let mut heads: BTreeMap<Seq, usize> =
        part.iter().enumerate().map(|(index, placed)| (placed.tail, index)).collect();
    while !heads.is_empty() {
        let asked: Vec<Seq> = heads.keys().copied().collect();
        let mut steps = rows.walk_chains(&asked, through, STEPS).await?;
        walked += steps.len();
        steps.sort_unstable_by_key(|step| (step.head, std::cmp::Reverse(step.seq)));
        let mut further = BTreeMap::new();
        for of_head in steps.chunk_by(|a, b| a.head == b.head) {
            let (Some(index), Some(last)) = (heads.get(&of_head[0].head), of_head.last()) else { continue };
            chains[*index].extend(of_head);
            let is_found = last.seq <= through && last.is_in_turn();
            if of_head.len() as i64 >= STEPS && !is_found && last.back > 0 {
                further.insert(last.seq.saturating_sub(last.back), *index);
            }
        }
        if walked > query.walked && !further.is_empty() {
            return Err(JournalError::Invalid(format!(
                "these objects have more than {} states since then: ask for a later time, for one namespace, or for one \
                 object",
                query.walked
            )));
        }
        heads = further;
    }
    Ok(chains)
}

/// The states of one object that matter for a moment, by position.
struct MomentFindings {
    state: Seq,
    next: Option<Seq>,
    irregular: Vec<Seq>,
    is_taken: bool,
}

fn find(chain: &[ChainStep], through: Seq) -> Option<MomentFindings> {
    let then = chain.iter().position(|step| step.seq <= through && step.is_in_turn());
    let Some(at) = then else {
        // The object did not exist yet, or its states from that time were removed.
        let first = chain.iter().rfind(|step| step.is_in_turn())?;
        return Some(MomentFindings { state: first.seq, next: None, irregular: Vec::new(), is_taken: true });
    };
    let since = &chain[..at];
    let next = since.iter().rfind(|step| step.is_in_turn()).map(|step| step.seq);
    let irregular = since.iter().filter(|step| !step.is_in_turn()).take(IRREGULAR).map(|step| step.seq);
    Some(MomentFindings { state: chain[at].seq, next, irregular: irregular.collect(), is_taken: false })
}

async fn judge_chains(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    chains: Vec<Vec<ChainStep>>,
    query: &AtQuery<'_>,
) -> StoreResult<Vec<ObjectAt>> {
    let found: Vec<MomentFindings> = chains.iter().filter_map(|chain| find(chain, query.seq)).collect();
    let mut seqs: Vec<Seq> = Vec::new();
    for object in &found {
        seqs.extend([object.state].into_iter().chain(object.next).chain(object.irregular.iter().copied()));
    }
    seqs.sort_unstable();
    let states: HashMap<Seq, Arc<State>> = shared_rows::states_at(rows, names, &seqs)
        .await?
        .into_iter()
        .map(|state| (state.seq, state))
        .collect();
    let mut judged = Vec::new();
    for object in found {
        let Some(state) = states.get(&object.state).cloned() else { continue };
        let next = object.next.and_then(|seq| states.get(&seq)).cloned();
        let irregular: Vec<&Arc<State>> = object.irregular.iter().filter_map(|seq| states.get(seq)).collect();
        let known = match object.is_taken {
            true if !existed_before(rows, names, &state, query.at_ms).await? => continue,
            true => MomentKnowledge::Taken,
            false if state.change != Change::Present => continue,
            false => knowledge_of(&state, next.as_deref(), &irregular),
        };
        judged.push(ObjectAt { state, next, known });
    }
    Ok(judged)
}

/// Whether an object existed before the first of its states that remains.
async fn existed_before(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    first: &State,
    at_ms: u64,
) -> StoreResult<bool> {
    if first.previous.is_none() {
        return Ok(false);
    }
    let document = documents::document_at(rows, names, first.seq).await?;
    Ok(document.and_then(|document| created_ms(&document)).is_some_and(|created| created <= at_ms))
}

fn knowledge_of(state: &State, next: Option<&State>, irregular: &[&Arc<State>]) -> MomentKnowledge {
    let is_before_next = |seq: Seq| next.is_none_or(|next| seq < next.seq);
    if irregular.iter().any(|found| found.change == Change::Gap && is_before_next(found.seq)) {
        return MomentKnowledge::Missing;
    }
    let is_between = |found: &State| {
        found.resource_version.is_newer_than(&state.resource_version)
            && next.is_none_or(|next| next.resource_version.is_newer_than(&found.resource_version))
    };
    match irregular.iter().any(|found| found.change != Change::Gap && is_between(found)) {
        true => MomentKnowledge::ReadBack,
        false => MomentKnowledge::Exact,
    }
}

/// The newest states of the objects of these states, at most so many for each object; by the state, oldest
/// first.
pub(super) async fn object_histories(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    heads: &[Seq],
    most: usize,
) -> StoreResult<HashMap<Seq, Vec<Arc<State>>>> {
    let mut of_head: HashMap<Seq, Seq> = HashMap::new();
    for part in heads.chunks(PART) {
        for step in rows.walk_chains(part, 0, most.min(STEPS as usize) as i64).await? {
            of_head.insert(step.seq, step.head);
        }
    }
    let mut seqs: Vec<Seq> = of_head.keys().copied().collect();
    seqs.sort_unstable();
    let mut stories: HashMap<Seq, Vec<Arc<State>>> = HashMap::new();
    for state in shared_rows::states_at(rows, names, &seqs).await? {
        if let Some(head) = of_head.get(&state.seq) {
            stories.entry(*head).or_default().push(state);
        }
    }
    Ok(stories)
}
