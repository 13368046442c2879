//! Tests of the scanner, and of reading frames and pages.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::scan::find_special_byte;
use super::*;

const JOBS: &str = include_str!("../../../testdata/jobs.jsonl");

#[test]
fn a_recorded_stream_is_split_and_its_envelopes_read() {
    let frames: Vec<_> = JOBS.lines().map(|line| split_frame(line.as_bytes()).unwrap()).collect();
    assert_eq!(
        frames.iter().map(|frame| frame.kind).collect::<Vec<_>>(),
        [
            EventType::Added,
            EventType::Modified,
            EventType::Modified,
            EventType::Modified,
            EventType::Modified
        ]
    );
    for (frame, line) in frames.iter().zip(JOBS.lines()) {
        let value: Value = serde_json::from_str(line).unwrap();
        let envelope = read_envelope(frame.object).unwrap();
        let meta = &value["object"]["metadata"];
        assert_eq!(serde_json::from_slice::<Value>(frame.object).unwrap(), value["object"]);
        assert_eq!(envelope.resource_version, meta["resourceVersion"].as_str().unwrap());
        assert_eq!(envelope.uid, meta["uid"].as_str().unwrap());
        assert_eq!((&*envelope.api_version, &*envelope.kind), ("batch/v1", "Job"));
        assert_eq!(envelope.labels.len(), meta["labels"].as_object().unwrap().len());
        assert!(!envelope.deleting && envelope.owners.is_empty());
    }
}

#[test]
fn one_pass_reads_what_two_do() {
    for line in JOBS.lines().chain(include_str!("../../../testdata/pods.jsonl").lines()) {
        let two = split_frame(line.as_bytes()).unwrap();
        assert_eq!(project_frame(line.as_bytes()), Ok((two, Some(read_envelope(two.object).unwrap()))));
        let mut outline = ObjectOutline::default();
        project_into(line.as_bytes(), &mut outline).unwrap();
        let noted = |outline: &ObjectOutline| outlined(outline, two.object);
        assert!(
            outline.is_empty() || noted(&outline) == noted(&ObjectOutline::of(two.object).unwrap()),
            "{line}"
        );
    }
    let late = br#"{"object":{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}},"type":"DELETED"}"#;
    assert_eq!(project_frame(late).unwrap().1.unwrap().name, "a");
    let bookmark = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}"#;
    assert_eq!(project_frame(bookmark).unwrap().1, None);
    let nameless = br#"{"type":"ADDED","object":{"metadata":{"uid":"u","resourceVersion":"1"}}}"#;
    assert_eq!(project_frame(nameless), Err(ProjectError::Missing("metadata.name")));
    for cut in 0..late.len() {
        assert!(project_frame(&late[..cut]).is_err());
    }
}

#[test]
fn an_owner_and_a_pending_deletion_are_seen() {
    let object = br#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","uid":"u","name":"n",
        "ownerReferences":[{"controller":true,"blockOwnerDeletion":true,"uid":"o","kind":"Job","name":"j","apiVersion":"batch/v1"}],
        "resourceVersion":"7","labels":null,"namespace":null}}"#;
    let envelope = read_envelope(object).unwrap();
    assert!(envelope.deleting);
    assert_eq!(
        envelope.owners,
        [OwnerRef {
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            name: "j".into(),
            uid: "o".into(),
            controller: true
        }]
    );
    assert_eq!((&*envelope.namespace, &*envelope.kind, envelope.labels.len()), ("", "", 0));
}

#[test]
fn keys_may_come_in_any_order_with_any_space_and_escapes() {
    let line = " { \"object\" : { \"m\\u0065tadata\" : {\"name\":\"a\\u00e9\\n\\ud83d\\ude00\",\"uid\":\"u\",\r\n\t\"resourceVersion\":\"1\"}} , \"x\":[], \"type\":\"\\u0041DDED\" } \n";
    let frame = split_frame(line.as_bytes()).unwrap();
    assert_eq!(frame.kind, EventType::Added);
    assert_eq!(read_envelope(frame.object).unwrap().name, "aé\n😀");
}

#[test]
fn of_a_key_that_is_there_twice_the_first_counts() {
    let object = br#"{"kind":"A","kind":"B","metadata":{"name":"a","name":"b","uid":"u","resourceVersion":"1"},"metadata":{}}"#;
    let envelope = read_envelope(object).unwrap();
    assert_eq!((&*envelope.kind, &*envelope.name), ("A", "a"));
}

#[test]
fn what_is_missing_is_named() {
    let missing = |object: &str| read_envelope(object.as_bytes()).unwrap_err().to_string();
    assert_eq!(missing("{}"), "`metadata` is missing");
    assert_eq!(missing(r#"{"metadata":{}}"#), "`metadata.name` is missing");
    assert_eq!(missing(r#"{"metadata":{"name":"a"}}"#), "`metadata.uid` is missing");
    assert_eq!(missing(r#"{"metadata":{"name":"a","uid":"u"}}"#), "`metadata.resourceVersion` is missing");
    assert_eq!(split_frame(br#"{"type":"ADDED"}"#), Err(ProjectError::Missing("object")));
    assert_eq!(split_frame(br#"{"object":{}}"#), Err(ProjectError::Missing("type")));
    assert_eq!(
        split_frame(br#"{"type":"MOVED","object":{}}"#),
        Err(ProjectError::UnknownEvent("MOVED".into()))
    );
}

#[test]
fn a_version_that_no_journal_takes_is_refused() {
    let object = |bytes: usize| {
        format!(r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"{}"}}}}"#, "7".repeat(bytes))
    };
    assert!(read_envelope(object(VERSION_BYTES).as_bytes()).is_ok());
    let long = object(VERSION_BYTES + 1);
    assert_eq!(read_envelope(long.as_bytes()), Err(ProjectError::LongVersion));
    let line = format!(r#"{{"type":"ADDED","object":{long}}}"#);
    assert_eq!(project_frame(line.as_bytes()), Err(ProjectError::LongVersion));
}

#[test]
fn what_is_wrong_is_placed() {
    assert_eq!(split_frame(b"{\"type\":\"\xff\",\"object\":{}}"), Err(ProjectError::Utf8 { at: 9 }));
    for broken in [
        "",
        "{",
        "nul",
        "[]",
        r#"{"type":"ADDED","object":[]}"#,
        r#"{"type":"ADDED","object":{"a":1,}}"#,
        r#"{"type":"ADDED","object":{"a":01}}"#,
        r#"{"type":"ADDED","object":{"a":1.}}"#,
        r#"{"type":"ADDED","object":{"a":"\x"}}"#,
        r#"{"type":"ADDED","object":{"a":[1 2]}}"#,
        r#"{"type":"ADDED","object":{"a":[1}]}"#,
        r#"{"type":"ADDED","object":{}} x"#,
        r#"{"type":"ADDED","object":{}"#,
        "{\"type\":\"ADDED\",\"object\":{\"a\":\"\n\"}}",
        r#"{"type":7,"object":{}}"#,
    ] {
        assert!(matches!(split_frame(broken.as_bytes()), Err(ProjectError::Malformed { .. })), "{broken}");
    }
}

#[test]
fn nesting_is_bounded_where_other_readers_bound_it() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    for levels in [1, 100, 127, 128, 129, 100_000] {
        let ours = JsonScanner::new(nested(levels).as_bytes()).skip_any_value().is_ok();
        assert_eq!(ours, serde_json::from_str::<Value>(&nested(levels)).is_ok(), "{levels}");
        let object = format!(
            r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"1"}},"spec":{}}}"#,
            nested(levels)
        );
        let line = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        assert_eq!(split_frame(line.as_bytes()).is_ok(), levels <= 125, "{levels}");
        assert_eq!(project_frame(line.as_bytes()).is_ok(), levels <= 125, "{levels}");
    }
}

#[test]
fn an_item_that_is_too_deep_hides_no_other_and_one_that_a_frame_may_hold_is_none() {
    let object = |name: &str, levels: usize| {
        let nested = format!("{}\"]}}\"{}", "[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"metadata":{{"name":"{name}","uid":"u","resourceVersion":"1"}},"spec":{nested}}}"#)
    };
    let (before, fits, deep, after) =
        (object("a", 1), object("b", 125), object("c", 100_000), object("d", 2));
    let text = format!(
        r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{before},{fits},{deep},{after}],"kind":"JobList"}}"#
    );
    let page = list_page(text.as_bytes()).unwrap();
    assert_eq!(page.items, [before.as_bytes(), fits.as_bytes(), deep.as_bytes(), after.as_bytes()]);
    assert_eq!(page.kind, "JobList");
    let read = |item: &[u8]| read_envelope(item).map(|envelope| envelope.name.into_owned()).ok();
    let names: Vec<_> = page.items.iter().map(|item| read(item)).collect();
    assert_eq!(names, [Some("a".into()), Some("b".into()), None, Some("d".into())]);
    let cut = &text.as_bytes()[..text.len() / 2];
    assert!(list_page(cut).is_err());
}

#[test]
fn bookmarks_have_a_version_and_may_end_the_initial_events() {
    let plain =
        br#"{"kind":"Job","metadata":{"resourceVersion":"12","creationTimestamp":null,"annotations":null}}"#;
    let end = br#"{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"12"}}"#;
    assert_eq!(bookmark_version(plain).unwrap(), "12");
    assert_eq!((ends_initial_events(plain), ends_initial_events(end)), (Ok(false), Ok(true)));
    assert_eq!(
        bookmark_version(b"{\"metadata\":{}}"),
        Err(ProjectError::Missing("metadata.resourceVersion"))
    );
}

#[test]
fn an_error_is_read_whether_it_is_a_status_or_a_page_of_a_proxy() {
    let status = error_status(
        br#"{"kind":"Status","apiVersion":"v1","metadata":{"continue":"abc"},"status":"Failure",
        "message":"too old","reason":"Expired","details":{"retryAfterSeconds":3},"code":410}"#,
    );
    assert_eq!((status.code, &*status.reason, &*status.message), (410, "Expired", "too old"));
    assert_eq!((status.retry_after_seconds, status.continue_token.as_deref()), (Some(3), Some("abc")));
    let page = error_status(b"<html>bad gateway</html>\n");
    assert_eq!((page.code, &*page.message), (0, "<html>bad gateway</html>"));
}

#[test]
fn a_list_page_gives_its_items_as_they_came() {
    let page = list_page(br#"{"kind":"JobList","apiVersion":"batch/v1","metadata":{"resourceVersion":"9","continue":"t","remainingItemCount":1},"items":[{"a": 1} , {}]}"#).unwrap();
    assert_eq!((&*page.resource_version, &*page.continue_token, &*page.kind), ("9", "t", "JobList"));
    assert_eq!(page.items, [&b"{\"a\": 1}"[..], b"{}"]);
    let empty = list_page(br#"{"metadata":{"resourceVersion":"9"},"items":null}"#).unwrap();
    assert!(empty.items.is_empty() && empty.continue_token.is_empty());
    assert_eq!(list_page(br#"{"metadata":{"resourceVersion":"9"}}"#), Err(ProjectError::Missing("items")));
    assert_eq!(list_page(br#"{"items":[]}"#), Err(ProjectError::Missing("metadata.resourceVersion")));
}

/// Each member with the member that contains it.
fn outlined(outline: &ObjectOutline, object: &[u8]) -> Vec<(String, String, Value)> {
    let (mut top, mut members) = (String::new(), Vec::new());
    for found in outline.outlined_members(object) {
        let (key, value) = (found.key.decode().unwrap(), serde_json::from_slice(found.value).unwrap());
        match found.is_inner {
            true => members.push((top.clone(), key.into_owned(), value)),
            false => {
                top = key.into_owned();
                members.push((top.clone(), String::new(), value));
            }
        }
    }
    members
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..0x20)
}

#[test]
fn every_byte_at_every_place_is_found_or_passed() {
    for before in [b'a', 0x20, 0x21, 0x23, 0x5B, 0x5D, 0x7F, 0x80, 0xA2, 0xDC, 0xFF] {
        for length in 1..27 {
            for (place, byte) in (0..length).flat_map(|place| (0..=255).map(move |byte| (place, byte))) {
                let mut bytes = vec![before; length];
                bytes[place] = byte;
                let expected = if is_special(byte) { place } else { length };
                assert_eq!(
                    find_special_byte(&bytes, 0),
                    expected,
                    "{byte} at {place} of {length} among {before}"
                );
            }
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e300f64..1e300).prop_map(Value::from),
        ".{0,24}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(".{0,12}", inner, 0..6).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn the_next_special_byte_is_the_one_that_a_plain_search_finds(
        bytes in prop::collection::vec(prop_oneof![4 => any::<u8>(), 1 => prop::sample::select(&b"\"\\\x1f\x00\xa2\xdc"[..])], 0..80),
        from in 0usize..80,
    ) {
        let from = from.min(bytes.len());
        let expected = bytes[from..].iter().position(|byte| is_special(*byte)).map_or(bytes.len(), |at| from + at);
        prop_assert_eq!(find_special_byte(&bytes, from), expected);
    }

    #[test]
    fn what_is_known_to_be_utf_8_decodes_as_what_is_not(name in "\\PC{0,20}", cut in 0usize..40, escapes in "(\\\\u[0-9a-f]{4}|\\\\n){0,3}") {
        let text = format!("\"{name}{escapes}\"");
        for text in [&text[..], &text[..text.floor_char_boundary(cut)]] {
            let read = |mut scanner: JsonScanner<'_>| scanner.text()?.decode().map(Cow::into_owned);
            prop_assert_eq!(read(JsonScanner::of_text(text)), read(JsonScanner::new(text.as_bytes())));
        }
    }

    #[test]
    fn an_outline_has_every_member_of_the_first_two_levels(
        object in prop::collection::btree_map(".{0,4}", any_json(), 0..6),
        pretty in any::<bool>(),
    ) {
        let object = Value::Object(object.into_iter().collect());
        let text = if pretty { serde_json::to_string_pretty(&object).unwrap() } else { object.to_string() };
        let text = format!(" {text} ");
        let object: Value = serde_json::from_str(&text).unwrap();
        let mut expected = Vec::new();
        for (top, value) in object.as_object().unwrap() {
            expected.push((top.clone(), String::new(), value.clone()));
            for (key, inner) in value.as_object().into_iter().flatten() {
                expected.push((top.clone(), key.clone(), inner.clone()));
            }
        }
        let outline = ObjectOutline::of(text.as_bytes()).unwrap();
        prop_assert_eq!(outlined(&outline, text.as_bytes()), expected);
    }

    #[test]
    fn any_json_is_taken_to_its_last_byte(value in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let mut scanner = JsonScanner::new(text.as_bytes());
        prop_assert_eq!(scanner.take_value_bytes().unwrap(), text.as_bytes());
        prop_assert!(scanner.expect_end().is_ok());
    }

    #[test]
    fn any_name_and_labels_are_decoded_as_by_serde(name in ".{1,20}", labels in prop::collection::btree_map(".{0,9}", ".{0,9}", 0..5)) {
        let object = json!({"spec": {"x": [name]}, "metadata": {"labels": labels, "name": name, "uid": "u", "resourceVersion": "1"}});
        let text = object.to_string();
        let envelope = read_envelope(text.as_bytes()).unwrap();
        prop_assert_eq!(&*envelope.name, name.as_str());
        let read: std::collections::BTreeMap<String, String> =
            envelope.labels.into_iter().map(|(k, v)| (k.into_owned(), v.into_owned())).collect();
        prop_assert_eq!(read, labels);
    }

    #[test]
    fn damaged_json_is_judged_as_by_serde(line in 0usize..5, edits in prop::collection::vec((0usize..3000, any::<u8>(), 0u8..3), 1..4)) {
        let mut bytes = JOBS.lines().nth(line).unwrap().as_bytes().to_vec();
        for (at, byte, how) in edits {
            let at = at % bytes.len();
            match how {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, b"{}[]\",:\\0u"[usize::from(byte) % 10]),
            }
        }
        let mut scanner = JsonScanner::new(&bytes);
        let ours = check_utf8(&bytes).is_ok() && scanner.skip_any_value().and_then(|()| scanner.expect_end()).is_ok();
        prop_assert_eq!(ours, serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok() && std::str::from_utf8(&bytes).is_ok());
        // The results may differ, but none of these calls may panic.
        let two = split_frame(&bytes).and_then(|frame| Ok((frame, read_envelope(frame.object)?)));
        prop_assert_eq!(project_frame(&bytes).is_ok(), two.is_ok());
        let object = split_frame(&bytes).map_or(&bytes[..], |frame| frame.object);
        let results = (read_envelope(object).is_ok(), bookmark_version(object).is_ok(), list_page(object).is_ok(), error_status(object).code);
        prop_assert!(results.3 == 0);
    }
}
