//! The Events of one object's story, from their documents.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kubewitness_capability::AnswerPatience;
use kubewitness_core::events;
use kubewitness_core::ports::{DocumentReader, RawState};
use kubewitness_core::redact::SecretDigests;
use kubewitness_core::views::{EventView, ViewError};
use kubewitness_core::{Change, ObjectRef, State};

use super::details::{READ_AHEAD, WINDOW};
use super::redacted::current_party;
use super::{HostViews, unavailable};

/// The state of an Event that has its content: the document of its deletion may be empty. `None` for any
/// other object.
pub(super) fn state_with_content(states: &[Arc<State>]) -> Option<Arc<State>> {
    let last = states.last().filter(|last| events::is_event(&last.object.group, &last.object.kind))?;
    Some(states.iter().rfind(|state| state.change == Change::Present).unwrap_or(last).clone())
}

/// The secrets of the objects that Events are about. Each object is searched once for a page, however many
/// Events it has.
pub(super) type AboutSecrets = HashMap<ObjectRef, Arc<SecretDigests>>;

impl HostViews {
    /// Returns the parts of these newest states of Events that people may read.
    pub(super) async fn event_views(
        &self,
        states: Vec<RawState>,
        patience: &mut AnswerPatience,
    ) -> Result<Vec<EventView>, ViewError> {
        let redaction = self.secret_redaction()?;
        if redaction.check_ready().is_err() {
            // Without their messages, Events have no content.
            return Ok(Vec::new());
        }
        let (mut views, mut objects) = (Vec::new(), AboutSecrets::new());
        let states: Vec<_> = states.into_iter().rev().map(RawState::unredacted).collect();
        for part in states.chunks(WINDOW) {
            let read: Vec<_> = part.iter().cloned().map(|state| self.cut_event(state)).collect();
            let cut: Vec<_> = stream::iter(read).buffered(READ_AHEAD).try_collect().await?;
            // Retention may have removed some meanwhile.
            let cut: Vec<_> = cut.into_iter().flatten().collect();
            self.find_objects(cut.iter().map(|(_, document)| document), &mut objects, patience).await?;
            for (state, document) in cut {
                let document = self.shown_event(document, &mut objects, patience).await?;
                views.extend(events::read(&document, &state.object, state.seq, state.observed_ms));
            }
        }
        Ok(events::fold_repeated(views))
    }

    async fn cut_event(&self, state: Arc<State>) -> Result<Option<(Arc<State>, Bytes)>, ViewError> {
        let document = self.journal.document_at(state.seq).await.map_err(unavailable)?;
        Ok(document.map(|document| (state, events::cut_event(&document).map_or(document, Bytes::from))))
    }

    /// Finds the secrets of the objects that these Events are about.
    pub(super) async fn find_objects(
        &self,
        events: impl Iterator<Item = &Bytes>,
        objects: &mut AboutSecrets,
        patience: &mut AnswerPatience,
    ) -> Result<(), ViewError> {
        let redaction = self.secret_redaction()?;
        let found = redaction.find_objects(&self.journal, events, objects, &current_party(), patience).await;
        found.map_err(unavailable)
    }

    /// The parts of an Event as people may read them.
    pub(super) async fn shown_event(
        &self,
        document: Bytes,
        objects: &mut AboutSecrets,
        patience: &mut AnswerPatience,
    ) -> Result<Bytes, ViewError> {
        let shown = self
            .secret_redaction()?
            .redact_event(&self.journal, document, objects, &current_party(), patience)
            .await;
        shown.map_err(unavailable)
    }
}
