//! Splits the bytes of a watch into frames, one for each line. It does not look inside a frame.
//!
//! A frame within one chunk is a slice of the chunk; only a frame across chunks is copied. A frame over the
//! limit is returned once, truncated, and the rest of its line is skipped. An incomplete frame at the end of
//! the stream was cut by the server or the network. It is dropped, and the resumed watch delivers it again.

use bytes::{Bytes, BytesMut};

/// How many bytes of an oversized frame are kept. They suffice to identify its object.
pub const OVERSIZED_KEPT: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameLine {
    Frame(Bytes),
    /// The beginning of a frame over the limit.
    Oversized(Bytes),
}

#[derive(Debug)]
pub struct FrameSplitter {
    limit: usize,
    carry: BytesMut,
    skipping: bool,
}

impl FrameSplitter {
    pub fn new(limit: usize) -> Self {
        Self { limit, carry: BytesMut::new(), skipping: false }
    }

    /// Appends each complete frame to `out`, in order. Empty lines are skipped.
    pub fn push(&mut self, mut chunk: Bytes, out: &mut Vec<FrameLine>) {
        while let Some(end) = memchr::memchr(b'\n', &chunk) {
            let head = chunk.split_to(end + 1);
            self.end_of_line(head.slice(..end), out);
        }
        if self.skipping || chunk.is_empty() {
            return;
        }
        if self.carry.len() + chunk.len() > self.limit {
            self.push_oversized(&chunk, out);
            self.skipping = true;
            return;
        }
        self.carry.extend_from_slice(&chunk);
    }

    fn end_of_line(&mut self, tail: Bytes, out: &mut Vec<FrameLine>) {
        if std::mem::take(&mut self.skipping) {
            return;
        }
        if self.carry.len() + tail.len() > self.limit {
            self.push_oversized(&tail, out);
            return;
        }
        let line = if self.carry.is_empty() {
            tail
        } else {
            self.carry.extend_from_slice(&tail);
            self.carry.split().freeze()
        };
        if !line.iter().all(u8::is_ascii_whitespace) {
            out.push(FrameLine::Frame(line));
        }
    }

    /// Keeps the same number of bytes however the stream was chunked, so the same frame always becomes the
    /// same poison message.
    fn push_oversized(&mut self, more: &[u8], out: &mut Vec<FrameLine>) {
        let most = OVERSIZED_KEPT.min(self.limit);
        let mut kept = std::mem::take(&mut self.carry);
        kept.truncate(most);
        kept.extend_from_slice(&more[..more.len().min(most - kept.len())]);
        // Copied, so that the ten megabytes of the frame are freed.
        out.push(FrameLine::Oversized(Bytes::copy_from_slice(&kept)));
    }

    /// The bytes of a frame that has not ended yet.
    pub fn pending_bytes(&self) -> usize {
        self.carry.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(limit: usize, chunks: &[&[u8]]) -> (Vec<FrameLine>, usize) {
        let (mut splitter, mut out) = (FrameSplitter::new(limit), Vec::new());
        for chunk in chunks {
            splitter.push(Bytes::copy_from_slice(chunk), &mut out);
        }
        (out, splitter.pending_bytes())
    }

    fn frame(text: &str) -> FrameLine {
        FrameLine::Frame(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn a_frame_that_never_ends_is_not_given_out() {
        let (lines, pending) = split(100, &[b"{\"a\":1}\n{\"b\"", b":2"]);
        assert_eq!(lines, [frame("{\"a\":1}")]);
        assert_eq!(pending, 6);
    }

    #[test]
    fn a_frame_of_three_megabytes_in_many_chunks_is_one_frame() {
        let body = vec![b'x'; 3 * 1024 * 1024];
        let (mut splitter, mut out) = (FrameSplitter::new(10 * 1024 * 1024), Vec::new());
        for chunk in body.chunks(16 * 1024) {
            splitter.push(Bytes::copy_from_slice(chunk), &mut out);
        }
        assert!(out.is_empty());
        splitter.push(Bytes::from_static(b"\nnext\n"), &mut out);
        assert_eq!(out, [FrameLine::Frame(body.into()), frame("next")]);
    }

    #[test]
    fn an_oversized_frame_is_told_once_and_the_next_one_is_whole() {
        let whole: &[&[u8]] = &[b"0123456789ab\nok\n"];
        let parts: &[&[u8]] = &[b"01234567", b"89ab", b"cd", b"\nok\n"];
        for chunks in [whole, parts] {
            let (lines, _) = split(10, chunks);
            assert_eq!(lines.len(), 2, "{lines:?}");
            assert_eq!(lines[0], FrameLine::Oversized(Bytes::from_static(b"0123456789")));
            assert_eq!(lines[1], frame("ok"));
        }
    }

    proptest! {
        #[test]
        fn where_the_chunks_are_cut_changes_nothing(
            frames in prop::collection::vec("[a-z]{1,40}", 0..20),
            cuts in prop::collection::vec(1usize..30, 1..60),
            limit in 5usize..50,
        ) {
            let stream = frames.iter().fold(String::new(), |all, frame| all + frame + "\n").into_bytes();
            let (mut splitter, mut out) = (FrameSplitter::new(limit), Vec::new());
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                splitter.push(Bytes::copy_from_slice(head), &mut out);
                rest = tail;
            }
            prop_assert_eq!(out.len(), frames.len());
            for (line, sent) in out.iter().zip(&frames) {
                match line {
                    FrameLine::Frame(bytes) => {
                        prop_assert!(sent.len() <= limit);
                        prop_assert_eq!(&bytes[..], sent.as_bytes());
                    }
                    FrameLine::Oversized(kept) => {
                        prop_assert!(sent.len() > limit);
                        prop_assert_eq!(&kept[..], &sent.as_bytes()[..limit]);
                    }
                }
            }
        }
    }
}
