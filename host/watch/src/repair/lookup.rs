//! What becomes of one object: whether the server has it now, and whether the journal has its end.
//! Decides nothing.

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::ports::Fate;
use kubewitness_core::project;
use kubewitness_core::state::ObjectRef;

use crate::connect::request::Failure;
use crate::connect::resource::Resource;
use crate::judge::meaning::is_upto;
use crate::source::parts::Parts;

/// Up to where an object that isn't there by what was witnessed is known: to where it left the
/// selector.
pub(crate) fn left_at(parts: &Parts, fate: &Fate, version: &Version) -> Version {
    match fate {
        // Without a selector nobody leaves.
        Fate::Left(left) if !parts.spec.match_labels.is_empty() && !is_upto(version, left) => left.clone(),
        _ => version.beginning(),
    }
}

/// How what was witnessed of an object ends.
pub(crate) async fn fate(parts: &Parts, epoch: u32, uid: &str) -> Fate {
    let fate = parts.witness.fate(&parts.spec.name, epoch, uid).await;
    // Where it can't be asked, it is told again: that is the same states.
    fate.unwrap_or_else(|error| {
        tracing::debug!(source = %parts.spec.name, uid, "asked in vain what was witnessed of it: {error}");
        Fate::Unknown
    })
}

/// The same of one who is listed and isn't known. Nobody comes back: an end says that the history is
/// another one.
pub(crate) async fn fate_now(parts: &Parts, object: &ObjectRef) -> Fate {
    let epoch = parts.shared.live().epoch;
    fate(parts, epoch, &object.uid).await
}

pub(crate) fn say_revived(parts: &Parts, object: &ObjectRef) {
    let (source, ObjectRef { namespace, name, uid, .. }) = (&parts.spec.name, object);
    tracing::warn!(%source, %namespace, %name, %uid, "it is there, though its end was witnessed");
}

/// Asked for by name: because a list had items that could not be read, or to be sure.
pub(crate) async fn is_absent(
    parts: &Parts,
    resource: &Resource,
    object: &ObjectRef,
) -> Result<bool, Failure> {
    let now = fetch(parts, resource, object).await?;
    Ok(now.is_none_or(|now| project::envelope(&now).is_ok_and(|found| found.uid != *object.uid)))
}

/// Who has a name now.
pub(crate) async fn fetch(
    parts: &Parts,
    resource: &Resource,
    object: &ObjectRef,
) -> Result<Option<Bytes>, Failure> {
    let collection = resource.collection_of(&object.namespace);
    match parts.api.get(collection.member(&object.name).as_str()).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(failure) if failure.code() == Some(404) => Ok(None),
        Err(failure) => Err(failure),
    }
}
