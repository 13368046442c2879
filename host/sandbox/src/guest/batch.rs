//! The states of the call in progress, as the plugin sees them, by position.

use std::sync::Arc;

use kubewitness_core::{Seq, State};

#[derive(Debug, Default)]
pub struct CallStates(Vec<Arc<State>>);

impl CallStates {
    pub fn of(states: impl IntoIterator<Item = Arc<State>>) -> Self {
        let mut states: Vec<_> = states.into_iter().collect();
        states.sort_unstable_by_key(|state| state.seq);
        Self(states)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, seq: Seq) -> Option<&State> {
        let place = self.0.binary_search_by_key(&seq, |state| state.seq).ok()?;
        Some(&self.0[place])
    }
}
