//! Looks up one object: whether the server has it now, and whether the journal has its end. It decides
//! nothing.

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::ports::FormerEnd;
use kubewitness_core::project;
use kubewitness_core::state::ObjectRef;

use crate::connect::request::RequestFailure;
use crate::connect::resource::SourceResource;
use crate::judge::meaning::is_upto;
use crate::source::parts::SourceParts;

/// The version up to which a missing object is known: the one at which it left the selector.
pub(crate) fn left_at(parts: &SourceParts, fate: &FormerEnd, version: &Version) -> Version {
    match fate {
        // Without a selector no object leaves it.
        FormerEnd::Left(left) if !parts.spec.match_labels.is_empty() && !is_upto(version, left) => {
            left.clone()
        }
        _ => version.first_of_history(),
    }
}

/// The witnessed end of an object.
pub(crate) async fn end_of_former(parts: &SourceParts, epoch: u32, uid: &str) -> FormerEnd {
    let fate = parts.witness.end_of_former(&parts.spec.name, epoch, uid).await;
    // If the journal can't be read, the history is sent again, with the same states.
    fate.unwrap_or_else(|error| {
        tracing::debug!(source = %parts.spec.name, uid, "the journal can't say how the object ended: {error}");
        FormerEnd::Unknown
    })
}

/// Checks a listed object that is not known. If its end was witnessed, the history is another one.
pub(crate) async fn fate_now(parts: &SourceParts, object: &ObjectRef) -> FormerEnd {
    let epoch = parts.shared.lock_live().epoch;
    end_of_former(parts, epoch, &object.uid).await
}

pub(crate) fn report_revived(parts: &SourceParts, object: &ObjectRef) {
    let (source, ObjectRef { namespace, name, uid, .. }) = (&parts.spec.name, object);
    tracing::warn!(%source, %namespace, %name, %uid, "an object exists although its end was witnessed");
}

/// Asks for an object by name, because a list had unreadable items, or to be certain.
pub(crate) async fn is_absent(
    parts: &SourceParts,
    resource: &SourceResource,
    object: &ObjectRef,
) -> Result<bool, RequestFailure> {
    let now = fetch_current(parts, resource, object).await?;
    Ok(now.is_none_or(|now| project::read_envelope(&now).is_ok_and(|found| found.uid != *object.uid)))
}

/// The object that has a name now.
pub(crate) async fn fetch_current(
    parts: &SourceParts,
    resource: &SourceResource,
    object: &ObjectRef,
) -> Result<Option<Bytes>, RequestFailure> {
    let collection = resource.collection_of(&object.namespace);
    parts.repairs.await_turn(&parts.tuning.walk).await;
    match parts.api.get(collection.with_member(&object.name).as_str()).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(failure) if failure.status_code() == Some(404) => Ok(None),
        Err(failure) => Err(failure),
    }
}
