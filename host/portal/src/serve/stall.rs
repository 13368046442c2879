//! A socket with a deadline for sending. If the client reads too little for too long, the socket is closed.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::places::ConnectionPlace;

pub(super) struct StallTimer<T> {
    inner: T,
    limit: Duration,
    /// The connection's place, if stalls are reported.
    place: Option<Arc<ConnectionPlace>>,
    /// Runs from when the socket accepted nothing until it has accepted [`LEAST_PROGRESS`] bytes, or all that remain.
    stalled: Option<Pin<Box<Sleep>>>,
    /// How many bytes it has accepted since.
    accepted: usize,
    /// Whether the stall was reported to the place.
    is_reported: bool,
}

/// A client that reads less than this within the limit keeps its answer in memory. Even the slowest network
/// transfers more.
const LEAST_PROGRESS: usize = 64 * 1024;

/// How much the socket gets at a time. Small pieces show sooner that the client reads, however slowly.
pub(super) const PIECE: usize = 16 * 1024;

impl<T> StallTimer<T> {
    pub(super) fn new(inner: T, limit: Duration) -> Self {
        Self { inner, limit, place: None, stalled: None, accepted: 0, is_reported: false }
    }

    /// Reports to the place when the client stops reading, and when it continues.
    pub(super) fn with_place(self, place: Arc<ConnectionPlace>) -> Self {
        Self { place: Some(place), ..self }
    }

    fn report_stall(&mut self, stalls: bool) {
        if self.is_reported != stalls
            && let Some(place) = &self.place
        {
            place.set_stalled(stalls);
        }
        self.is_reported = stalls;
    }

    /// After a partial write.
    fn judge_write(
        &mut self,
        context: &mut Context<'_>,
        sent: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = sent {
            self.report_stall(false);
            self.accepted = self.accepted.saturating_add(bytes);
            if self.stalled.is_none() || self.accepted >= LEAST_PROGRESS {
                self.stalled = None;
                return sent;
            }
            return if self.is_in_time(context) { sent } else { Poll::Ready(Err(timed_out())) };
        }
        self.report_stall(sent.is_pending());
        if self.stalled.is_none() {
            self.accepted = 0;
        }
        if self.is_in_time(context) { sent } else { Poll::Ready(Err(timed_out())) }
    }

    /// After the last write.
    fn judge_rest(&mut self, context: &mut Context<'_>, sent: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        self.report_stall(sent.is_pending());
        if sent.is_ready() {
            self.stalled = None;
            return sent;
        }
        if self.is_in_time(context) { sent } else { Poll::Ready(Err(timed_out())) }
    }

    fn is_in_time(&mut self, context: &mut Context<'_>) -> bool {
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        stalled.as_mut().poll(context).is_pending()
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does not read")
}

impl<T: AsyncRead + Unpin> AsyncRead for StallTimer<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallTimer<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        let sent = Pin::new(&mut self.inner).poll_write(context, piece);
        self.judge_write(context, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if bytes.iter().map(|part| part.len()).sum::<usize>() > PIECE {
            let first = bytes.iter().find(|part| !part.is_empty());
            return self.poll_write(context, first.map_or(&[], |part| part));
        }
        let sent = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        self.judge_write(context, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.inner).poll_flush(context);
        self.judge_rest(context, sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.inner).poll_shutdown(context);
        self.judge_rest(context, sent)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_breaks_the_connection_when_the_limit_is_reached() {
        let (server, _client) = tokio::io::duplex(16);
        let began = tokio::time::Instant::now();
        let error = StallTimer::new(server, LIMIT).write_all(&[0; 64]).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
    }

    /// Reads so much every 20 seconds, until the end or until nothing more comes.
    async fn read_by(client: &mut tokio::io::DuplexStream, bytes: usize) -> usize {
        let (mut part, mut all) = (vec![0; bytes], 0);
        loop {
            tokio::time::sleep(LIMIT * 2 / 3).await;
            match client.read(&mut part).await.unwrap() {
                0 => return all,
                read => all += read,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_slow_is_sent_everything_and_one_that_only_sips_is_not() {
        const ALL: usize = 8 * LEAST_PROGRESS;
        let (server, mut client) = tokio::io::duplex(LEAST_PROGRESS);
        let mut server = StallTimer::new(server, LIMIT);
        let sending = async move { server.write_all(&vec![7; ALL]).await };
        let (sent, read) = tokio::join!(sending, read_by(&mut client, LEAST_PROGRESS));
        sent.unwrap();
        assert_eq!(read, ALL);

        let (server, mut client) = tokio::io::duplex(LEAST_PROGRESS);
        let mut server = StallTimer::new(server, LIMIT);
        let began = tokio::time::Instant::now();
        let sending = async move { server.write_all(&vec![7; ALL]).await.map_err(|_| began.elapsed()) };
        let (sent, _) = tokio::join!(sending, read_by(&mut client, 100));
        assert!((LIMIT..LIMIT * 2).contains(&sent.unwrap_err()), "{sent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_in_which_there_is_nothing_to_send_counts_for_nothing() {
        let (server, mut client) = tokio::io::duplex(16);
        let mut server = StallTimer::new(server, LIMIT);
        for _ in 0..3 {
            let sending = async {
                server.write_all(&[7; 32]).await?;
                server.flush().await
            };
            let mut bytes = [0; 32];
            let (sent, read) = tokio::join!(sending, client.read_exact(&mut bytes));
            sent.and(read.map(|_| ())).unwrap();
            tokio::time::sleep(LIMIT * 2).await;
        }
    }
}
