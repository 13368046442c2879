//! Which states a plugin wants, and where each of its sources begins.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::config::{Mode, Start};
use kubewitness_core::lanes::Fit;
use kubewitness_core::ports::{Backlog, JournalError, Progress, SourceStart};
use kubewitness_core::{Seq, State};

use crate::Subscription;

#[derive(Clone, Debug, Default)]
pub(crate) struct Interest {
    modes: HashMap<Arc<str>, Mode>,
    starts: Vec<SourceStart>,
}

impl Interest {
    /// Resolves `now` and `beginning` to positions. `progress` is what was kept; its sources
    /// keep their start, and those that are not subscribed any more end at what was read.
    /// `read` is what the plugin has read so far, `newest` the journal's end.
    pub fn resolve(
        subscriptions: &[Subscription],
        progress: Option<&Progress>,
        read: Seq,
        newest: Seq,
    ) -> Self {
        let subscribed = |source: &str| subscriptions.iter().any(|s| &*s.source == source);
        let mut interest = Self::default();
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
            interest.modes.insert(Arc::clone(&subscription.source), subscription.mode);
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
                Start::Beginning => read,
            });
            let source = Arc::clone(&subscription.source);
            interest.starts.push(SourceStart { source, after, until: None });
        }
        interest
    }

    pub fn starts(&self) -> &[SourceStart] {
        &self.starts
    }

    /// The position after which anything may be wanted.
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
            // It was on its way when its source was unsubscribed.
            None => {
                debug_assert!(start.until.is_some());
                Fit::Filtered
            }
        }
    }

    pub fn fits(&self, states: Vec<Arc<State>>) -> Vec<(Arc<State>, Fit)> {
        let fit = |state: Arc<State>| {
            let fit = self.fit(&state);
            (state, fit)
        };
        states.into_iter().map(fit).collect()
    }

    /// States of the subscription in `(after, through]`, wanted or filtered.
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
        Subscription { source: source.into(), mode: Mode::Every, start: Start::Beginning, resync: false }
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
