//! The timeline of one object, and of the objects that it owns.

use std::sync::Arc;

use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::JournalError;
use kubewitness_core::views::{TimelineQuery, TimelineView};
use kubewitness_core::{Seq, State};

use super::names::{self, Names};
use crate::store::Fetch;
use crate::store::rows::{Answer, Which, uid};

/// States of one answer where the question names no limit. An object with more is read in parts
/// by position.
const TIMELINE: usize = 1000;
const TIMELINE_MOST: usize = 10_000;

/// A Job's pods, a workflow's jobs' pods; deeper owners are not followed.
const OWNER_STEPS: usize = 4;

/// Objects of one answer: a Job with more pods than this shows the newest of them.
const RELATED_OBJECTS: usize = 2000;

pub(super) async fn timeline(
    rows: &mut dyn Fetch,
    names: &Names,
    query: &TimelineQuery,
) -> Answer<TimelineView> {
    let limit = query.limit.unwrap_or(TIMELINE).min(TIMELINE_MOST);
    let mine = named(rows, query).await?;
    let related = owned(rows, &mine).await?;
    let states = story(rows, names, &mine, limit).await?;
    let related = story(rows, names, &related, limit).await?;
    Ok(TimelineView { states, related })
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
        let found = rows.owned(&level, RELATED_OBJECTS as i64).await?;
        level = found.into_iter().filter(|id| !all.contains(id) && !mine.contains(id)).collect();
        all.extend(&level);
        if level.is_empty() || all.len() >= RELATED_OBJECTS {
            break;
        }
    }
    all.truncate(RELATED_OBJECTS);
    Ok(all)
}

/// The newest states of these objects, oldest first.
async fn story(
    rows: &mut dyn Fetch,
    names: &Names,
    objects: &[i64],
    limit: usize,
) -> Answer<Vec<Arc<State>>> {
    if objects.is_empty() || limit == 0 {
        return Ok(Vec::new());
    }
    let seqs = rows.story(objects, limit as i64).await?;
    let seqs: Vec<Seq> = seqs.into_iter().map(|seq| seq as u64).collect();
    names::at(rows, names, &seqs).await
}
