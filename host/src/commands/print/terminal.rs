//! Filters what goes to a terminal. Texts of objects, plugins and servers come from outside, and a terminal
//! interprets some characters: it moves the cursor, answers into the shell's input, or reverses the direction
//! of writing. Escaping at each call was rejected: one forgotten call would suffice. So everything that is
//! printed passes one of these functions, and no command has to know where its texts came from.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// The escape sequences of this program itself: `print::coloured_mark` colours signs.
const COLOURS: [&str; 3] = ["\x1b[32m", "\x1b[31m", "\x1b[0m"];

/// A text for one line of a terminal: characters that move the cursor, begin an escape sequence or change the
/// direction of writing become dots.
pub fn clean_line(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_obeyed) {
        Cow::Owned(text.chars().map(|c| if is_obeyed(c) { '·' } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// The same for several lines, with this program's own colours.
pub(super) fn clean_lines(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| is_obeyed(c) && !is_layout(c);
    if !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = COLOURS.iter().find(|colour| rest.starts_with(**colour));
        let taken = colour.map_or(c.len_utf8(), |colour| colour.len());
        match colour {
            None if is_obeyed(c) => cleaned.push('·'),
            _ => cleaned.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    Cow::Owned(cleaned)
}

/// The same JSON without characters that a terminal interprets. They occur only in its strings, where each
/// has an escape.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| is_obeyed(c) && !is_layout(c) && c != '\r';
    if !json.chars().any(is_obeyed) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match is_obeyed(c) {
            // All of them are in the plane that a single escape covers. Writing into a String can't fail.
            true => write!(escaped, "\\u{:04x}", u32::from(c)).unwrap_or_default(),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

fn is_layout(c: char) -> bool {
    matches!(c, '\n' | '\t')
}

fn is_obeyed(c: char) -> bool {
    // The controls are C0, DEL and C1; the others are direction marks and line separators.
    let unseen =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || unseen
}

/// Escapes JSON that is written in pieces, even if a piece ends within a character.
pub struct JsonEscaper<W> {
    out: W,
    /// An incomplete character.
    cut: Vec<u8>,
}

impl<W: Write> JsonEscaper<W> {
    pub fn new(out: W) -> Self {
        Self { out, cut: Vec::new() }
    }
}

impl<W: Write> Write for JsonEscaper<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.cut.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.cut) {
            Ok(all) => all.len(),
            // Bytes that can't be continued to a character are shown as the replacement character.
            Err(error) if error.error_len().is_some() => self.cut.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = String::from_utf8_lossy(&self.cut[..whole]);
        self.out.write_all(escaped_json(&text).as_bytes())?;
        self.cut.drain(..whole);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;x\u{7}\u{9b}31m\u{202e}b\u{2066}\u{7f}\u{200f}\u{61c}";

    #[test]
    fn texts_of_every_language_stay_as_they_are() {
        for text in ["größer – 完了 ✓", "שלום", "emoji 👩‍💻"] {
            assert!(matches!(clean_line(text), Cow::Borrowed(same) if same == text), "{text}");
            assert!(matches!(escaped_json(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn lines_keep_their_layout_and_this_programs_own_colours_alone() {
        let cleaned = clean_lines("\x1b[32m✓\x1b[0m one\n\ttwo\r\x1b[2J\x1b[33m\u{9b}m");
        assert_eq!(cleaned, "\x1b[32m✓\x1b[0m one\n\ttwo··[2J·[33m·m");
        assert!(!clean_lines(HOSTILE).chars().any(is_obeyed));
    }

    #[test]
    fn escaped_json_has_the_same_value_and_nothing_that_a_terminal_obeys() {
        let value = serde_json::json!({"name": HOSTILE, "fine": "größer"});
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escaped_json(&json);
            assert!(!escaped.chars().any(|c| is_obeyed(c) && c != '\n'), "{escaped:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        }
    }

    #[test]
    fn json_is_escaped_however_it_is_cut() {
        let json = serde_json::json!({"name": HOSTILE, "fine": "größer 完了"}).to_string();
        for size in 1..5 {
            let mut escaper = JsonEscaper::new(Vec::new());
            json.as_bytes().chunks(size).for_each(|piece| escaper.write_all(piece).unwrap());
            assert_eq!(String::from_utf8(escaper.out).unwrap(), escaped_json(&json), "in pieces of {size}");
        }
    }
}
