//! The Events of one object's story, as their documents tell them.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::State;
use kubewitness_core::events;
use kubewitness_core::ports::Documents;
use kubewitness_core::redact::Secrets;
use kubewitness_core::views::{EventView, ViewError};

use super::{HostViews, unavailable};

impl HostViews {
    /// Of these newest states of Events, what people may read of them. `objects` are the states of what they are about,
    /// oldest first: a message may quote a secret of its object.
    pub(super) async fn events(
        &self,
        states: Vec<Arc<State>>,
        objects: impl Iterator<Item = &Arc<State>>,
    ) -> Result<Vec<EventView>, ViewError> {
        let redaction = self.redaction()?;
        if redaction.ready().is_err() {
            // Without their messages they tell nothing.
            return Ok(Vec::new());
        }
        let newest: HashMap<&str, &Arc<State>> = objects.map(|state| (&*state.object.uid, state)).collect();
        let mut secrets: HashMap<String, Secrets> = HashMap::new();
        let mut told = Vec::new();
        for state in states.iter().rev() {
            // Retention may have taken it meanwhile.
            let Some(document) = self.journal.document(state.seq).await.map_err(unavailable)? else {
                continue;
            };
            let document = redaction.redact(document).map_err(unavailable)?;
            let Some(mut event) = events::read(&document, &state.object, state.seq, state.observed_ms) else {
                continue;
            };
            if let Some(state) = newest.get(&*event.about.uid) {
                if !secrets.contains_key(&event.about.uid) {
                    let found = redaction.quotable(&self.journal, state, true).await.map_err(unavailable)?;
                    secrets.insert(event.about.uid.clone(), found);
                }
                if let Some(secrets) = secrets.get(&event.about.uid) {
                    secrets.hide_in(&mut event.message);
                }
            }
            told.push(event);
        }
        Ok(events::fold(told))
    }
}
