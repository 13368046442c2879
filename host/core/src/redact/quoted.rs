//! Finds secrets of a document that its status, or an Event, quotes: a controller may copy its input into a
//! message.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;

use memchr::memmem::Finder;

use super::fixed_texts::is_fixed_text;
use super::repeats::{SEARCHED_BYTES, VisibleText};
use super::text::commands::{escaped_ranges, merge_ranges};
use super::text::digest::{MARK, is_digest};
use super::walk::SecretSearch;
use super::words::SECRET_CHARS;
use super::{FoundSecret, RedactionRules, WithheldDocument};
use crate::project::JsonScanner;
use crate::state::Status;

/// A longer text of a status may have been cut, so that it ends within a secret.
const MAY_BE_CUT: usize = 250;
/// The most secrets of one document that are searched for. With more, reason and message are hidden entirely.
pub(super) const SECRETS: usize = 256;

/// The secrets of some documents, each with its digest, the longest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SecretDigests {
    found: Vec<(String, String)>,
}

impl RedactionRules {
    /// Adds the secrets of a document. `digest` as for [`Self::redact_document`].
    pub fn add_secrets<E: From<WithheldDocument>>(
        &self,
        document: &[u8],
        digest: impl Fn(&[u8]) -> Result<String, E>,
        secrets: &mut SecretDigests,
    ) -> Result<(), E> {
        let found = self.find(document)?;
        let text = std::str::from_utf8(document).map_err(WithheldDocument::from_error)?;
        let shown = VisibleText::of(text, &found).map_err(WithheldDocument::from)?;
        // The words that are left out by the limit count as secrets, too. Beyond it, nothing of the status is
        // shown.
        let searches = Cell::new(SEARCHED_BYTES / text.len().max(1));
        let is_shown = |word: &str| {
            let left = searches.get();
            searches.set(left.saturating_sub(1));
            left > 0 && shown.has_word(word)
        };
        self.add_words_of(document, &found, is_shown, digest, secrets)
    }

    /// `is_shown` is true for a word that also occurs in the visible part of the document.
    fn add_words_of<E: From<WithheldDocument>>(
        &self,
        document: &[u8],
        found: &[FoundSecret],
        is_shown: impl Fn(&str) -> bool,
        digest: impl Fn(&[u8]) -> Result<String, E>,
        secrets: &mut SecretDigests,
    ) -> Result<(), E> {
        let mut shown = HashSet::new();
        for secret_value in found {
            let secret = secret_value.unquoted_secret(document);
            for (place, text) in self.quotable_words(secret_value, document).into_iter().enumerate() {
                let is_known = secrets.found.iter().any(|(known, _)| *known == text) || shown.contains(&text);
                if secrets.found.len() > SECRETS || is_known {
                    continue;
                }
                if is_shown(&text) {
                    shown.insert(text);
                    continue;
                }
                // The digest is the one in the document if the text is the same.
                let is_whole = place == 0 && !secret_value.is_container(document);
                let digest = if is_whole { digest(secret)? } else { digest(text.as_bytes())? };
                secrets.found.push((text, digest));
            }
        }
        secrets.found.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Ok(())
    }

    /// Adds the secrets of a document of a known kind. They are only searched for and never replaced, so they
    /// have no digests. A document without secrets is read once, while [`Self::add_secrets`] reads it twice.
    /// Words that the document also shows are included: they may cause a second look later, but save a search
    /// for each word now.
    pub fn add_secret_words(
        &self,
        document: &[u8],
        kind: &str,
        secrets: &mut SecretDigests,
    ) -> Result<(), WithheldDocument> {
        let mut scanner =
            JsonScanner::of_text(std::str::from_utf8(document).map_err(WithheldDocument::from_error)?);
        let found = SecretSearch::new(self, document, Some(kind)).find_all(&mut scanner)?;
        scanner.expect_end()?;
        match found.is_empty() {
            true => Ok(()),
            // The status may quote a part of a secret, so its own secrets count too.
            false => {
                let found = self.find(document)?;
                self.add_words_of(
                    document,
                    &found,
                    |_| false,
                    |_| Ok::<_, WithheldDocument>(String::new()),
                    secrets,
                )
            }
        }
    }
}

/// Adds what `quotes` finds in each text value of the document. Keys of objects are not searched. The values
/// under the keys for which `spares` is true stay unchanged.
pub(super) fn add_places(
    document: &str,
    value: Range<usize>,
    spares: impl Fn(&str) -> bool,
    quotes: impl Fn(&str) -> Vec<Range<usize>>,
    found: &mut Vec<FoundSecret>,
) {
    let mut at = value.start;
    while let Some(quote) = document[at..value.end].find('"') {
        at += quote;
        let mut scanner = JsonScanner::of_text(&document[at..value.end]);
        // The document was read before, so this can't fail.
        let Ok(text) = scanner.text() else { break };
        let (start, length, is_escaped) = text.place_in_text();
        let (start, raw) = (at + start, &document[at + start..at + start + length]);
        at += scanner.position();
        if scanner.peek_byte() == b':' {
            if spares(raw) {
                let colon = document[at..].find(':').unwrap_or_default();
                let mut scanner = JsonScanner::of_text(&document[at + colon + 1..value.end]);
                let Ok(()) = scanner.skip_any_value() else { break };
                at += colon + 1 + scanner.position();
            }
            continue;
        }
        let Ok(decoded) = text.decode() else { continue };
        let ranges = merge_ranges(quotes(&decoded));
        let ranges = if is_escaped { escaped_ranges(raw.as_bytes(), &ranges) } else { ranges };
        for range in ranges {
            let quote = FoundSecret::part_of_value(start + range.start..start + range.end);
            if !is_digest(quote.unquoted_secret(document.as_bytes())) {
                found.push(quote);
            }
        }
    }
}

/// A quote may be inside a hidden range or overlap its end.
pub(super) fn merge(found: &mut Vec<FoundSecret>) {
    found.sort_by_key(|secret| secret.range.start);
    found.dedup_by(|next, last| {
        let overlaps = next.range.start < last.range.end;
        if overlaps {
            last.range.end = last.range.end.max(next.range.end);
        }
        overlaps
    });
}

/// Words that are searched for in one text after another. Preparing the search for a word takes time in
/// proportion to its length, so it is done once.
pub(super) struct SoughtWord<'w>(Vec<Finder<'w>>);

impl<'w> SoughtWord<'w> {
    pub(super) fn of(words: impl Iterator<Item = &'w str>) -> Self {
        Self(words.take(SECRETS + 1).map(Finder::new).collect())
    }

    /// The ranges in which a text quotes one of these words. With too many words, the whole text counts as a
    /// quote.
    pub(super) fn quoted_ranges(&self, text: &str) -> Vec<Range<usize>> {
        match self.0.len() > SECRETS {
            true if text.is_empty() => Vec::new(),
            true => std::iter::once(0..text.len()).collect(),
            false => self.0.iter().flat_map(|word| places_of(word, text)).collect(),
        }
    }
}

fn places_of<'t>(word: &'t Finder<'_>, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
    let length = word.needle().len();
    let places = (length <= text.len()).then(|| word.find_iter(text.as_bytes()));
    places.into_iter().flatten().map(move |start| start..start + length)
}

impl SecretDigests {
    /// The secrets of a document that can't be searched: its whole status is hidden.
    pub fn hide_all() -> Self {
        Self { found: vec![Default::default(); SECRETS + 1] }
    }

    /// How many bytes a search for them reads beside the text.
    pub fn searched_bytes(&self) -> usize {
        self.found.iter().map(|(word, _)| word.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether the status has a text that could quote a secret.
    pub fn may_stand_in(status: &Status) -> bool {
        let may_quote = |text: &str| text.len() >= SECRET_CHARS && !is_fixed_text(text);
        may_quote(&status.reason) || may_quote(&status.message)
    }

    pub(super) fn sought_words(&self) -> SoughtWord<'_> {
        SoughtWord::of(self.found.iter().map(|(word, _)| word.as_str()))
    }

    /// The ranges in which a text quotes one of the words, or ends with the beginning of one. `sought` are
    /// the same words.
    pub(super) fn quoted_ranges(&self, sought: &SoughtWord<'_>, text: &str) -> Vec<Range<usize>> {
        let mut places = sought.quoted_ranges(text);
        if text.len() >= MAY_BE_CUT {
            places.extend(self.cut_end(text).map(|(range, _)| range));
        }
        places
    }

    /// The status with each secret replaced by its digest; `None` if it quotes none.
    pub fn hidden_in(&self, status: &Status) -> Option<Status> {
        let (reason, message) = (self.redact_text(&status.reason), self.redact_text(&status.message));
        let changed = matches!(reason, Cow::Owned(_)) || matches!(message, Cow::Owned(_));
        changed.then(|| Status {
            reason: reason.into_owned(),
            message: message.into_owned(),
            ..status.clone()
        })
    }

    fn redact_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if text.is_empty() || is_fixed_text(text) {
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
        match self.cut_end(&text) {
            Some((range, digest)) => Cow::Owned(format!("{}{MARK}{digest}", &text[..range.start])),
            None => text,
        }
    }

    /// The beginning of a secret at the end of a text, and the digest of the whole secret.
    fn cut_end(&self, text: &str) -> Option<(Range<usize>, &str)> {
        let whole = text.trim_end_matches(['…', '.']);
        self.found.iter().find_map(|(secret, digest)| {
            let begun = longest_overlap(secret.as_bytes(), whole.as_bytes());
            (begun >= SECRET_CHARS).then(|| (whole.len() - begun..text.len(), digest.as_str()))
        })
    }
}

/// The longest prefix of a secret with which the text ends. The number of steps grows with the length of the
/// secret (the algorithm of Knuth, Morris and Pratt).
fn longest_overlap(secret: &[u8], text: &[u8]) -> usize {
    let secret = &secret[..secret.len().min(text.len())];
    // For each prefix: the length of the longest shorter prefix that it ends with.
    let mut shorter = vec![0; secret.len()];
    let next = |shorter: &[usize], mut met: usize, byte: u8| {
        while met > 0 && secret.get(met) != Some(&byte) {
            met = shorter[met - 1];
        }
        met + usize::from(secret.get(met) == Some(&byte))
    };
    for at in 1..secret.len() {
        shorter[at] = next(&shorter, shorter[at - 1], secret[at]);
    }
    text[text.len() - secret.len()..].iter().fold(0, |met, byte| next(&shorter, met, *byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostSpec, RedactedField, RedactionSpec};

    fn secrets(document: &str) -> SecretDigests {
        let mut secrets = SecretDigests::default();
        let digest = |value: &[u8]| Ok::<_, WithheldDocument>(value.len().to_string());
        HostSpec::default()
            .compile_redaction_rules()
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
        let text = |value: &str, message: &str| hidden(&variable(value), message);
        assert_eq!(text("abcdef", "got abcdef, abcdef!").as_deref(), Some("got redacted:6, redacted:6!"));
        assert_eq!(text("abcde", "got abcde"), None);
        assert_eq!(
            text("hush-hush-hush", "hush-hush-hush hush-hush").as_deref(),
            Some("redacted:14 redacted:9")
        );
        assert_eq!(text(r"ab\ncd\u00e9", "ab\ncdé").as_deref(), Some("redacted:12"), "escapes are read");
        assert_eq!(text("abcdef", "nothing of it"), None);
        let status = Status { reason: "abcdef".into(), ..Status::default() };
        assert_eq!(secrets(&variable("abcdef")).hidden_in(&status).unwrap().reason, "redacted:6");
        assert!(SecretDigests::may_stand_in(&status) && !SecretDigests::may_stand_in(&Status::default()));
    }

    #[test]
    fn where_nothing_is_known_what_is_said_is_hidden_and_what_is_empty_stays_so() {
        let status = Status { reason: "TrainerStopped".into(), ..Status::default() };
        for (status, expected) in [
            (status.clone(), ("redacted: the object can't be searched for what this may quote", "")),
            (
                Status { message: "said so".into(), ..Status::default() },
                ("", "redacted: the object can't be searched for what this may quote"),
            ),
        ] {
            let hidden = SecretDigests::hide_all().hidden_in(&status).unwrap();
            assert_eq!((&*hidden.reason, &*hidden.message), expected);
        }
        assert_eq!(SecretDigests::hide_all().hidden_in(&Status::default()), None);
        let fixed =
            Status { reason: "JobSuspended".into(), message: "Job suspended".into(), ..Status::default() };
        assert_eq!(
            SecretDigests::hide_all().hidden_in(&fixed),
            None,
            "Kubernetes says it of each suspended Job"
        );
    }

    #[test]
    fn the_part_of_a_secret_that_a_program_uses_is_found_in_a_quote_too() {
        for (value, message, expected) in [
            ("postgres://u:hush-hush2@h/db", "password hush-hush2 is wrong", "password redacted:10 is wrong"),
            ("Bearer abc.def", "401 for abc.def", "401 for redacted:7"),
            (r#"\"x\",password=\"hush-hush2\""#, "got hush-hush2", "got redacted:10"),
            (r"-----BEGIN KEY-----\nMIIEvQ\nabcdefg\n-----END KEY-----", "at abcdefg", "at redacted:7"),
        ] {
            assert_eq!(hidden(&variable(value), message).as_deref(), Some(expected), "{value}");
        }
        let rules = RedactionSpec {
            fields: vec![RedactedField { kind: None, pointer: "/spec/credentials".into() }],
            ..RedactionSpec::default()
        };
        let rules = HostSpec { redaction: rules, ..HostSpec::default() }.compile_redaction_rules().unwrap();
        let document =
            br#"{"spec":{"credentials":{"user":"ada","list":[{"password":"hush-hush"}],"pin":1234567}}}"#;
        let mut secrets = SecretDigests::default();
        let digest = |value: &[u8]| Ok::<_, WithheldDocument>(value.len().to_string());
        rules.add_secrets(document, digest, &mut secrets).unwrap();
        let status = Status { message: "ada: hush-hush 1234567".into(), ..Status::default() };
        let text = secrets.hidden_in(&status).unwrap().message;
        assert_eq!(text, "ada: redacted:9 redacted:7", "what stands in a hidden object");
        assert_eq!(hidden(&variable("correct horse battery"), "the battery is low"), None, "ordinary words");
        assert_eq!(hidden(&variable(r"-----BEGIN KEY-----\nMIIEvQ"), "no -----BEGIN KEY----- there"), None);
    }

    fn applied(copy: &str) -> String {
        let copy = serde_json::to_string(copy).unwrap();
        format!(
            r#"{{"kind":"Job","metadata":{{"annotations":{{"kubectl.kubernetes.io/last-applied-configuration":{copy}}}}},
            "status":{{"message":"train-queue ran registry/train:9 with older-4711"}}}}"#
        )
    }

    #[test]
    fn of_a_copy_of_the_document_only_what_the_rules_hide_in_a_document_is_looked_for() {
        let copy = r#"{"kind":"Job","spec":{"queue":"train-queue","image":"registry/train:9",
            "env":[{"name":"TOKEN","value":"older-4711"}],"args":["--password=hush-hush"]}}"#;
        let message = "train-queue ran registry/train:9 with older-4711 and hush-hush";
        let text = "train-queue ran registry/train:9 with redacted:10 and redacted:9";
        assert_eq!(hidden(&applied(copy), message).as_deref(), Some(text));
        let rules = HostSpec::default().compile_redaction_rules().unwrap();
        let shown = rules
            .redact_document(applied(copy).as_bytes(), |value| value.len().to_string())
            .unwrap()
            .unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("train-queue ran registry/train:9 with redacted:10"), "{shown}");
        let secret =
            r#"{"kind":"Secret","metadata":{"name":"db-credentials"},"stringData":{"a":"hush-hush"}}"#;
        let text = hidden(&applied(secret), "db-credentials: hush-hush");
        assert_eq!(text.as_deref(), Some("db-credentials: redacted:9"), "by the kind that the copy names");
    }

    #[test]
    fn a_copy_that_is_no_document_counts_as_a_secret_with_all_its_parts() {
        let text = |copy: &str, message: &str| hidden(&applied(copy), message);
        assert_eq!(text(r#"{"queue":"train-queue""#, "in train-queue").as_deref(), Some("in redacted:11"));
        assert_eq!(text("H4sIAAAA//packed", "got H4sIAAAA//packed").as_deref(), Some("got redacted:16"));
        // Each copy is within the one before. Deeper copies are not parsed as documents.
        let mut copy = r#"{"queue":"train-queue"}"#.to_owned();
        for depth in 1..=3 {
            assert_eq!(text(&copy, "in train-queue").is_some(), depth > 2, "{depth}");
            copy = applied(&copy);
        }
    }

    #[test]
    fn words_are_those_of_the_secrets_that_would_be_hidden() {
        let rules = HostSpec::default().compile_redaction_rules().unwrap();
        let words = |document: &str| {
            let mut words = SecretDigests::default();
            rules.add_secret_words(document.as_bytes(), "Job", &mut words).map(|()| words.found)
        };
        let document =
            variable("own-secret").replacen('{', r#"{"kind":"Job","status":{"m":"own-secret"},"#, 1);
        let texts =
            |found: Vec<(String, String)>| found.into_iter().map(|(text, _)| text).collect::<Vec<_>>();
        assert_eq!(texts(words(&document).unwrap()), texts(secrets(&document).found));
        let parted = r#"{"env":[{"name":"TOKEN","value":"\"Bearer abcdefgh\""}],"status":{"m":"sent Bearer abcdefgh"}}"#;
        assert_eq!(texts(words(parted).unwrap()), texts(secrets(parted).found));
        assert_eq!(words(r#"{"kind":"Job","spec":{}}"#).unwrap(), []);
        assert!(words("{").is_err() && words("").is_err() && words("{} {}").is_err());
    }

    #[test]
    fn the_status_within_a_document_loses_its_quotes_too_and_stays_json() {
        let document = |text: &str, of: &str| {
            format!(
                r#"{{"env":[{{"name":"TOKEN","value":"{of}"}}],"note":"1234567","status":{{"n":123456,"123456":1,
                "list":["a {text}",{{"m":"\u00e9 \\{text}"}}],"url":"redis://u:{text}@h","e":"\n12345"}}}}"#
            )
        };
        let digest = |value: &[u8]| format!("{:016x}", value.len());
        let redact = |text: &str| {
            let rules = HostSpec::default().compile_redaction_rules().unwrap();
            rules
                .redact_document(text.as_bytes(), digest)
                .unwrap()
                .map(|bytes| String::from_utf8(bytes).unwrap())
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
        let text = hidden(&variable("abcdefghij"), &format!("{long} abcdefgh"));
        assert_eq!(text, Some(format!("{long} redacted:10")));
        assert_eq!(hidden(&variable("abcdefghij"), &format!("{long} abcde")), None);
        assert_eq!(hidden(&variable("abcdefghij"), "abcdefgh"), None, "it was not cut");
        let secret = format!("é{}", "ab".repeat(MAY_BE_CUT));
        let text = hidden(&variable(&secret), &secret[..MAY_BE_CUT]).unwrap();
        assert_eq!(text, format!("redacted:{}", secret.len()), "there is nothing else");
    }

    #[test]
    fn the_overlap_is_what_a_look_at_each_length_finds() {
        let slow = |secret: &[u8], text: &[u8]| {
            (0..=secret.len().min(text.len()))
                .rev()
                .find(|length| text.ends_with(&secret[..*length]))
                .unwrap()
        };
        for secret in ["", "a", "aab", "abab", "abcabd", "aaaaaa", "abaab"] {
            for text in ["", "a", "aa", "xaab", "ababab", "abcab", "aaaaaaaaab", "abcabcabd", "abaaba"] {
                let [secret, text] = [secret, text].map(str::as_bytes);
                assert_eq!(longest_overlap(secret, text), slow(secret, text), "{secret:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_long_message_is_searched_once_for_a_long_secret() {
        let half = "a".repeat(1 << 19);
        let secrets = secrets(&variable(&format!("{half}b{half}")));
        let begun = std::time::Instant::now();
        let message = format!("x{half}{half}");
        assert!(secrets.hidden_in(&Status { message, ..Status::default() }).is_some());
        // A look at each length takes a million million steps.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn where_there_are_too_many_secrets_the_whole_text_is_hidden() {
        let variables: Vec<_> =
            (0..=SECRETS).map(|n| format!(r#"{{"name":"TOKEN","value":"secret-{n}"}}"#)).collect();
        let text = |count: usize| {
            hidden(&format!(r#"{{"env":[{}]}}"#, variables[..count].join(",")), "nothing of it")
        };
        assert_eq!(text(SECRETS), None);
        assert!(text(SECRETS + 1).unwrap().starts_with("redacted: "));
    }
}
