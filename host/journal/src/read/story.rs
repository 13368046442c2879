//! The timeline of one object, of the objects that it owns, and of the Events about them.

use std::collections::HashSet;
use std::sync::Arc;

use kubewitness_core::cursor::StoryCursor;
use kubewitness_core::events;
use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::{FormerEnd, JournalError};
use kubewitness_core::views::TimelineQuery;
use kubewitness_core::{Change, ObjectRef, Seq, State};

use super::shared_rows::{self, SharedNames};
use crate::store::rows::{ObjectChoice, StoreResult, bounded_i64, uid};
use crate::store::{OwnedKind as Parts, StoreReader};

/// The limit of a query without one. An object with more states is read in parts, by position.
const TIMELINE: usize = 1000;
/// The most states of an API answer, and one more that shows that the answer is incomplete.
const TIMELINE_MOST: usize = 10_001;

/// Covers a Job's pods, or the pods of a workflow's jobs. Deeper owners are not followed.
const OWNER_STEPS: usize = 4;

/// The most objects that one answer covers. For a Job with more pods, the first part has the newest pods, and
/// the next parts have the others.
const RELATED_OBJECTS: usize = 2000;

/// How many Events one answer has, and how many of their states are read: each repetition of an Event is a
/// state.
const EVENTS: usize = events::SHOWN * 2;
const EVENT_STATES: usize = EVENTS * 5;

/// The most steps along one chain. A server's session allows more in one statement.
const WALKED: i64 = 90_000;

/// The newest states of an object: an end, which may have no document, and the two versions before it.
const NEWEST_STATES: i64 = 3;

/// The witnessed history of one object. Each list is oldest first.
#[derive(Clone, Debug, Default)]
pub struct ObjectStory {
    pub states: Vec<Arc<State>>,
    pub related: Vec<Arc<State>>,
    /// The newest state of each Event about the object or the objects that it owns.
    pub events: Vec<Arc<State>>,
    /// The object owns more objects than `related` covers.
    pub owns_more: bool,
    /// Owned objects below this number are on no page yet.
    pub owned_below: Option<u64>,
}

/// Some of the objects that an object owns.
#[derive(Default)]
struct OwnedPage {
    objects: Vec<i64>,
    below: Option<i64>,
    more: bool,
}

pub(super) async fn object_timeline(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    query: &TimelineQuery,
) -> StoreResult<ObjectStory> {
    let limit = query.limit.unwrap_or(TIMELINE).min(TIMELINE_MOST);
    let cursor = query.cursor.unwrap_or(StoryCursor::NEWEST);
    let mine = named_objects(rows, query).await?;
    // A page that has no room left needs no owned objects.
    let owned = match cursor.related {
        0 => OwnedPage::default(),
        _ => owned_objects(rows, &mine, bounded_i64(cursor.owned)).await?,
    };
    let events = match query.events {
        true => {
            let everything: Vec<i64> = mine.iter().chain(&owned.objects).copied().collect();
            rows.owned_objects(&everything, Parts::Events, i64::MAX, EVENTS as i64).await?
        }
        false => Vec::new(),
    };
    let walked = query.walked.unwrap_or(WALKED);
    let states = newest_states_before(rows, names, (&mine, walked), cursor.states, limit).await?;
    let related = newest_states_before(rows, names, (&owned.objects, walked), cursor.related, limit).await?;
    let events =
        newest_events(newest_states_before(rows, names, (&events, walked), Seq::MAX, EVENT_STATES).await?);
    let owned_below = owned.below.map(|number| number as u64);
    Ok(ObjectStory { states, related, events, owns_more: owned.more, owned_below })
}

/// The newest state of each Event that reports something. The state of its deletion reports nothing more, and
/// may have no document.
fn newest_events(states: Vec<Arc<State>>) -> Vec<Arc<State>> {
    let mut seen = HashSet::new();
    let present = states.into_iter().rev().filter(|state| state.change == Change::Present);
    let mut newest: Vec<_> = present.filter(|state| seen.insert(state.object.uid.clone())).collect();
    newest.reverse();
    newest
}

/// The newest states of the object with this uid, in this namespace only: anybody may write a uid that is not
/// theirs.
pub(super) async fn newest_of(rows: &mut dyn StoreReader, object: &ObjectRef) -> StoreResult<Vec<Seq>> {
    let found = rows.find_objects(ObjectChoice::Uid(uid::key(&object.uid))).await?.into_iter();
    let is_it = |named: &ObjectRef| named.uid == object.uid && named.namespace == object.namespace;
    let mine: Vec<i64> = found.filter(|(_, named)| is_it(&named.object)).map(|(id, _)| id).collect();
    if mine.is_empty() {
        return Ok(Vec::new());
    }
    let newest = rows.story_positions(&mine, i64::MAX, NEWEST_STATES, WALKED).await?;
    Ok(newest.into_iter().map(|seq| seq as Seq).collect())
}

/// How an object of one epoch ended; a repeated deletion needs no more than that. Ends and departures are
/// found by index, however long the object's story is.
pub(super) async fn end_of_former(
    rows: &mut dyn StoreReader,
    source: &str,
    epoch: u32,
    uid: &str,
) -> StoreResult<FormerEnd> {
    let streams = rows.source_streams().await?;
    let mine = streams.iter().find(|stream| stream.source == source && stream.epoch == epoch);
    let Some(stream) = mine.map(|stream| stream.id) else { return Ok(FormerEnd::Unknown) };
    let mut fate = FormerEnd::Unknown;
    for (object, named) in rows.find_objects(ObjectChoice::Uid(uid::key(uid))).await? {
        if named.stream != stream || named.object.uid != uid {
            continue;
        }
        if rows.end_of(object).await?.is_some() {
            return Ok(FormerEnd::Ended);
        }
        // The newest state of an object that no longer exists. An object that left the selector has one, too.
        let left = rows.end_rows(object - 1, 1).await?.pop().and_then(|end| end.newest);
        let newest = match left {
            Some(seq) => rows.states_at(&[seq]).await?.pop(),
            None => None,
        };
        let version =
            newest.filter(|state| state.flags.change == Change::Left).and_then(|state| state.key.version());
        fate = version.map_or(fate, FormerEnd::Left);
    }
    Ok(fate)
}

/// The objects that a query names, over all epochs and sources.
async fn named_objects(rows: &mut dyn StoreReader, query: &TimelineQuery) -> StoreResult<Vec<i64>> {
    let which = match (&query.uid, &query.name) {
        (Some(uid), _) => ObjectChoice::Uid(uid::key(uid)),
        (None, Some(name)) => ObjectChoice::Name(uid::key(name)),
        (None, None) => {
            return Err(JournalError::Invalid("name an object: a uid, or a kind and a name".into()));
        }
    };
    let mut ids = Vec::new();
    for (id, named) in rows.find_objects(which).await? {
        let found = &named.object;
        let is_it = match &query.uid {
            Some(uid) => found.uid == *uid,
            None => {
                Some(&found.name) == query.name.as_ref()
                    && query.kind.as_ref().is_none_or(|kind| is_kind(&found.group, &found.kind, kind))
                    && query.namespace.as_ref().is_none_or(|namespace| found.namespace == *namespace)
                    && query
                        .kinds
                        .as_ref()
                        .is_none_or(|kinds| kinds.iter().any(|kind| kind.contains_object(found)))
            }
        };
        if is_it {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// The objects that have one of these in their chain of owners: the newest directly owned ones below a
/// number, each with everything that it owns.
async fn owned_objects(rows: &mut dyn StoreReader, mine: &[i64], below: i64) -> StoreResult<OwnedPage> {
    // One more shows whether more exist, even if an object claims to own itself.
    let most = RELATED_OBJECTS + 1 + mine.len();
    let mut first = rows.owned_objects(mine, Parts::Others, below, most as i64).await?;
    first.retain(|id| !mine.contains(id));
    let mut taken = first.len().min(RELATED_OBJECTS);
    loop {
        let (objects, is_whole) = with_deeper(rows, mine, &first[..taken]).await?;
        // A page prefers fewer objects with everything that they own over more objects with a part of it.
        if !is_whole && taken > 1 {
            taken /= 2;
            continue;
        }
        let below = first[..taken].last().copied().filter(|_| taken < first.len());
        return Ok(OwnedPage { objects, below, more: below.is_some() || !is_whole });
    }
}

/// These objects and those that they own, and whether that is all of them.
async fn with_deeper(
    rows: &mut dyn StoreReader,
    mine: &[i64],
    first: &[i64],
) -> StoreResult<(Vec<i64>, bool)> {
    let mut seen: HashSet<i64> = mine.iter().chain(first).copied().collect();
    let (mut all, mut level) = (first.to_vec(), first.to_vec());
    for _ in 1..OWNER_STEPS {
        if level.is_empty() {
            break;
        }
        // Known objects may be returned again.
        let most = RELATED_OBJECTS + 1 + seen.len();
        let found = rows.owned_objects(&level, Parts::Others, i64::MAX, most as i64).await?;
        level = found.into_iter().filter(|id| seen.insert(*id)).collect();
        all.extend(&level);
        if all.len() > RELATED_OBJECTS {
            all.truncate(RELATED_OBJECTS);
            return Ok((all, false));
        }
    }
    Ok((all, true))
}

/// The newest states of these objects before a position, oldest first.
async fn newest_states_before(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    (objects, walked): (&[i64], i64),
    before: Seq,
    limit: usize,
) -> StoreResult<Vec<Arc<State>>> {
    if objects.is_empty() || limit == 0 || before == 0 {
        return Ok(Vec::new());
    }
    let seqs = rows.story_positions(objects, bounded_i64(before), limit as i64, walked).await?;
    let seqs: Vec<Seq> = seqs.into_iter().map(|seq| seq as u64).collect();
    shared_rows::states_at(rows, names, &seqs).await
}
