//! Decides which states a plugin wants, and where each of its sources begins.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kubewitness_core::config::{Mode, RateSpec, Start};
use kubewitness_core::lanes::SubscriptionFit;
use kubewitness_core::ports::{
    Backlog, FilterError, FormerCursor, JournalError, PluginProgress, SourceStart, StateFilter,
};
use kubewitness_core::{Seq, State};

use crate::SourceSubscription;

#[derive(Clone, Debug, Default)]
pub(crate) struct SourceInterest {
    modes: HashMap<Arc<str>, Mode>,
    filters: HashMap<Arc<str>, Arc<dyn StateFilter>>,
    starts: Vec<SourceStart>,
    former_cursors: Vec<FormerCursor>,
    backfill: Option<Arc<SourceBackfill>>,
    pasts: Vec<(Arc<str>, Seq)>,
    paces: HashMap<Arc<str>, RateSpec>,
}

/// The past of sources that were added to a plugin at work, which is handed over before what is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceBackfill {
    pub sources: Vec<Arc<str>>,
    /// The last position that the plugin had read before.
    pub through: Seq,
}

/// States, each with how it fits the subscription.
#[derive(Debug, Default)]
pub(crate) struct FittedStates {
    pub states: Vec<(Arc<State>, SubscriptionFit)>,
    /// The number of states that no filter could judge, and the reason for the last one.
    pub unclear: u64,
    pub why: Option<String>,
}

impl SourceInterest {
    /// Resolves `now` and `beginning` to positions, and subscribes `progress` to these sources: those that are
    /// subscribed already keep their start, and those that are no longer subscribed end at what was read. `newest` is
    /// the end of the journal.
    pub fn resolve_starts(
        subscriptions: &[SourceSubscription],
        progress: &mut PluginProgress,
        newest: Seq,
    ) -> Self {
        let subscribed = |source: &str| subscriptions.iter().any(|s| &*s.source == source);
        // Before sources were named in it, a progress had one start for all.
        let is_unnamed =
            progress.sources.is_empty() && progress.delivered + progress.filtered + progress.dead > 0;
        let unnamed = is_unnamed.then_some(progress.start);
        progress.pasts.retain(|(source, _)| subscribed(source));
        progress.end_sources(subscribed);
        let mut interest = Self::default();
        let mut added = Vec::new();
        for subscription in subscriptions {
            let source = || Arc::clone(&subscription.source);
            interest.modes.insert(source(), subscription.mode);
            interest.filters.extend(subscription.filter.clone().map(|filter| (source(), filter)));
            interest.paces.extend(subscription.replay_rate.map(|rate| (source(), rate)));
            if progress.is_subscribed(&subscription.source) {
                continue;
            }
            let first = progress.first_beginning(&subscription.source);
            let after = unnamed.unwrap_or(match subscription.start {
                Start::Now => newest,
                Start::Position(position) => position.saturating_sub(1).clamp(first, newest),
                // A time was looked up before.
                Start::Beginning | Start::Since(_) => first,
            });
            if subscription.replay_rate.is_some() && after < newest {
                progress.pasts.retain(|(other, _)| *other != subscription.source);
                progress.pasts.push((source(), newest));
            }
            added.push((source(), after));
        }
        match unnamed {
            // All of it is finished up to the cursor.
            Some(_) => progress.sources.extend(added.into_iter().map(|(source, after)| SourceStart {
                source,
                after,
                until: None,
            })),
            None => progress.add_sources(added),
        }
        interest.take(progress);
        interest
    }

    /// The interest that a saved progress describes, without modes and filters.
    pub fn of(progress: &PluginProgress) -> Self {
        let mut interest = Self::default();
        interest.take(progress);
        interest
    }

    fn take(&mut self, progress: &PluginProgress) {
        self.starts = progress.sources.clone();
        self.pasts = progress.pasts.clone();
        self.former_cursors = progress.former_cursors.clone();
        let added = self.former_cursors.iter().flat_map(|former| &former.added);
        let sources: BTreeSet<Arc<str>> = added.map(|(source, _)| Arc::clone(source)).collect();
        let through = self.former_cursors.iter().map(FormerCursor::last_finished).max();
        self.backfill = through
            .map(|through| Arc::new(SourceBackfill { sources: sources.into_iter().collect(), through }));
    }

    /// Writes the subscription into a progress of the lanes.
    pub fn add_to(&self, progress: &mut PluginProgress) {
        progress.start = self.start();
        progress.sources.clone_from(&self.starts);
        progress.pasts.clone_from(&self.pasts);
        let is_needed = |former: &&FormerCursor| former.last_finished() > progress.cursor;
        progress.former_cursors = self.former_cursors.iter().filter(is_needed).cloned().collect();
    }

    /// The backfill of sources that were added, until the cursor is where it was.
    pub fn current_backfill(&self, cursor: Seq) -> Option<&Arc<SourceBackfill>> {
        self.backfill.as_ref().filter(|backfill| cursor < backfill.through)
    }

    pub fn paced_sources(&self) -> impl Iterator<Item = (&Arc<str>, Seq, RateSpec)> {
        self.pasts.iter().filter_map(|(source, until)| Some((source, *until, *self.paces.get(source)?)))
    }

    /// Whether the state is left in the journal when it is read past, and judged when its turn comes.
    fn is_past(&self, state: &State) -> bool {
        self.paced_sources().any(|(source, until, _)| *source == state.source && state.seq <= until)
    }

    /// The position after which states may be wanted.
    pub fn start(&self) -> Seq {
        self.starts.iter().map(|start| start.after).min().unwrap_or(0)
    }

    pub fn fit_state(&self, state: &State) -> SubscriptionFit {
        let Some(start) = self.starts.iter().find(|start| start.covers_state(state)) else {
            return SubscriptionFit::Foreign;
        };
        if self.former_cursors.iter().any(|former| former.has_finished(&state.source, state.seq)) {
            return SubscriptionFit::Foreign;
        }
        debug_assert!(self.modes.contains_key(&state.source) || start.until.is_some());
        self.mode_fit(state)
    }

    fn mode_fit(&self, state: &State) -> SubscriptionFit {
        match self.modes.get(&state.source) {
            Some(Mode::Every) => SubscriptionFit::Wanted,
            Some(Mode::Latest) => SubscriptionFit::Latest,
            Some(Mode::Transitions) if state.is_transition() => SubscriptionFit::Wanted,
            // Without a mode, the state was on its way when its source was unsubscribed.
            Some(Mode::Transitions) | None => SubscriptionFit::Filtered,
        }
    }

    /// How these states fit the subscription. `first`: they are read for the first time.
    pub async fn fit_states(
        &self,
        states: Vec<Arc<State>>,
        first: bool,
    ) -> Result<FittedStates, JournalError> {
        let mut fitted = FittedStates::default();
        fitted.states.reserve(states.len());
        for state in states {
            let mut fit = self.fit_state(&state);
            let is_open = fit.is_handed_over() && !(first && self.is_past(&state));
            if is_open && !self.filter_wants(&state, &mut fitted).await? {
                fit = SubscriptionFit::Filtered;
            }
            fitted.states.push((state, fit));
        }
        Ok(fitted)
    }

    /// How owed states fit. They are of the subscription, whatever the progress says of their positions.
    pub async fn fits_owed(&self, states: Vec<Arc<State>>) -> Result<FittedStates, JournalError> {
        let mut fitted = FittedStates::default();
        for state in states {
            let mut fit = self.mode_fit(&state);
            if fit != SubscriptionFit::Filtered && !self.filter_wants(&state, &mut fitted).await? {
                fit = SubscriptionFit::Filtered;
            }
            fitted.states.push((state, fit));
        }
        Ok(fitted)
    }

    /// A state that the filter can't judge is wanted. Handing over one state too many loses none.
    async fn filter_wants(&self, state: &State, fitted: &mut FittedStates) -> Result<bool, JournalError> {
        let Some(filter) = self.filters.get(&state.source) else { return Ok(true) };
        match filter.wants_state(state).await {
            Ok(wants) => Ok(wants),
            Err(FilterError::Journal(error)) => Err(error),
            Err(FilterError::Unclear(why)) => {
                fitted.unclear += 1;
                fitted.why =
                    Some(format!("the filter of `{}` can't judge {}: {why}", state.source, state.id));
                Ok(true)
            }
        }
    }

    /// The states of a resync that the filter wants.
    pub async fn keep_wanted(&self, states: Vec<Arc<State>>) -> Result<Vec<Arc<State>>, JournalError> {
        let mut kept = Vec::with_capacity(states.len());
        for state in states {
            if self.filter_wants(&state, &mut FittedStates::default()).await? {
                kept.push(state);
            }
        }
        Ok(kept)
    }

    /// The number of states of the subscription in `(after, through]`, wanted or filtered, without those that were
    /// finished before the cursor went back.
    pub async fn count(&self, backlog: &dyn Backlog, after: Seq, through: Seq) -> Result<u64, JournalError> {
        let mut by_bounds: HashMap<(Seq, Seq), Vec<Arc<str>>> = HashMap::new();
        for start in &self.starts {
            let all = (start.after.max(after), start.until.unwrap_or(through).min(through));
            let open = self.former_cursors.iter().fold(vec![all], |open, former| {
                open.into_iter().flat_map(|range| former.unfinished_parts(&start.source, range)).collect()
            });
            for bounds in open.into_iter().filter(|(after, through)| after < through) {
                by_bounds.entry(bounds).or_default().push(Arc::clone(&start.source));
            }
        }
        let mut total = 0;
        for ((after, through), sources) in by_bounds {
            total += backlog.count(&sources, after, through).await?;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(source: &str) -> SourceSubscription {
        SourceSubscription {
            source: source.into(),
            mode: Mode::Every,
            filter: None,
            replay_rate: None,
            start: Start::Beginning,
            resync: false,
        }
    }

    fn start(source: &str, after: Seq, until: Option<Seq>) -> SourceStart {
        SourceStart { source: source.into(), after, until }
    }

    fn resolved(subscribed: &[&str], progress: &mut PluginProgress, newest: Seq) -> Vec<SourceStart> {
        let subscriptions: Vec<_> = subscribed.iter().map(|source| subscription(source)).collect();
        SourceInterest::resolve_starts(&subscriptions, progress, newest).starts
    }

    #[test]
    fn a_source_that_is_unsubscribed_ends_at_what_was_read_and_one_that_comes_back_goes_on_there() {
        let mut progress = PluginProgress::default();
        resolved(&["jobs", "pods"], &mut progress, 50);
        progress.cursor = 40;
        let one = resolved(&["jobs"], &mut progress, 50);
        assert_eq!(one, [start("jobs", 0, None), start("pods", 0, Some(40))]);
        progress.cursor = 60;
        let again = resolved(&["jobs", "pods"], &mut progress, 70);
        assert_eq!(again, [start("jobs", 0, None), start("pods", 0, Some(40)), start("pods", 40, None)]);
        assert_eq!(progress.cursor, 40, "it goes back to what was not handed over");
        assert!(progress.has_finished("jobs", 60) && !progress.has_finished("pods", 60));
    }

    #[test]
    fn a_source_of_which_nothing_was_read_leaves_nothing_behind() {
        let mut progress = PluginProgress {
            sources: vec![start("pods", 40, None)],
            cursor: 40,
            ..PluginProgress::default()
        };
        assert_eq!(resolved(&["jobs"], &mut progress, 50), [start("jobs", 0, None)]);
        assert_eq!(progress.cursor, 0);
    }

    #[test]
    fn a_progress_without_named_sources_goes_on_for_all_of_them() {
        let mut progress =
            PluginProgress { start: 10, cursor: 40, delivered: 9, ..PluginProgress::default() };
        assert_eq!(resolved(&["jobs"], &mut progress, 50), [start("jobs", 10, None)]);
        assert_eq!((progress.cursor, progress.former_cursors.len()), (40, 0));
    }
}
