//! The timeline of one object, of the objects that it owns, and of the Events about them.

use std::collections::HashSet;
use std::sync::Arc;

use kubewitness_core::cursor::StoryCursor;
use kubewitness_core::events;
use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::JournalError;
use kubewitness_core::views::TimelineQuery;
use kubewitness_core::{Change, ObjectRef, Seq, State};

use super::shared_rows::{self, Names};
use crate::store::rows::{Answer, Which, bounded, uid};
use crate::store::{Fetch, Owned};

/// States of one answer where the question names no limit. An object with more is read in parts
/// by position.
const TIMELINE: usize = 1000;
/// As many as an answer of the API has, and one that tells that there are more.
const TIMELINE_MOST: usize = 10_001;

/// A Job's pods, a workflow's jobs' pods; deeper owners are not followed.
const OWNER_STEPS: usize = 4;

/// Objects of one answer: a Job with more pods than this shows the newest of them.
const RELATED_OBJECTS: usize = 2000;

/// Events of one answer, and states of theirs that are read: each repetition of an event is one.
const EVENTS: usize = events::SHOWN * 2;
const EVENT_STATES: usize = EVENTS * 5;

/// The newest states of an object: an end, which may have no document, and the two versions before it.
const NEWEST_STATES: i64 = 3;

/// Before no position.
const NEWEST: StoryCursor = StoryCursor { states: Seq::MAX, related: Seq::MAX };

/// What was witnessed of one object. Each list has the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Story {
    pub states: Vec<Arc<State>>,
    pub related: Vec<Arc<State>>,
    /// The newest state of each Event about the object or about what it owns.
    pub events: Vec<Arc<State>>,
}

pub(super) async fn timeline(rows: &mut dyn Fetch, names: &Names, query: &TimelineQuery) -> Answer<Story> {
    let limit = query.limit.unwrap_or(TIMELINE).min(TIMELINE_MOST);
    let mine = named(rows, query).await?;
    let related = owned(rows, &mine).await?;
    let events = match query.events {
        true => {
            let everything: Vec<i64> = mine.iter().chain(&related).copied().collect();
            rows.owned(&everything, Owned::Events, EVENTS as i64).await?
        }
        false => Vec::new(),
    };
    let StoryCursor { states, related: others } = query.cursor.unwrap_or(NEWEST);
    let states = story(rows, names, &mine, states, limit).await?;
    let related = story(rows, names, &related, others, limit).await?;
    let events = newest(story(rows, names, &events, Seq::MAX, EVENT_STATES).await?);
    Ok(Story { states, related, events })
}

/// The newest state of each Event that tells what happened. The one of its deletion tells nothing more, and may have
/// no document.
fn newest(states: Vec<Arc<State>>) -> Vec<Arc<State>> {
    let mut seen = HashSet::new();
    let present = states.into_iter().rev().filter(|state| state.change == Change::Present);
    let mut newest: Vec<_> = present.filter(|state| seen.insert(state.object.uid.clone())).collect();
    newest.reverse();
    newest
}

/// Of the newest states of the object with this uid, in this namespace alone: anybody may write a foreign uid.
pub(super) async fn newest_of(rows: &mut dyn Fetch, object: &ObjectRef) -> Answer<Vec<Seq>> {
    let found = rows.objects(Which::Uid(uid::key(&object.uid))).await?.into_iter();
    let is_it = |named: &ObjectRef| named.uid == object.uid && named.namespace == object.namespace;
    let mine: Vec<i64> = found.filter(|(_, named)| is_it(&named.object)).map(|(id, _)| id).collect();
    if mine.is_empty() {
        return Ok(Vec::new());
    }
    let newest = rows.story(&mine, i64::MAX, NEWEST_STATES).await?;
    Ok(newest.into_iter().map(|seq| seq as Seq).collect())
}

/// The objects that a question names, over all epochs and sources.
async fn named(rows: &mut dyn Fetch, query: &TimelineQuery) -> Answer<Vec<i64>> {
    let which = match (&query.uid, &query.name) {
        (Some(uid), _) => Which::Uid(uid::key(uid)),
        (None, Some(name)) => Which::Name(uid::key(name)),
        (None, None) => {
            return Err(JournalError::Invalid("name an object: a uid, or a kind and a name".into()));
        }
    };
    let mut ids = Vec::new();
    for (id, named) in rows.objects(which).await? {
        let found = &named.object;
        let is_it = match &query.uid {
            Some(uid) => found.uid == *uid,
            None => {
                Some(&found.name) == query.name.as_ref()
                    && query.kind.as_ref().is_none_or(|kind| is_kind(&found.group, &found.kind, kind))
                    && query.namespace.as_ref().is_none_or(|namespace| found.namespace == *namespace)
                    && query.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|kind| kind.has(found)))
            }
        };
        if is_it {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Objects that have one of these in the chain of their owners.
async fn owned(rows: &mut dyn Fetch, mine: &[i64]) -> Answer<Vec<i64>> {
    let mut all: Vec<i64> = Vec::new();
    let mut level = mine.to_vec();
    for _ in 0..OWNER_STEPS {
        let found = rows.owned(&level, Owned::Others, RELATED_OBJECTS as i64).await?;
        level = found.into_iter().filter(|id| !all.contains(id) && !mine.contains(id)).collect();
        all.extend(&level);
        if level.is_empty() || all.len() >= RELATED_OBJECTS {
            break;
        }
    }
    all.truncate(RELATED_OBJECTS);
    Ok(all)
}

/// The newest states of these objects before a position, oldest first.
async fn story(
    rows: &mut dyn Fetch,
    names: &Names,
    objects: &[i64],
    before: Seq,
    limit: usize,
) -> Answer<Vec<Arc<State>>> {
    if objects.is_empty() || limit == 0 || before == 0 {
        return Ok(Vec::new());
    }
    let seqs = rows.story(objects, bounded(before), limit as i64).await?;
    let seqs: Vec<Seq> = seqs.into_iter().map(|seq| seq as u64).collect();
    shared_rows::at(rows, names, &seqs).await
}
