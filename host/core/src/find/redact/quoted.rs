//! Secrets of a document that its status quotes: a controller may write into a message what it was given.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

use super::addresses::in_addresses;
use super::commands::{escaped, merged};
use super::{Found, MARK, Redactor, Withheld, is_digest};
use crate::project::Scanner;
use crate::state::Status;

/// A shorter secret is not looked for: it would be found in ordinary words.
const SECRET_CHARS: usize = 6;
/// A text of a status that is longer may have been cut, so that it ends within a secret.
const MAY_BE_CUT: usize = 250;
/// Secrets of one document that are looked for. Where there are more, reason and message are hidden as a whole.
const SECRETS: usize = 256;

/// The secrets of some documents, each with its digest, the longest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    found: Vec<(String, String)>,
}

impl Redactor {
    /// Adds the secrets of a document. `digest` as for [`Self::redact`].
    pub fn add_secrets<E: From<Withheld>>(
        &self,
        document: &[u8],
        digest: impl Fn(&[u8]) -> Result<String, E>,
        secrets: &mut Secrets,
    ) -> Result<(), E> {
        for one in self.find(document)? {
            let secret = one.secret(document);
            for (place, text) in quotable(&one, document).into_iter().enumerate() {
                if secrets.found.len() > SECRETS || secrets.found.iter().any(|(known, _)| *known == text) {
                    continue;
                }
                // The same digest as in the document, where it is the same text.
                let is_whole = place == 0 && !one.is_container(document);
                let digest = if is_whole { digest(secret)? } else { digest(text.as_bytes())? };
                secrets.found.push((text, digest));
            }
        }
        secrets.found.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Ok(())
    }
}

/// What a status would quote of a secret: the whole, and the parts that a program uses for themselves. Those are the
/// password of an address, what follows `Bearer` or its like, and each line. What is too short is not looked for.
fn quotable(one: &Found, document: &[u8]) -> Vec<String> {
    let (secret, mut words) = (one.secret(document), Words::default());
    match one.is_container(document) {
        false => words.add_text(secret),
        // The document was read before, so this can't fail.
        true => serde_json::from_slice(secret).iter().for_each(|value| words.add_leaves(value)),
    }
    words.0
}

/// Each once, the whole first.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn add(&mut self, word: &str) {
        let is_long = word.chars().count() >= SECRET_CHARS;
        if is_long && self.0.len() <= SECRETS && !self.0.iter().any(|known| known == word) {
            self.0.push(word.to_owned());
        }
    }

    /// What stands between the quotes of a text.
    fn add_text(&mut self, raw: &[u8]) {
        let quoted = [b"\"", raw, b"\""].concat();
        let text = Scanner::new(&quoted).text();
        if let Some(decoded) = text.ok().as_ref().and_then(|text| text.decode().ok()) {
            self.add_decoded(&decoded);
        }
    }

    fn add_decoded(&mut self, text: &str) {
        let whole = text.trim();
        self.add(whole);
        for range in in_addresses(whole) {
            self.add(&whole[range]);
        }
        if let [kind, value] = whole.split_whitespace().collect::<Vec<_>>()[..]
            && kind.bytes().all(|byte| byte.is_ascii_alphabetic())
        {
            self.add(value);
        }
        // A shell and JSON take the quotes away.
        if whole.contains(['"', '\'']) {
            whole.split(['"', '\'', '\\']).map(str::trim).for_each(|part| self.add(part));
        }
        // The first and the last line of a key say only that it is one.
        whole
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("-----"))
            .for_each(|line| self.add(line));
        if whole.starts_with(['{', '['])
            && let Ok(value) = serde_json::from_str(whole)
        {
            self.add_leaves(&value);
        }
    }

    fn add_leaves(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add_decoded(text),
            Value::Number(number) => self.add(&number.to_string()),
            Value::Array(items) => items.iter().for_each(|item| self.add_leaves(item)),
            Value::Object(members) => members.values().for_each(|value| self.add_leaves(value)),
            Value::Null | Value::Bool(_) => {}
        }
    }
}

/// Adds the places within the status of a document that quote what was found.
pub(super) fn add_quotes(document: &str, status: Range<usize>, found: &mut Vec<Found>) {
    let words: BTreeSet<_> = found.iter().flat_map(|one| quotable(one, document.as_bytes())).collect();
    let mut at = status.start;
    while let Some(quote) = document[at..status.end].find('"') {
        at += quote;
        let mut scanner = Scanner::of_text(&document[at..status.end]);
        // The document was read before, so this can't fail.
        let Ok(text) = scanner.text() else { break };
        let (start, length, is_escaped) = text.place();
        let (start, raw) = (at + start, &document[at + start..at + start + length]);
        at += scanner.position();
        if scanner.peek() == b':' {
            continue;
        }
        let Ok(decoded) = text.decode() else { continue };
        let ranges: Vec<_> = match words.len() > SECRETS {
            true if !decoded.is_empty() => std::iter::once(0..decoded.len()).collect(),
            true => Vec::new(),
            false => words.iter().flat_map(|word| places_of(word, &decoded)).collect(),
        };
        let ranges = merged(ranges);
        let ranges = if is_escaped { escaped(raw.as_bytes(), &ranges) } else { ranges };
        for range in ranges {
            let one = Found { range: start + range.start..start + range.end, is_part: true };
            if !is_digest(one.secret(document.as_bytes())) {
                found.push(one);
            }
        }
    }
    found.sort_by_key(|one| one.range.start);
    // A quote may lie within what is hidden, or across its end.
    found.dedup_by(|next, last| {
        let overlaps = next.range.start < last.range.end;
        if overlaps {
            last.range.end = last.range.end.max(next.range.end);
        }
        overlaps
    });
}

fn places_of<'t>(word: &'t str, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
    text.match_indices(word).map(move |(start, _)| start..start + word.len())
}

impl Secrets {
    /// Of a document that can't be searched: whatever its status says is hidden.
    pub fn unknown() -> Self {
        Self { found: vec![Default::default(); SECRETS + 1] }
    }

    /// Whether the status says anything in which a secret could stand.
    pub fn may_stand_in(status: &Status) -> bool {
        status.reason.len() >= SECRET_CHARS || status.message.len() >= SECRET_CHARS
    }

    /// The message of an Event about the object, with a digest in the place of each secret.
    pub fn hide_in(&self, message: &mut String) {
        if let Cow::Owned(hidden) = self.without(message) {
            *message = hidden;
        }
    }

    /// The status with a digest in the place of each secret; none where it quotes none.
    pub fn hidden_in(&self, status: &Status) -> Option<Status> {
        let (reason, message) = (self.without(&status.reason), self.without(&status.message));
        let changed = matches!(reason, Cow::Owned(_)) || matches!(message, Cow::Owned(_));
        changed.then(|| Status {
            reason: reason.into_owned(),
            message: message.into_owned(),
            ..status.clone()
        })
    }

    fn without<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if text.is_empty() {
            return Cow::Borrowed(text);
        }
        if self.found.len() > SECRETS {
            return Cow::Owned("redacted: the object can't be searched for what this may quote".into());
        }
        let may_be_cut = text.len() >= MAY_BE_CUT;
        let mut text = Cow::Borrowed(text);
        for (secret, digest) in &self.found {
            if text.contains(secret) {
                text = Cow::Owned(text.replace(secret, &format!("{MARK}{digest}")));
            }
        }
        if may_be_cut { self.without_cut_end(text) } else { text }
    }

    fn without_cut_end<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        let whole = text.trim_end_matches('…');
        for (secret, digest) in &self.found {
            let begun = (SECRET_CHARS..secret.len().min(whole.len()))
                .rev()
                .find_map(|length| secret.get(..length).filter(|begun| whole.ends_with(begun)));
            if let Some(begun) = begun {
                return Cow::Owned(format!("{}{MARK}{digest}", &whole[..whole.len() - begun.len()]));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostSpec, RedactedField, RedactionSpec};

    fn secrets(document: &str) -> Secrets {
        let mut secrets = Secrets::default();
        let digest = |value: &[u8]| Ok::<_, Withheld>(value.len().to_string());
        HostSpec::default()
            .redactor()
            .unwrap()
            .add_secrets(document.as_bytes(), digest, &mut secrets)
            .unwrap();
        secrets
    }

    fn hidden(document: &str, message: &str) -> Option<String> {
        let status = Status { message: message.into(), ..Status::default() };
        secrets(document).hidden_in(&status).map(|status| status.message)
    }

    fn variable(value: &str) -> String {
        format!(r#"{{"env":[{{"name":"TOKEN","value":"{value}"}}],"url":"redis://:hush-hush@h"}}"#)
    }

    #[test]
    fn secrets_of_six_characters_or_more_are_replaced_the_longest_first() {
        let told = |value: &str, message: &str| hidden(&variable(value), message);
        assert_eq!(told("abcdef", "got abcdef, abcdef!").as_deref(), Some("got redacted:6, redacted:6!"));
        assert_eq!(told("abcde", "got abcde"), None);
        assert_eq!(
            told("hush-hush-hush", "hush-hush-hush hush-hush").as_deref(),
            Some("redacted:14 redacted:9")
        );
        assert_eq!(told(r"ab\ncd\u00e9", "ab\ncdé").as_deref(), Some("redacted:12"), "escapes are read");
        assert_eq!(told("abcdef", "nothing of it"), None);
        let status = Status { reason: "abcdef".into(), ..Status::default() };
        assert_eq!(secrets(&variable("abcdef")).hidden_in(&status).unwrap().reason, "redacted:6");
        assert!(Secrets::may_stand_in(&status) && !Secrets::may_stand_in(&Status::default()));
    }

    #[test]
    fn where_nothing_is_known_what_is_said_is_hidden_and_what_is_empty_stays_so() {
        let status = Status { reason: "JobSuspended".into(), ..Status::default() };
        for (status, told) in [
            (status.clone(), ("redacted: the object can't be searched for what this may quote", "")),
            (
                Status { message: "said so".into(), ..Status::default() },
                ("", "redacted: the object can't be searched for what this may quote"),
            ),
        ] {
            let hidden = Secrets::unknown().hidden_in(&status).unwrap();
            assert_eq!((&*hidden.reason, &*hidden.message), told);
        }
        assert_eq!(Secrets::unknown().hidden_in(&Status::default()), None);
    }

    #[test]
    fn the_part_of_a_secret_that_a_program_uses_is_found_in_a_quote_too() {
        for (value, message, told) in [
            ("postgres://u:hush-hush2@h/db", "password hush-hush2 is wrong", "password redacted:10 is wrong"),
            ("Bearer abc.def", "401 for abc.def", "401 for redacted:7"),
            (r#"\"x\",password=\"hush-hush2\""#, "got hush-hush2", "got redacted:10"),
            (r"-----BEGIN KEY-----\nMIIEvQ\nabcdefg\n-----END KEY-----", "at abcdefg", "at redacted:7"),
        ] {
            assert_eq!(hidden(&variable(value), message).as_deref(), Some(told), "{value}");
        }
        let rules = RedactionSpec {
            fields: vec![RedactedField { kind: None, pointer: "/spec/credentials".into() }],
            ..RedactionSpec::default()
        };
        let rules = HostSpec { redaction: rules, ..HostSpec::default() }.redactor().unwrap();
        let document =
            br#"{"spec":{"credentials":{"user":"ada","list":[{"password":"hush-hush"}],"pin":1234567}}}"#;
        let mut secrets = Secrets::default();
        let digest = |value: &[u8]| Ok::<_, Withheld>(value.len().to_string());
        rules.add_secrets(document, digest, &mut secrets).unwrap();
        let status = Status { message: "ada: hush-hush 1234567".into(), ..Status::default() };
        let told = secrets.hidden_in(&status).unwrap().message;
        assert_eq!(told, "ada: redacted:9 redacted:7", "what stands in a hidden object");
        assert_eq!(hidden(&variable("correct horse battery"), "the battery is low"), None, "ordinary words");
        assert_eq!(hidden(&variable(r"-----BEGIN KEY-----\nMIIEvQ"), "no -----BEGIN KEY----- there"), None);
    }

    #[test]
    fn the_status_within_a_document_loses_its_quotes_too_and_stays_json() {
        let document = |told: &str, of: &str| {
            format!(
                r#"{{"env":[{{"name":"TOKEN","value":"{of}"}}],"note":"123456","status":{{"n":123456,"123456":1,
                "list":["a {told}",{{"m":"\u00e9 \\{told}"}}],"url":"redis://u:{told}@h","e":"\n12345"}}}}"#
            )
        };
        let digest = |value: &[u8]| format!("{:016x}", value.len());
        let redact = |text: &str| {
            let rules = HostSpec::default().redactor().unwrap();
            rules.redact(text.as_bytes(), digest).unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let hidden = format!("redacted:{}", digest(b"123456"));
        let expected = document(&hidden, &hidden);
        assert_eq!(redact(&document("123456", "123456")).as_ref(), Some(&expected));
        assert_eq!(redact(&expected), None);
        assert!(serde_json::from_str::<serde_json::Value>(&expected).is_ok());
        let newline = redact(&document("n12345", "n12345")).unwrap();
        assert!(newline.contains(r#""e":"\n12345""#), "half an escape is no quote: {newline}");
    }

    #[test]
    fn a_secret_within_which_a_long_text_was_cut_is_hidden_too() {
        let long = "x".repeat(MAY_BE_CUT);
        let told = hidden(&variable("abcdefghij"), &format!("{long} abcdefgh"));
        assert_eq!(told, Some(format!("{long} redacted:10")));
        assert_eq!(hidden(&variable("abcdefghij"), &format!("{long} abcde")), None);
        assert_eq!(hidden(&variable("abcdefghij"), "abcdefgh"), None, "it was not cut");
    }

    #[test]
    fn where_there_are_too_many_secrets_the_whole_text_is_hidden() {
        let variables: Vec<_> =
            (0..=SECRETS).map(|n| format!(r#"{{"name":"TOKEN","value":"secret-{n}"}}"#)).collect();
        let told = |count: usize| {
            hidden(&format!(r#"{{"env":[{}]}}"#, variables[..count].join(",")), "nothing of it")
        };
        assert_eq!(told(SECRETS), None);
        assert!(told(SECRETS + 1).unwrap().starts_with("redacted: "));
    }
}
