//! Finds the end of a secret's value in a command line, a header or JSON. If the quotes leave it ambiguous,
//! the value is everything that can belong to it.

use std::ops::Range;

use super::digest::digest_at;

/// Characters that end a word if a blank follows.
const AFTER_WORD: [char; 6] = [',', ';', ')', ']', '}', '`'];

/// The form of a value after its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::redact) enum ValueForm {
    /// The rest of the text.
    Rest,
    /// A word as a shell reads it.
    Word,
    /// A word as a shell reads it, within a quote that opened before its name. A blank does not end it.
    Quoted,
    /// A member of an object.
    Member,
    /// A header, or a line of YAML.
    Line,
}

/// A quote that opened before the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::redact) struct OpenQuote {
    pub sign: u8,
    pub is_escaped: bool,
}

/// A value, and the position at which the search continues.
pub(in crate::redact) struct ValueSpan {
    pub range: Range<usize>,
    pub next: usize,
}

impl ValueSpan {
    fn to(range: Range<usize>) -> Self {
        Self { next: range.end, range }
    }

    /// `open` is the quote around the value. Reads little more than the value itself.
    pub fn at(text: &str, start: usize, form: ValueForm, open: Option<OpenQuote>) -> Self {
        let start = match form {
            ValueForm::Rest => start,
            ValueForm::Member => text.len() - text[start..].trim_start().len(),
            ValueForm::Word | ValueForm::Quoted | ValueForm::Line => after_blanks(text, start),
        };
        if let Some(end) = digest_at(text, start).filter(|_| form != ValueForm::Rest) {
            return Self::to(start..end);
        }
        let quoted = quoted_at(text, start, form);
        if let Some((within, next)) = quoted.clone().filter(|(_, next)| form.ends_at(text, *next, open)) {
            return Self { range: within, next };
        }
        let first = text.as_bytes().get(start);
        let end = match form {
            ValueForm::Rest => text.len(),
            ValueForm::Word => credentials_end(text, start, open),
            ValueForm::Member if matches!(first, Some(b'[' | b'{')) => {
                list_end(text, start).unwrap_or(text.len())
            }
            ValueForm::Member => plain_end(text, start).unwrap_or_else(|| line_end(text, start, open)),
            ValueForm::Quoted | ValueForm::Line => line_end(text, start, open),
        };
        let next = quoted.map_or(end, |(_, next)| next.max(end));
        let value = match form {
            ValueForm::Rest => &text[start..next],
            _ => text[start..next].trim_end_matches(['`', ' ', '\t']),
        };
        Self { range: start..start + value.len(), next }
    }
}

impl ValueForm {
    /// Whether a value that closes its own quote here ends here. After a comma a header may continue, and in
    /// a shell the word may.
    fn ends_at(self, text: &str, at: usize, open: Option<OpenQuote>) -> bool {
        let closes = |c: char| open.is_some_and(|open| c == char::from(open.sign));
        let rest = &text[at..];
        match self {
            Self::Rest => rest.is_empty(),
            Self::Word | Self::Quoted => {
                let rest = rest.trim_start_matches(|c| AFTER_WORD.contains(&c) || closes(c));
                rest.is_empty() || is_blank(rest.as_bytes(), 0)
            }
            Self::Member | Self::Line => {
                let next = rest.trim_start_matches([' ', '\t']).chars().next();
                next.is_none_or(|c| "}])\r\n".contains(c) || closes(c) || (c == ',' && self == Self::Member))
            }
        }
    }
}

/// The text in quotes, and the position of their end. `None` if they never end, or if an escape leaves that
/// ambiguous.
fn quoted_at(text: &str, start: usize, form: ValueForm) -> Option<(Range<usize>, usize)> {
    let (bytes, rest) = (text.as_bytes(), &text[start..]);
    if let Some(rest) = rest.strip_prefix("\\\"") {
        let within = start + 2;
        let end = within + rest.find('\\')?;
        return (bytes.get(end + 1) == Some(&b'"')).then_some((within..end, end + 2));
    }
    let quote = *bytes.get(start).filter(|byte| matches!(byte, b'"' | b'\''))?;
    let end = match form {
        ValueForm::Rest | ValueForm::Word | ValueForm::Quoted => close_in_shell(bytes, start + 1, quote)?,
        ValueForm::Member | ValueForm::Line => close(bytes, start + 1, quote)?,
    };
    let is_open = quote == b'\'' && bytes[end - 1] == b'\\';
    (!is_open).then_some((start + 1..end, end + 1))
}

/// The position of the closing quote. A shell has no escapes in single quotes.
fn close(bytes: &[u8], from: usize, quote: u8) -> Option<usize> {
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if quote != b'\'' => at += 2,
            byte if *byte == quote => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// [`Self::close`] for a shell: in double quotes, a command or parameter substitution has its own quotes,
/// which nest.
fn close_in_shell(bytes: &[u8], from: usize, quote: u8) -> Option<usize> {
    if quote != b'"' {
        return close(bytes, from, quote);
    }
    // The open delimiters, innermost last: a quote, or the bracket of a command or parameter substitution.
    let (mut open, mut at) = (vec![b'"'], from);
    while let (Some(byte), Some(innermost)) = (bytes.get(at), open.last()) {
        match (byte, innermost) {
            (b'\\', _) => at += 1,
            (b'"', b'"') | (b')', b'(') | (b'}', b'{') => drop(open.pop()),
            (b'"', _) | (b'(', b'(') => open.push(*byte),
            (b'\'', b'(') => at = close(bytes, at + 1, b'\'')?,
            (b'`', _) => at = close(bytes, at + 1, b'`')?,
            (b'$', _) => {
                if let Some(bracket @ (b'(' | b'{')) = bytes.get(at + 1) {
                    open.push(*bracket);
                    at += 1;
                }
            }
            _ => {}
        }
        if open.is_empty() {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The word before the secret in one value, as in `Bearer …`.
const SCHEMES: [&str; 6] = ["apikey", "basic", "bearer", "digest", "negotiate", "token"];

/// Whether the word only names the scheme of the secret that follows.
pub(in crate::redact) fn is_scheme(word: &str) -> bool {
    SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// The end of a word. If the word is only a scheme, the end of the next word.
fn credentials_end(text: &str, start: usize, open: Option<OpenQuote>) -> usize {
    let end = word_end(text, start, open);
    let next = after_blanks(text, end);
    if is_scheme(&text[start..end]) && next > end { word_end(text, next, open) } else { end }
}

/// After blanks, and after line ends that are escaped by `\`.
pub(in crate::redact) fn after_blanks(text: &str, at: usize) -> usize {
    let mut rest = text[at..].trim_start_matches([' ', '\t']);
    while let Some(line) = rest.strip_prefix("\\\n").or_else(|| rest.strip_prefix("\\\r\n")) {
        rest = line.trim_start_matches([' ', '\t']);
    }
    text.len() - rest.len()
}

/// Whether a shell ends a word here. For a shell, a form feed and a carriage return are part of a word.
fn is_blank(bytes: &[u8], at: usize) -> bool {
    match bytes.get(at) {
        Some(b' ' | b'\t' | b'\n') => true,
        Some(b'\r') => bytes.get(at + 1) == Some(&b'\n'),
        _ => false,
    }
}

/// Whether a word ends at a position. A run of punctuation after a word is read only once, however long it
/// is.
#[derive(Default)]
struct WordEnds {
    /// The end of the run that was read last.
    until: usize,
    is_end: bool,
}

impl WordEnds {
    /// `at` must not be before the last queried position.
    fn is_end_at(&mut self, text: &str, at: usize) -> bool {
        if at > self.until {
            let rest = text[at..].trim_start_matches(AFTER_WORD);
            self.until = text.len() - rest.len();
            self.is_end = rest.is_empty() || is_blank(rest.as_bytes(), 0);
        }
        self.is_end
    }
}

/// The end of a word, including everything in its quotes, brackets and escapes.
fn word_end(text: &str, start: usize, open: Option<OpenQuote>) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut ends) = (start, 0_usize, WordEnds::default());
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'\\' if bytes.get(at + 1) == Some(&b'"') => {
                text[at + 2..].find("\\\"").map_or(text.len(), |end| at + 2 + end + 2)
            }
            b'\\' => at + 2,
            // For example `$'it\'s'`: there, a shell has escapes.
            b'$' if bytes.get(at + 1) == Some(&b'\'') && open.is_none_or(|open| open.sign != b'\'') => {
                escaped_end(bytes, at + 2)
            }
            b'"' | b'\'' => {
                let closes = open == Some(OpenQuote { sign: *byte, is_escaped: false });
                if closes && at > start && ends.is_end_at(text, at + 1) {
                    return at;
                }
                close_in_shell(bytes, at + 1, *byte).map_or(text.len(), |end| end + 1)
            }
            // A backtick that ends a word closes a substitution that began before the value.
            b'`' if at == start || !ends.is_end_at(text, at + 1) => {
                close(bytes, at + 1, *byte).map_or(text.len(), |end| end + 1)
            }
            b'(' | b'{' | b'[' => {
                depth += 1;
                at + 1
            }
            b')' | b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at + 1
            }
            _ if depth == 0 && is_blank(bytes, at) => return at,
            _ => at + 1,
        }
    }
    text.len()
}

/// The end of a single-quoted text in which `\` escapes.
fn escaped_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'\'' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

pub(in crate::redact) fn prefix_until(text: &str, is_end: impl Fn(char) -> bool) -> &str {
    &text[..text.find(is_end).unwrap_or(text.len())]
}

pub(in crate::redact) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// The end of a JSON list or object. `None` if it does not end, or if it is inside of a quoted text.
fn list_end(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (start, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => return None,
            b'"' | b'\'' => at = close(bytes, at + 1, *byte)?,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Some(at + 1),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// The end of a number or of another plain value of JSON.
fn plain_end(text: &str, start: usize) -> Option<usize> {
    let plain = prefix_until(&text[start..], |c| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
    let is_plain = matches!(plain, "true" | "false" | "null") || plain.parse::<f64>().is_ok();
    Some(start + plain.len()).filter(|end| is_plain && ValueForm::Member.ends_at(text, *end, None))
}

/// The end of a line with its continuation, or of the quote around it.
fn line_end(text: &str, start: usize, open: Option<OpenQuote>) -> usize {
    // A YAML block continues below.
    if text[start..].starts_with(['|', '>']) {
        return text.len();
    }
    let Some(open) = open else { return block_end(text, start) };
    let closes = |(place, _): &(usize, &str)| {
        let is_escaped = text[start..start + place].ends_with('\\');
        is_escaped == open.is_escaped && ValueForm::Word.ends_at(text, start + place + 1, None)
    };
    let mut quotes = text[start..].match_indices(char::from(open.sign));
    quotes.find(closes).map_or(text.len(), |(place, _)| start + place)
}

/// The end of a line, including the lines below that belong to it: after a `\`, with more indentation than
/// its name, or as a list that is the whole value.
fn block_end(text: &str, start: usize) -> usize {
    let column = column_of_name(text, start);
    let mut end = start + prefix_until(&text[start..], |c| c == '\n').len();
    let first = text[start..end].trim_end();
    let is_empty = first.is_empty() || first.starts_with('#');
    let mut is_continued = first.ends_with('\\');
    while end < text.len() {
        let line = prefix_until(&text[end + 1..], |c| c == '\n');
        let bare = line.trim_start_matches([' ', '\t']);
        let indent = line.len() - bare.len();
        let is_list = is_empty && indent == column && bare.starts_with('-');
        if !(is_continued || bare.trim_end().is_empty() || indent > column || is_list) {
            break;
        }
        is_continued = bare.trim_end().ends_with('\\');
        end += 1 + line.len();
    }
    start + text[start..end].trim_end().len()
}

/// The column of the first name in a line, after blanks and list markers.
fn column_of_name(text: &str, place: usize) -> usize {
    let before = &text[..place];
    let line = &before[before.rfind('\n').map_or(0, |end| end + 1)..];
    let mut rest = line.trim_start_matches([' ', '\t']);
    while let Some(item) = rest.strip_prefix('-').filter(|item| item.starts_with([' ', '\t'])) {
        rest = item.trim_start_matches([' ', '\t']);
    }
    line.len() - rest.len()
}

/// Which quote is open at a place of a text.
#[derive(Default)]
pub(in crate::redact) struct QuoteTracker {
    at: usize,
    open: Option<u8>,
    /// Whether the open quote begins with a name and its value, as in `'host=h password=…'`.
    is_of_pairs: bool,
}

impl QuoteTracker {
    pub fn open_at(&mut self, text: &str, place: usize) -> Option<OpenQuote> {
        let bytes = text.as_bytes();
        while self.at < place {
            let byte = bytes[self.at];
            match (byte, self.open) {
                (b'\\', open) if open != Some(b'\'') => self.at += 1,
                (b'"' | b'\'', Some(open)) if open == byte => self.open = None,
                (b'"', None) => self.note_opening(text, byte),
                (b'\'', None) if !is_apostrophe(bytes, self.at) => self.note_opening(text, byte),
                _ => {}
            }
            self.at += 1;
        }
        self.open.map(|sign| OpenQuote { sign, is_escaped: false })
    }

    fn note_opening(&mut self, text: &str, sign: u8) {
        let first = text[self.at + 1..].trim_start_matches(is_of_name);
        self.is_of_pairs = first.starts_with('=');
        self.open = Some(sign);
    }

    pub fn is_of_pairs(&self) -> bool {
        self.open.is_some() && self.is_of_pairs
    }

    /// Quotes inside a value open nothing after it.
    pub fn skip_to(&mut self, place: usize) {
        self.at = self.at.max(place);
    }
}

/// For example `it's`.
fn is_apostrophe(bytes: &[u8], at: usize) -> bool {
    let is_letter =
        |place: Option<usize>| place.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_alphanumeric);
    is_letter(at.checked_sub(1)) && is_letter(Some(at + 1))
}
