//! Finds what stands behind a secret's name in a command line.
//!
//! It knows how people write command lines, not the grammar of a shell. Where it can't tell where a secret ends, it
//! takes more.

use std::ops::Range;

use super::until;
use super::values::{Form, Quote, Quotes, Value, after_blanks};

/// What an element of a command line says of the next one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Next {
    #[default]
    Argument,
    /// After a secret's name.
    Secret,
    /// Many words, as after `sh -c`.
    Script,
}

/// Values behind names that `is_secret`: `--token=…`, `--token …`, `TOKEN=…`, `Authorization: …`, `Bearer …`.
/// `next`: what the element before says of this one.
pub(super) fn in_words(
    text: &str,
    next: &mut Next,
    is_secret: impl Fn(&str) -> bool,
    found: &mut Vec<Range<usize>>,
) {
    let this = std::mem::take(next);
    if this == Next::Secret {
        if !text.is_empty() {
            found.push(0..text.len());
        }
        // It may be no value but the next flag.
        if text.starts_with("--") && announces(text, &is_secret) {
            *next = Next::Secret;
        }
        return;
    }
    let (mut at, mut end, mut quotes) = (0, 0, Quotes::default());
    let mut is_next = false;
    while let Some(word) = next_word(text, at, &mut end) {
        let is_announced = std::mem::take(&mut is_next) && !text[word.clone()].starts_with(['=', ':']);
        let begun = match is_announced {
            true => {
                Some(Begun { name: word.start..word.start, start: word.start, form: Form::Word, quote: None })
            }
            false => assigned(text, &word, &is_secret),
        };
        at = word.end;
        if is_announced || begun.is_none() {
            is_next = announces(&text[word], &is_secret);
        }
        if let Some(mut begun) = begun {
            if this == Next::Script && begun.form == Form::Rest && !text.starts_with('-') {
                begun.form = Form::Word;
            }
            let value = begun.value(text, quotes.open_at(text, begun.start));
            at = value.next;
            quotes.skip_to(at);
            found.push(value.range);
        }
    }
    *next = match is_next {
        true => Next::Secret,
        false if is_of_shell(text) => Next::Script,
        false => Next::Argument,
    };
}

/// As `-c` and `-lc`: a script is next.
fn is_of_shell(flag: &str) -> bool {
    let letters = flag.strip_prefix('-').and_then(|flag| flag.strip_suffix('c'));
    letters.is_some_and(|letters| letters.len() < 6 && letters.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// The rest of the word in which the search stands, or the next one. `end`: of the word before, so that a word with
/// many values is not looked through for each.
pub(super) fn next_word(text: &str, from: usize, end: &mut usize) -> Option<Range<usize>> {
    let mut start = from;
    while let blanks = text.len() - text[start..].trim_start().len()
        && let next = after_blanks(text, blanks)
        && next > start
    {
        start = next;
    }
    if *end <= start {
        *end = start + until(&text[start..], char::is_whitespace).len();
    }
    (start < *end).then_some(start..*end)
}

/// Where a value begins.
pub(super) struct Begun {
    pub name: Range<usize>,
    pub start: usize,
    form: Form,
    /// Before its name.
    quote: Option<Quote>,
}

impl Begun {
    pub fn value(&self, text: &str, open: Option<Quote>) -> Value {
        Value::at(text, self.start, self.form, self.quote.or(open))
    }
}

/// The value within this word, or beginning in it, that a name before `=` or `:` says is a secret.
pub(super) fn assigned(text: &str, word: &Range<usize>, is_secret: impl Fn(&str) -> bool) -> Option<Begun> {
    for (place, sign) in text[word.clone()].match_indices(['=', ':']) {
        let start = word.start + place + 1;
        let before = without_blanks(&text[..start - 1]);
        let is_apart = before.len() < start - 1;
        let before = before.strip_suffix('+').unwrap_or(before);
        // As in `os.environ['TOKEN'] = …` and `TOKEN[0]=…`.
        let before = match before.strip_suffix(']') {
            Some(key) if key.ends_with(['"', '\'']) => key,
            Some(index) => {
                index.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix('[').unwrap_or(before)
            }
            None => before,
        };
        let (before, is_quoted) = match before.strip_suffix(['"', '\'']) {
            // JSON within JSON has more of them with each level.
            Some(name) => (name.trim_end_matches('\\'), true),
            None => (before, false),
        };
        let name = name_before(before);
        let before_name = &before[..before.len() - name.len()];
        let begins = before_name.chars().next_back();
        // `image/token:latest` names an image.
        let is_name =
            sign == "=" || is_quoted || begins.is_none_or(|c| c.is_whitespace() || "\"'`{(,=".contains(c));
        let is_address = sign == ":" && text[start..].starts_with("//");
        if !is_name || is_address || !is_secret(name.trim_start_matches('-')) {
            continue;
        }
        let quote = begins.filter(|c| !is_quoted && matches!(c, '"' | '\'')).map(|quote| Quote {
            sign: quote as u8,
            is_escaped: before_name[..before_name.len() - 1].ends_with('\\'),
        });
        let form = match sign {
            // An element of its own is one argument, blanks included.
            "=" if name.len() == before.len() => Form::Rest,
            "=" => Form::Word,
            _ if is_quoted || matches!(begins, Some('{' | ',')) => Form::Member,
            _ => Form::Line,
        };
        // `==` compares, and `=>` gives a name its value.
        let signs = match sign {
            "=" if text[start..].starts_with('>') => 1,
            "=" if is_apart => until(&text[start..], |c| c != '=').len(),
            _ => 0,
        };
        let name = before.len() - name.len()..before.len();
        return Some(Begun { name, start: start + signs, form, quote });
    }
    None
}

/// Whether the next word is a secret.
fn announces(word: &str, is_secret: impl Fn(&str) -> bool) -> bool {
    let word = word.trim_end_matches(['"', '\'', ',', '\\']);
    // A command line may begin within quotes, as in `{"args":"--token …"}`.
    let word = word.rsplit(['"', '\'', '`']).next().unwrap_or_default().trim_start_matches(['(', '[', '\\']);
    let flag = word.strip_prefix('-').map(|flag| flag.trim_start_matches('-'));
    word.eq_ignore_ascii_case("bearer")
        || flag.is_some_and(|flag| name_before(flag).len() == flag.len() && is_secret(flag))
}

/// Without the blanks at its end, and without line ends that `\` takes away.
fn without_blanks(text: &str) -> &str {
    let mut rest = text.trim_end_matches([' ', '\t']);
    while let Some(line) = rest.strip_suffix("\\\n").or_else(|| rest.strip_suffix("\\\r\n")) {
        rest = line.trim_end_matches([' ', '\t']);
    }
    rest
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// The name that a text begins with.
pub(super) fn name_after(text: &str) -> &str {
    until(text, |c| !is_of_name(c))
}

/// The name that a text ends with.
fn name_before(text: &str) -> &str {
    let start = text
        .rfind(|c| !is_of_name(c))
        .map_or(0, |last| last + text[last..].chars().next().map_or(1, char::len_utf8));
    &text[start..]
}

/// Whether it only names a variable, whose value stands elsewhere.
pub(super) fn is_reference(value: &str) -> bool {
    let name = value.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')'));
    let name = name.or_else(|| value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')));
    name.is_some_and(|name| !name.is_empty() && name_before(name).len() == name.len())
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
