//! The frame splitter: no frame's bounds are lost, however the stream is cut into chunks.

use bytes::Bytes;
use kubewitness_core::frames::{FrameLine, FrameSplitter, OVERSIZED_KEPT};

/// Limits that an input chooses from: smaller than most lines, as large, and larger than what is
/// kept of an oversized one.
const LIMITS: [usize; 8] = [1, 2, 5, 16, 40, 300, 4096, OVERSIZED_KEPT + 1000];

/// The first byte chooses the limit, the second how the rest, the stream, is cut.
pub fn check(input: &[u8]) {
    let [limit, seed, stream @ ..] = input else { return };
    let limit = LIMITS[usize::from(*limit) % LIMITS.len()];
    let (expected, left) = at_once(limit, stream);
    for chunks in [vec![stream], stream.chunks(1).collect(), cut(*seed, stream), around_newlines(stream)] {
        let (mut splitter, mut lines) = (FrameSplitter::new(limit), Vec::new());
        for chunk in &chunks {
            splitter.push(Bytes::copy_from_slice(chunk), &mut lines);
            assert!(
                splitter.pending_bytes() <= limit,
                "{} bytes are held, over {limit}",
                splitter.pending_bytes()
            );
        }
        assert_eq!(lines, expected, "cut into {chunks:?} with a limit of {limit}");
        assert_eq!(splitter.pending_bytes(), left, "cut into {chunks:?} with a limit of {limit}");
    }
}

/// The lines of the whole stream, and how much of a frame is left that has not ended.
fn at_once(limit: usize, stream: &[u8]) -> (Vec<FrameLine>, usize) {
    let mut parts: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
    let last = parts.pop().unwrap_or_default();
    let oversized =
        |part: &[u8]| FrameLine::Oversized(Bytes::copy_from_slice(&part[..limit.min(OVERSIZED_KEPT)]));
    let mut lines: Vec<FrameLine> = parts
        .into_iter()
        .filter_map(|part| match part {
            part if part.len() > limit => Some(oversized(part)),
            part if part.trim_ascii().is_empty() => None,
            part => Some(FrameLine::Frame(Bytes::copy_from_slice(part))),
        })
        .collect();
    if last.len() > limit {
        lines.push(oversized(last));
        return (lines, 0);
    }
    (lines, last.len())
}

/// Pieces of lengths that look random and depend on nothing but the seed; some are empty.
fn cut(seed: u8, stream: &[u8]) -> Vec<&[u8]> {
    let (mut state, mut rest, mut pieces) = (u32::from(seed) + 1, stream, Vec::new());
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (head, tail) = rest.split_at(((state >> 24) as usize % 23).min(rest.len()));
        pieces.push(head);
        rest = tail;
    }
    pieces
}

/// Every newline alone between what is before and behind it.
fn around_newlines(stream: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        let body = line.strip_suffix(b"\n").unwrap_or(line);
        pieces.push(body);
        pieces.push(&line[body.len()..]);
    }
    pieces
}
