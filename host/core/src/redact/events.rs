//! Redacts the texts of an Event, which may quote a secret of the object that it is about.

use std::ops::Range;

use super::quoted::{add_places, merge};
use super::{RedactionRules, SecretDigests, WithheldDocument, replace_secrets};
use crate::events;
use crate::project::{JsonScanner, ProjectError, ScanFlow};
use crate::state::ObjectRef;

/// The free-text members of an Event, in both forms of an Event.
const TEXTS: [&[u8]; 4] = [b"message", b"note", b"reason", b"action"];

/// The object that an Event is about, with an empty uid if the Event has none. `None` if the document is not
/// an Event. The API server ensures that a namespaced object is in the Event's namespace.
pub fn event_subject(document: &[u8]) -> Option<ObjectRef> {
    let may_be = [&b"involvedObject"[..], b"regarding"]
        .iter()
        .any(|key| memchr::memmem::find(document, key).is_some());
    let text = may_be.then(|| std::str::from_utf8(document).ok())??;
    let parts = event_parts(text).ok().filter(|parts| parts.is_event)?;
    let about = events::event_subject(document).unwrap_or_default();
    let namespace = if about.namespace.is_empty() { String::new() } else { parts.namespace };
    Some(ObjectRef { namespace, ..about })
}

impl RedactionRules {
    /// [`Self::redact_document`] for an Event. It also replaces each secret of the object that the Event is about.
    pub fn redact_event(
        &self,
        event: &[u8],
        of_object: &SecretDigests,
        digest: impl Fn(&[u8]) -> String,
    ) -> Result<Option<Vec<u8>>, WithheldDocument> {
        let mut found = self.find(event)?;
        let text = std::str::from_utf8(event).map_err(WithheldDocument::from_error)?;
        let sought = of_object.sought_words();
        for range in event_parts(text)?.texts {
            add_places(text, range, |_| false, |text| of_object.quoted_ranges(&sought, text), &mut found);
        }
        merge(&mut found);
        Ok(replace_secrets(event, found, digest))
    }
}

#[derive(Default)]
struct EventParts {
    is_event: bool,
    namespace: String,
    texts: Vec<Range<usize>>,
}

fn event_parts(event: &str) -> Result<EventParts, ProjectError> {
    let (mut parts, mut is_another) = (EventParts::default(), false);
    let mut scanner = JsonScanner::of_text(event);
    scanner.for_each_member(|key, scanner| {
        let start = scanner.start();
        if key.equals_bytes(b"metadata") && scanner.peek_byte() == b'{' {
            parts.read_metadata(scanner)?;
            return Ok(ScanFlow::Next);
        }
        let value = scanner.take_value_bytes()?;
        parts.is_event |= key.equals_bytes(b"involvedObject") || key.equals_bytes(b"regarding");
        // Lists of the API server omit it.
        is_another |= key.equals_bytes(b"kind") && value != b"\"Event\"";
        if TEXTS.iter().any(|name| key.equals_bytes(name)) {
            parts.texts.push(start..scanner.position());
        }
        Ok(ScanFlow::Next)
    })?;
    parts.is_event &= !is_another;
    Ok(parts)
}

impl EventParts {
    fn read_metadata(&mut self, scanner: &mut JsonScanner<'_>) -> Result<(), ProjectError> {
        scanner.for_each_member(|key, scanner| {
            let start = scanner.start();
            if key.equals_bytes(b"namespace") && scanner.peek_byte() == b'"' {
                self.namespace = scanner.text()?.decode()?.into_owned();
                return Ok(ScanFlow::Next);
            }
            scanner.skip_any_value()?;
            if key.equals_bytes(b"annotations") {
                self.texts.push(start..scanner.position());
            }
            Ok(ScanFlow::Next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostSpec;

    const JOB: &str = r#"{"kind":"Job","env":[{"name":"TOKEN","value":"hush-4711"}]}"#;

    fn event(member: &str) -> String {
        format!(
            r#"{{"kind":"Event","metadata":{{"name":"hush-4711.1","namespace":"team","annotations":{{"said":"hush-4711"}}}},
            "involvedObject":{{"kind":"Job","name":"hush-4711","uid":"u"}},{member}}}"#
        )
    }

    fn shown(event: &str, of_object: &SecretDigests) -> String {
        let rules = HostSpec::default().compile_redaction_rules().unwrap();
        let shown = rules.redact_event(event.as_bytes(), of_object, |value| value.len().to_string()).unwrap();
        shown.map_or_else(|| event.to_owned(), |shown| String::from_utf8(shown).unwrap())
    }

    fn of(object: &str) -> SecretDigests {
        let mut secrets = SecretDigests::default();
        let digest = |value: &[u8]| Ok::<_, WithheldDocument>(value.len().to_string());
        HostSpec::default()
            .compile_redaction_rules()
            .unwrap()
            .add_secrets(object.as_bytes(), digest, &mut secrets)
            .unwrap();
        secrets
    }

    #[test]
    fn every_text_of_an_event_loses_the_secrets_of_its_object_and_names_stay() {
        for member in ["message", "note", "reason", "action"] {
            let shown = shown(&event(&format!(r#""{member}":"no \"hush-4711\" here""#)), &of(JOB));
            assert!(shown.contains(&format!(r#""{member}":"no \"redacted:9\" here""#)), "{shown}");
            assert!(shown.contains(r#""said":"redacted:9""#), "{shown}");
            assert!(
                shown.contains(r#""name":"hush-4711.1""#) && shown.contains(r#""name":"hush-4711","uid""#)
            );
        }
        let own = event(r#""message":"at redis://:own-secret@h of hush-4711""#);
        let shown = shown(&own, &of(JOB));
        assert!(
            shown.contains(r#""message":"at redis://:redacted:10@h of redacted:9""#),
            "its own too: {shown}"
        );
    }

    #[test]
    fn an_event_that_was_cut_within_a_secret_tells_nothing_of_it() {
        let long = "x".repeat(1016);
        for end in ["hush-47", "hush-4..."] {
            let shown = shown(&event(&format!(r#""message":"{long} {end}""#)), &of(JOB));
            assert!(shown.contains(&format!(r#""message":"{long} redacted:"#)), "{end}: {shown}");
        }
    }

    #[test]
    fn where_nothing_is_known_of_the_object_all_texts_are_hidden() {
        let shown = shown(&event(r#""message":"any","reason":"""#), &SecretDigests::hide_all());
        assert!(shown.contains(r#""message":"redacted:3","reason":"""#), "{shown}");
    }

    #[test]
    fn an_event_is_told_from_other_objects_by_its_reference_and_kind() {
        let uid = |document: &str| event_subject(document.as_bytes()).map(|about| about.uid);
        assert_eq!(uid(&event(r#""a":1"#)).as_deref(), Some("u"));
        let foreign = event(r#""a":1"#).replace(r#""uid":"u""#, r#""uid":"u","namespace":"other""#);
        assert_eq!(
            event_subject(foreign.as_bytes()).unwrap().namespace,
            "team",
            "it is written by whom the team lets"
        );
        let newer = r#"{"regarding":{"kind":"Job","name":"j","uid":"n"}}"#;
        assert_eq!(uid(newer).as_deref(), Some("n"), "an item of a list names no kind");
        let nameless = r#"{"kind":"Event","involvedObject":{"kind":"Job","name":"j"}}"#;
        assert_eq!(uid(nameless).as_deref(), Some(""));
        let unreadable =
            r#"{"kind":"Event","count":"many","involvedObject":{"kind":"Job","name":"j","uid":"u"}}"#;
        assert_eq!(uid(unreadable).as_deref(), Some(""), "it is no reason to show it");
        for other in
            [JOB, r#"{"kind":"Pod","regarding":{"uid":"u"}}"#, r#"{"note":"regarding"}"#, "regarding"]
        {
            assert_eq!(uid(other), None, "{other}");
        }
    }
}
