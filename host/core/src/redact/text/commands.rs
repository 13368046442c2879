//! Finds the values after secret names in a command line.
//!
//! It knows how people write command lines, not the grammar of a shell. If the end of a secret is ambiguous,
//! it takes the longer reading.

use std::ops::Range;

use super::values::{
    OpenQuote, QuoteTracker, ValueForm, ValueSpan, after_blanks, is_of_name, is_scheme, prefix_until,
};

/// The meaning of the next element of a command line.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::redact) enum NextElement {
    #[default]
    Argument,
    /// After a secret's name.
    Secret,
    /// Many words, as after `sh -c`.
    Script,
    /// Many arguments, as a variable such as `JAVA_OPTS` holds them.
    Arguments,
}

/// Values after names that `is_secret`: `--token=…`, `--token …`, `TOKEN=…`, `Authorization: …`, `Bearer …`.
/// `next` is what the previous element implies for this one.
pub(in crate::redact) fn in_words(
    text: &str,
    next: &mut NextElement,
    is_secret: impl Fn(&str) -> bool,
    found: &mut Vec<Range<usize>>,
) {
    let this = std::mem::take(next);
    if this == NextElement::Secret {
        // The element may be a separator before the value, the next flag, or the scheme of the secret that
        // follows.
        let is_sign = matches!(text, "=" | ":" | "=>");
        let flag = text.trim_end_matches(['=', ':']);
        if is_sign || is_scheme(text.trim()) || (text.starts_with("--") && announces_secret(flag, &is_secret))
        {
            *next = NextElement::Secret;
        }
        if !is_sign && !text.is_empty() {
            found.push(0..text.len());
        }
        return;
    }
    let (mut at, mut end, mut quotes) = (0, 0, QuoteTracker::default());
    // Set if the next word is a secret: the form of the value, and the open quote around it.
    let mut announced: Option<(ValueForm, Option<OpenQuote>)> = None;
    while let Some(word) = next_word(text, at, &mut end) {
        let form = announced.take().filter(|_| !text[word.clone()].starts_with(['=', ':']));
        let begun = match form {
            Some((form, quote)) => {
                Some(ValueStart { name: word.start..word.start, start: word.start, form, quote })
            }
            None => assigned_secret(text, &word, &is_secret),
        };
        at = word.end;
        let is_next =
            (form.is_some() || begun.is_none()) && announces_secret(&text[word.clone()], &is_secret);
        if is_next {
            // In a JSON list, an element ends where its quote ends.
            let is_element = ["\",", "',"].iter().any(|end| text[word.clone()].ends_with(end));
            announced = Some(match quote_before(&text[word.clone()]) {
                _ if is_element => (ValueForm::Member, None),
                Some(quote) => (ValueForm::Quoted, Some(quote)),
                None => (ValueForm::Word, None),
            });
        }
        if let Some(mut begun) = begun {
            let is_many =
                this == NextElement::Arguments || this == NextElement::Script && !text.starts_with('-');
            if is_many && begun.form == ValueForm::Rest {
                begun.form = ValueForm::Word;
            }
            let open = quotes.open_at(text, begun.start);
            if begun.form == ValueForm::Word && quotes.is_of_pairs() {
                begun.form = ValueForm::Quoted;
            }
            let value = begun.value_span(text, open);
            at = value.next;
            quotes.skip_to(at);
            let (value_text, rest) = (&text[value.range.clone()], &text[at..]);
            let is_kind =
                is_scheme(value_text.trim_end_matches('\\')) && (rest.is_empty() || rest.starts_with(QUOTES));
            if is_kind || value.range.start == text.len() {
                // The value is after the quotes that end here, or in the next element.
                at = text.len() - rest.trim_start_matches(QUOTES).len();
                announced = Some((ValueForm::Word, None));
            }
            found.push(value.range);
        }
    }
    *next = match announced {
        Some(_) => NextElement::Secret,
        None if is_of_shell(text) => NextElement::Script,
        None => NextElement::Argument,
    };
}

/// The characters around a word.
const QUOTES: [char; 4] = ['"', '\'', ',', '\\'];

/// For a flag such as `-c` or `-lc`, after which a script follows.
fn is_of_shell(flag: &str) -> bool {
    let letters = flag.strip_prefix('-').and_then(|flag| flag.strip_suffix('c'));
    letters.is_some_and(|letters| letters.len() < 6 && letters.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// The rest of the current word, or the next word. An element of a JSON list counts as a word. `end` is the
/// end of the previous word; it saves a search for each value of a word with many values.
pub(in crate::redact) fn next_word(text: &str, from: usize, end: &mut usize) -> Option<Range<usize>> {
    let mut start = from;
    while let blanks = text.len() - text[start..].trim_start().len()
        && let next = after_blanks(text, blanks)
        && next > start
    {
        start = next;
    }
    if *end <= start {
        *end = start + word_length(&text[start..]);
    }
    (start < *end).then_some(start..*end)
}

fn word_length(text: &str) -> usize {
    let mut before = ' ';
    for (place, c) in text.char_indices() {
        if c.is_whitespace() {
            return place;
        }
        if c == ',' && matches!(before, '"' | '\'') {
            return place + 1;
        }
        before = c;
    }
    text.len()
}

/// Where a value starts.
pub(in crate::redact) struct ValueStart {
    pub name: Range<usize>,
    pub start: usize,
    form: ValueForm,
    /// The position before its name.
    quote: Option<OpenQuote>,
}

impl ValueStart {
    pub fn value_span(&self, text: &str, open: Option<OpenQuote>) -> ValueSpan {
        ValueSpan::at(text, self.start, self.form, self.quote.or(open))
    }
}

/// The value within this word, or beginning in it, that a name before `=` or `:` says is a secret.
pub(in crate::redact) fn assigned_secret(
    text: &str,
    word: &Range<usize>,
    is_secret: impl Fn(&str) -> bool,
) -> Option<ValueStart> {
    text[word.clone()].match_indices(['=', ':']).find_map(|(place, sign)| {
        let sign = AssignmentSign { text, start: word.start + place + 1, is_equals: sign == "=" };
        let before = without_blanks(&text[..sign.start - 1]);
        let is_apart = before.len() < sign.start - 1;
        let before = before.strip_suffix('+').unwrap_or(before);
        // For example `os.environ['TOKEN'] = …`, `TOKEN[0]=…` and `T[TOKEN]=…`.
        let (indexed, key) = match before.strip_suffix(']') {
            Some(within) => (before_index(within), Some(within)),
            None => (Some(before), None),
        };
        let mut names = indexed.into_iter().chain(key);
        names.find_map(|before| sign.assigned_value_after(word.start, before, is_apart, &is_secret))
    })
}

/// The text before the bracket that opens an index.
fn before_index(within: &str) -> Option<&str> {
    let is_of_index = |c: char| is_of_name(c) || "\"'\\${}@*#".contains(c);
    within.trim_end_matches(is_of_index).strip_suffix('[')
}

/// A character that may assign a value to a name.
struct AssignmentSign<'t> {
    text: &'t str,
    start: usize,
    is_equals: bool,
}

impl AssignmentSign<'_> {
    /// The value that follows the name at the end of `before`. `word` is the start of the word that contains
    /// the name.
    fn assigned_value_after(
        &self,
        word: usize,
        before: &str,
        is_apart: bool,
        is_secret: impl Fn(&str) -> bool,
    ) -> Option<ValueStart> {
        let Self { text, start, is_equals } = *self;
        let (before, is_quoted) = match before.strip_suffix(['"', '\'']) {
            // Nested JSON has more of them at each level.
            Some(name) => (name.trim_end_matches('\\'), true),
            None => (before, false),
        };
        let name = name_before(before);
        let before_name = &before[..before.len() - name.len()];
        let begins = before_name.chars().next_back();
        // `image/token:latest` is an image.
        let is_name =
            is_equals || is_quoted || begins.is_none_or(|c| c.is_whitespace() || "\"'`{(,=".contains(c));
        let is_address = !is_equals && text[start..].starts_with("//");
        let is_secret_name = || {
            let written = || is_quoted.then(|| written_with_escapes(before)).flatten();
            is_secret(name.trim_start_matches('-'))
                || after_letter(name).is_some_and(&is_secret)
                || written().is_some_and(|name| is_secret(&name))
        };
        if !is_name || is_address || !is_secret_name() {
            return None;
        }
        let opened = begins.filter(|c| !is_quoted && matches!(c, '"' | '\''));
        let quote = match opened {
            Some(sign) => Some(OpenQuote {
                sign: sign as u8,
                is_escaped: before_name[..before_name.len() - 1].ends_with('\\'),
            }),
            // For example `"--from-literal=TOKEN=…"`.
            None => before_name.get(word..).filter(|_| is_equals && !is_quoted).and_then(quote_at),
        };
        let form = match is_equals {
            // A separate element is one argument, including its blanks.
            true if before_name.is_empty() || is_short_flag(before_name) => ValueForm::Rest,
            true if quote.is_some() => ValueForm::Quoted,
            // As in a settings file: `token = …`.
            true if is_apart && begins == Some('\n') => ValueForm::Line,
            true => ValueForm::Word,
            false if is_quoted || matches!(begins, Some('{' | ',')) => ValueForm::Member,
            false => ValueForm::Line,
        };
        // `==` compares, and `=>` assigns a value to a name.
        let signs = match is_equals {
            true if text[start..].starts_with('>') => 1,
            true if is_apart => prefix_until(&text[start..], |c| c != '=').len(),
            _ => 0,
        };
        let name = before.len() - name.len()..before.len();
        Some(ValueStart { name, start: start + signs, form, quote })
    }
}

/// The name after a flag of one letter, as in `-Dtoken=…`.
fn after_letter(name: &str) -> Option<&str> {
    let rest = name.strip_prefix('-')?;
    rest.starts_with(|c: char| c.is_ascii_alphabetic()).then(|| &rest[1..])
}

/// The quote that a word begins with and that does not close within it.
fn quote_at(word: &str) -> Option<OpenQuote> {
    let (is_escaped, quoted) = word.strip_prefix('\\').map_or((false, word), |quoted| (true, quoted));
    let sign = quoted.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    (!quoted[1..].contains(sign)).then_some(OpenQuote { sign: sign as u8, is_escaped })
}

/// The quote before the flag that ends a word, as in `ARGS="--token`.
fn quote_before(word: &str) -> Option<OpenQuote> {
    let place = word.rfind(['"', '\''])?;
    quote_at(&word[place..])
        .map(|quote| OpenQuote { is_escaped: word[..place].ends_with('\\'), ..quote })
        .filter(|_| place + 1 < word.len())
}

/// For example `-e ` in `-e TOKEN=…`: a flag and its value in one element.
fn is_short_flag(before: &str) -> bool {
    let mut letters = before.trim_end_matches([' ', '\t']).chars();
    let is_flag = letters.next() == Some('-') && letters.next().is_some_and(|c| c.is_ascii_alphabetic());
    is_flag && letters.next().is_none() && before.ends_with([' ', '\t'])
}

/// Decodes a JSON key that has escapes such as `\u0065`.
fn written_with_escapes(before: &str) -> Option<String> {
    let key = &before[before.rfind(['"', '\'']).map_or(0, |quote| quote + 1)..];
    let (mut out, mut rest) = (String::new(), key);
    while let Some((plain, escape)) = rest.split_once('\\') {
        let escape = escape.trim_start_matches('\\');
        let code = escape.strip_prefix('u').and_then(|digits| digits.get(..4));
        let letter = code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        out.push_str(plain);
        out.extend(letter);
        rest = if letter.is_some() { &escape[5..] } else { escape };
    }
    (rest.len() < key.len()).then(|| out + rest)
}

/// Whether the next word is a secret.
fn announces_secret(word: &str, is_secret: impl Fn(&str) -> bool) -> bool {
    let word = word.trim_end_matches(QUOTES);
    // A command line may begin within quotes, as in `{"args":"--token …"}`.
    let word = word.rsplit(['"', '\'', '`']).next().unwrap_or_default().trim_start_matches(['(', '[', '\\']);
    let flag = word.strip_prefix('-').map(|flag| flag.trim_start_matches('-'));
    word.eq_ignore_ascii_case("bearer")
        || flag.is_some_and(|flag| name_before(flag).len() == flag.len() && is_secret(flag))
}

/// Without trailing blanks, and without line ends that are escaped by `\`.
fn without_blanks(text: &str) -> &str {
    let mut rest = text.trim_end_matches([' ', '\t']);
    while let Some(line) = rest.strip_suffix("\\\n").or_else(|| rest.strip_suffix("\\\r\n")) {
        rest = line.trim_end_matches([' ', '\t']);
    }
    rest
}

/// The name that a text begins with.
pub(in crate::redact) fn name_after(text: &str) -> &str {
    prefix_until(text, |c| !is_of_name(c))
}

/// The name that a text ends with.
fn name_before(text: &str) -> &str {
    let start = text
        .rfind(|c| !is_of_name(c))
        .map_or(0, |last| last + text[last..].chars().next().map_or(1, char::len_utf8));
    &text[start..]
}

/// Whether it only refers to a variable, whose value is elsewhere.
pub(in crate::redact) fn is_reference(value: &str) -> bool {
    let name = value.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')'));
    let name = name.or_else(|| value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')));
    name.is_some_and(|name| !name.is_empty() && name_before(name).len() == name.len())
}

/// In order; no range contains or overlaps another.
pub(in crate::redact) fn merge_ranges(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
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

/// Maps ranges of a decoded text, in order, to ranges of its escaped bytes.
pub(in crate::redact) fn escaped_ranges(raw: &[u8], parts: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut at, mut decoded) = (0, 0);
    let mut go_to = |place: usize| {
        while at < raw.len() && decoded < place {
            let (width, length) = escape_length(&raw[at..]);
            at += width;
            decoded += length;
        }
        at.min(raw.len())
    };
    parts.iter().map(|part| go_to(part.start)..go_to(part.end)).collect()
}

/// The bytes of the next character or escape, and how many bytes it stands for.
fn escape_length(raw: &[u8]) -> (usize, usize) {
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
