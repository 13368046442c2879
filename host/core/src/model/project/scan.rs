//! A scanner over JSON bytes. It finds where values begin and end, checks their grammar, and decodes only the
//! few strings that its caller asks for.
//!
//! It knows JSON but not Kubernetes. It never panics, reads each byte once, and uses one word of memory for
//! the nesting.
//!
//! It is written here for speed: a frame of 2.2 KB is read 2.4 times as fast as by `serde_json` into a type
//! that borrows its fields (`cargo xtask bench frame` prints the ratio).

use super::ProjectError;
use super::text::{RawForm, RawString};

/// The most levels of arrays and objects. A deeper document is refused. `serde_json`, which plugins and the
/// rest of the controller use, refuses it, too.
pub(crate) const NESTING: u32 = 127;

/// The answer of the callback of [`JsonScanner::for_each_member`]: whether it wants more members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanFlow {
    Next,
    /// Stop: the scanner stays inside the object and does not scan the rest.
    Enough,
}

#[derive(Clone, Debug)]
pub(crate) struct JsonScanner<'a> {
    bytes: &'a [u8],
    /// The same bytes if they are known to be UTF-8, so strings need no second check.
    text: Option<&'a str>,
    at: usize,
    /// The number of open levels of [`Self::for_each_member`] and [`Self::for_each_element`].
    depth: u32,
}

impl<'a> JsonScanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, text: None, at: 0, depth: 0 }
    }

    pub(crate) fn of_text(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), text: Some(text), at: 0, depth: 0 }
    }

    #[inline(always)]
    pub(crate) fn error_here(&self, expected: &'static str) -> ProjectError {
        malformed_at(self.at, expected)
    }

    /// Returns the next byte that is not white space, without taking it, or 0 at the end. JSON allows no zero
    /// byte, so the two can't be confused.
    #[inline(always)]
    pub(crate) fn peek_byte(&mut self) -> u8 {
        while let Some(&byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return byte;
            }
            self.at += 1;
        }
        0
    }

    #[inline(always)]
    fn expect_byte(&mut self, byte: u8, expected: &'static str) -> Result<(), ProjectError> {
        if self.peek_byte() != byte {
            return Err(self.error_here(expected));
        }
        self.at += 1;
        Ok(())
    }

    pub(crate) fn expect_end(&mut self) -> Result<(), ProjectError> {
        self.peek_byte();
        if self.at < self.bytes.len() {
            return Err(self.error_here("nothing more"));
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn text(&mut self) -> Result<RawString<'a>, ProjectError> {
        self.expect_byte(b'"', "a string")?;
        let start = self.at;
        let escaped = self.skip_text()?;
        let raw = match self.text.and_then(|text| text.get(start..self.at - 1)) {
            Some(text) => RawForm::Utf8(text),
            None => RawForm::Bytes(&self.bytes[start..self.at - 1]),
        };
        Ok(RawString { raw, escaped, at: start })
    }

    /// Skips from after the opening quote to after the closing one. Returns whether the string has escapes.
    #[inline(always)]
    fn skip_text(&mut self) -> Result<bool, ProjectError> {
        let mut escaped = false;
        loop {
            self.at = find_special_byte(self.bytes, self.at);
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.skip_escape()?;
                }
                Some(_) => return Err(self.error_here("no control character in a string")),
                None => return Err(self.error_here("the end of a string")),
            }
        }
    }

    #[inline(always)]
    fn skip_escape(&mut self) -> Result<(), ProjectError> {
        let width = match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u')
                if self
                    .bytes
                    .get(self.at + 2..self.at + 6)
                    .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) =>
            {
                6
            }
            _ => return Err(self.error_here("an escape")),
        };
        self.at += width;
        Ok(())
    }

    /// The offset at which the next value begins.
    pub(crate) fn start(&mut self) -> usize {
        self.peek_byte();
        self.at
    }

    /// The offset after the last value that was taken.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Takes the next value and returns its bytes.
    pub(crate) fn take_value_bytes(&mut self) -> Result<&'a [u8], ProjectError> {
        self.peek_byte();
        let start = self.at;
        self.skip_any_value()?;
        Ok(&self.bytes[start..self.at])
    }

    /// Takes the next element of a list. It may be as deep as an object in a frame. A deeper element is not
    /// decoded, but the elements after it are still found.
    pub(crate) fn take_element(&mut self) -> Result<&'a [u8], ProjectError> {
        self.peek_byte();
        let (start, depth) = (self.at, std::mem::replace(&mut self.depth, 1));
        let skipped = self.skip_any_value();
        self.depth = depth;
        match skipped {
            Err(ProjectError::TooDeep { .. }) => {
                self.at = start;
                self.skip_unchecked()?;
            }
            skipped => skipped?,
        }
        Ok(&self.bytes[start..self.at])
    }

    /// Skips an object or array of any depth. It looks only for its end.
    fn skip_unchecked(&mut self) -> Result<(), ProjectError> {
        let mut depth = 0usize;
        loop {
            match self.peek_byte() {
                b'"' => {
                    self.at += 1;
                    self.skip_text()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                0 => return Err(self.error_here("the end of the value")),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Takes the next value with `read`, and returns the result and the value's bytes.
    pub(crate) fn take_value<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ProjectError>,
    ) -> Result<(&'a [u8], T), ProjectError> {
        self.peek_byte();
        let start = self.at;
        let made = read(self)?;
        Ok((&self.bytes[start..self.at], made))
    }

    /// Skips one value of any kind and checks its grammar.
    pub(crate) fn skip_any_value(&mut self) -> Result<(), ProjectError> {
        // A local copy stays in registers. Otherwise the offset would go through memory with each string.
        let mut local = self.clone();
        let skipped = local.skip_value();
        self.at = local.at;
        skipped
    }

    #[inline(always)]
    fn skip_value(&mut self) -> Result<(), ProjectError> {
        // One bit for each level: 1 is an object, 0 an array.
        let mut kinds: u128 = 0;
        let mut depth = 0;
        loop {
            match self.peek_byte() {
                b'"' => {
                    self.at += 1;
                    self.skip_text()?;
                }
                open @ (b'{' | b'[') => {
                    if depth + self.depth >= NESTING {
                        return Err(ProjectError::TooDeep { at: self.at });
                    }
                    self.at += 1;
                    let object = open == b'{';
                    if self.peek_byte() == if object { b'}' } else { b']' } {
                        self.at += 1;
                    } else {
                        depth += 1;
                        kinds = (kinds << 1) | u128::from(object);
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => self.skip_scalar()?,
            }
            // After a value, close the levels that end here, or continue with the next member.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let object = kinds & 1 == 1;
                match (self.peek_byte(), object) {
                    (b',', _) => {
                        self.at += 1;
                        if object {
                            self.key()?;
                        }
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.at += 1;
                        depth -= 1;
                        kinds >>= 1;
                    }
                    _ => return Err(self.error_here("a comma or the end of the list")),
                }
            }
        }
    }

    #[inline(always)]
    fn key(&mut self) -> Result<(), ProjectError> {
        self.expect_byte(b'"', "a key")?;
        self.skip_text()?;
        self.expect_byte(b':', "a colon")
    }

    #[inline(always)]
    fn skip_scalar(&mut self) -> Result<(), ProjectError> {
        let rest = &self.bytes[self.at..];
        let word: &[u8] = match rest.first() {
            Some(b't') => b"true",
            Some(b'f') => b"false",
            Some(b'n') => b"null",
            _ => return self.skip_number(),
        };
        if !rest.starts_with(word) {
            return Err(self.error_here("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    #[inline(always)]
    fn skip_number(&mut self) -> Result<(), ProjectError> {
        if self.byte_here() == b'-' {
            self.at += 1;
        }
        match self.byte_here() {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.skip_digits(),
            _ => return Err(self.error_here("a value")),
        }
        if self.byte_here() == b'.' {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.byte_here(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.byte_here(), b'+' | b'-') {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn byte_here(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn skip_digits(&mut self) {
        while self.byte_here().is_ascii_digit() {
            self.at += 1;
        }
    }

    #[inline(always)]
    fn some_digits(&mut self) -> Result<(), ProjectError> {
        if !self.byte_here().is_ascii_digit() {
            return Err(self.error_here("a digit"));
        }
        self.skip_digits();
        Ok(())
    }

    /// Calls `member` with each key of an object. `member` must take the value.
    pub(crate) fn for_each_member(
        &mut self,
        mut member: impl FnMut(RawString<'a>, &mut Self) -> Result<ScanFlow, ProjectError>,
    ) -> Result<(), ProjectError> {
        self.expect_byte(b'{', "an object")?;
        if self.peek_byte() == b'}' {
            self.at += 1;
            return Ok(());
        }
        self.depth += 1;
        loop {
            let key = self.text()?;
            self.expect_byte(b':', "a colon")?;
            if member(key, self)? == ScanFlow::Enough {
                return Ok(());
            }
            match self.peek_byte() {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    self.depth -= 1;
                    return Ok(());
                }
                _ => return Err(self.error_here("a comma or the end of the object")),
            }
        }
    }

    /// Calls `element` before each element of an array. `element` must take it.
    pub(crate) fn for_each_element(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), ProjectError>,
    ) -> Result<(), ProjectError> {
        self.expect_byte(b'[', "an array")?;
        if self.peek_byte() == b']' {
            self.at += 1;
            return Ok(());
        }
        self.depth += 1;
        loop {
            element(self)?;
            match self.peek_byte() {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    self.depth -= 1;
                    return Ok(());
                }
                _ => return Err(self.error_here("a comma or the end of the array")),
            }
        }
    }
}

/// Takes the offset instead of the scanner, so that the scanner may stay in registers.
#[cold]
#[inline(never)]
fn malformed_at(at: usize, expected: &'static str) -> ProjectError {
    ProjectError::Malformed { at, expected }
}

const HIGH: u64 = repeat_byte(0x80);

/// A word with this value in every byte.
const fn repeat_byte(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The offset of the next quote, backslash or control character, or the end. It reads eight bytes at a time:
/// most strings are too short for a vectored search to pay off.
#[inline(always)]
pub(super) fn find_special_byte(bytes: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        // Each subtraction marks the bytes that borrow. Bytes after the first mark, and non-ASCII bytes, may
        // be marked wrongly, so only the first mark is used.
        let quotes = (word ^ repeat_byte(b'"')).wrapping_sub(repeat_byte(1));
        let escapes = (word ^ repeat_byte(b'\\')).wrapping_sub(repeat_byte(1));
        let controls = word.wrapping_sub(repeat_byte(0x20));
        let marked = (quotes | escapes | controls) & !word & HIGH;
        if marked != 0 {
            return at + (marked.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
        at += 1;
    }
    at
}
