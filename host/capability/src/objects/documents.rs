//! `documents`: reads the documents of the states in the call in progress, and no others.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::ports::{DocumentReader, GrantError, JournalError, ShownState};
use kubewitness_core::{Change, Seq, State};

use super::subscribed::SubscribedKinds;
use crate::receipts::ReceiptMark;
use crate::secrets::redaction::RedactedDocuments;

/// The states of one call, by position.
pub type CallBatch = HashMap<Seq, ReceiptMark>;

pub async fn document_at(
    documents: &dyn DocumentReader,
    batch: &CallBatch,
    seq: Seq,
) -> Result<Option<Bytes>, GrantError> {
    check_belongs(batch, seq)?;
    documents.document_at(seq).await.map_err(|error| refusal_of(&error))
}

pub async fn document_before(
    documents: &dyn DocumentReader,
    batch: &CallBatch,
    seq: Seq,
) -> Result<Option<Bytes>, GrantError> {
    check_belongs(batch, seq)?;
    documents.document_before(seq).await.map_err(|error| refusal_of(&error))
}

/// A state as the plugin may see it.
pub async fn show_state(
    raw: &dyn DocumentReader,
    redacted: Option<&RedactedDocuments>,
    has_digest: bool,
    subscribed: &SubscribedKinds,
    state: &Arc<State>,
) -> Result<ShownState, GrantError> {
    let shown = match redacted {
        Some(RedactedDocuments { redaction, party, .. }) => {
            redaction.redact_state(raw, state, party).await.map_err(|error| refusal_of(&error))?
        }
        None => state.clone(),
    };
    let document = match has_digest && state.change != Change::Gap {
        true => raw.document_at(state.seq).await.map_err(|error| refusal_of(&error))?,
        false => None,
    };
    let digest = |document: Bytes| hex::encode(ring::digest::digest(&ring::digest::SHA256, &document));
    let has_subscribed_owner = !state.owner.as_deref().is_some_and(|owner| subscribed.leaves_out(owner));
    Ok(ShownState { state: shown, document_digest: document.map(digest), has_subscribed_owner })
}

fn check_belongs(batch: &CallBatch, seq: Seq) -> Result<(), GrantError> {
    if batch.contains_key(&seq) {
        return Ok(());
    }
    Err(GrantError::Invalid(format!("state {seq} is not one of this call's")))
}

/// A journal's message may contain file names, so a plugin gets only what it can act on.
pub(super) fn refusal_of(error: &JournalError) -> GrantError {
    tracing::warn!(%error, "a document could not be read for a plugin");
    match error {
        JournalError::Unavailable(_) => GrantError::Unavailable("the document can't be read now".into()),
        JournalError::Fatal(_) | JournalError::Invalid(_) | JournalError::Overtaken(_) => {
            GrantError::Other("the document can't be read".into())
        }
    }
}
