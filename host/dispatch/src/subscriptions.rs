//! Decides which states a plugin wants, and where each of its sources begins.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::config::{Mode, RateSpec, Start};
use kubewitness_core::lanes::Fit;
use kubewitness_core::ports::{Backlog, FilterError, JournalError, Progress, SourceStart, StateFilter};
use kubewitness_core::{Seq, State};

use crate::Subscription;

#[derive(Clone, Debug, Default)]
pub(crate) struct Interest {
    modes: HashMap<Arc<str>, Mode>,
    filters: HashMap<Arc<str>, Arc<dyn StateFilter>>,
    starts: Vec<SourceStart>,
    pasts: Vec<(Arc<str>, Seq)>,
    paces: HashMap<Arc<str>, RateSpec>,
}

/// States, each with how it fits the subscription.
#[derive(Debug, Default)]
pub(crate) struct Fitted {
    pub states: Vec<(Arc<State>, Fit)>,
    /// The number of states that no filter could judge, and the reason for the last one.
    pub unclear: u64,
    pub why: Option<String>,
}

impl Interest {
    /// Resolves `now` and `beginning` to positions. `progress` is the saved progress. Its sources keep their
    /// start, and those that are no longer subscribed end at what was read. `read` is how far the plugin has
    /// read, `newest` the end of the journal.
    pub fn resolve(
        subscriptions: &[Subscription],
        progress: Option<&Progress>,
        read: Seq,
        newest: Seq,
    ) -> Self {
        let subscribed = |source: &str| subscriptions.iter().any(|s| &*s.source == source);
        let pasts = progress.map(|progress| progress.pasts.clone()).unwrap_or_default();
        let mut interest = Self { pasts, ..Self::default() };
        interest.pasts.retain(|(source, _)| subscribed(source));
        for kept in progress.iter().flat_map(|progress| &progress.sources) {
            let mut kept = kept.clone();
            if kept.until.is_none() && !subscribed(&kept.source) {
                kept.until = Some(read);
            }
            if kept.until.is_none_or(|until| until > kept.after) {
                interest.starts.push(kept);
            }
        }
        for subscription in subscriptions {
            let source = || Arc::clone(&subscription.source);
            interest.modes.insert(source(), subscription.mode);
            interest.filters.extend(subscription.filter.clone().map(|filter| (source(), filter)));
            interest.paces.extend(subscription.replay_rate.map(|rate| (source(), rate)));
            let goes_on = interest
                .starts
                .iter()
                .any(|start| start.until.is_none() && start.source == subscription.source);
            if goes_on {
                continue;
            }
            let unnamed = progress.filter(|progress| progress.sources.is_empty());
            let after = unnamed.map(|progress| progress.start).unwrap_or(match subscription.start {
                Start::Now => newest,
                Start::Position(position) => position.saturating_sub(1).clamp(read, newest),
                // A time was looked up before.
                Start::Beginning | Start::Since(_) => read,
            });
            let source = source();
            if subscription.replay_rate.is_some() && after < newest {
                interest.pasts.push((Arc::clone(&source), newest));
            }
            interest.starts.push(SourceStart { source, after, until: None });
        }
        interest
    }

    pub fn starts(&self) -> &[SourceStart] {
        &self.starts
    }

    /// The end of each source's past, which is handed over at its own rate, even if nothing of it is left.
    pub fn pasts(&self) -> &[(Arc<str>, Seq)] {
        &self.pasts
    }

    pub fn paced(&self) -> impl Iterator<Item = (&Arc<str>, Seq, RateSpec)> {
        self.pasts.iter().filter_map(|(source, until)| Some((source, *until, *self.paces.get(source)?)))
    }

    /// Whether the state is left in the journal when it is read past, and judged when its turn comes.
    fn is_past(&self, state: &State) -> bool {
        self.paced().any(|(source, until, _)| *source == state.source && state.seq <= until)
    }

    /// The position after which states may be wanted.
    pub fn start(&self) -> Seq {
        self.starts.iter().map(|start| start.after).min().unwrap_or(0)
    }

    pub fn fit(&self, state: &State) -> Fit {
        let Some(start) = self.starts.iter().find(|start| start.covers(state)) else { return Fit::Foreign };
        match self.modes.get(&state.source) {
            Some(Mode::Every) => Fit::Wanted,
            Some(Mode::Latest) => Fit::Latest,
            Some(Mode::Transitions) if state.is_transition() => Fit::Wanted,
            Some(Mode::Transitions) => Fit::Filtered,
            // The state was on its way when its source was unsubscribed.
            None => {
                debug_assert!(start.until.is_some());
                Fit::Filtered
            }
        }
    }

    /// How these states fit the subscription. `first`: they are read for the first time.
    pub async fn fits(&self, states: Vec<Arc<State>>, first: bool) -> Result<Fitted, JournalError> {
        let mut fitted = Fitted::default();
        fitted.states.reserve(states.len());
        for state in states {
            let mut fit = self.fit(&state);
            let is_open = matches!(fit, Fit::Wanted | Fit::Latest) && !(first && self.is_past(&state));
            if is_open && !self.wants(&state, &mut fitted).await? {
                fit = Fit::Filtered;
            }
            fitted.states.push((state, fit));
        }
        Ok(fitted)
    }

    /// A state that the filter can't judge is wanted. Handing over one state too many loses none.
    async fn wants(&self, state: &State, fitted: &mut Fitted) -> Result<bool, JournalError> {
        let Some(filter) = self.filters.get(&state.source) else { return Ok(true) };
        match filter.wants(state).await {
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
    pub async fn keep(&self, states: Vec<Arc<State>>) -> Result<Vec<Arc<State>>, JournalError> {
        let mut kept = Vec::with_capacity(states.len());
        for state in states {
            if self.wants(&state, &mut Fitted::default()).await? {
                kept.push(state);
            }
        }
        Ok(kept)
    }

    /// The number of states of the subscription in `(after, through]`, wanted or filtered.
    pub async fn count(&self, backlog: &dyn Backlog, after: Seq, through: Seq) -> Result<u64, JournalError> {
        let mut by_bounds: HashMap<(Seq, Seq), Vec<Arc<str>>> = HashMap::new();
        for start in &self.starts {
            let bounds = (start.after.max(after), start.until.unwrap_or(through).min(through));
            by_bounds.entry(bounds).or_default().push(Arc::clone(&start.source));
        }
        let mut total = 0;
        for ((after, through), sources) in by_bounds {
            if after < through {
                total += backlog.count(&sources, after, through).await?;
            }
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(source: &str) -> Subscription {
        Subscription {
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

    #[test]
    fn a_source_that_is_unsubscribed_ends_at_what_was_read_and_one_that_comes_back_begins_there() {
        let both = Interest::resolve(&[subscription("jobs"), subscription("pods")], None, 0, 50);
        let progress = Progress { sources: both.starts().to_vec(), cursor: 40, ..Progress::default() };
        let one = Interest::resolve(&[subscription("jobs")], Some(&progress), 40, 50);
        assert_eq!(one.starts(), [start("jobs", 0, None), start("pods", 0, Some(40))]);
        let progress = Progress { sources: one.starts().to_vec(), cursor: 60, ..progress };
        let again = Interest::resolve(&[subscription("jobs"), subscription("pods")], Some(&progress), 60, 70);
        assert_eq!(
            again.starts(),
            [start("jobs", 0, None), start("pods", 0, Some(40)), start("pods", 60, None)]
        );
    }

    #[test]
    fn a_source_of_which_nothing_was_read_leaves_nothing_behind() {
        let progress = Progress { sources: vec![start("pods", 40, None)], cursor: 40, ..Progress::default() };
        let other = Interest::resolve(&[subscription("jobs")], Some(&progress), 40, 50);
        assert_eq!(other.starts(), [start("jobs", 40, None)]);
    }
}
