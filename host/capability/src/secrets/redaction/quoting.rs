//! Finds the secrets of documents that statuses and Events quote. Each search runs once for all readers, in
//! the share of the namespace that owns the objects: neither its readers nor others wait for more than that.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use kubewitness_core::ports::{CurrentObject, DocumentReader, JournalError};
use kubewitness_core::redact::{SecretDigests, WithheldDocument};
use kubewitness_core::{ObjectRef, State, Status, document};

use super::threads::ThreadParty;
use super::time_limit::AnswerPatience;
use super::{RedactionError, SecretRedaction};

impl SecretRedaction {
    /// The status of an existing object, without the secrets that it quotes. If searching a long document
    /// takes too long, the status is first shown without its texts, and with them once the search is done: no
    /// list waits for a tenant's document.
    pub async fn redact_current(
        &self,
        current: &CurrentObject,
        patience: &mut AnswerPatience,
    ) -> Result<Arc<Status>, RedactionError> {
        if !SecretDigests::may_stand_in(&current.status) {
            return Ok(current.status.clone());
        }
        let as_it_is = |shown: Option<Arc<Status>>| shown.unwrap_or_else(|| current.status.clone());
        let withheld = || as_it_is(SecretDigests::hide_all().hidden_in(&current.status).map(Arc::new));
        if let Some(shown) = self.currents.get(&current.seq) {
            return Ok(as_it_is(shown));
        }
        let namespace: Arc<str> = (*current.object.namespace).into();
        let party = ThreadParty::Namespace(namespace.clone());
        let finding = self.find_current(current, &party);
        // The search continues for the next list.
        let waits_not = patience.has_no_time_left() || self.slow.is_slow(&namespace);
        let found = match waits_not {
            true if self.threads.is_full(&party) => None,
            true => AnswerPatience::without_time().wait_for(finding).await,
            false => patience.wait_for(finding).await,
        };
        if found.is_none() && !waits_not {
            self.slow.note_slow(namespace);
        }
        found.map_or_else(|| Ok(withheld()), |shown| Ok(as_it_is(shown?)))
    }

    async fn find_current(
        &self,
        current: &CurrentObject,
        party: &ThreadParty,
    ) -> Result<Option<Arc<Status>>, RedactionError> {
        let asking = self.currents.look_up(&current.seq).await;
        if let Some(shown) = self.currents.get(&current.seq) {
            return Ok(shown);
        }
        let bytes = document::unpack_document(&current.packed).map_or(0, |document| document.len());
        let (keyed, status, seq, packed) =
            (self.keyed_rules(), current.status.clone(), current.seq, current.packed.clone());
        let kept = self.currents.clone();
        let hide = move || {
            let _asking = asking;
            let document = document::unpack_document(&packed).ok();
            let secrets = document.map_or_else(
                || Ok(SecretDigests::hide_all()),
                |document| keyed.secret_digests(&[document]),
            )?;
            let shown = secrets.hidden_in(&status).map(Arc::new);
            kept.keep_found(seq, shown.clone(), bytes_of_status(shown.as_deref()));
            Ok(shown)
        };
        self.threads.run_to_end(party, bytes, hide).await?
    }

    /// A state without the secrets that its statuses quote.
    pub async fn redact_state(
        &self,
        documents: &dyn DocumentReader,
        state: &Arc<State>,
        party: &ThreadParty,
    ) -> Result<Arc<State>, JournalError> {
        let may_quote = |status: &Arc<Status>| SecretDigests::may_stand_in(status);
        let previous = state.previous.as_ref().filter(|status| may_quote(status));
        let is_found = state.quotes_none_under == Some(self.rules.rules_print());
        if is_found || (!may_quote(&state.status) && previous.is_none()) {
            return Ok(state.clone());
        }
        let as_it_is = |shown: Option<Arc<State>>| shown.unwrap_or_else(|| state.clone());
        if let Some(shown) = self.states.get(&state.seq) {
            return Ok(as_it_is(shown));
        }
        // A plugin runs the search itself instead of waiting in the share of a namespace.
        let asking = match party {
            ThreadParty::Plugin(_) => None,
            _ => Some(self.states.look_up(&state.seq).await),
        };
        if let Some(shown) = self.states.get(&state.seq) {
            return Ok(as_it_is(shown));
        }
        let party = party.for_objects_of(&state.object.namespace);
        let turn = self.object_turns.take(&party).await.map_err(closed_error)?;
        let own = documents.document_at(state.seq).await?;
        // The end of an object has no document of its own.
        let earlier = match previous.is_some() || own.is_none() {
            true => documents.document_before(state.seq).await?,
            false => None,
        };
        // Retention may have removed the states with their secrets.
        let is_known = (own.is_some() || earlier.is_some(), earlier.is_some());
        let known = Vec::from_iter(own.into_iter().chain(earlier));
        let (keyed, bytes, raw) = (self.keyed_rules(), bytes_of(&known), state.clone());
        let kept = self.states.clone();
        let hide = move || {
            let _held = (asking, turn);
            let shown = without_quotes(&raw, &keyed.secret_digests(&known)?, is_known);
            let statuses = shown.iter().flat_map(|state| [Some(&state.status), state.previous.as_ref()]);
            let bytes = statuses.flatten().map(|status| bytes_of_status(Some(status))).sum();
            kept.keep_found(raw.seq, shown.clone(), bytes);
            Ok::<_, RedactionError>(shown)
        };
        let shown = self.threads.run_to_end(&party, bytes, hide).await.map_err(RedactionError::from)?;
        Ok(as_it_is(shown?))
    }

    /// The secrets of the object that an Event is about. For an unwatched object none are known, and the
    /// texts of its Events stay. `None` if the search takes too long.
    pub(super) async fn of_object(
        &self,
        documents: &dyn DocumentReader,
        about: &ObjectRef,
        party: &ThreadParty,
        patience: &mut AnswerPatience,
    ) -> Result<Option<Arc<SecretDigests>>, JournalError> {
        if about.uid.is_empty() {
            return Ok(Some(Arc::new(SecretDigests::hide_all())));
        }
        let newest = documents.newest_of(about).await?;
        if let Some(known) = self.objects.get(&newest) {
            return Ok(Some(known));
        }
        let Some(asking) = patience.wait_for(self.objects.look_up(&newest)).await else { return Ok(None) };
        if let Some(known) = self.objects.get(&newest) {
            return Ok(Some(known));
        }
        let party = party.for_objects_of(&about.namespace);
        let Some(turn) = patience.wait_for(self.object_turns.take(&party)).await else { return Ok(None) };
        let turn = turn.map_err(closed_error)?;
        let mut known = Vec::new();
        for seq in &newest {
            known.extend(documents.document_at(*seq).await?);
        }
        if known.is_empty() {
            let kind = (about.group.clone(), about.kind.clone());
            let is_watched = self.watched.read().unwrap_or_else(PoisonError::into_inner).contains(&kind);
            return Ok(Some(Arc::new(if is_watched {
                SecretDigests::hide_all()
            } else {
                SecretDigests::default()
            })));
        }
        let (keyed, bytes, kept) = (self.keyed_rules(), bytes_of(&known), self.objects.clone());
        let find = move || {
            let _held = (asking, turn);
            let secrets = Arc::new(keyed.secret_digests(&known)?);
            kept.keep_found(newest, secrets.clone(), secrets.searched_bytes());
            Ok::<_, RedactionError>(secrets)
        };
        let Some(found) = patience.wait_for(self.threads.run_to_end(&party, bytes, find)).await else {
            return Ok(None);
        };
        Ok(Some(found.map_err(RedactionError::from)??))
    }
}

/// The semaphore is never closed.
pub(super) fn closed_error(error: tokio::sync::AcquireError) -> RedactionError {
    WithheldDocument::from_error(error).into()
}

fn bytes_of(documents: &[Bytes]) -> usize {
    documents.iter().map(Bytes::len).sum()
}

fn bytes_of_status(status: Option<&Status>) -> usize {
    status.map_or(0, |status| status.reason.len() + status.message.len())
}

/// The state without quoted secrets; `None` if it quotes none. `is_known` tells whether the secrets are those
/// of its status and its previous status.
fn without_quotes(state: &State, secrets: &SecretDigests, is_known: (bool, bool)) -> Option<Arc<State>> {
    let hidden = |status: &Status, is_known: bool| match is_known {
        true => secrets.hidden_in(status),
        false => SecretDigests::hide_all().hidden_in(status),
    };
    let status = hidden(&state.status, is_known.0).map(Arc::new);
    let previous = state.previous.as_ref().filter(|status| SecretDigests::may_stand_in(status));
    let before = previous.and_then(|status| hidden(status, is_known.1)).map(Arc::new);
    (status.is_some() || before.is_some()).then(|| {
        Arc::new(State {
            status: status.unwrap_or_else(|| state.status.clone()),
            previous: before.or_else(|| state.previous.clone()),
            ..state.clone()
        })
    })
}
