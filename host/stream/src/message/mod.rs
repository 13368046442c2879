//! Encodes a state as messages: usually one, or several if the server's messages are too small.
//!
//! A state's document can be larger than a server's largest message. So a large state is split into parts
//! that follow each other in their partition, and it counts as missing unless all of them arrive. Its
//! position is in a header, and the id of a message lets the server recognize a repeat. With a key, messages
//! are signed ([`keys`]).

mod keys;

use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_LAST_SEQUENCE, NATS_MESSAGE_ID};
use bytes::{Bytes, BytesMut};
use kubewitness_core::State;
use kubewitness_core::limits::FRAME_BYTES;
use kubewitness_core::stream::{FORMER_LINES, GarbledMessage, JournalPosition, unpack_state};

pub(crate) use keys::MessageKeys;

/// The journal's line, the position, the position before it, and the earlier lines that agree up to that one.
const STOOD: &str = "Kubewitness-Stood";
/// The part's number and the number of parts, if there are several.
const PART: &str = "Kubewitness-Part";
/// The journal's id has 16 characters. It is part of the reader's checkpoint, between separators.
const LINE_BYTES: usize = 64;
/// How many bytes of a message its headers and the protocol take.
const BESIDE: usize = 4096;
/// The smallest part, whatever limit the server announces.
const LEAST: usize = 64 * 1024;
/// The largest state in parts: the largest document and its envelope.
const LARGEST: usize = 2 * FRAME_BYTES;

/// One message without its subject.
pub(crate) struct MessagePart {
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl MessagePart {
    /// Makes the server accept it only as the next message after this one.
    pub fn expect_last_sequence(&mut self, last_sequence: u64) {
        self.headers.insert(NATS_EXPECTED_LAST_SEQUENCE, last_sequence.to_string());
    }
}

/// The parts of a packed state. The server recognizes a repeated part by its id.
pub(crate) fn split_into_parts(
    source: &str,
    stood: &JournalPosition,
    packed: &Bytes,
    max_payload: usize,
) -> Vec<MessagePart> {
    let size = max_payload.saturating_sub(BESIDE).max(LEAST);
    let count = packed.len().div_ceil(size).max(1);
    let part = |index: usize| {
        let mut headers = HeaderMap::new();
        let JournalPosition { line, position, before, before_lines } = stood;
        // Another part size splits a state differently. The server must not consider the new parts repeats of
        // the former ones.
        let cut = if count > 1 { format!("/{size}") } else { String::new() };
        headers.insert(NATS_MESSAGE_ID, format!("{line}/{source}/{position}/{index}{cut}"));
        // A version that knows one earlier line reads the first.
        let before_lines: String = before_lines.iter().map(|line| format!(" {line}")).collect();
        headers.insert(STOOD, format!("{line} {position} {before}{before_lines}"));
        if count > 1 {
            headers.insert(PART, format!("{index} {count}"));
        }
        let body = packed.slice(index * size..packed.len().min((index + 1) * size));
        MessagePart { headers, body }
    };
    (0..count).map(part).collect()
}

/// Joins parts to states. The parts of a state are consecutive in their partition. A part out of order starts
/// over, and the state is then missed as a whole when its last part arrives.
#[derive(Default)]
pub(crate) struct PartJoiner {
    of: Option<JournalPosition>,
    /// The number of the first part in the stream.
    first: u64,
    next: usize,
    bytes: BytesMut,
}

impl PartJoiner {
    /// The number at which an incomplete state begins.
    pub fn first_number(&self) -> Option<u64> {
        self.of.is_some().then_some(self.first)
    }

    /// Takes a part. Returns the state once it is complete.
    pub fn take(
        &mut self,
        sequence: u64,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Option<(JournalPosition, State, Bytes)>, GarbledMessage> {
        let stood = stood_header(headers).ok_or(GarbledMessage::NoPosition)?;
        // A later state proves that the rest will never arrive. The incomplete one must not block reading.
        let is_behind = |of: &JournalPosition| of.line != stood.line || of.position < stood.position;
        if self.of.as_ref().is_some_and(is_behind) {
            *self = Self::default();
        }
        let Some((index, count)) = part_header(headers)? else {
            let (state, document) = unpack_state(body)?;
            return Ok(Some((stood, state, document)));
        };
        if index == 0 {
            *self = Self { of: Some(stood.clone()), first: sequence, ..Self::default() };
        }
        if self.of.as_ref() != Some(&stood) || self.next != index {
            // A repeat of a part, or a part whose first part is lost.
            return Ok(None);
        }
        if self.bytes.len() + body.len() > LARGEST {
            *self = Self::default();
            return Err(GarbledMessage::TooLarge { most: LARGEST });
        }
        self.bytes.extend_from_slice(body);
        self.next += 1;
        if self.next < count {
            return Ok(None);
        }
        let whole = std::mem::take(self).bytes;
        let (state, document) = unpack_state(&whole)?;
        Ok(Some((stood, state, document)))
    }
}

fn stood_header(headers: &HeaderMap) -> Option<JournalPosition> {
    let mut words = headers.get(STOOD)?.as_str().split(' ');
    let is_line = |line: &&str| {
        (1..=LINE_BYTES).contains(&line.len()) && line.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let line: Arc<str> = words.next().filter(is_line)?.into();
    let (position, before) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let named = |word: &str| Some(word).filter(is_line).map(Arc::from);
    let before_lines: Vec<_> = words.take(FORMER_LINES + 1).map(named).collect::<Option<_>>()?;
    let is_fine = before < position && before_lines.len() <= FORMER_LINES;
    is_fine.then_some(JournalPosition { line, position, before, before_lines })
}

fn part_header(headers: &HeaderMap) -> Result<Option<(usize, usize)>, GarbledMessage> {
    let Some(text) = headers.get(PART) else { return Ok(None) };
    let numbers = text.as_str().split_once(' ').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    let numbers = numbers.filter(|(index, count)| index < count);
    numbers.map(Some).ok_or_else(|| GarbledMessage::NoPart(text.as_str().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_core::stream::pack_state;
    use kubewitness_core::{Change, ObjectRef, StateId, Version};

    fn state() -> State {
        let object = ObjectRef { kind: "Job".into(), uid: "u1".into(), ..ObjectRef::default() };
        let version = Version::new("12");
        State {
            id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
            seq: 9,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            object: Arc::new(object),
            owner: None,
            resource_version: version,
            status: Arc::default(),
            previous: None,
            observed_ms: 7,
            late: false,
            quotes_none_under: None,
        }
    }

    /// Incompressible bytes.
    fn noise(length: usize) -> Vec<u8> {
        let mut dice = 1_u64;
        let mut byte = || {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 56) as u8
        };
        (0..length).map(|_| byte()).collect()
    }

    fn stood(position: u64) -> JournalPosition {
        JournalPosition {
            line: "a".into(),
            position,
            before: 8,
            before_lines: ["b", "c"].into_iter().filter(|_| position > 9).map(Into::into).collect(),
        }
    }

    #[test]
    fn what_is_larger_than_a_message_comes_in_parts_and_is_put_together_again() {
        let document = noise(200_000);
        let packed = pack_state(&state(), &document);
        let sent = split_into_parts("jobs", &stood(9), &packed, 0);
        assert_eq!(sent.len(), 4);
        let mut parts = PartJoiner::default();
        for (index, part) in sent.iter().enumerate() {
            // Each part except the last comes twice, as after a lost acknowledgement.
            let found = parts.take(7, &part.headers, &part.body).unwrap();
            assert_eq!(parts.first_number(), (index < 3).then_some(7));
            if index == 3 {
                let (found, state_back, document_back) = found.unwrap();
                assert_eq!((found, state_back, &*document_back), (stood(9), state(), &*document));
            } else {
                assert!(found.is_none());
                assert!(parts.take(7, &part.headers, &part.body).unwrap().is_none() || index == 0);
            }
        }
    }

    #[test]
    fn parts_of_another_size_have_other_ids() {
        let packed = pack_state(&state(), &noise(300_000));
        let ids = |size: usize| -> Vec<String> {
            let parts = split_into_parts("jobs", &stood(9), &packed, size);
            parts.iter().map(|part| part.headers.get(NATS_MESSAGE_ID).unwrap().to_string()).collect()
        };
        assert!(ids(0).iter().all(|id| !ids(200_000).contains(id)));
        assert_eq!(ids(1 << 20), ["a/jobs/9/0"], "one message has the id that it always had");
    }

    #[test]
    fn a_line_that_continues_others_says_so() {
        for position in [9, 10] {
            let part = split_into_parts("jobs", &stood(position), &pack_state(&state(), b"{}"), 0).remove(0);
            assert_eq!(super::stood_header(&part.headers), Some(stood(position)));
        }
    }

    #[test]
    fn a_state_whose_first_part_is_missing_is_not_made_of_the_rest() {
        let packed = pack_state(&state(), &noise(150_000));
        let sent = split_into_parts("jobs", &stood(9), &packed, 0);
        let mut parts_of = PartJoiner::default();
        for part in &sent[1..] {
            assert!(parts_of.take(7, &part.headers, &part.body).unwrap().is_none());
        }
        let whole =
            |position| split_into_parts("jobs", &stood(position), &pack_state(&state(), b"{}"), 0).remove(0);
        assert!(parts_of.take(7, &whole(10).headers, &whole(10).body).unwrap().is_some());
        // A repeat of an older state between the parts is no reason to start over; a newer state is.
        let mut held = PartJoiner { of: Some(stood(12)), first: 3, ..PartJoiner::default() };
        assert!(held.take(7, &whole(9).headers, &whole(9).body).unwrap().is_some());
        assert_eq!(held.first_number(), Some(3));
        assert!(held.take(8, &whole(13).headers, &whole(13).body).unwrap().is_some());
        assert_eq!(held.first_number(), None);
    }

    #[test]
    fn what_somebody_else_sent_is_told_from_a_state() {
        let mut parts_of = PartJoiner::default();
        assert!(parts_of.take(7, &HeaderMap::new(), &Bytes::from_static(b"hello")).is_err());
        let mut part = split_into_parts("jobs", &stood(9), &pack_state(&state(), b"{}"), 0).remove(0);
        assert!(parts_of.take(7, &part.headers, &Bytes::from_static(b"hello")).is_err());
        for wrong in ["3 3", "x", "0 "] {
            part.headers.insert(PART, wrong);
            assert!(parts_of.take(7, &part.headers, &part.body).is_err(), "{wrong}");
        }
        let long = format!("{} 9 8", "a".repeat(LINE_BYTES + 1));
        let many = format!("a 9 8{}", " b".repeat(FORMER_LINES + 1));
        for line in ["a:b 9 8", "a~b 9 8", " 9 8", "a 9 8 b:c", "a 9 8 b ", "a 9 8 ", &long, &many] {
            part.headers.insert(STOOD, line);
            assert!(parts_of.take(7, &part.headers, &part.body).is_err(), "{line}");
        }
        part.headers.insert(STOOD, "a 8 9");
        assert!(parts_of.take(7, &part.headers, &part.body).is_err(), "nobody stands before the one before");
    }
}
