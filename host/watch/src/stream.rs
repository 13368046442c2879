//! One open watch: its bytes, split into lines.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use kubewitness_core::frames::{Line, Splitter};
use kubewitness_core::limits::FRAME_BYTES;
use tokio::time::timeout;

use crate::course::Ended;
use crate::handle::count;
use crate::request::{Failure, causes};
use crate::source::Parts;

pub(crate) struct Stream {
    parts: Arc<Parts>,
    body: Pin<Box<Body>>,
    splitter: Splitter,
    /// What has come and was not taken yet, in order.
    pub lines: Vec<Line>,
    /// Whether anything came at all.
    pub any: bool,
}

impl Stream {
    pub fn new(parts: &Arc<Parts>, body: Body) -> Self {
        let (splitter, lines) = (Splitter::new(FRAME_BYTES), Vec::new());
        Self { parts: Arc::clone(parts), body: Box::pin(body), splitter, lines, any: false }
    }

    /// Waits for more lines, or for the end. Nothing is lost if it is dropped meanwhile.
    pub async fn more(&mut self, idle: Duration) -> Result<(), Ended> {
        let chunk = match timeout(idle, self.body.frame()).await {
            Err(_) => return Err(Ended::Idle),
            Ok(None) => return Err(Ended::Closed),
            Ok(Some(Err(error))) => return Err(Ended::Broken(Failure::Transport(causes(&error)))),
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        self.any |= !chunk.is_empty();
        count(&self.parts.shared.counters.bytes, chunk.len() as u64);
        self.splitter.push(chunk, &mut self.lines);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        count(&self.parts.shared.counters.discarded_bytes, self.splitter.pending() as u64);
    }
}
