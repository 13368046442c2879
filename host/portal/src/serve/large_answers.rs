//! Limits the size of answers in progress: a client that does not read keeps its answer in memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use hyper::body::{Body as _, Bytes, Frame, SizeHint};
use tokio::time::Instant;

use super::long_held::{BodyRoom, RoomPart, SHARE};

/// Smaller answers are limited by the number of connections.
const LARGE: u64 = 64 * 1024;
/// The room for all large answers, in KiB. A page of documents has a few MiB.
const ROOM_KIB: u32 = 256 * 1024;
/// The room of one party, in MiB.
pub(crate) const OF_ONE_MIB: u32 = ROOM_KIB / SHARE / 1024;
/// The memory of an answer that is written as it is read, in KiB: a block of states and their text.
const STREAMED_KIB: u32 = 2 * 1024;
/// The memory of a row that waits to become text, in KiB.
const ROW_KIB: u32 = 4;
/// How much a connection's buffer takes at a time.
const PIECE: usize = 16 * 1024;
/// An answer must be read within this time, plus a second for each so many bytes.
const AT_LEAST: Duration = Duration::from_secs(30);
const BYTES_A_SECOND: u64 = 64 * 1024;

#[derive(Clone)]
pub(crate) struct LargeAnswers(BodyRoom);

/// Marks an answer that is written as it is read: the size of its text is unknown, and only a part of it is
/// in memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct StreamedAnswer {
    /// Rows that were already read and will become text.
    pub rows: usize,
}

impl LargeAnswers {
    pub(crate) fn new() -> Self {
        Self(BodyRoom::new(ROOM_KIB))
    }

    /// Reserves room for an answer of a party, until it is sent. `None` if no room is left.
    pub(crate) fn hold_answer(
        &self,
        party: Option<&str>,
        response: Response<Body>,
    ) -> Option<Response<Body>> {
        let streamed = response.extensions().get::<StreamedAnswer>().copied();
        let (kib, size) = match response.body().size_hint().exact() {
            Some(bytes) if bytes > LARGE => (u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX), bytes),
            exact => match streamed {
                Some(StreamedAnswer { rows }) if exact.is_none() => (
                    STREAMED_KIB
                        .saturating_add(u32::try_from(rows).unwrap_or(u32::MAX).saturating_mul(ROW_KIB)),
                    0,
                ),
                _ => return Some(response),
            },
        };
        let (part, began) = (self.0.take(party, kib)?, Instant::now());
        let pieces = |body| BodyPieces { body, rest: Bytes::new(), began, size, sent: 0, _part: part };
        Some(response.map(|body| Body::new(pieces(body))))
    }
}

/// Passes a body on in pieces. As a whole, it would move into the connection's buffer at once, and its room
/// would be free although the client has read nothing.
struct BodyPieces {
    body: Body,
    rest: Bytes,
    began: Instant,
    /// The bytes of the whole answer, if they are known.
    size: u64,
    sent: u64,
    _part: RoomPart,
}

impl BodyPieces {
    /// The time by which the client must have read this much. A slower one holds memory that others need.
    fn allowed_until(&self) -> Instant {
        self.began + AT_LEAST + Duration::from_secs(self.size.max(self.sent) / BYTES_A_SECOND)
    }
}

impl hyper::body::Body for BodyPieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if Instant::now() > self.allowed_until() {
            let why = io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly");
            return Poll::Ready(Some(Err(axum::Error::new(why))));
        }
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let piece = self.rest.len().min(PIECE);
        self.sent += piece as u64;
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.body.size_hint().exact() {
            Some(left) => SizeHint::with_exact(left + self.rest.len() as u64),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use http_body_util::BodyExt;

    use super::*;

    fn answer(kib: usize) -> Response<Body> {
        Response::new(Body::from(vec![b'x'; kib * 1024]))
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_not_read_are_bounded_and_room_comes_back_when_they_are_sent() {
        let answers = LargeAnswers(BodyRoom::new(4000));
        let first = answers.hold_answer(Some("ann"), answer(600)).unwrap();
        assert_eq!(first.body().size_hint().exact(), Some(600 * 1024));
        assert!(answers.hold_answer(Some("ann"), answer(600)).is_none(), "she has a quarter");
        assert!(answers.hold_answer(Some("ann"), answer(64)).is_some(), "a small one needs no room");
        let others =
            ["bea", "cid", "dan"].map(|person| answers.hold_answer(Some(person), answer(1000)).unwrap());
        assert!(answers.hold_answer(Some("eva"), answer(500)).is_none(), "all is taken");
        let mut body = first.into_body();
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece.len(), PIECE);
        assert!(answers.hold_answer(Some("eva"), answer(500)).is_none(), "it is not sent yet");
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 600 * 1024 - PIECE);
        assert!(answers.hold_answer(Some("eva"), answer(500)).is_some());
        drop(others);
        assert!(answers.0.is_empty());
    }

    fn streamed(pieces: usize) -> Response<Body> {
        let piece = || Ok::<_, io::Error>(Bytes::from(vec![b'x'; 64 * 1024]));
        let body = Body::from_stream(futures::stream::repeat_with(piece).take(pieces));
        let mut response = Response::new(body);
        response.extensions_mut().insert(StreamedAnswer::default());
        response
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_written_as_it_is_read_has_room_for_a_block_and_time_for_what_was_taken() {
        let answers = LargeAnswers(BodyRoom::new(4 * 2 * STREAMED_KIB));
        let mut first = answers.hold_answer(Some("ann"), streamed(40)).unwrap().into_body();
        assert_eq!(first.size_hint().exact(), None);
        let second = answers.hold_answer(Some("ann"), streamed(1)).unwrap();
        assert!(answers.hold_answer(Some("ann"), streamed(1)).is_none());
        assert!(
            answers.hold_answer(Some("ann"), Response::new(streamed(1).into_body())).is_some(),
            "a live stream"
        );
        drop(second);
        for _ in 0..4 * 20 {
            assert!(first.frame().await.unwrap().is_ok());
        }
        tokio::time::advance(Duration::from_secs(49)).await;
        assert!(first.frame().await.unwrap().is_ok());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(first.frame().await.unwrap().is_err());
        drop(first);
        assert!(answers.0.is_empty());
    }

    #[test]
    fn rows_that_wait_to_become_text_take_room_until_the_answer_is_sent() {
        let answers = LargeAnswers(BodyRoom::new(4 * (STREAMED_KIB + 5000 * ROW_KIB)));
        let list = || {
            let mut response = streamed(1);
            response.extensions_mut().insert(StreamedAnswer { rows: 5000 });
            response
        };
        let first = answers.hold_answer(Some("ann"), list()).unwrap();
        assert!(answers.hold_answer(Some("ann"), list()).is_none(), "she has a quarter");
        drop(first);
        assert!(answers.hold_answer(Some("ann"), list()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_taken_too_slowly_breaks_off() {
        let answers = LargeAnswers::new();
        let mut body = answers.hold_answer(Some("ann"), answer(640)).unwrap().into_body();
        tokio::time::advance(Duration::from_secs(39)).await;
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(body.frame().await.unwrap().is_err());
    }
}
