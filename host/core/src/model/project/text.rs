//! A string of JSON as the scanner found it. It is compared or decoded only on demand.

use std::borrow::Cow;

use super::ProjectError;

/// The raw text between the quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawString<'a> {
    pub(super) raw: RawForm<'a>,
    pub(super) escaped: bool,
    pub(super) at: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RawForm<'a> {
    /// The text is known to be UTF-8.
    Utf8(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> RawForm<'a> {
    #[inline]
    fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Utf8(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl<'a> RawString<'a> {
    /// Makes a text from bytes that a scanner has checked.
    pub(super) fn from_scanned(raw: &'a [u8], escaped: bool, at: usize) -> Self {
        Self { raw: RawForm::Bytes(raw), escaped, at }
    }

    /// The text's offset and length, and whether it has escapes.
    pub(crate) fn place_in_text(&self) -> (usize, usize, bool) {
        (self.at, self.raw.as_bytes().len(), self.escaped)
    }

    #[inline]
    pub(crate) fn equals_bytes(&self, text: &[u8]) -> bool {
        match self.escaped {
            false => self.raw.as_bytes() == text,
            true => self.decode().is_ok_and(|decoded| decoded.as_bytes() == text),
        }
    }

    #[inline]
    pub(crate) fn decode(&self) -> Result<Cow<'a, str>, ProjectError> {
        let text = match self.raw {
            RawForm::Utf8(text) => text,
            RawForm::Bytes(bytes) => std::str::from_utf8(bytes)
                .map_err(|error| ProjectError::Utf8 { at: self.at + error.valid_up_to() })?,
        };
        match self.escaped {
            false => Ok(Cow::Borrowed(text)),
            true => self.unescape_text(text).map(Cow::Owned),
        }
    }

    fn unescape_text(&self, text: &str) -> Result<String, ProjectError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(found) = memchr::memchr(b'\\', rest.as_bytes()) {
            out.push_str(&rest[..found]);
            let code = rest.as_bytes().get(found + 1).copied().unwrap_or(0);
            rest = rest.get(found + 2..).unwrap_or("");
            out.push(match code {
                b'"' | b'\\' | b'/' => char::from(code),
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'n' => '\n',
                b'r' => '\r',
                b't' => '\t',
                b'u' => {
                    let (decoded, after) = unicode_escape(rest).ok_or_else(|| self.bad_escape(text, rest))?;
                    rest = after;
                    decoded
                }
                _ => return Err(self.bad_escape(text, rest)),
            });
        }
        out.push_str(rest);
        Ok(out)
    }

    fn bad_escape(&self, text: &str, rest: &str) -> ProjectError {
        let at = self.at + text.len() - rest.len();
        ProjectError::Malformed { at, expected: "an escape that means a character" }
    }
}

/// Reads the four digits after `\u`, and the second half of a surrogate pair if needed.
fn unicode_escape(rest: &str) -> Option<(char, &str)> {
    let unit = |text: &str| u32::from_str_radix(text.get(..4)?, 16).ok();
    let first = unit(rest)?;
    let after = rest.get(4..)?;
    if !(0xD800..0xE000).contains(&first) {
        return Some((char::from_u32(first)?, after));
    }
    let second = unit(after.strip_prefix("\\u")?)?;
    if first >= 0xDC00 || !(0xDC00..0xE000).contains(&second) {
        return None;
    }
    let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    Some((char::from_u32(code)?, after.get(6..)?))
}
