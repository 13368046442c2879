//! Ends requests whose connection has closed.
//!
//! A request that is passed to a connection just as it closes can be lost
//! (<https://github.com/hyperium/hyper/issues/4122>). Nobody answers it, and its caller would wait for the
//! full timeout. So this module watches the connection of each request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use http::{Extensions, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::{BoxError, Service};

/// The last answers of a closed connection arrive within this time. A request that was not sent on it has
/// moved to the next connection by then.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The state of a connection while a caller waits for it.
#[derive(Clone)]
struct ConnectionState {
    /// Cancelled when the connection is closed.
    gone: CancellationToken,
    making: PendingConnections,
}

/// Connections that are being opened. A request that was not sent on a closed connection moves to the next.
#[derive(Clone, Default)]
struct PendingConnections(Arc<ConnectionCounts>);

#[derive(Default)]
struct ConnectionCounts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A connection that is being opened.
struct PendingConnection(PendingConnections);

impl PendingConnections {
    fn begin_connection(&self) -> PendingConnection {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        PendingConnection(self.clone())
    }

    /// Returns once no connection has been opened for a while.
    async fn await_rest(&self) {
        let begun = || self.0.begun.load(Ordering::SeqCst);
        loop {
            let before = begun();
            sleep(LAST_WORDS).await;
            // Every connection that had begun has also ended.
            if begun() == before && self.0.ended.load(Ordering::SeqCst) == before {
                return;
            }
        }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Makes connections that report their end.
#[derive(Clone)]
pub(crate) struct ReportingConnector<C> {
    connector: C,
    making: PendingConnections,
}

impl<C> ReportingConnector<C> {
    pub fn new(connector: C) -> Self {
        Self { connector, making: PendingConnections::default() }
    }
}

impl<C> Service<Uri> for ReportingConnector<C>
where
    C: Service<Uri>,
    C::Response: 'static,
    C::Future: Send + 'static,
    C::Error: 'static,
{
    type Response = ConnectionLifeline<C::Response>;
    type Error = C::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (begun, making) = (self.making.begin_connection(), self.making.clone());
        let connected = self.connector.call(target).map_ok(|io| ConnectionLifeline::new(io, making));
        connected.inspect(move |_| drop(begun)).boxed()
    }
}

pub(crate) struct ConnectionLifeline<T> {
    io: T,
    known: ConnectionState,
    _closed: DropGuard,
}

impl<T> ConnectionLifeline<T> {
    fn new(io: T, making: PendingConnections) -> Self {
        let gone = CancellationToken::new();
        Self { io, known: ConnectionState { gone: gone.clone(), making }, _closed: gone.drop_guard() }
    }
}

impl<T: Connection> Connection for ConnectionLifeline<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.known.clone())
    }
}

impl<T: Read + Unpin> Read for ConnectionLifeline<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for ConnectionLifeline<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

/// Returns the answer, or an error soon after the request's connection has closed.
pub(crate) async fn answer_or_lost<T, E: Into<BoxError>>(
    answer: impl Future<Output = Result<T, E>>,
    connection: CaptureConnection,
) -> Result<T, BoxError> {
    tokio::select! {
        biased;
        answer = answer => answer.map_err(Into::into),
        () = await_loss(connection) => Err("the connection was closed, and the request was lost with it".into()),
    }
}

/// Returns once the connection of a request has closed and no other one takes the request over.
async fn await_loss(mut connection: CaptureConnection) {
    // Returns once a connection exists, or can't exist any more.
    drop(connection.wait_for_connection_metadata().await);
    while let Some(ConnectionState { gone, making }) = connection_state(&connection) {
        gone.cancelled().await;
        making.await_rest().await;
        if connection_state(&connection).is_some_and(|known| known.gone.is_cancelled()) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

fn connection_state(connection: &CaptureConnection) -> Option<ConnectionState> {
    let mut extras = Extensions::new();
    connection.connection_metadata().as_ref()?.get_extras(&mut extras);
    extras.remove()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use http::Request;
    use http_body_util::Empty;
    use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
    use hyper_util::client::legacy::{Client, Error};
    use hyper_util::rt::TokioExecutor;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_request_that_nobody_answers_any_more_ends_with_its_connection_and_not_before() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}/", listener.local_addr().unwrap());
        let client =
            Client::builder(TokioExecutor::new()).build(ReportingConnector::new(HttpConnector::new()));
        let mut request = Request::get(target).body(Empty::<&[u8]>::new()).unwrap();
        let connection = capture_connection(&mut request);
        let meanwhile = async {
            let (socket, _) = listener.accept().await.unwrap();
            // As if the request had been lost on its way to the connection.
            let mut lost = answer_or_lost(pending::<Result<(), Error>>(), connection).boxed();
            let early = tokio::time::timeout(LAST_WORDS, &mut lost).await;
            assert!(early.is_err(), "the connection is open, and the answer may come");
            drop(socket);
            assert!(lost.await.unwrap_err().to_string().contains("lost"));
        };
        let (sent, ()) = tokio::join!(client.request(request), meanwhile);
        assert!(sent.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_given_up_while_another_connection_is_being_made() {
        let making = PendingConnections::default();
        let begun = making.begin_connection();
        let mut rests = making.await_rest().boxed();
        assert!(tokio::time::timeout(30 * LAST_WORDS, &mut rests).await.is_err());
        drop(begun);
        assert!(tokio::time::timeout(3 * LAST_WORDS, rests).await.is_ok());
    }

    #[tokio::test]
    async fn without_a_connection_the_answer_is_waited_for() {
        let connection = capture_connection(&mut Request::new(()));
        let answer = async {
            sleep(Duration::from_millis(1)).await;
            Ok::<_, Error>(7)
        };
        assert_eq!(answer_or_lost(answer, connection).await.unwrap(), 7);
    }
}
