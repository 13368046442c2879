//! Documents as values: JSON Pointers into them, and merge patches between them.
//!
//! Most questions concern a small part of a document, and most of a version is as in the version before. So a document
//! is scanned, and only the part in question becomes values. The answer is that of a document that was parsed whole:
//! the scan leaves what it can't read to the parser, with its errors.
//!
//! The merge patch is computed here: the crate `json-patch`, which kube brings, only applies such patches.

mod scan;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use self::scan::RawMembers;
use crate::bindings::types::Error;

pub fn parse(bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Invalid(format!("the document is not JSON: {error}")))
}

/// The levels of objects that a patch scans. Each level is scanned again from the one above it, so below them the parser
/// does the rest. It refuses more than 127 levels.
const SCANNED_LEVELS: u32 = 8;
/// The tokens of a pointer that are held while a document is scanned.
const SCANNED_TOKENS: usize = 128;

pub fn is_pointer(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// The value at a pointer, as text; `None` if the document has none there.
pub fn value_text(document: &[u8], pointer: &str) -> Result<Option<String>, Error> {
    let is_short =
        !pointer.is_empty() && pointer.bytes().filter(|byte| *byte == b'/').count() <= SCANNED_TOKENS;
    let scanned = scan::scannable_text(document).filter(|_| is_short);
    match scanned.and_then(|text| scan::find_value(text, pointer).ok()) {
        Some(found) => found.map(|raw| Ok(parse(raw.get().as_bytes())?.to_string())).transpose(),
        None => Ok(parse(document)?.pointer(pointer).map(ToString::to_string)),
    }
}

/// The patch that turns `before` into `after`, as text. RFC 7386 defines it: the differences, with null for removed
/// members. (A new null can't be distinguished from a removal; the API server stores none.)
pub fn patch_text(before: &[u8], after: &[u8]) -> Result<String, Error> {
    let scanned = scan::scannable_text(before).zip(scan::scannable_text(after));
    if let Some((before, after)) = scanned
        && let Ok((before, after)) =
            scan::members_of(before).and_then(|old| Ok((old, scan::members_of(after)?)))
        && let Ok(patch) = patch_of_members(&before, &after, SCANNED_LEVELS)
    {
        return Ok(Value::Object(patch).to_string());
    }
    Ok(merge_patch(&parse(before)?, &parse(after)?).to_string())
}

fn merge_patch(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return after.clone() };
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in after {
        match before.get(key) {
            Some(old) if old == value => {}
            Some(old) => {
                patch.insert(key.clone(), merge_patch(old, value));
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

/// The same for objects that were only scanned, as many levels below these included. Of equal texts nothing is parsed.
fn patch_of_members(
    before: &RawMembers<'_>,
    after: &RawMembers<'_>,
    levels: u32,
) -> serde_json::Result<Map<String, Value>> {
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.to_string(), Value::Null);
    }
    for (key, value) in after {
        let changed = match before.get(key) {
            Some(old) => changed_value(old, value, levels)?,
            None => Some(serde_json::from_str(value.get())?),
        };
        if let Some(changed) = changed {
            patch.insert(key.to_string(), changed);
        }
    }
    Ok(patch)
}

/// `None` if both are the same value.
fn changed_value(before: &RawValue, after: &RawValue, levels: u32) -> serde_json::Result<Option<Value>> {
    if before.get() == after.get() {
        return Ok(None);
    }
    let are_objects = [before, after].iter().all(|raw| raw.get().starts_with('{'));
    if are_objects && levels > 0 {
        // Objects differ if the patch between them is not empty.
        let (before, after) = (scan::members_of(before.get())?, scan::members_of(after.get())?);
        let patch = patch_of_members(&before, &after, levels - 1)?;
        return Ok((!patch.is_empty()).then_some(Value::Object(patch)));
    }
    let [before, after]: [Value; 2] =
        [serde_json::from_str(before.get())?, serde_json::from_str(after.get())?];
    Ok((before != after).then(|| merge_patch(&before, &after)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(target: Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else { return patch.clone() };
        let mut target = if let Value::Object(target) = target { target } else { Map::new() };
        for (key, value) in patch {
            let old = target.remove(key);
            if !value.is_null() {
                target.insert(key.clone(), apply(old.unwrap_or(Value::Null), value));
            }
        }
        Value::Object(target)
    }

    #[test]
    fn a_patch_holds_what_changed_and_nothing_else() {
        let before = json!({"spec": {"a": 1, "b": [1, 2]}, "status": {"phase": "Pending"}, "old": true});
        let after = json!({"spec": {"a": 1, "b": [1]}, "status": {"phase": "Running"}});
        let patch = merge_patch(&before, &after);
        assert_eq!(patch, json!({"spec": {"b": [1]}, "status": {"phase": "Running"}, "old": null}));
        assert_eq!(apply(before, &patch), after);
        assert_eq!(merge_patch(&after, &after), json!({}));
    }

    #[test]
    fn an_object_in_the_place_of_a_value_is_taken_whole() {
        let (before, after) = (json!({"a": 1}), json!({"a": {"b": {"c": 2}}}));
        assert_eq!(apply(before.clone(), &merge_patch(&before, &after)), after);
    }

    #[test]
    fn a_deep_document_is_refused_and_a_long_pointer_finds_nothing() {
        let deep = |levels: usize, end: u32| {
            format!("{}{end}{}", r#"{"a":"#.repeat(levels), "}".repeat(levels)).into_bytes()
        };
        let patch = patch_text(&deep(100, 1), &deep(100, 2)).unwrap();
        assert_eq!(patch.as_bytes(), deep(100, 2));
        // So deep that one call for each level would overflow the stack.
        assert!(patch_text(&deep(100_000, 1), &deep(100_000, 2)).is_err());
        assert_eq!(value_text(&deep(3, 7), &"/a".repeat(3)).unwrap().as_deref(), Some("7"));
        assert_eq!(value_text(&deep(3, 7), &"/a".repeat(1_000_000)).unwrap(), None);
    }

    #[test]
    fn a_key_that_the_parser_takes_for_its_own_mark_is_left_to_it() {
        let marked =
            |value: &str| format!(r#"{{"m":{{"$serde_json::private::RawValue":"{value}"}}}}"#).into_bytes();
        let parsed = merge_patch(&parse(&marked("1")).unwrap(), &parse(&marked("2")).unwrap()).to_string();
        assert_eq!(patch_text(&marked("1"), &marked("2")).unwrap(), parsed);
    }

    /// Documents whose parts are equal, differ in form alone, or can't be read.
    fn documents() -> Vec<String> {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
        let mut documents: Vec<String> = [
            r#"{"a":1,"b":{"c":[1,2,{"d":"x"}],"e":null},"f/g":{"~":"y"},"":2}"#,
            r#"{ "a" : 1.0, "b":{"c":[1,2,{"d":"x"}],"e":{}}, "f/g":{"~":"z"}, "h":true}"#,
            r#"{"b":{"e":null,"c":[1,2,{"\u0064":"\u0078"}]},"a":1,"a":2,"f\/g":{"~":"y"},"":2}"#,
            r#"{"a":"\ud83d\ude00 \n\"","b":[],"f/g":"text"}"#,
            r#"{"a":"\ud83d","b":[]}"#,
            r#"{"a":1e999,"b":[]}"#,
            r#"{"a":1,"b":[1,]}"#,
            r#"{"a":1} x"#,
            r#"{"a":01}"#,
            r#"[1,{"a":2}]"#,
            r#""text""#,
            "12",
            "",
            "{}",
            "{",
        ]
        .map(str::to_owned)
        .into();
        documents.push(deep);
        documents
    }

    #[test]
    fn a_patch_of_scanned_documents_is_that_of_parsed_ones() {
        for before in documents() {
            for after in documents() {
                let [one, other] = [before.as_bytes(), after.as_bytes()];
                let parsed = parse(one).and_then(|one| Ok(merge_patch(&one, &parse(other)?).to_string()));
                match (patch_text(one, other), parsed) {
                    (Ok(scanned), Ok(parsed)) => assert_eq!(scanned, parsed, "{before} {after}"),
                    (Err(_), Err(_)) => {}
                    // A number or a depth that no parser holds does not matter where nothing becomes a value.
                    (scanned, _) => {
                        let is_held = |document: &str| !document.contains("1e999") && document.len() < 1000;
                        assert!(
                            scanned.is_ok() && !(is_held(&before) && is_held(&after)),
                            "{before} {after}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_value_of_a_scanned_document_is_that_of_a_parsed_one() {
        let pointers = [
            "",
            "/",
            "/a",
            "/b/c/2/d",
            "/b/c/02",
            "/b/c/+1",
            "/b/e",
            "/f~1g/~0",
            "/a/b",
            "/nowhere/x",
            "/0",
            "/1/a",
        ];
        for document in documents() {
            let bytes = document.as_bytes();
            let Ok(parsed) = parse(bytes) else { continue };
            for pointer in pointers {
                let expected = parsed.pointer(pointer).map(ToString::to_string);
                assert_eq!(value_text(bytes, pointer).unwrap(), expected, "{pointer} of {document}");
            }
        }
        assert!(value_text(br#"{"a":1,"b":"\ud83d"}"#, "/a").is_err());
        assert!(value_text(br#"{"a":1} x"#, "/a").is_err());
        assert!(value_text(b"{\"a\":1,\"b\":\"\xff\"}", "/a").is_err());
    }
}
