//! The story of one object, reduced to what somebody may see of it.

use std::collections::HashSet;
use std::sync::Arc;

use kubewitness_core::cursor::StoryCursor;
use kubewitness_core::kinds::is_event;
use kubewitness_core::ports::{RawState, RawStory};
use kubewitness_core::views::{PodCoverage, TimelineQuery, TimelineView};
use kubewitness_core::{ObjectRef, Seq, State};

use super::lists::MOST_READ;
use super::visibility::ViewerVisibility;
use crate::answer::Problem;
use crate::serve::ReadingTurn;

/// The owned objects, as far as the viewer may see them.
struct VisibleOwned {
    states: Vec<RawState>,
    /// The cursor of the next part.
    next: StoryCursor,
    /// It is not empty, and nothing of it is hidden.
    is_all: bool,
}

fn is_pod(object: &ObjectRef) -> bool {
    object.kind == "Pod" && object.group.is_empty()
}

/// Whether the end of the story is explained. Older parts lack it, several objects have several ends, and an
/// Event has none.
fn is_explained(query: &TimelineQuery, story: &TimelineView) -> bool {
    let Some(first) = story.states.first().filter(|_| query.events) else { return false };
    let is_of_first = |state: &Arc<State>| state.object.uid == first.object.uid;
    story.states.iter().all(is_of_first) && !is_event(&first.object.group, &first.object.kind)
}

impl ViewerVisibility {
    /// The visible part of a story. Owned objects are checked whatever their names are.
    pub(crate) async fn story_part(&self, query: &TimelineQuery) -> Result<TimelineView, Problem> {
        Ok(self.story_in_turn(query).await?.0)
    }

    /// The same, with the turn in which it was read, for callers that make larger copies of it.
    pub(crate) async fn story_in_turn(
        &self,
        query: &TimelineQuery,
    ) -> Result<(TimelineView, Option<ReadingTurn>), Problem> {
        // The states of the object and those of what it owns.
        let rows = query.limit.unwrap_or(MOST_READ).saturating_mul(2);
        let is_longest = rows >= 2 * MOST_READ;
        let turn = self.enter_reading(rows).await;
        let (story, turn) = match self.visible_story(query, is_longest).await? {
            Some(story) => (story, turn),
            None => {
                // The first turn is released before the wait for the longer one: many waiting stories would
                // fill the memory.
                drop(turn);
                let turn = self.enter_reading(2 * MOST_READ).await;
                (self.visible_story(query, true).await?.unwrap_or_default(), turn)
            }
        };
        if !is_explained(query, &story) {
            return Ok((story, turn));
        }
        let (preemptors, pods) = (self.visible_preemptors(&story).await?, self.pod_coverage(&story).await?);
        let story = TimelineView { preemptors, pods, ..story };
        let why = Some(self.views.explain_timeline(&story).await?);
        Ok((TimelineView { why, ..story }, turn))
    }

    /// The objects for which the object of the story made room. One that the viewer may not see stays without a name,
    /// such as one of another team.
    async fn visible_preemptors(&self, story: &TimelineView) -> Result<Vec<ObjectRef>, Problem> {
        let mut seen = Vec::new();
        for uid in story.explained_states().preemptors_wanted() {
            let newest = self.views.raw_story(&TimelineQuery::newest_of(uid)).await?.states;
            let newest = self.of_states(newest, true).await?;
            seen.extend(newest.iter().map(|state| state.object().clone()));
        }
        Ok(seen)
    }

    /// Whether pods are in the story follows from rights alone, so that the answer does not tell whether any exist.
    async fn pod_coverage(&self, story: &TimelineView) -> Result<PodCoverage, Problem> {
        let Some(first) = story.states.first() else { return Ok(PodCoverage::Whole) };
        let is_seen = is_pod(&first.object) || self.sees_causes_in(&first.object.namespace).await?;
        Ok(if is_seen { PodCoverage::Whole } else { PodCoverage::Hidden })
    }

    /// Reads states again that were shown a moment ago, in the form in which they were shown.
    pub(crate) async fn read_again(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, Problem> {
        let mut shown = Vec::with_capacity(seqs.len());
        for state in self.views.states_at(seqs).await? {
            let state = self.with_seen_owner(state).await?;
            shown.push(self.views.redacted_state(state).await?);
        }
        Ok(shown)
    }

    /// The visible part of a story. `None` if something is hidden and the turn is too short: finding enough
    /// visible rows may need a turn for the longest story, which covers any.
    async fn visible_story(
        &self,
        query: &TimelineQuery,
        is_longest: bool,
    ) -> Result<Option<TimelineView>, Problem> {
        if self.is_whole() {
            let story = self.views.raw_story(query).await?;
            return Ok(Some(self.views.timeline_view(story).await?));
        }
        if let Some(uid) = &query.uid
            && !self.may_show_of(uid).await?
        {
            return Ok(Some(self.views.timeline_view(RawStory::default()).await?));
        }
        let story = self.views.raw_story(query).await?;
        let RawStory { states, related, events, reports, next, owns_more } = story;
        let oldest = states.first().map(RawState::seq);
        let states = self.of_states(states, true).await?;
        // States older than a hidden one are not shown.
        let is_theirs = states.first().map(RawState::seq) == oldest;
        let Some(owned) = self.visible_owned(query, (related, next), is_longest).await? else {
            return Ok(None);
        };
        let next = next.filter(|_| is_theirs).map(|next| StoryCursor { states: next.states, ..owned.next });
        let next = next.filter(|next| next.states > 0 || next.related > 0);
        let next = match next {
            Some(next) if self.sees_all_kinds().await? => Some(next),
            Some(next) => match self.has_more_after(query, next, is_longest).await? {
                Some(has_more) => Some(next).filter(|_| has_more),
                None => return Ok(None),
            },
            None => None,
        };
        let events = match states.is_empty() {
            true => Vec::new(),
            false => self.of_states(events, false).await?,
        };
        let theirs: HashSet<_> =
            states.iter().chain(&owned.states).map(|state| state.object().uid.clone()).collect();
        let owns_more = owns_more && is_theirs && owned.is_all;
        let reports = reports && !states.is_empty();
        let seen = RawStory { states, related: owned.states, events, reports, next, owns_more };
        let mut view = self.views.timeline_view(seen).await?;
        view.events = self.of_events(view.events).await?;
        view.reports.retain(|report| theirs.contains(&report.uid));
        Ok(Some(view))
    }

    /// Whether anything of an object, or of the objects that it owns, could be visible to them. Only the
    /// journal knows its namespace, so its newest state is looked up. If nothing could be shown, nothing else
    /// is read, so that the time does not reveal how much exists.
    async fn may_show_of(&self, uid: &str) -> Result<bool, Problem> {
        let newest = self.views.raw_story(&TimelineQuery::newest_of(uid)).await?.states;
        let Some(object) = newest.first().map(|state| state.object().clone()) else { return Ok(false) };
        // A cluster-scoped object may own objects in any namespace.
        Ok(object.namespace.is_empty()
            || self.may_get_something_in(&object.namespace).await?
            || !self.of_states(newest, true).await?.is_empty())
    }

    /// The visible owned objects. If the person may not see all of them, the maximum number of states is
    /// read: a part that is cut at a hidden state would reveal it, and leave out visible ones. `None` if the
    /// turn does not cover that many.
    async fn visible_owned(
        &self,
        query: &TimelineQuery,
        (related, next): (Vec<RawState>, Option<StoryCursor>),
        is_longest: bool,
    ) -> Result<Option<VisibleOwned>, Problem> {
        let cursor = query.cursor.unwrap_or(StoryCursor::NEWEST);
        let count = related.len();
        let mut states = self.of_states(related, false).await?;
        let is_all = states.len() == count && count > 0;
        let mut rest = next;
        let mut is_cut = false;
        if let Some(limit) = query.limit.filter(|_| states.len() < count) {
            if !is_longest {
                return Ok(None);
            }
            let whole = TimelineQuery {
                cursor: Some(StoryCursor { states: 0, ..cursor }),
                limit: Some(MOST_READ),
                events: false,
                ..query.clone()
            };
            let whole = self.views.raw_story(&whole).await?;
            states = self.of_states(whole.related, false).await?;
            rest = whole.next;
            is_cut = states.len() > limit;
            states.drain(..states.len().saturating_sub(limit));
        }
        let next = match (states.first(), rest) {
            (Some(oldest), _) if is_cut => StoryCursor { related: oldest.seq(), ..cursor },
            // After the last states of these objects, those of the next ones follow.
            (Some(_), Some(rest)) if is_all || rest.related == Seq::MAX => rest,
            // The position of a hidden state would reveal its time.
            (Some(oldest), Some(rest)) if rest.related > 0 => StoryCursor { related: oldest.seq(), ..cursor },
            _ => StoryCursor { related: 0, ..cursor },
        };
        Ok(Some(VisibleOwned { states, next, is_all }))
    }

    /// Whether anything visible follows the cursor. A truncated story reveals that more exists. `None` if the
    /// turn does not cover enough rows to decide.
    async fn has_more_after(
        &self,
        query: &TimelineQuery,
        cursor: StoryCursor,
        is_longest: bool,
    ) -> Result<Option<bool>, Problem> {
        let mut query = TimelineQuery { cursor: Some(cursor), events: false, ..query.clone() };
        loop {
            let behind = self.views.raw_story(&query).await?;
            let is_last = behind.next.is_none() || query.limit.is_none_or(|limit| limit >= MOST_READ);
            if !self.of_states(behind.states, true).await?.is_empty()
                || !self.of_states(behind.related, false).await?.is_empty()
            {
                return Ok(Some(true));
            }
            if is_last {
                return Ok(Some(false));
            }
            if !is_longest {
                return Ok(None);
            }
            query.limit = Some(MOST_READ);
        }
    }
}
