//! Encodes one version of one object: its identity, the fields for selectors, and the serialized rest.
//!
//! The text of an object is `{"kind":…,"apiVersion":…,"metadata":{"resourceVersion":"` + version + tail. Only
//! the tail is stored. So a version is never serialized again when it is committed, listed, watched, or sent
//! under a later version (after a deletion, or when it leaves a selector).

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::apiserver::kinds::ServedKind;

/// The text before the version in every object.
pub const BEFORE_VERSION: &str = "\"metadata\":{\"resourceVersion\":\"";

pub type Pairs = Arc<[(Box<str>, Box<str>)]>;

/// An object to write: everything except its version.
#[derive(Debug, Clone)]
pub struct ObjectDraft {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub tail: Bytes,
    pub labels: Pairs,
    /// The fields that selectors of this kind may use.
    pub fields: Pairs,
    /// The uids of its owners.
    pub owners: Arc<[Arc<str>]>,
}

/// One version of one object. A deletion has the last content.
#[derive(Debug, Clone)]
pub struct VersionRecord {
    pub version: u64,
    pub deleted: bool,
    pub draft: ObjectDraft,
}

impl std::ops::Deref for VersionRecord {
    type Target = ObjectDraft;

    fn deref(&self) -> &ObjectDraft {
        &self.draft
    }
}

impl ObjectDraft {
    /// Splits an object. `fields` are the paths that selectors of its kind may use.
    pub fn new(object: &Map<String, Value>, fields: &[String]) -> Self {
        let metadata = object.get("metadata").and_then(Value::as_object);
        let text = |key: &str| -> Arc<str> {
            metadata.and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default().into()
        };
        ObjectDraft {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            tail: tail(object),
            labels: pairs(metadata.and_then(|m| m.get("labels"))),
            fields: select_fields(object, fields),
            owners: owners(metadata.and_then(|m| m.get("ownerReferences"))),
        }
    }

    /// The key among the objects of its kind.
    pub fn key(&self) -> String {
        key(&self.namespace, &self.name)
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        find(&self.labels, name)
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        match name {
            "metadata.name" => Some(&self.name),
            "metadata.namespace" => Some(&self.namespace),
            other => find(&self.fields, other),
        }
    }
}

impl VersionRecord {
    /// The whole object as a value.
    pub fn to_value(&self, kind: &ServedKind) -> Value {
        let mut text = Vec::with_capacity(self.tail.len() + 128);
        write_object(&mut text, &type_prefix(kind), &self.version.to_string(), &self.tail);
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }
}

pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// `"kind":"Job","apiVersion":"batch/v1",`
pub fn type_prefix(kind: &ServedKind) -> String {
    format!("\"kind\":\"{}\",\"apiVersion\":\"{}\",", kind.kind, kind.api_version())
}

/// Appends the object; `prefix` is empty or a [`type_prefix`].
pub fn write_object(out: &mut Vec<u8>, prefix: &str, version: &str, tail: &[u8]) {
    out.push(b'{');
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(BEFORE_VERSION.as_bytes());
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(tail);
}

fn tail(object: &Map<String, Value>) -> Bytes {
    let mut out = vec![b'"'];
    if let Some(metadata) = object.get("metadata").and_then(Value::as_object) {
        for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
            write_member(&mut out, key, value);
        }
    }
    out.push(b'}');
    for (key, value) in object {
        if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
            write_member(&mut out, key, value);
        }
    }
    out.push(b'}');
    Bytes::from(out)
}

fn write_member(out: &mut Vec<u8>, key: &str, value: &Value) {
    out.push(b',');
    out.extend_from_slice(Value::from(key).to_string().as_bytes());
    out.push(b':');
    // A value in memory can always be written as text, and a vector accepts it.
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.extend_from_slice(b"null");
    }
}

fn pairs(map: Option<&Value>) -> Pairs {
    let Some(Value::Object(map)) = map else { return Arc::new([]) };
    map.iter().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into()))).collect()
}

fn owners(references: Option<&Value>) -> Arc<[Arc<str>]> {
    let Some(Value::Array(references)) = references else { return Arc::new([]) };
    references.iter().filter_map(|r| r.get("uid")?.as_str().map(Arc::from)).collect()
}

fn select_fields(object: &Map<String, Value>, fields: &[String]) -> Pairs {
    fields
        .iter()
        .filter_map(|path| {
            let mut steps =
                crate::apiserver::kinds::fields::place(path).split('.').filter(|step| !step.is_empty());
            let mut value = object.get(steps.next()?)?;
            for step in steps {
                value = value.get(step)?;
            }
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Null => return None,
                other => other.to_string(),
            };
            Some((path.as_str().into(), text.into()))
        })
        .collect()
}

fn find<'a>(pairs: &'a Pairs, name: &str) -> Option<&'a str> {
    pairs.iter().find(|(k, _)| **k == *name).map(|(_, v)| v.as_ref())
}
