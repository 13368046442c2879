//! Walks through a document and finds its secrets.

use std::ops::Range;

use super::rules::{FieldMatches, PathToken};
use super::text::addresses::in_addresses;
use super::text::commands::{self, NextElement};
use super::text::digest::is_digest;
use super::text::pairs::in_pairs;
use super::text::unescaped::UnescapedText;
use super::{COPIES, FoundSecret, RedactionRules};
use crate::project::{JsonScanner, NESTING, ProjectError, RawString, ScanFlow};

/// The meaning of a value, by the key above it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ParentKey {
    /// Named values: a list of `{"name": …, "value": …}`, or an object.
    Variables,
    /// Named values, each of which may be a command line or JSON.
    Environment,
    /// A command line.
    Command,
    Other,
}

pub(super) struct SecretSearch<'r> {
    redactor: &'r RedactionRules,
    document: &'r [u8],
    kind: Option<&'r str>,
    /// Whether the document has no address and no escape, like most documents. Then a text needs to be searched
    /// only if its key demands it.
    is_plain: bool,
    /// Every name counts, at any depth.
    is_settings: bool,
    /// The texts of JSON around this one that are being read, and the levels of brackets around it.
    within: u32,
    depth: u32,
    found: Vec<FoundSecret>,
}

/// Keys of Kubernetes under which a secret is named but has no value. A JSON text contains them if a variable
/// holds a pod template.
const REFERENCES: [&str; 6] = [
    "secretKeyRef",
    "secretRef",
    "secretName",
    "imagePullSecrets",
    "serviceAccountToken",
    "automountServiceAccountToken",
];

/// JSON may contain JSON as a text, and each level adds only a few bytes. It is read to this depth, because
/// each level is decoded and searched again.
pub(super) const TEXTS_WITHIN: u32 = 4;

impl<'r> SecretSearch<'r> {
    pub fn new(redactor: &'r RedactionRules, document: &'r [u8], kind: Option<&'r str>) -> Self {
        let is_plain =
            memchr::memchr(b'\\', document).is_none() && memchr::memmem::find(document, b"://").is_none();
        Self {
            redactor,
            document,
            kind,
            is_plain,
            is_settings: false,
            within: 0,
            depth: 0,
            found: Vec::new(),
        }
    }

    pub fn of_settings(redactor: &'r RedactionRules, settings: &'r [u8]) -> Self {
        Self { is_settings: true, ..Self::new(redactor, settings, None) }
    }

    pub fn find_all(mut self, scanner: &mut JsonScanner<'_>) -> Result<Vec<FoundSecret>, ProjectError> {
        let fields = self.redactor.field_matches(self.kind);
        self.search_value(scanner, &fields, self.ordinary_meaning(), self.depth)?;
        self.found.sort_by_key(|found| found.range.start);
        Ok(self.found)
    }

    fn meaning_under(&self, key: &str, depth: u32) -> ParentKey {
        match meaning_under_key(self.kind, key, depth) {
            ParentKey::Other => self.ordinary_meaning(),
            under => under,
        }
    }

    fn is_secret_setting(&self, name: &str) -> bool {
        self.is_settings && self.is_secret_name_in_text(name)
    }

    /// Whether a name in a text is the name of a secret. In the operator's settings all names count.
    fn is_secret_name_in_text(&self, name: &str) -> bool {
        let is_reference = REFERENCES.contains(&name) && (self.within > 0 || !self.is_settings);
        !is_reference && self.redactor.is_secret_name(name)
    }

    /// The meaning of a value under an ordinary key.
    fn ordinary_meaning(&self) -> ParentKey {
        if self.is_settings { ParentKey::Variables } else { ParentKey::Other }
    }

    fn search_value(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        matches: &FieldMatches<'_>,
        under: ParentKey,
        depth: u32,
    ) -> Result<(), ProjectError> {
        if depth > NESTING {
            return Err(ProjectError::TooDeep { at: scanner.position() });
        }
        match scanner.peek_byte() {
            // The object may be one named value.
            b'{' if self.is_settings => self.search_variable(scanner, matches, false, under, depth),
            b'{' => self.search_object(scanner, matches, under, depth),
            b'[' => self.search_list(scanner, matches, under, depth, NextElement::default()).map(drop),
            b'"' if under == ParentKey::Command => self.text(scanner, Some(&mut NextElement::Script), depth),
            b'"' if under == ParentKey::Environment => self.variable_text(scanner, depth),
            // The text may be a command line, whatever the program that reads this JSON calls its key.
            b'"' if self.within > 0 => self.text(scanner, Some(&mut NextElement::Argument), depth),
            b'"' if !self.is_plain => self.text(scanner, None, depth),
            _ => scanner.skip_any_value(),
        }
    }

    /// `next` is what comes before the list implies for its first text. Returns what the last one implies.
    fn search_list(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        matches: &FieldMatches<'_>,
        under: ParentKey,
        depth: u32,
        mut next: NextElement,
    ) -> Result<NextElement, ProjectError> {
        let mut place = 0;
        scanner.for_each_element(|scanner| {
            let within = matches.step_into(PathToken::Index(place));
            place += 1;
            match (under, scanner.peek_byte()) {
                _ if within.is_met() => self.take(scanner),
                (ParentKey::Command | ParentKey::Variables | ParentKey::Environment, b'{') => {
                    self.search_variable(scanner, &within, false, under, depth + 1)
                }
                (ParentKey::Command, b'[') => {
                    self.search_value(scanner, &within, ParentKey::Command, depth + 1)
                }
                // Variables and headers may occur there as `NAME=value` and `Name: value`.
                (ParentKey::Command | ParentKey::Variables | ParentKey::Environment, b'"') => {
                    self.text(scanner, Some(&mut next), depth + 1)
                }
                _ => self.search_value(scanner, &within, self.ordinary_meaning(), depth + 1),
            }
        })?;
        Ok(next)
    }

    fn search_object(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        matches: &FieldMatches<'_>,
        under: ParentKey,
        depth: u32,
    ) -> Result<(), ProjectError> {
        // A container runs its `args` after its `command`, and documents have them in either order.
        let (mut after_command, mut args) = (None, Vec::new());
        scanner.for_each_member(|key, scanner| {
            let name = key.decode()?;
            let within = matches.step_into(PathToken::Key(&name));
            let is_secret = under != ParentKey::Other && self.redactor.is_secret_name(&name);
            match scanner.peek_byte() {
                _ if within.is_met() => {
                    self.take(scanner)?;
                    if let Some(last) = self.found.last_mut().filter(|_| COPIES.contains(&&*name)) {
                        last.is_copy = last.range.end == scanner.position();
                    }
                }
                // An object contains the value, or refers to its source.
                b'{' if is_secret && !self.is_settings => {
                    self.search_variable(scanner, &within, true, under, depth + 1)?;
                }
                _ if is_secret => self.take(scanner)?,
                b'"' if under == ParentKey::Environment => self.variable_text(scanner, depth + 1)?,
                b'[' if name == "command" => {
                    let next = NextElement::default();
                    let last = self.search_list(scanner, &within, ParentKey::Command, depth + 1, next)?;
                    after_command = Some(last);
                }
                b'[' if name == "args" => match after_command {
                    Some(next) => {
                        self.search_list(scanner, &within, ParentKey::Command, depth + 1, next)?;
                    }
                    None => {
                        args.push((scanner.clone(), within));
                        scanner.skip_any_value()?;
                    }
                },
                _ => self.search_value(scanner, &within, self.meaning_under(&name, depth), depth + 1)?,
            }
            Ok(ScanFlow::Next)
        })?;
        for (mut scanner, within) in args {
            let next = after_command.unwrap_or_default();
            self.search_list(&mut scanner, &within, ParentKey::Command, depth + 1, next)?;
        }
        Ok(())
    }

    /// One named value: `{"name": …, "value": …}`, in any order. If the name occurs twice, it is secret if
    /// either is. `is_secret` is true if the key of the object is the name of a secret. `under` is the
    /// meaning of the list's key.
    fn search_variable(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        matches: &FieldMatches<'_>,
        mut is_secret: bool,
        under: ParentKey,
        depth: u32,
    ) -> Result<(), ProjectError> {
        let (begun, mut values) = (self.found.len(), Vec::new());
        scanner.for_each_member(|key, scanner| {
            let name = key.decode()?;
            let within = matches.step_into(PathToken::Key(&name));
            match &*name {
                _ if within.is_met() => self.take(scanner)?,
                _ if self.within > 0 && REFERENCES.contains(&&*name) => scanner.skip_any_value()?,
                "name" | "key" | "Name" | "Key" | "NAME" | "KEY" if scanner.peek_byte() == b'"' => {
                    let start = scanner.start();
                    is_secret |= self.redactor.is_secret_name(&scanner.text()?.decode()?);
                    if self.is_secret_setting(&name) {
                        self.add(start..scanner.position(), false);
                    }
                }
                _ if self.is_secret_setting(&name) && self.within > 0 && is_selector(scanner) => {
                    scanner.skip_any_value()?;
                }
                _ if self.is_secret_setting(&name) => self.take(scanner)?,
                "value" | "Value" | "VALUE" => {
                    let start = scanner.start();
                    // A value that is hidden whole is not searched for parts.
                    let is_read = under == ParentKey::Environment && !is_secret;
                    let read = if is_read { under } else { ParentKey::Other };
                    self.search_value(scanner, &within, read, depth + 1)?;
                    values.push(start..scanner.position());
                }
                _ => self.search_value(scanner, &within, self.meaning_under(&name, depth), depth + 1)?,
            }
            Ok(ScanFlow::Next)
        })?;
        if is_secret {
            let within = self.found.split_off(begun);
            // They are in the order of the document.
            let is_outside = |found: &FoundSecret| {
                let next = values.partition_point(|value| value.end <= found.range.start);
                values.get(next).is_none_or(|value| found.range.start < value.start)
            };
            self.found.extend(within.into_iter().filter(is_outside));
            values.into_iter().for_each(|value| self.add(value, false));
        }
        Ok(())
    }

    /// A text may contain secrets among other words. `command` is what the previous text implies for this
    /// one.
    fn text(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        command: Option<&mut NextElement>,
        depth: u32,
    ) -> Result<(), ProjectError> {
        let start = scanner.start();
        let text = scanner.text()?;
        self.parts_of(&text, start..scanner.position(), command, depth);
        Ok(())
    }

    /// The value of a variable, searched as a command line and as JSON. Most values have no blank, sign or
    /// escape, so they are neither.
    fn variable_text(&mut self, scanner: &mut JsonScanner<'_>, depth: u32) -> Result<(), ProjectError> {
        let start = scanner.start();
        let text = scanner.text()?;
        let (at, length, is_escaped) = text.place_in_text();
        let raw = &self.document[at..at + length];
        let may_hold_names = is_escaped || memchr::memchr3(b'=', b':', b' ', raw).is_some();
        let mut next = NextElement::Arguments;
        let command = may_hold_names.then_some(&mut next);
        self.parts_of(&text, start..scanner.position(), command, depth);
        Ok(())
    }

    fn parts_of(
        &mut self,
        text: &RawString<'_>,
        whole: Range<usize>,
        command: Option<&mut NextElement>,
        depth: u32,
    ) {
        let (at, length, is_escaped) = text.place_in_text();
        let raw = &self.document[at..at + length];
        if command.is_none() && !is_escaped && memchr::memmem::find(raw, b"://").is_none() {
            return;
        }
        let Ok(decoded) = text.decode() else {
            // The text does not decode to characters, so it can't be searched.
            return self.add(whole, false);
        };
        let mut this = command.as_deref().copied();
        let json = this.and_then(|_| self.in_json(&decoded, depth));
        // A pod template is JSON and nothing else. An argument may be both JSON and a command line to the
        // shell that reads it.
        let is_json = json.is_some() && this == Some(NextElement::Arguments);
        let mut secrets = self.in_words(&decoded, command.filter(|_| !is_json));
        match json {
            Some(within) => secrets.extend(within),
            // A program that finds JSON among other words decodes its escapes.
            None => {
                if let Some(copy) = UnescapedText::of(&decoded) {
                    secrets.extend(copy.original_ranges(self.in_words(&copy.text, this.as_mut())));
                }
            }
        }
        let secrets = commands::merge_ranges(secrets);
        let secrets = if is_escaped { commands::escaped_ranges(raw, &secrets) } else { secrets };
        for range in secrets {
            self.add(at + range.start..at + range.end, true);
        }
    }

    fn in_words(&self, text: &str, command: Option<&mut NextElement>) -> Vec<Range<usize>> {
        let mut secrets = Vec::new();
        if let Some(next) = command {
            let is_secret = |name: &str| self.is_secret_name_in_text(name);
            commands::in_words(text, next, is_secret, &mut secrets);
            in_pairs(text, is_secret, &mut secrets);
            secrets.retain(|range| !range.is_empty() && !commands::is_reference(&text[range.clone()]));
        }
        secrets.extend(in_addresses(text));
        secrets
    }

    /// Named values in an argument that is JSON as a whole; `None` if it is not. JSON that is too deep is
    /// hidden whole.
    fn in_json(&self, text: &str, depth: u32) -> Option<Vec<Range<usize>>> {
        if !text.trim_start().starts_with(['[', '{']) {
            return None;
        }
        let whole = Some(std::iter::once(0..text.len()).collect());
        if self.within == TEXTS_WITHIN {
            return whole;
        }
        // The brackets around the text count too, because all of them are on the stack at once.
        let search = SecretSearch {
            within: self.within + 1,
            depth,
            ..SecretSearch::of_settings(self.redactor, text.as_bytes())
        };
        match search.find_all(&mut JsonScanner::of_text(text)) {
            Ok(found) => Some(found.iter().map(|found| found.unquoted_range(text.as_bytes())).collect()),
            Err(ProjectError::TooDeep { .. }) => whole,
            Err(_) => None,
        }
    }

    fn take(&mut self, scanner: &mut JsonScanner<'_>) -> Result<(), ProjectError> {
        let start = scanner.start();
        scanner.skip_any_value()?;
        self.add(start..scanner.position(), false);
        Ok(())
    }

    fn add(&mut self, range: Range<usize>, is_part: bool) {
        let found = FoundSecret { range, is_part, is_copy: false };
        if !is_digest(found.unquoted_secret(self.document)) {
            self.found.push(found);
        }
    }
}

/// Tells a reference, which says in which key of which Secret the value is, from a value: `{"name": …, "key": …}`.
fn is_selector(scanner: &JsonScanner<'_>) -> bool {
    let (mut scanner, mut texts) = (scanner.clone(), 0);
    if scanner.peek_byte() != b'{' {
        return false;
    }
    let read = scanner.for_each_member(|key, scanner| {
        match (&*key.decode()?, scanner.peek_byte()) {
            ("name" | "key", b'"') => texts += 1,
            ("optional", b't' | b'f') => {}
            _ => {
                texts = 0;
                return Ok(ScanFlow::Enough);
            }
        }
        scanner.skip_any_value()?;
        Ok(ScanFlow::Next)
    });
    read.is_ok() && texts == 2
}

/// The meaning of a value under a key. Keys of a `ConfigMap` are names, too.
pub(super) fn meaning_under_key(kind: Option<&str>, key: &str, depth: u32) -> ParentKey {
    let is_config_map = || kind.is_none_or(|kind| kind == "ConfigMap");
    match key {
        "env" | "envVars" | "env_vars" | "parameters" => ParentKey::Environment,
        "sparkConf" | "hadoopConf" | "rayStartParams" => ParentKey::Environment,
        "headers" | "httpHeaders" | "volumeAttributes" | "options" => ParentKey::Variables,
        "command" | "args" | "mountOptions" | "kubernetes.io/change-cause" => ParentKey::Command,
        "javaOptions" => ParentKey::Environment,
        "arguments" | "entrypoint" | "runtimeEnvYAML" | "source" => ParentKey::Command,
        "data" | "binaryData" if depth == 0 && is_config_map() => ParentKey::Variables,
        _ => ParentKey::Other,
    }
}
