//! The known version of an object when its next version arrives: from the batch in progress, or from the
//! cache.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::{PackedDocument, unpack_document};
use kubewitness_core::ports::{CurrentObject, WitnessedState};
use kubewitness_core::state::{ObjectRef, RulesPrint, Status};

use crate::cache::{ObjectKeys, RecentObject};

pub(crate) struct KnownObjects {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub version: Version,
    pub status: Arc<Status>,
    /// Its keys in the indexes, if available.
    pub keys: Option<ObjectKeys>,
    /// The rules under which its document has no secret, if it was searched.
    pub secretless_under: Option<RulesPrint>,
    held: KnownRecord,
}

enum KnownRecord {
    Plain(Bytes),
    Packed(PackedDocument),
}

impl KnownObjects {
    pub fn from_draft(
        state: &WitnessedState,
        keys: Option<&ObjectKeys>,
        secretless_under: Option<RulesPrint>,
    ) -> Self {
        Self {
            object: Arc::clone(&state.object),
            owner: state.owner.clone(),
            version: state.resource_version.clone(),
            status: Arc::clone(&state.status),
            keys: keys.cloned(),
            secretless_under,
            held: KnownRecord::Plain(state.document.clone()),
        }
    }

    pub fn from_recent(recent: &RecentObject, status: &Arc<Status>) -> Self {
        Self {
            object: Arc::clone(&recent.object),
            owner: recent.owner.clone(),
            version: recent.version.clone(),
            status: Arc::clone(status),
            keys: Some(recent.keys.clone()),
            secretless_under: recent.secretless_under,
            held: KnownRecord::Plain(recent.document.clone()),
        }
    }

    pub fn from_cached(current: CurrentObject) -> Self {
        Self {
            object: current.object,
            owner: current.owner,
            version: current.resource_version,
            status: current.status,
            keys: None,
            secretless_under: None,
            held: KnownRecord::Packed(current.packed),
        }
    }

    /// The document, as a hint for the journal's delta. An unreadable document gives no hint.
    pub fn document_hint(&self) -> Option<Bytes> {
        match &self.held {
            KnownRecord::Plain(document) => Some(document.clone()),
            KnownRecord::Packed(packed) => unpack_document(packed).ok(),
        }
    }
}
