//! Objects that were in a phase within a range of time, from the index of phases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_capability::Patience;
use kubewitness_core::ports::{Backlog, Current, Lister, Selection, Shown};
use kubewitness_core::views::{Gone, ObjectPage, ObjectQuery, ObjectView, ViewError, WasView};
use kubewitness_core::{Seq, State, calendar};
use kubewitness_journal::{PhaseQuery, TimeInPhase};

use super::gone::{DOCUMENTS, is_named};
use super::objects::wrong_cursor;
use super::{HostViews, unavailable};

/// Times that are looked at together, and so often by one page: some 50 ms. A page that finds too few ends early.
const LOOKED: usize = 2_000;
const ROUNDS: usize = 10;
/// A question waits so long for what the index has still to read.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Said while the index is behind.
pub(super) const INCOMPLETE: &str = "The index of phases is still being read from the journal, so objects may be \
    missing here. Ask again in a moment.";

/// Parts that are counted: a number is for people, and no list waits long for it.
const COUNTED: usize = 2;

/// An object that may be meant.
struct Candidate {
    /// Of the state that it is in, or that was its end.
    seq: Seq,
    current: Option<Current>,
    time: TimeInPhase,
}

/// What one question has found.
struct Found {
    current: Option<Current>,
    state: Arc<State>,
    time: TimeInPhase,
}

impl HostViews {
    pub(super) async fn was(
        &self,
        query: &ObjectQuery,
        selection: &Selection,
        phase: &str,
    ) -> Result<ObjectPage, ViewError> {
        refuse_others(query, selection)?;
        let newest = *self.journal.newest().borrow();
        let is_whole = self.phases.reaches(newest, PATIENCE).await;
        let mut asked = self.asked_of_index(query, phase).await?;
        let mut page = ObjectPage::default();
        if !is_whole {
            page.notices.push(INCOMPLETE.into());
        }
        let (mut found, mut documents) = (Vec::new(), DOCUMENTS);
        for _ in 0..ROUNDS {
            let part = self.phases.find(asked.clone()).await.map_err(unavailable)?;
            asked.cursor = part.next;
            for one in self.found(query, part.times).await? {
                let rank = one.time.rank;
                if self.is_meant(&one.state, query, selection, &mut documents).await? {
                    found.push(one);
                }
                if found.len() >= selection.limit || documents == 0 {
                    asked.cursor = Some(rank);
                    break;
                }
            }
            if asked.cursor.is_none() || found.len() >= selection.limit || documents == 0 {
                break;
            }
        }
        page.next = asked.cursor.map(|rank| rank.to_string());
        page.objects = self.views_of(found).await?;
        Ok(page)
    }

    /// How many there are. `None`: too many to count, or each would have to be read.
    pub(super) async fn count_was(&self, query: &ObjectQuery, phase: &str) -> Result<Option<u64>, ViewError> {
        let is_read = |shown: &Shown| matches!(shown, Shown::Namespaces(_));
        let within = query.within.as_ref();
        if query.label_selector.is_some() || within.is_some_and(|within| within.sources.values().any(is_read))
        {
            return Ok(None);
        }
        let mut asked = self.asked_of_index(query, phase).await?;
        let mut count = 0;
        for _ in 0..COUNTED {
            let part = self.phases.find(asked.clone()).await.map_err(unavailable)?;
            for time in part.times {
                count += u64::from(self.candidate(query, time)?.is_some());
            }
            asked.cursor = part.next;
            if asked.cursor.is_none() {
                return Ok(Some(count));
            }
        }
        Ok(None)
    }

    async fn asked_of_index(&self, query: &ObjectQuery, phase: &str) -> Result<PhaseQuery, ViewError> {
        let (after, before) = self.range(query).await?;
        let cursor = query.cursor.as_deref().map(|text| text.parse().map_err(|_| wrong_cursor()));
        Ok(PhaseQuery {
            sources: self.asked(query),
            phase: phase.to_owned(),
            after,
            before,
            cursor: cursor.transpose()?,
            looked: LOOKED,
        })
    }

    /// What a time is of, if it is asked for by its names: the object that is there, and its newest position.
    fn candidate(&self, query: &ObjectQuery, time: TimeInPhase) -> Result<Option<Candidate>, ViewError> {
        if !is_named(query, &time.source, &time.namespace, &time.name) {
            return Ok(None);
        }
        let current = self.shared.listers.get(&time.source, &time.namespace, &time.name);
        let current = current.map_err(unavailable)?.filter(|current| current.object.uid == time.uid);
        let is_asked = match query.gone {
            Gone::No => current.is_some(),
            Gone::Only => current.is_none(),
            Gone::Too => true,
        };
        // Until the cache shows it, a new object is known by the state with which it came into the phase.
        let seq = current.as_ref().map(|current| current.seq).or(time.ended).unwrap_or(time.entered);
        Ok(is_asked.then_some(Candidate { seq, current, time }))
    }

    /// Of these times, those of objects that are asked for by their names, each with its object as it is or as it ended.
    async fn found(&self, query: &ObjectQuery, times: Vec<TimeInPhase>) -> Result<Vec<Found>, ViewError> {
        let mut candidates = Vec::new();
        for time in times {
            candidates.extend(self.candidate(query, time)?);
        }
        let seqs: Vec<Seq> = candidates.iter().map(|candidate| candidate.seq).collect();
        let states = self.states_at(&seqs).await?;
        let found = |Candidate { seq, current, time }| {
            Some(Found { current, state: states.get(&seq)?.clone(), time })
        };
        Ok(candidates.into_iter().filter_map(found).collect())
    }

    async fn views_of(&self, found: Vec<Found>) -> Result<Vec<ObjectView>, ViewError> {
        let times = found.iter().flat_map(|one| [Some(one.time.entered), one.time.left]);
        let times: Vec<Seq> = times.flatten().collect();
        let states = self.states_at(&times).await?;
        let at = |seq: Seq| states.get(&seq).map(|state| calendar::rfc3339(state.observed_ms));
        let (mut views, mut patience) = (Vec::with_capacity(found.len()), Patience::of_a_list());
        for Found { current, state, time } in found {
            let view = match current {
                Some(current) => self.shown_object(&time.source, current, &mut patience).await?,
                None => self.ended_view(&state).await?,
            };
            let was = WasView { from: at(time.entered), until: time.left.and_then(at) };
            views.push(ObjectView { was: Some(was), ..view });
        }
        Ok(views)
    }

    /// What retention took is not among them.
    pub(super) async fn states_at(&self, seqs: &[Seq]) -> Result<HashMap<Seq, Arc<State>>, ViewError> {
        let states = self.journal.read_at(seqs).await.map_err(unavailable)?;
        Ok(states.into_iter().map(|state| (state.seq, state)).collect())
    }
}

/// What makes no sense together with `was`.
fn refuse_others(query: &ObjectQuery, selection: &Selection) -> Result<(), ViewError> {
    let told = if query.at.is_some() {
        "`at` and `was` ask for different times: leave one of them out"
    } else if query.sort.as_deref().is_some_and(|sort| sort != "changed") {
        "what was in a phase has an order of its own: leave `sort` out with `was`"
    } else if selection.index.is_some() {
        "`index` looks up what is there now: with `was`, give `labelSelector` or `search`"
    } else {
        return Ok(());
    };
    Err(ViewError::Invalid(told.into()))
}
