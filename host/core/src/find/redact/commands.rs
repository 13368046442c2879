//! Finds secrets within a text: the passwords of addresses, and what stands behind a secret's name in a command line.
//!
//! It knows how people write command lines, not the grammar of a shell. Where it can't tell where a secret ends, it
//! takes more.

use std::ops::Range;

/// Passwords, as in `postgres://user:password@host`. In `http` and `https` the user is taken too: tokens stand there.
///
/// Each character is looked at a few times at most: the text may be a stranger's.
pub(super) fn in_addresses(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut from, mut word) = (0, Word::default());
    while let Some(at) = text[from..].find("://") {
        let (scheme, start) = (&text[from..from + at], from + at + 3);
        from = start;
        if word.end < start {
            word = Word::at(text, start);
        }
        let Some(end) = end_of_user(text, start, &word) else { continue };
        let user = &text[start..end];
        let scheme = scheme.as_bytes();
        let is_web = ["http", "https"].iter().any(|web| {
            let before = scheme.len().checked_sub(web.len());
            before.is_some_and(|before| scheme[before..].eq_ignore_ascii_case(web.as_bytes()))
        });
        let begin = match user.split_once(':') {
            _ if is_web => start,
            Some((name, _)) => start + name.len() + 1,
            None => continue,
        };
        if begin < end {
            found.push(begin..end);
        }
        from = end;
    }
    found
}

/// A word of a text. One may have many `://`.
#[derive(Default)]
struct Word {
    end: usize,
    /// Its last `@`.
    at: Option<usize>,
}

impl Word {
    fn at(text: &str, start: usize) -> Self {
        let word = until(&text[start..], |c| c.is_whitespace() || "\"'<>`".contains(c));
        Self { end: start + word.len(), at: word.rfind('@').map(|at| start + at) }
    }
}

/// Where the part of an address before its `@` ends. A password with a slash is no right address, but people
/// write it.
fn end_of_user(text: &str, start: usize, word: &Word) -> Option<usize> {
    let host = until(&text[start..word.end], |c| "/?#".contains(c));
    if let Some(end) = host.rfind('@') {
        return Some(start + end);
    }
    let (_, rest) = host.split_once(':').filter(|_| !host.starts_with('['))?;
    let is_port = rest.bytes().all(|byte| byte.is_ascii_digit());
    if is_port { None } else { word.at.filter(|at| *at >= start) }
}

/// Values behind names that `is_secret`: `--token=…`, `--token …`, `TOKEN=…`, `Authorization: …`, `Bearer …`.
/// `is_next`: the element before announced one.
pub(super) fn in_words(
    text: &str,
    is_next: &mut bool,
    is_secret: impl Fn(&str) -> bool,
    found: &mut Vec<Range<usize>>,
) {
    if std::mem::take(is_next) && !text.starts_with("--") {
        if !text.is_empty() && !is_reference(text) {
            found.push(0..text.len());
        }
        return;
    }
    let mut at = 0;
    while let Some(word) = next_word(text, at) {
        at = word.end;
        let announced = std::mem::take(is_next) && !text[word.clone()].starts_with("--");
        let value = match announced {
            true => Some(value_at(text, word.start)),
            false => assigned(text, &word, &is_secret),
        };
        match value {
            Some(value) => {
                at = at.max(value.end);
                if !value.is_empty() && !is_reference(&text[value.clone()]) {
                    found.push(value);
                }
            }
            None => *is_next = announces(&text[word], &is_secret),
        }
    }
}

fn next_word(text: &str, from: usize) -> Option<Range<usize>> {
    let rest = &text[from..];
    let start = from + rest.len() - rest.trim_start().len();
    let word = until(&text[start..], char::is_whitespace);
    (!word.is_empty()).then(|| start..start + word.len())
}

/// The value within this word, or beginning in it, that a name before `=` or `:` says is a secret.
fn assigned(text: &str, word: &Range<usize>, is_secret: impl Fn(&str) -> bool) -> Option<Range<usize>> {
    let within = &text[word.clone()];
    for (place, sign) in within.match_indices(['=', ':']) {
        let (before, is_quoted) = match within[..place].strip_suffix(['"', '\'']) {
            Some(name) => (name, true),
            None => (&within[..place], false),
        };
        let name = name_before(before);
        let begins = before[..before.len() - name.len()].chars().next_back();
        // `image/token:latest` names an image.
        let is_name = sign == "=" || begins.is_none_or(|c| "\"'`{(,=".contains(c)) || is_quoted;
        let start = word.start + place + 1;
        if !is_name || text[start..].starts_with("//") || !is_secret(name.trim_start_matches('-')) {
            continue;
        }
        return Some(match sign {
            // An element of its own is one argument, blanks included.
            "=" if word.start == 0 && text.starts_with('-') && name.len() == before.len() => {
                start..text.len()
            }
            "=" => value_at(text, start),
            _ => line_at(text, start),
        });
    }
    None
}

/// Whether the next word is a secret.
fn announces(word: &str, is_secret: impl Fn(&str) -> bool) -> bool {
    let word = word.trim_start_matches(['"', '\'', '`', '(']);
    let flag = word.strip_prefix('-').map(|flag| flag.trim_start_matches('-'));
    word.eq_ignore_ascii_case("bearer")
        || flag.is_some_and(|flag| name_before(flag).len() == flag.len() && is_secret(flag))
}

/// The name that a text ends with.
fn name_before(text: &str) -> &str {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let start = text
        .rfind(|c| !is_of_name(c))
        .map_or(0, |last| last + text[last..].chars().next().map_or(1, char::len_utf8));
    &text[start..]
}

/// A value up to its closing quote, or to the next blank.
fn value_at(text: &str, start: usize) -> Range<usize> {
    let rest = &text[start..];
    match rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        Some(quote) => start + 1..start + 1 + until(&rest[1..], |c| c == quote).len(),
        None => {
            let word = until(rest, char::is_whitespace);
            start..start + word.trim_end_matches(['"', '\'', '`']).len()
        }
    }
}

/// The value of a header or of a field: up to a closing quote or the end of the line.
fn line_at(text: &str, start: usize) -> Range<usize> {
    let rest = &text[start..];
    let line = rest.trim_start_matches([' ', '\t']);
    let begin = start + rest.len() - line.len();
    match line.starts_with(['"', '\'']) {
        true => value_at(text, begin),
        false => begin..begin + until(line, |c| "\"'`\r\n".contains(c)).trim_end().len(),
    }
}

/// Whether it only names a variable, whose value stands elsewhere.
fn is_reference(value: &str) -> bool {
    let name = value.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')'));
    let name = name.or_else(|| value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')));
    name.is_some_and(|name| !name.is_empty() && name_before(name).len() == name.len())
}

fn until(text: &str, is_end: impl Fn(char) -> bool) -> &str {
    &text[..text.find(is_end).unwrap_or(text.len())]
}

/// In order, and none within another or across its end.
pub(super) fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => out.push(range),
        }
    }
    out
}

/// Where parts of a decoded text, in order, stand in its escaped bytes.
pub(super) fn escaped(raw: &[u8], parts: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut at, mut decoded) = (0, 0);
    let mut go_to = |place: usize| {
        while at < raw.len() && decoded < place {
            let (width, length) = escape(&raw[at..]);
            at += width;
            decoded += length;
        }
        at.min(raw.len())
    };
    parts.iter().map(|part| go_to(part.start)..go_to(part.end)).collect()
}

/// The bytes of the next character or escape, and how many bytes it means.
fn escape(raw: &[u8]) -> (usize, usize) {
    if raw[0] != b'\\' {
        return (1, 1);
    }
    let digits = raw.get(2..6).and_then(|digits| std::str::from_utf8(digits).ok());
    let unit = digits.filter(|_| raw.get(1) == Some(&b'u')).map(|digits| u32::from_str_radix(digits, 16));
    match unit {
        Some(Ok(0..0x80)) => (6, 1),
        Some(Ok(0x80..0x800)) => (6, 2),
        Some(Ok(0xD800..0xE000)) => (12, 4),
        Some(_) => (6, 3),
        None => (2, 1),
    }
}
