//! Which states a plugin wants, and where each of its sources begins.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::config::{Mode, Start};
use kubewitness_core::ports::{Backlog, JournalError, Progress, SourceStart};
use kubewitness_core::{Seq, State};

use crate::Subscription;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Wanted,
    /// Of the subscription, but its filter says no. Counted.
    Filtered,
    /// Of another source, or from before the subscription. Not counted.
    Foreign,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Interest {
    sources: HashMap<Arc<str>, (Mode, Seq)>,
    starts: Vec<SourceStart>,
}

impl Interest {
    /// Resolves `now` and `beginning` to positions. `progress` is what was kept; its sources
    /// keep their start. `read` is what the plugin has read so far, `newest` the journal's end.
    pub fn resolve(
        subscriptions: &[Subscription],
        progress: Option<&Progress>,
        read: Seq,
        newest: Seq,
    ) -> Self {
        let mut interest = Self::default();
        for subscription in subscriptions {
            let kept = progress.and_then(|progress| {
                let of_source = progress.sources.iter().find(|start| start.source == subscription.source);
                of_source.map(|start| start.after).or(progress.sources.is_empty().then_some(progress.start))
            });
            let after = kept.unwrap_or(match subscription.start {
                Start::Now => newest,
                Start::Beginning => read,
            });
            interest.sources.insert(Arc::clone(&subscription.source), (subscription.mode, after));
            interest.starts.push(SourceStart { source: Arc::clone(&subscription.source), after });
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
        match self.sources.get(&state.source) {
            Some((_, after)) if state.seq <= *after => Fit::Foreign,
            Some((Mode::Every, _)) => Fit::Wanted,
            Some((Mode::Transitions, _)) if state.is_transition() => Fit::Wanted,
            Some((Mode::Transitions, _)) => Fit::Filtered,
            None => Fit::Foreign,
        }
    }

    /// States of the subscription in `(after, through]`, wanted or filtered.
    pub async fn count(&self, backlog: &dyn Backlog, after: Seq, through: Seq) -> Result<u64, JournalError> {
        let mut by_start: HashMap<Seq, Vec<Arc<str>>> = HashMap::new();
        for start in &self.starts {
            by_start.entry(start.after.max(after)).or_default().push(Arc::clone(&start.source));
        }
        let mut total = 0;
        for (after, sources) in by_start {
            if after < through {
                total += backlog.count(&sources, after, through).await?;
            }
        }
        Ok(total)
    }
}
