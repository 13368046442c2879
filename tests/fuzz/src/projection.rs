//! The projection: it reads what `serde_json` reads, from the same bytes, and cuts objects out
//! without changing one of them.
//!
//! Of a key that is there twice the first counts that is not empty. `serde_json` takes the last,
//! so the expected envelope is made of a tree that keeps them all.

use std::sync::LazyLock;

use kubewitness_core::project::{self, EventType, ListPage, ObjectEnvelope, OwnerRef};
use kubewitness_core::status::{PHASES, StatusRules};
use serde::de::IgnoredAny;

use crate::tree::JsonTree;

static RULES: LazyLock<StatusRules> = LazyLock::new(StatusRules::builtin);

/// Kinds with a rule of their own, and one without.
const KINDS: [(&str, &str); 3] = [("batch", "Job"), ("", "Pod"), ("example.dev", "Widget")];

/// The input is taken as each of the things that a server sends.
pub fn check(input: &[u8]) {
    let text = std::str::from_utf8(input).ok();
    let grammatical = text.is_some_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    // Beyond grammar: every string has a meaning, every number a value.
    let tree = if grammatical { JsonTree::parse(input) } else { None };
    watched(input, grammatical, tree.as_ref());
    listed(input, grammatical, tree.as_ref());
    alone(input, tree.as_ref());
}

/// As a line of a watch.
fn watched(input: &[u8], grammatical: bool, tree: Option<&JsonTree>) {
    let one = project::project_frame(input);
    let frame = project::split_frame(input);
    let two = frame.clone().and_then(|frame| {
        let has_envelope = matches!(frame.kind, EventType::Added | EventType::Modified | EventType::Deleted);
        let envelope = if has_envelope { Some(project::read_envelope(frame.object)?) } else { None };
        Ok((frame, envelope))
    });
    assert_eq!(one.clone().ok(), two.ok(), "one pass reads what two do");
    if let Ok(frame) = &frame {
        assert!(grammatical, "no JSON is a frame");
        assert!(lies_within(input, frame.object));
    }
    let Some(tree) = tree else { return };
    let expected = expected_event(tree);
    assert_eq!(frame.as_ref().ok().map(|frame| frame.kind), expected.map(|(kind, _)| kind));
    let (Ok(frame), Some((_, object))) = (frame, expected) else {
        assert!(one.is_err());
        return;
    };
    assert_eq!(JsonTree::parse(frame.object).as_ref(), Some(object), "the object is cut out as it came");
    if let Ok((_, Some(envelope))) = one {
        assert_eq!(Some(&envelope), expected_envelope(object).as_ref());
    }
    alone(frame.object, Some(object));
}

/// As an answer to a list.
fn listed(input: &[u8], grammatical: bool, tree: Option<&JsonTree>) {
    let page = project::list_page(input);
    if let Ok(page) = &page {
        assert!(grammatical, "no JSON is a page");
        let mut end = input.as_ptr() as usize;
        for item in &page.items {
            assert!(lies_within(input, item) && item.as_ptr() as usize >= end, "items come in order");
            end = item.as_ptr_range().end as usize;
        }
    }
    let Some(tree) = tree else { return };
    let expected = expected_page(tree);
    assert_eq!(page.is_ok(), expected.is_some());
    let (Ok(page), Some((head, items))) = (page, expected) else { return };
    let found: Vec<_> = page.items.iter().filter_map(|item| JsonTree::parse(item)).collect();
    assert_eq!(found, items, "each item is cut out as it came");
    // How many are left is a hint: read where it is a whole number, and never made up.
    if let Some(remaining) = page.remaining {
        let said = |metadata: JsonTree| {
            metadata.all("remainingItemCount").any(|n| *n == JsonTree::Number(remaining as f64))
        };
        assert!(metadata(tree).is_some_and(said), "nobody said {remaining}");
    }
    assert_eq!(ListPage { items: Vec::new(), remaining: None, ..page }, head);
}

/// As an object: of a frame, of a list, a bookmark, an error.
fn alone(input: &[u8], tree: Option<&JsonTree>) {
    let envelope = project::read_envelope(input).ok();
    let version = project::bookmark_version(input).ok();
    let ends = project::ends_initial_events(input);
    let error = project::error_status(input);
    for (group, kind) in KINDS {
        let status = RULES.status_of(group, kind, input);
        assert!(PHASES.contains(&&*status.phase), "{status:?}");
        assert!(status.reason.len() <= 256 && status.message.len() <= 1024, "texts are bounded");
        assert_eq!(status, RULES.status_of(group, kind, input), "a status is a pure function");
    }
    let Some(tree) = tree else { return };
    assert_eq!(envelope, expected_envelope(tree));
    assert_eq!(version.as_deref(), expected_version(tree).as_deref());
    assert_eq!(ends.ok(), expected_end(tree));
    if !tree.all("kind").any(|kind| *kind == JsonTree::Text("Status".into())) {
        assert_eq!((error.code, &*error.reason), (0, ""));
    }
}

fn lies_within(whole: &[u8], part: &[u8]) -> bool {
    let (whole, part) = (whole.as_ptr_range(), part.as_ptr_range());
    whole.start <= part.start && part.end <= whole.end
}

fn expected_event(line: &JsonTree) -> Option<(EventType, &JsonTree)> {
    let kind = match line.all("type").next()? {
        JsonTree::Text(kind) => match kind.as_str() {
            "ADDED" => EventType::Added,
            "MODIFIED" => EventType::Modified,
            "DELETED" => EventType::Deleted,
            "BOOKMARK" => EventType::Bookmark,
            "ERROR" => EventType::Error,
            _ => return None,
        },
        _ => return None,
    };
    line.all("object").next().filter(|object| object.members().is_some()).map(|object| (kind, object))
}

/// A string, or nothing where it is null; `None` where it is anything else.
fn text(value: &JsonTree) -> Option<String> {
    match value {
        JsonTree::Null => Some(String::new()),
        JsonTree::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// The first text that is not empty. Every one of them must be a text.
fn field(of: &JsonTree, key: &str) -> Option<String> {
    let texts: Vec<String> = of.all(key).map(text).collect::<Option<_>>()?;
    Some(texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default())
}

fn expected_envelope(object: &JsonTree) -> Option<ObjectEnvelope<'static>> {
    object.members()?;
    let top = |key| object.all(key).next().map_or(Some(String::new()), text);
    let mut envelope = ObjectEnvelope {
        kind: top("kind")?.into(),
        api_version: top("apiVersion")?.into(),
        ..ObjectEnvelope::default()
    };
    let metadata = object.all("metadata").next().filter(|metadata| **metadata != JsonTree::Null)?;
    metadata.members()?;
    envelope.name = field(metadata, "name")?.into();
    envelope.namespace = field(metadata, "namespace")?.into();
    envelope.uid = field(metadata, "uid")?.into();
    envelope.resource_version = field(metadata, "resourceVersion")?.into();
    envelope.deleting = !field(metadata, "deletionTimestamp")?.is_empty();
    for labels in metadata.all("labels") {
        if *labels == JsonTree::Null || !envelope.labels.is_empty() {
            continue;
        }
        for (key, value) in labels.members()? {
            envelope.labels.push((key.clone().into(), text(value)?.into()));
        }
    }
    for owners in metadata.all("ownerReferences") {
        if *owners == JsonTree::Null || !envelope.owners.is_empty() {
            continue;
        }
        let JsonTree::List(owners) = owners else { return None };
        envelope.owners = owners.iter().map(expected_owner).collect::<Option<_>>()?;
    }
    let complete =
        !envelope.name.is_empty() && !envelope.uid.is_empty() && !envelope.resource_version.is_empty();
    complete.then_some(envelope)
}

fn expected_owner(owner: &JsonTree) -> Option<OwnerRef<'static>> {
    owner.members()?;
    Some(OwnerRef {
        api_version: field(owner, "apiVersion")?.into(),
        kind: field(owner, "kind")?.into(),
        name: field(owner, "name")?.into(),
        uid: field(owner, "uid")?.into(),
        controller: owner.all("controller").any(|controller| *controller == JsonTree::Bool(true)),
    })
}

/// The one object that all metadata of an object are together.
fn metadata(object: &JsonTree) -> Option<JsonTree> {
    object.members()?;
    let mut members = Vec::new();
    for metadata in object.all("metadata").filter(|metadata| **metadata != JsonTree::Null) {
        members.extend(metadata.members()?.iter().cloned());
    }
    Some(JsonTree::Object(members))
}

fn expected_version(object: &JsonTree) -> Option<String> {
    field(&metadata(object)?, "resourceVersion").filter(|version| !version.is_empty())
}

fn expected_end(object: &JsonTree) -> Option<bool> {
    let metadata = metadata(object)?;
    let mut ends = false;
    for annotations in metadata.all("annotations").filter(|annotations| **annotations != JsonTree::Null) {
        annotations.members()?;
        for value in annotations.all("k8s.io/initial-events-end") {
            ends |= text(value)? == "true";
        }
    }
    Some(ends)
}

fn expected_page(page: &JsonTree) -> Option<(ListPage<'static>, Vec<JsonTree>)> {
    let metadata = metadata(page)?;
    let head = ListPage {
        resource_version: field(&metadata, "resourceVersion")?.into(),
        continue_token: field(&metadata, "continue")?.into(),
        api_version: field(page, "apiVersion")?.into(),
        kind: field(page, "kind")?.into(),
        remaining: None,
        items: Vec::new(),
    };
    let items = match page.all("items").next()? {
        JsonTree::Null => Vec::new(),
        JsonTree::List(items) => items.clone(),
        _ => return None,
    };
    (!head.resource_version.is_empty()).then_some((head, items))
}
