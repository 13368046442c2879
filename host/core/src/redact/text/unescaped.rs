//! A copy of a text with decoded JSON escapes, as in `TOKEN\\u003dhush`. Some programs escape the special
//! characters of a command line.

use std::ops::Range;

use super::commands::merge_ranges;

/// Any number of `\` may precede, because nested JSON has more at each level. Names and separators are ASCII,
/// so only escapes below 0x80 matter.
const DIGITS: usize = 4;

pub(in crate::redact) struct UnescapedText {
    pub text: String,
    /// The end of each escape, in the copy and in the text.
    ends: Vec<(usize, usize)>,
}

impl UnescapedText {
    /// `None` for a text without escapes.
    pub fn of(text: &str) -> Option<Self> {
        memchr::memmem::find(text.as_bytes(), br"\u00")?;
        let mut copy = Self { text: String::with_capacity(text.len()), ends: Vec::new() };
        let mut at = 0;
        for place in memchr::memmem::find_iter(text.as_bytes(), br"\u00") {
            let digits = place + 2..place + 2 + DIGITS;
            let code = text.get(digits.clone()).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            let Some(letter) = code.filter(u8::is_ascii) else { continue };
            let plain = text[at..place].trim_end_matches('\\');
            copy.text.push_str(plain);
            copy.text.push(char::from(letter));
            copy.ends.push((copy.text.len(), digits.end));
            at = digits.end;
        }
        copy.text.push_str(&text[at..]);
        (!copy.ends.is_empty()).then_some(copy)
    }

    /// Maps ranges of the copy to ranges of the text.
    pub fn original_ranges(&self, parts: Vec<Range<usize>>) -> impl Iterator<Item = Range<usize>> {
        merge_ranges(parts)
            .into_iter()
            .map(|part| self.original_offset(part.start)..self.original_offset(part.end))
    }

    fn original_offset(&self, of_copy: usize) -> usize {
        let next = self.ends.partition_point(|(copy, _)| *copy <= of_copy);
        let (copy, text) = next.checked_sub(1).map_or((0, 0), |last| self.ends[last]);
        text + (of_copy - copy)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_without_escapes_has_no_copy() {
        for text in ["", "TOKEN=hush", r"a\u0", r"a\u00é9", r"\u00e9", r"\u00+1"] {
            assert!(UnescapedText::of(text).is_none(), "{text}");
        }
        assert_eq!(UnescapedText::of(r"a\\u003d\u0062").unwrap().text, "a=b");
    }

    proptest! {
        #[test]
        fn each_part_of_the_copy_is_found_in_the_text(text in r"([abé]|\\{1,3}u00(3d|6[1-9]|e9)|\\){0,12}") {
            let Some(copy) = UnescapedText::of(&text) else { return Ok(()) };
            let places: Vec<_> = copy.text.char_indices().map(|(at, c)| at..at + c.len_utf8()).collect();
            let mut end = 0;
            for (part, c) in places.iter().zip(copy.text.chars()) {
                let place = copy.original_ranges(vec![part.clone()]).next().unwrap();
                let written = &text[place.clone()];
                prop_assert!(place.start == end, "the parts leave nothing out");
                end = place.end;
                let code = written.trim_start_matches('\\').strip_prefix("u00");
                let code = code.filter(|_| written.len() > 1).and_then(|code| u8::from_str_radix(code, 16).ok());
                prop_assert_eq!(code.map_or(written.to_owned(), |code| char::from(code).to_string()), c.to_string());
            }
            prop_assert_eq!(end, text.len());
        }
    }
}
