//! What the states of the objects of a page tell: times, restarts, and how far each plugin is with them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kubewitness_core::clock::Clock;
use kubewitness_core::ports::Progress;
use kubewitness_core::search::About;
use kubewitness_core::story::Times;
use kubewitness_core::views::{DetailsView, ObjectView, ViewError};
use kubewitness_core::{Seq, State};

use super::{HostViews, unavailable};

/// States of one object that a list reads.
const STATES: usize = 256;

impl HostViews {
    /// Times go up to the moment that the objects are of, or up to now.
    pub(super) async fn add_details(
        &self,
        views: &mut [ObjectView],
        at_ms: Option<u64>,
    ) -> Result<(), ViewError> {
        let heads: Vec<Seq> = views.iter().map(|view| view.seq).collect();
        let stories = self.journal.stories(&heads, STATES).await.map_err(unavailable)?;
        let plugins = self.told(&stories).await?;
        let now_ms = at_ms.unwrap_or_else(|| self.clock.now_ms());
        for view in views {
            let Some(states) = stories.get(&view.seq) else { continue };
            let times = Times::of(states, now_ms);
            let submitter = match states.last() {
                Some(last) => About::read(&self.last_document(last).await?).submitter,
                None => None,
            };
            let is_cut =
                states.len() >= STATES || states.first().is_some_and(|first| first.previous.is_some());
            view.details = Some(DetailsView {
                queued_ms: times.queued_ms,
                running_ms: times.running_ms,
                restarts: times.restarts,
                submitter,
                cut: is_cut,
                plugins: plugins.get(&view.seq).cloned().unwrap_or_default(),
            });
        }
        Ok(())
    }

    /// By object's newest state and by plugin, whether all of its states are finished.
    async fn told(
        &self,
        stories: &HashMap<Seq, Vec<Arc<State>>>,
    ) -> Result<HashMap<Seq, BTreeMap<String, String>>, ViewError> {
        let mut told: HashMap<Seq, BTreeMap<String, String>> = HashMap::new();
        for (name, (progress, _)) in self.journal.all_progress().await.map_err(unavailable)? {
            if progress.retired_ms.is_some() || self.shared.plugin(&name).is_none() {
                continue;
            }
            let mut seqs: Vec<Seq> = stories.values().flatten().map(|state| state.seq).collect();
            seqs.sort_unstable();
            let letters = self.journal.letters_at(&name, &seqs).await.map_err(unavailable)?;
            for (head, states) in stories {
                if let Some(word) = word(&progress, &letters, states) {
                    told.entry(*head).or_default().insert(name.clone(), word.to_owned());
                }
            }
        }
        Ok(told)
    }
}

/// `None` for objects that the plugin has not subscribed to. A letter that is being replayed waits.
fn word(progress: &Progress, letters: &HashMap<Seq, bool>, states: &[Arc<State>]) -> Option<&'static str> {
    let is_covered = |state: &State| progress.sources.iter().any(|start| start.covers(state));
    let is_finished = |seq: Seq| {
        seq <= progress.cursor || progress.above.iter().any(|(from, to)| (*from..=*to).contains(&seq))
    };
    let mut covered = states.iter().filter(|state| is_covered(state)).peekable();
    covered.peek()?;
    let mut word = "delivered";
    for state in covered {
        match letters.get(&state.seq) {
            Some(false) => return Some("dead"),
            Some(true) => word = "waiting",
            None if !is_finished(state.seq) => word = "waiting",
            None => {}
        }
    }
    Some(word)
}

#[cfg(test)]
mod tests {
    use kubewitness_core::ports::SourceStart;
    use kubewitness_core::{Change, ObjectRef, StateId, Version};

    use super::*;

    fn state(seq: Seq) -> Arc<State> {
        Arc::new(State {
            id: StateId::parse("x"),
            seq,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            object: Arc::new(ObjectRef::default()),
            owner: None,
            resource_version: Version::new("1"),
            status: Arc::default(),
            previous: None,
            observed_ms: 0,
            late: false,
        })
    }

    #[test]
    fn an_object_is_delivered_once_all_of_its_states_are_finished() {
        let start = SourceStart { source: "jobs".into(), after: 2, until: None };
        let progress =
            Progress { cursor: 10, above: vec![(12, 13)], sources: vec![start], ..Progress::default() };
        let of = |seqs: &[Seq], letters: &[(Seq, bool)]| {
            let states: Vec<_> = seqs.iter().map(|seq| state(*seq)).collect();
            word(&progress, &letters.iter().copied().collect(), &states)
        };
        assert_eq!(of(&[3, 10, 12], &[]), Some("delivered"));
        assert_eq!(of(&[3, 11], &[]), Some("waiting"));
        assert_eq!(of(&[3, 5], &[(5, true)]), Some("waiting"));
        assert_eq!(of(&[3, 5, 11], &[(3, false)]), Some("dead"));
        assert_eq!(of(&[1, 2], &[]), None, "from before its subscription");
    }
}
