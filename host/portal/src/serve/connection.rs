//! One connection: its requests, one after the other, until it has no more or loses its place.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::trace;

use super::ListenerBounds;
use super::places::{ConnectionPlace, RequestConnection};
use super::stall::{self, StallTimer};
use super::tls::TlsListener;
use super::traffic::TrafficCounts;

/// The most bytes of a request's line and headers, and of the buffer for the answer. A selector may have some
/// kilobytes.
const BUFFER: usize = 32 * 1024;

/// The values that every connection shares.
#[derive(Clone)]
pub(super) struct ConnectionServer {
    pub(super) router: Router,
    pub(super) bounds: ListenerBounds,
    pub(super) counts: Arc<TrafficCounts>,
    pub(super) tls: Option<Arc<TlsListener>>,
    pub(super) stop: CancellationToken,
}

impl ConnectionServer {
    pub(super) async fn serve_connection(self, stream: TcpStream, place: ConnectionPlace) {
        if let Err(error) = stream.set_nodelay(true) {
            trace!(%error, "small answers may be delayed");
        }
        limit_unsent_buffer(&stream);
        let Some(tls) = self.tls.clone() else { return self.speak_http(stream, place).await };
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(self.bounds.header, tls.accept_tls(stream)) => shaken,
            () = place.await_eviction() => return,
            () = self.stop.cancelled() => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.speak_http(stream, place).await,
            Ok(Err(error)) => trace!(%error, "a handshake failed"),
            Err(_) => self.counts.note_headerless(),
        }
    }

    async fn speak_http(self, stream: impl AsyncRead + AsyncWrite + Unpin, place: ConnectionPlace) {
        let place = Arc::new(place);
        let (router, working) = (&self.router, &place);
        let service =
            service_fn(move |request| answer_request(router.clone(), WorkingGuard(working.clone()), request));
        let io = TokioIo::new(StallTimer::new(stream, self.bounds.stall).with_place(place.clone()));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.bounds.header).max_buf_size(BUFFER);
        let mut serving = std::pin::pin!(http.serve_connection(io, service));
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = place.await_eviction() => return,
            () = self.stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            self.log_error(&error, &place);
        }
    }

    fn log_error(&self, error: &hyper::Error, place: &ConnectionPlace) {
        trace!(%error, "a connection broke");
        if error.is_timeout() {
            // A connection that had an answer before ends as an idle one.
            if place.has_never_asked() {
                self.counts.note_headerless();
            }
        } else if is_stalled(error) {
            self.counts.note_stalled();
        }
    }
}

async fn answer_request(
    router: Router,
    working: WorkingGuard,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(|body| Body::new(ArrivingBody::new(body, working.0.clone())));
    request.extensions_mut().insert(RequestConnection::at_place(working.0.clone()));
    let response = router.oneshot(request).await?;
    // The captured values live as long as the answer's body.
    Ok(response.map(|body| {
        Body::new(body.map_err(move |error| {
            let _still = &working;
            error
        }))
    }))
}

/// Makes the kernel buffer only little unsent data. It then reports after every few kilobytes that the client
/// reads, and not only after a third of its buffer.
fn limit_unsent_buffer(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(stall::PIECE as u32) {
        trace!(%error, "a slow client may be taken for one that does not read");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
}

fn is_stalled(error: &dyn Error) -> bool {
    // The error of an answer's body is the cause of other errors.
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    let mut causes = causes.filter_map(|error| error.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::TimedOut)
}

/// The body of a request. Until it is complete, the connection counts as sending.
struct ArrivingBody {
    body: Incoming,
    place: Option<Arc<ConnectionPlace>>,
}

impl ArrivingBody {
    fn new(body: Incoming, place: Arc<ConnectionPlace>) -> Self {
        place.note_sending();
        let mut arriving = Self { body, place: Some(place) };
        arriving.note_end(arriving.body.is_end_stream());
        arriving
    }

    fn note_end(&mut self, is_end: bool) {
        if let Some(place) = self.place.take_if(|_| is_end) {
            place.note_asking();
        }
    }
}

impl hyper::body::Body for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let is_end = frame.is_none() || self.body.is_end_stream();
        self.note_end(is_end);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ArrivingBody {
    /// The answer does not need the rest of it.
    fn drop(&mut self) {
        self.note_end(true);
    }
}

/// While it exists, the connection has a request or its answer in progress.
struct WorkingGuard(Arc<ConnectionPlace>);

impl Drop for WorkingGuard {
    fn drop(&mut self) {
        self.0.note_resting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_taken_too_slowly_is_a_stall_however_deep_its_error_lies() {
        let error = |kind| axum::Error::new(axum::Error::new(io::Error::new(kind, "the client")));
        assert!(is_stalled(&error(io::ErrorKind::TimedOut)));
        assert!(!is_stalled(&error(io::ErrorKind::BrokenPipe)));
    }
}
