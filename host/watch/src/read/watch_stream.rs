//! Splits one open watch into lines.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http_body_util::BodyExt;
use kube::client::Body;
use kubewitness_core::frames::{FrameLine, FrameSplitter};
use kubewitness_core::limits::FRAME_BYTES;
use tokio::time::timeout;

use crate::connect::request::{RequestFailure, error_chain};
use crate::read::next_action::StreamEnd;
use crate::source::handle::count;
use crate::source::parts::SourceParts;

/// How many lines and bytes are taken at once if they are there. A server sends each event as a chunk of its
/// own, and waking the task for each would cost as much as reading it.
const LINES_AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = 512 * 1024;

pub(crate) struct WatchStream {
    parts: Arc<SourceParts>,
    body: Pin<Box<Body>>,
    splitter: FrameSplitter,
    /// The lines that arrived and were not taken yet, in order.
    pub lines: Vec<FrameLine>,
    /// Whether anything arrived at all.
    pub any: bool,
    /// How the stream ends after these lines.
    ended: Option<StreamEnd>,
}

impl WatchStream {
    pub fn new(parts: &Arc<SourceParts>, body: Body) -> Self {
        let (splitter, lines) = (FrameSplitter::new(FRAME_BYTES), Vec::new());
        Self { parts: Arc::clone(parts), body: Box::pin(body), splitter, lines, any: false, ended: None }
    }

    /// Waits for more lines or for the end. It loses nothing if it is dropped meanwhile.
    pub async fn await_more(&mut self, idle: Duration) -> Result<(), StreamEnd> {
        if let Some(ended) = self.ended.take() {
            return Err(ended);
        }
        let first = timeout(idle, self.next_chunk()).await.map_err(|_| StreamEnd::Idle)?;
        let mut bytes = self.take(first?);
        while self.lines.len() < LINES_AT_ONCE && bytes < BYTES_AT_ONCE {
            let Some(next) = self.next_chunk().now_or_never() else { break };
            match next {
                Ok(chunk) => bytes += self.take(chunk),
                Err(ended) => {
                    self.ended = Some(ended);
                    break;
                }
            }
        }
        Ok(())
    }

    async fn next_chunk(&mut self) -> Result<Bytes, StreamEnd> {
        match self.body.frame().await {
            None => Err(StreamEnd::Closed),
            Some(Err(error)) => Err(StreamEnd::Broken(RequestFailure::Transport(error_chain(&error)))),
            Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
        }
    }

    fn take(&mut self, chunk: Bytes) -> usize {
        let bytes = chunk.len();
        self.any |= bytes > 0;
        count(&self.parts.shared.counters.bytes, bytes as u64);
        self.splitter.push(chunk, &mut self.lines);
        bytes
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        count(&self.parts.shared.counters.discarded_bytes, self.splitter.pending_bytes() as u64);
    }
}
