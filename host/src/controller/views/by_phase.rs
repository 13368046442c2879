//! Objects that were in a phase, or that ended badly for a cause, within a range of time: from the index of
//! phases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_capability::AnswerPatience;
use kubewitness_core::clock::Clock;
use kubewitness_core::ports::{Backlog, CurrentObject, ObjectLister, ObjectSelection, SourceVisibility};
use kubewitness_core::story::outcomes;
use kubewitness_core::views::{
    CauseKind, GoneFilter, ObjectPage, ObjectQuery, ObjectView, ViewError, WasView,
};
use kubewitness_core::{Seq, State, calendar};
use kubewitness_journal::{CauseQuery, PhaseIndex, PhasePage, PhaseQuery, TimeInPhase};

use super::gone::{DOCUMENTS, FEWEST_NAMES, is_named};
use super::objects::wrong_cursor;
use super::{HostViews, unavailable};

/// How many times are examined together, and how often one page does that: some 50 ms. A page that finds too
/// few ends early.
const LOOKED: usize = 2_000;
const ROUNDS: usize = 10;
/// How long a query waits for what the index still has to read.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The notice while the index lags.
pub(super) const INCOMPLETE: &str = "The index of phases is still being read from the journal, so objects may be \
    missing here. Ask again in a moment.";

/// How many parts are counted: people read the number, and no list waits long for it.
const COUNTED: usize = 2;

/// A word that became due more recently is not reported: the follower is about to find it.
const OVERDUE_MS: u64 = 1_000;

/// The notice while requested outcomes are overdue.
const UNEXPLAINED: &str = "The causes of some outcomes are still being looked for, so objects may be missing here. Ask \
    again in a moment.";

/// A query about the past.
#[derive(Clone, Copy, Debug)]
pub(super) enum PastQuery<'a> {
    /// Objects that were in this phase.
    Phase(&'a str),
    /// Objects that ended badly for this cause.
    Cause(CauseKind),
}

impl<'a> PastQuery<'a> {
    pub fn of(query: &'a ObjectQuery) -> Result<Option<Self>, ViewError> {
        match (&query.was, query.cause) {
            (Some(_), Some(_)) => {
                let message = "`was` and `cause` are lists of their own: leave one of them out";
                Err(ViewError::Invalid(message.into()))
            }
            (Some(phase), None) => Ok(Some(Self::Phase(phase))),
            (None, Some(kind)) => Ok(Some(Self::Cause(kind))),
            (None, None) => Ok(None),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Phase(_) => "was",
            Self::Cause(_) => "cause",
        }
    }
}

/// A requested page of the index.
#[derive(Clone)]
enum IndexQuery {
    Phase(PhaseQuery),
    Cause(CauseQuery),
}

impl IndexQuery {
    fn cursor(&self) -> Option<u64> {
        match self {
            Self::Phase(query) => query.cursor,
            Self::Cause(query) => query.cursor,
        }
    }

    fn resume_at(&mut self, rank: Option<u64>) {
        match self {
            Self::Phase(query) => query.cursor = rank,
            Self::Cause(query) => query.cursor = rank,
        }
    }

    async fn find(&self, index: &PhaseIndex) -> Result<PhasePage, ViewError> {
        let found = match self {
            Self::Phase(query) => index.find(query.clone()).await,
            Self::Cause(query) => index.find_by_cause(query.clone()).await,
        };
        found.map_err(unavailable)
    }
}

/// An object that may match.
struct PhaseCandidate {
    /// The position of its present state or its end.
    seq: Seq,
    current: Option<CurrentObject>,
    time: TimeInPhase,
}

/// The matches of one query.
struct PhaseMatches {
    current: Option<CurrentObject>,
    state: Arc<State>,
    time: TimeInPhase,
}

impl HostViews {
    pub(super) async fn list_past(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        past: PastQuery<'_>,
    ) -> Result<ObjectPage, ViewError> {
        refuse_others(query, selection, past.name())?;
        let newest = *self.journal.newest_position().borrow();
        let is_whole = self.phases.await_position(newest, PATIENCE).await;
        let mut asked = self.asked_of_index(query, past).await?;
        let mut page = ObjectPage::default();
        if !is_whole {
            page.notices.push(INCOMPLETE.into());
        } else if matches!(past, PastQuery::Cause(_)) && self.lacks_words(query).await {
            page.notices.push(UNEXPLAINED.into());
        }
        let (mut found, mut documents) = (Vec::new(), DOCUMENTS);
        for _ in 0..ROUNDS {
            let part = asked.find(&self.phases).await?;
            asked.resume_at(part.next);
            let candidates = self.match_by_name(query, part.times)?;
            let stopped = self.find_meant(query, selection, candidates, &mut found, &mut documents).await?;
            if stopped.is_some() {
                asked.resume_at(stopped);
            }
            if asked.cursor().is_none() || found.len() >= selection.limit || documents == 0 {
                break;
            }
        }
        page.next = asked.cursor().map(|rank| rank.to_string());
        page.objects = self.views_of(found, past).await?;
        Ok(page)
    }

    /// Whether words of the requested sources are overdue.
    async fn lacks_words(&self, query: &ObjectQuery) -> bool {
        let before_ms = self.clock.now_ms().saturating_sub(OVERDUE_MS);
        self.phases.lacks_words(self.sources_asked(query), before_ms).await.unwrap_or(true)
    }

    /// The number of objects; `None` if they are too many to count, or if counting would have to read each of
    /// them.
    pub(super) async fn count_was(&self, query: &ObjectQuery, phase: &str) -> Result<Option<u64>, ViewError> {
        let is_read = |shown: &SourceVisibility| matches!(shown, SourceVisibility::Namespaces(_));
        let within = query.within.as_ref();
        if query.label_selector.is_some() || within.is_some_and(|within| within.sources.values().any(is_read))
        {
            return Ok(None);
        }
        let mut asked = self.asked_of_index(query, PastQuery::Phase(phase)).await?;
        let mut count = 0;
        for _ in 0..COUNTED {
            let part = asked.find(&self.phases).await?;
            for time in part.times {
                count += u64::from(self.phase_candidate(query, time)?.is_some());
            }
            asked.resume_at(part.next);
            if asked.cursor().is_none() {
                return Ok(Some(count));
            }
        }
        Ok(None)
    }

    async fn asked_of_index(
        &self,
        query: &ObjectQuery,
        past: PastQuery<'_>,
    ) -> Result<IndexQuery, ViewError> {
        let (after, before) = self.position_range(query).await?;
        let cursor = query.cursor.as_deref().map(|text| text.parse().map_err(|_| wrong_cursor()));
        let (sources, cursor) = (self.sources_asked(query), cursor.transpose()?);
        Ok(match past {
            PastQuery::Phase(phase) => {
                let phase = phase.to_owned();
                IndexQuery::Phase(PhaseQuery { sources, phase, after, before, cursor, looked: LOOKED })
            }
            PastQuery::Cause(kind) => {
                IndexQuery::Cause(CauseQuery { sources, kind, after, before, cursor, limit: LOOKED })
            }
        })
    }

    /// Adds the word for the cause to each object that may have one, with one lookup for all.
    pub(super) async fn add_causes(&self, views: &mut [ObjectView]) -> Result<(), ViewError> {
        let has_ended = |view: &ObjectView| view.status.terminal || view.ended_at.is_some();
        let mut asked: Vec<_> =
            views.iter_mut().filter(|view| has_ended(view) && !outcomes::is_part(&view.object)).collect();
        let objects = asked.iter().map(|view| (view.source.clone(), view.object.uid.clone())).collect();
        // If the index can't be used, a list is shown without causes; a query for a cause is refused.
        let causes = self.phases.causes_of(objects).await.unwrap_or_default();
        for (place, kind) in causes {
            asked[place].cause = Some(kind);
        }
        Ok(())
    }

    /// The object of a time, if it matches by name: the present object, and its newest position.
    fn phase_candidate(
        &self,
        query: &ObjectQuery,
        time: TimeInPhase,
    ) -> Result<Option<PhaseCandidate>, ViewError> {
        if !is_named(query, &time.source, &time.namespace, &time.name) {
            return Ok(None);
        }
        let current = self.shared.listers.get(&time.source, &time.namespace, &time.name);
        let current = current.map_err(unavailable)?.filter(|current| current.object.uid == time.uid);
        let is_asked = match query.gone {
            GoneFilter::No => current.is_some(),
            GoneFilter::Only => current.is_none(),
            GoneFilter::Too => true,
        };
        // Until the cache shows it, a new object is known by the state with which it entered the phase.
        let seq = current.as_ref().map(|current| current.seq).or(time.ended).unwrap_or(time.entered);
        Ok(is_asked.then_some(PhaseCandidate { seq, current, time }))
    }

    /// Adds the candidates that match to `found`, until there are enough of them. Returns the rank of the last one then.
    /// The states of those after it are not read.
    async fn find_meant(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        candidates: Vec<PhaseCandidate>,
        found: &mut Vec<PhaseMatches>,
        documents: &mut usize,
    ) -> Result<Option<u64>, ViewError> {
        let mut candidates = candidates.into_iter();
        loop {
            let part: Vec<_> = candidates.by_ref().take(selection.limit.max(FEWEST_NAMES)).collect();
            if part.is_empty() {
                return Ok(None);
            }
            for one in self.with_states(part).await? {
                let rank = one.time.rank;
                if self.is_meant(&one.state, query, selection, documents).await? {
                    found.push(one);
                }
                if found.len() >= selection.limit || *documents == 0 {
                    return Ok(Some(rank));
                }
            }
        }
    }

    /// The times whose objects match by name.
    fn match_by_name(
        &self,
        query: &ObjectQuery,
        times: Vec<TimeInPhase>,
    ) -> Result<Vec<PhaseCandidate>, ViewError> {
        let candidates = times.into_iter().map(|time| self.phase_candidate(query, time));
        Ok(candidates.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Each candidate with its object as it is or as it ended.
    async fn with_states(&self, candidates: Vec<PhaseCandidate>) -> Result<Vec<PhaseMatches>, ViewError> {
        let seqs: Vec<Seq> = candidates.iter().map(|candidate| candidate.seq).collect();
        let states = self.states_at(&seqs).await?;
        let found = |PhaseCandidate { seq, current, time }| {
            Some(PhaseMatches { current, state: states.get(&seq)?.clone(), time })
        };
        Ok(candidates.into_iter().filter_map(found).collect())
    }

    async fn views_of(
        &self,
        found: Vec<PhaseMatches>,
        past: PastQuery<'_>,
    ) -> Result<Vec<ObjectView>, ViewError> {
        let times = found.iter().flat_map(|one| [Some(one.time.entered), one.time.left]);
        let times: Vec<Seq> = times.flatten().collect();
        let states = self.states_at(&times).await?;
        let at = |seq: Seq| states.get(&seq).map(|state| calendar::format_rfc3339(state.observed_ms));
        let (mut views, mut patience) = (Vec::with_capacity(found.len()), AnswerPatience::of_a_list());
        for PhaseMatches { current, state, time } in found {
            let view = match current {
                Some(current) => self.shown_object(&time.source, current, &mut patience).await?,
                None => self.ended_view(&state).await?,
            };
            let was = WasView { from: at(time.entered), until: time.left.and_then(at) };
            let was = Some(was).filter(|_| matches!(past, PastQuery::Phase(_)));
            views.push(ObjectView { was, ..view });
        }
        Ok(views)
    }

    /// Removed states are left out.
    pub(super) async fn states_at(&self, seqs: &[Seq]) -> Result<HashMap<Seq, Arc<State>>, ViewError> {
        let states = self.journal.read_at(seqs).await.map_err(unavailable)?;
        Ok(states.into_iter().map(|state| (state.seq, state)).collect())
    }
}

/// Refuses parameters that make no sense together with `was` or `cause`.
fn refuse_others(query: &ObjectQuery, selection: &ObjectSelection, name: &str) -> Result<(), ViewError> {
    let message = if query.at.is_some() {
        format!("`at` and `{name}` ask for different times: leave one of them out")
    } else if query.sort.as_deref().is_some_and(|sort| sort != "changed") {
        format!("a list by `{name}` has an order of its own: leave `sort` out with `{name}`")
    } else if selection.index.is_some() {
        format!("`index` looks up what is there now: with `{name}`, give `labelSelector` or `search`")
    } else {
        return Ok(());
    };
    Err(ViewError::Invalid(message))
}
