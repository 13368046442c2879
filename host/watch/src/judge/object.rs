//! Rewrites listed objects so that their bytes equal those of watched objects.

use bytes::Bytes;
use kubewitness_core::project::ObjectEnvelope;
use kubewitness_core::state::ObjectRef;

use thiserror::Error;

use crate::connect::resource::group_version;
use crate::source::parts::SourceParts;

/// Adds kind and apiVersion to an object. Frames of a watch have them; items of a built-in kind's list do
/// not. They are inserted where the server itself puts them, so that a version has the same bytes from a list
/// and from a watch.
pub(crate) fn with_kind(item: Bytes, envelope: &ObjectEnvelope<'_>, api_version: &str, kind: &str) -> Bytes {
    if !envelope.kind.is_empty() {
        return item;
    }
    let Some(open) = memchr::memchr(b'{', &item) else { return item };
    let rest = &item[open + 1..];
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let mut head = format!("{{\"kind\":{},\"apiVersion\":{}", quoted(kind), quoted(api_version));
    if rest.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte != b'}') {
        head.push(',');
    }
    let mut whole = Vec::with_capacity(head.len() + rest.len());
    whole.extend_from_slice(head.as_bytes());
    whole.extend_from_slice(rest);
    whole.into()
}

/// The identity of an object. Group, version and kind come from the source: items of a list lack them, and an
/// id must not depend on how a version arrived.
pub(crate) fn object_reference(parts: &SourceParts, envelope: &ObjectEnvelope<'_>) -> ObjectRef {
    let (group, version) = group_version(&parts.spec.api_version);
    ObjectRef {
        group: group.to_string(),
        version: version.to_string(),
        kind: parts.spec.kind.clone(),
        namespace: envelope.namespace.to_string(),
        name: envelope.name.to_string(),
        uid: envelope.uid.to_string(),
    }
}

/// Why an object can't be one of a source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum EnvelopeFault {
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("it is of kind `{found}` and not `{expected}`")]
    OtherKind { found: String, expected: String },
}

/// Checks that an envelope has every part of an identity and is of the source's kind.
pub(crate) fn check(parts: &SourceParts, envelope: &ObjectEnvelope<'_>) -> Result<(), EnvelopeFault> {
    for (field, value) in [
        ("metadata.uid", &envelope.uid),
        ("metadata.name", &envelope.name),
        ("metadata.resourceVersion", &envelope.resource_version),
    ] {
        if value.is_empty() {
            return Err(EnvelopeFault::Missing(field));
        }
    }
    if !envelope.kind.is_empty() && envelope.kind != *parts.spec.kind {
        let (found, expected) = (envelope.kind.to_string(), parts.spec.kind.to_string());
        return Err(EnvelopeFault::OtherKind { found, expected });
    }
    Ok(())
}

/// Whether an object is in the source's scope. The controller decides instead of the server, so that an
/// object that leaves the scope does not look deleted.
pub(crate) fn matches_labels(parts: &SourceParts, envelope: &ObjectEnvelope<'_>) -> bool {
    let mut wanted = parts.spec.match_labels.iter();
    wanted.all(|(key, value)| envelope.labels.iter().any(|(k, v)| *k == **key && *v == **value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_gets_its_kind_where_a_watch_has_it() {
        let item = Bytes::from_static(br#"{"metadata":{"name":"a"}}"#);
        let whole = with_kind(item, &ObjectEnvelope::default(), "batch/v1", "Job");
        assert_eq!(&whole[..], br#"{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"a"}}"#);
        let empty = with_kind(Bytes::from_static(b"{ }"), &ObjectEnvelope::default(), "v1", "Pod");
        assert_eq!(&empty[..], br#"{"kind":"Pod","apiVersion":"v1" }"#);
    }

    #[test]
    fn an_item_that_has_its_kind_is_left_as_it_is() {
        let item = Bytes::from_static(br#"{"apiVersion":"a/v1","kind":"A"}"#);
        let envelope = ObjectEnvelope { kind: "A".into(), ..ObjectEnvelope::default() };
        assert_eq!(with_kind(item.clone(), &envelope, "a/v1", "A"), item);
    }
}
