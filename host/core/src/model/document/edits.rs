//! Encodes small deltas as a list of edits: keep some bytes of the base, skip some, insert others.
//!
//! Two versions of an object mostly differ in a few numbers and times. One walk over both finds these. A
//! compressor handles every other difference.
//!
//! The format repeats one record: the numbers of bytes kept, skipped and inserted (each LEB128), and the
//! inserted bytes. The rest of the base after the last record is kept.

use super::{DOCUMENT_BYTES, DocumentError};

/// Two texts match again after this many equal bytes.
const WORD: usize = 8;
/// How far the walk looks for the end of a value that was replaced by one of equal length.
const REPLACED: usize = 48;
/// The most bytes of the base that one record skips.
const LEFT_OUT: usize = 1024;
/// The length of the first, cheap search: most values are short.
const NEAR: usize = 96;
/// The base has a candidate for continuing the walk at every so many bytes.
const STEP: usize = 4;
const SLOTS: usize = 1024;

/// Returns `None` if the edits would take more than `most` bytes.
pub fn write(format: u8, base: &[u8], document: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(most);
    out.push(format);
    let (mut base, mut document) = (base, document);
    loop {
        let kept = equal_prefix_bytes(base, document);
        (base, document) = (&base[kept..], &document[kept..]);
        if base.is_empty() && document.is_empty() {
            return Some(out);
        }
        let (left_out, put_in) = next_meeting(base, document, most)?;
        [kept, left_out, put_in].into_iter().for_each(|number| push(&mut out, number));
        if out.len() + put_in > most {
            return None;
        }
        out.extend_from_slice(&document[..put_in]);
        (base, document) = (&base[left_out..], &document[put_in..]);
    }
}

/// The number of equal bytes from the beginning.
fn equal_prefix_bytes(one: &[u8], other: &[u8]) -> usize {
    let words = one.chunks_exact(WORD).zip(other.chunks_exact(WORD));
    let whole = words.take_while(|(one, other)| one == other).count() * WORD;
    let rest = one[whole..].iter().zip(&other[whole..]);
    whole + rest.take_while(|(one, other)| one == other).count()
}

/// The number of bytes of each text before their next common part. The texts differ in the first byte.
fn next_meeting(base: &[u8], document: &[u8], most: usize) -> Option<(usize, usize)> {
    let same_length = (1..REPLACED).find(|at| is_met(base, *at, document, *at));
    if let Some(at) = same_length {
        return Some((at, at));
    }
    // An insertion may resemble a later part of the base, which must not be skipped for it.
    let only_more = (1..most).find(|at| is_met(base, 0, document, *at));
    if let Some(at) = only_more {
        return Some((0, at));
    }
    let other =
        other_length(base, document, most, NEAR).or_else(|| other_length(base, document, most, LEFT_OUT));
    if other.is_some() {
        return other;
    }
    let end = base.iter().rev().zip(document.iter().rev()).take_while(|(one, other)| one == other).count();
    (document.len() - end <= most).then_some((base.len() - end, document.len() - end))
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn is_met(base: &[u8], left_out: usize, document: &[u8], put_in: usize) -> bool {
    word_at(base, left_out).is_some_and(|here| word_at(document, put_in) == Some(here))
}

/// [`next_meeting`] for texts of different lengths, which skips at most `left_out` bytes of the base.
fn other_length(base: &[u8], document: &[u8], most: usize, left_out: usize) -> Option<(usize, usize)> {
    let slot = |word: u64| (word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SLOTS.ilog2())) as usize;
    // The offset in the base of each word, plus one, so that 0 means none.
    let mut places = [0_u16; SLOTS];
    for (at, word) in (0..left_out).step_by(STEP).map_while(|at| Some((at, word_at(base, at)?))) {
        let place = &mut places[slot(word)];
        // The first of several candidates wins: skipped bytes can't be kept later.
        *place = if *place == 0 { at as u16 + 1 } else { *place };
    }
    let met = |put_in: usize| {
        let left_out = usize::from(places[slot(word_at(document, put_in)?)].checked_sub(1)?);
        is_met(base, left_out, document, put_in).then_some((left_out, put_in))
    };
    let (left_out, put_in) = (0..most).find_map(met)?;
    // The common part may begin before the candidate.
    let before = base[..left_out].iter().rev().zip(document[..put_in].iter().rev());
    let earlier = before.take_while(|(one, other)| one == other).count();
    Some((left_out - earlier, put_in - earlier))
}

fn push(out: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(edits: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, rest) = edits.split_first()?;
        *edits = rest;
        number |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Restores the document from the output of [`write`] after the format byte.
pub fn read(base: &[u8], edits: &[u8]) -> Result<Vec<u8>, DocumentError> {
    let document =
        apply_edits(base, edits).ok_or(DocumentError::Corrupt("it is a delta on another document"))?;
    match document.len() > DOCUMENT_BYTES {
        true => Err(DocumentError::TooLarge(document.len() as u64)),
        false => Ok(document),
    }
}

fn apply_edits(mut base: &[u8], mut edits: &[u8]) -> Option<Vec<u8>> {
    let mut document = Vec::with_capacity(base.len() + edits.len());
    while !edits.is_empty() {
        let (kept, left_out, put_in) =
            (take_number(&mut edits)?, take_number(&mut edits)?, take_number(&mut edits)?);
        document.extend_from_slice(base.get(..kept)?);
        document.extend_from_slice(edits.get(..put_in)?);
        (base, edits) = (base[kept..].get(left_out..)?, &edits[put_in..]);
    }
    document.extend_from_slice(base);
    Some(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 112;

    fn taken(base: &str, document: &str) -> Option<usize> {
        let written = write(7, base.as_bytes(), document.as_bytes(), MOST)?;
        assert_eq!(written[0], 7);
        assert_eq!(read(base.as_bytes(), &written[1..]).unwrap(), document.as_bytes());
        Some(written.len())
    }

    const JOB: &str = r#"{"metadata":{"name":"train-7","resourceVersion":"99998"},"status":{"active":1,"ready":0,"startTime":"2026-01-02T03:04:05Z"}}"#;

    #[test]
    fn what_did_not_change_takes_one_byte() {
        assert_eq!(taken(JOB, JOB), Some(1));
        assert_eq!(taken("", ""), Some(1));
    }

    #[test]
    fn a_number_of_the_same_length_takes_its_digits_and_three_bytes() {
        assert_eq!(taken(JOB, &JOB.replace("99998", "99999")), Some(1 + 3 + 1));
        let both = JOB.replace("99998", "99999").replace("\"ready\":0", "\"ready\":1");
        assert_eq!(taken(JOB, &both), Some(1 + 2 * (3 + 1)));
    }

    #[test]
    fn values_of_other_lengths_and_fields_that_come_and_go_are_found() {
        assert_eq!(taken(JOB, &JOB.replace("99998", "100001")), Some(1 + 3 + 6));
        assert_eq!(taken(JOB, &JOB.replace("\"active\":1,", "")), Some(1 + 3));
        let text = "\"completionTime\":\"2026-01-02T03:09:05Z\",";
        let more = JOB.replace("\"ready\"", &format!("{text}\"ready\""));
        assert!(taken(JOB, &more).unwrap() <= 1 + 3 + text.len());
        assert_eq!(taken(&more, JOB), Some(1 + 3));
    }

    #[test]
    fn what_would_be_long_is_left_to_the_compressor() {
        let other: String = (0..200).map(|n| format!("{n:x}")).collect();
        assert_eq!(taken(JOB, &other), None);
        assert_eq!(taken("", &other), None);
        assert_eq!(taken(&other, ""), Some(1 + 4), "nothing is left");
    }

    #[test]
    fn what_reaches_beyond_the_base_or_ends_too_early_is_refused() {
        let damaged: [&[u8]; 6] = [&[4, 0, 0], &[0, 4, 0], &[2, 2, 0], &[0, 0, 1], &[0, 0], &[0xff; 11]];
        for edits in damaged {
            assert!(matches!(read(b"abc", edits), Err(DocumentError::Corrupt(_))), "{edits:?}");
        }
    }
}
