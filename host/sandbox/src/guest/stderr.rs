//! Keeps the last bytes of a guest's stderr, for the error text of a trap.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// Room for a panic message with its location. A guest that writes forever uses no more.
const KEPT_BYTES: usize = 2048;

/// How much one write accepts. The guest's library splits longer texts.
const WRITE_BYTES: usize = 4096;

#[derive(Clone, Default)]
pub struct StderrTail(Arc<Mutex<VecDeque<u8>>>);

impl StderrTail {
    fn lock_tail(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn clear(&self) {
        self.lock_tail().clear();
    }

    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.lock_tail().iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_string()
    }

    fn push(&self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(KEPT_BYTES)..];
        let mut kept = self.lock_tail();
        let surplus = (kept.len() + bytes.len()).saturating_sub(KEPT_BYTES);
        kept.drain(..surplus);
        kept.extend(bytes);
    }
}

impl IsTerminal for StderrTail {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for StderrTail {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for StderrTail {
    async fn ready(&mut self) {}
}

impl OutputStream for StderrTail {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}

impl AsyncWrite for StderrTail {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.push(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_and_no_more() {
        let tail = StderrTail::default();
        tail.push(&[b'a'; KEPT_BYTES]);
        tail.push(b"bc");
        assert_eq!(tail.lock_tail().len(), KEPT_BYTES);
        assert!(tail.text().ends_with("abc"));
        tail.push(&[b'd'; 3 * KEPT_BYTES]);
        assert_eq!(tail.text(), "d".repeat(KEPT_BYTES));
        tail.clear();
        assert_eq!(tail.text(), "");
    }
}
