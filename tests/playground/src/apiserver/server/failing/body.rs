//! Applies faults of bodies: bytes that come slowly, in small pieces, not at all, or incompletely.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::StreamExt;

use crate::apiserver::cluster::front::ServerFront;
use crate::apiserver::faults::FaultKind;
use crate::apiserver::server::failing::frames::{FrameFaults, NextLine};

/// Long enough for a connection to send its buffer before it breaks.
const FLUSH: Duration = Duration::from_millis(5);

/// How many pieces of a slow body are sent per second.
const PIECES_A_SECOND: u64 = 50;

/// The bytes before the items of a list.
const ITEMS: &[u8] = b"\"items\":[";

/// How an incomplete body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    Clean,
    Breaks,
    Silent,
}

struct FaultyBody {
    front: Arc<ServerFront>,
    inner: BodyDataStream,
    frames: Option<FrameFaults>,
    /// The text to insert before the first item of a list, until it is inserted.
    item: Option<String>,
    piece: usize,
    pause: Option<Duration>,
    /// The number of bytes that may still be sent, and what happens then.
    limit: Option<(u64, BodyEnd)>,
    waiting: VecDeque<Bytes>,
    begun: bool,
    ended: bool,
}

/// The body with the faults applied.
pub fn shaped(front: &Arc<ServerFront>, body: Body, faults: &[FaultKind]) -> Body {
    let mut faulty = FaultyBody {
        front: Arc::clone(front),
        inner: body.into_data_stream(),
        frames: FrameFaults::new(faults),
        item: None,
        piece: usize::MAX,
        pause: None,
        limit: None,
        waiting: VecDeque::new(),
        begun: false,
        ended: false,
    };
    for what in faults {
        match what {
            FaultKind::Cut(at) => faulty.limit = Some((at.place(), BodyEnd::Breaks)),
            FaultKind::End(at) => faulty.limit = Some((at.place(), BodyEnd::Clean)),
            FaultKind::Silent(at) => faulty.limit = Some((at.place(), BodyEnd::Silent)),
            FaultKind::Chunks { size } => faulty.piece = (*size).max(1),
            FaultKind::Slow { bytes_per_second } => {
                let rate = (*bytes_per_second).max(1);
                let piece = (rate / PIECES_A_SECOND).max(1);
                faulty.piece = usize::try_from(piece).unwrap_or(usize::MAX);
                faulty.pause = Some(Duration::from_micros(piece * 1_000_000 / rate));
            }
            FaultKind::InsertItem { item } => faulty.item = Some(item.clone()),
            _ => {}
        }
    }
    Body::from_stream(futures::stream::unfold(faulty, |mut faulty| async move {
        let piece = faulty.next().await?;
        Some((piece, faulty))
    }))
}

impl FaultyBody {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some((0, end)) = self.limit {
                return self.end(end).await;
            }
            if let Some(piece) = self.waiting.pop_front() {
                return Some(Ok(self.send(piece).await));
            }
            if self.ended {
                return None;
            }
            if !std::mem::replace(&mut self.begun, true)
                && let Some(frames) = &mut self.frames
            {
                let mut out = Vec::new();
                self.ended = frames.begin(&mut out) == NextLine::Ends;
                self.queue(out);
                continue;
            }
            match self.inner.next().await {
                Some(Ok(bytes)) => self.take(&bytes),
                Some(Err(error)) => return Some(Err(io::Error::other(error))),
                None => {
                    self.ended = true;
                    let mut out = Vec::new();
                    if let Some(frames) = &mut self.frames {
                        frames.finish(&mut out);
                    }
                    self.queue(out);
                }
            }
        }
    }

    fn take(&mut self, bytes: &Bytes) {
        let mut out = Vec::new();
        match &mut self.frames {
            Some(frames) => self.ended = frames.take(bytes, &mut out) == NextLine::Ends,
            None => out.extend_from_slice(bytes),
        }
        if let Some(at) = out.windows(ITEMS.len()).position(|window| window == ITEMS)
            && let Some(item) = self.item.take()
        {
            let at = at + ITEMS.len();
            let comma = if out.get(at) == Some(&b']') { "" } else { "," };
            out.splice(at..at, format!("{item}{comma}").into_bytes());
        }
        self.queue(out);
    }

    fn queue(&mut self, out: Vec<u8>) {
        let mut out = Bytes::from(out);
        while out.len() > self.piece {
            self.waiting.push_back(out.split_to(self.piece));
        }
        if !out.is_empty() {
            self.waiting.push_back(out);
        }
    }

    async fn send(&mut self, piece: Bytes) -> Bytes {
        let mut piece = piece;
        if let Some((left, _)) = &mut self.limit {
            let fits = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
            piece.truncate(fits);
            *left -= fits as u64;
        }
        match self.pause {
            Some(pause) => tokio::time::sleep(pause).await,
            // Pieces that are ready at the same time would be sent together.
            None if self.piece != usize::MAX => tokio::task::yield_now().await,
            None => {}
        }
        piece
    }

    async fn end(&mut self, end: BodyEnd) -> Option<io::Result<Bytes>> {
        match end {
            BodyEnd::Clean => None,
            BodyEnd::Silent => {
                self.front.stop.cancelled().await;
                None
            }
            BodyEnd::Breaks => {
                self.limit = None;
                self.waiting.clear();
                self.ended = true;
                tokio::time::sleep(FLUSH).await;
                Some(Err(io::ErrorKind::ConnectionReset.into()))
            }
        }
    }
}
