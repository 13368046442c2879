//! Finds named values in a text that is not JSON as a whole: YAML, and JSON among other words or in quotes.
//! Name and value may come in either order.

use std::ops::Range;

use super::commands::{ValueStart, assigned_secret, name_after, next_word};
use super::values::{ValueSpan, after_blanks};

/// Values under `value` whose sibling `name` or `key` is the name of a secret.
pub(in crate::redact) fn in_pairs(
    text: &str,
    is_secret: impl Fn(&str) -> bool,
    found: &mut Vec<Range<usize>>,
) {
    if ["alue", "ALUE"].iter().all(|part| memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_none()) {
        return;
    }
    let (mut at, mut end, mut is_named) = (0, 0, false);
    // A value whose name may follow.
    let mut nameless: Option<ValueStart> = None;
    while let Some(word) = next_word(text, at, &mut end) {
        let Some(begun) = assigned_secret(text, &word, |name| pair_part(name).is_some()) else {
            at = word.end;
            continue;
        };
        at = begun.start;
        match pair_part(&text[begun.name.clone()]) {
            Some(PairPart::Value) if is_named => {
                let value = begun.value_span(text, None);
                at = value.next;
                found.push(value.range);
            }
            Some(PairPart::Value) => nameless = Some(begun),
            _ => {
                let name = name_at(text, begun.start);
                is_named = is_secret(&text[name.clone()]);
                let before = nameless.take().filter(|_| is_named).map(|begun| begun.value_span(text, None));
                at = name.end;
                if let Some(value) = before.filter(|value| is_of(text, value, name.start)) {
                    // The value may contain the name and many more names, so its content is not searched
                    // again.
                    at = at.max(value.next);
                    found.push(value.range);
                }
            }
        }
    }
}

enum PairPart {
    Name,
    Value,
}

/// Also as in `--set env[0].name=…`.
fn pair_part(name: &str) -> Option<PairPart> {
    match name.rsplit('.').next()? {
        "name" | "key" | "Name" | "Key" | "NAME" | "KEY" => Some(PairPart::Name),
        "value" | "Value" | "VALUE" => Some(PairPart::Value),
        _ => None,
    }
}

/// The name at this position, without its quotes.
fn name_at(text: &str, start: usize) -> Range<usize> {
    let rest = text[after_blanks(text, start)..].trim_start_matches(['"', '\'', '\\']);
    let start = text.len() - rest.len();
    start..start + name_after(rest).len()
}

/// Whether a name after a value belongs to it: no other object or list item begins in between.
fn is_of(text: &str, value: &ValueSpan, name: usize) -> bool {
    let Some(between) = text.get(value.next..name) else { return true };
    !between.contains(['{', '}']) && !between.lines().skip(1).any(|line| line.trim_start().starts_with('-'))
}
