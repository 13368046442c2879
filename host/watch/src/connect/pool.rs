//! Spreads requests over as many connections as they need.
//!
//! A server limits the concurrent requests on one HTTP/2 connection: 100 in Kubernetes, 128 or 250 in others.
//! Further requests wait until one ends, and a watch ends only after minutes. The hundredth source would see
//! nothing, and no other request would get through. So each connection carries fewer requests than any server
//! allows, and the next request goes to the next connection.
//!
//! Only the first answer shows whether a server speaks HTTP/2. Requests before it would each open a
//! connection with its own handshake, only to close it again. So until a connection is known to work, its
//! requests go one at a time.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Frame, SizeHint};
use hyper_util::client::legacy::connect::capture_connection;
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower::{BoxError, Service};

use crate::connect::liveness::answer_or_lost;

/// The most requests on one connection. It is well below 100, the lowest usual limit.
const AT_ONCE: usize = 64;
/// The most connections. At this number requests wait in line. No process has thousands of sources.
const MOST: usize = 64;
/// How long a request waits for earlier ones on a connection that is not yet known to work. A handshake takes
/// less, and a server that is slow for one request may answer another.
const TURN: Duration = Duration::from_secs(1);

/// Clients with one connection each. They are created on demand.
pub(crate) struct ClientPool<C> {
    make: Arc<dyn Fn() -> C + Send + Sync>,
    lines: Arc<Mutex<Vec<PooledClient<C>>>>,
}

impl<C> Clone for ClientPool<C> {
    fn clone(&self) -> Self {
        Self { make: Arc::clone(&self.make), lines: Arc::clone(&self.lines) }
    }
}

#[derive(Clone)]
struct PooledClient<C> {
    client: C,
    room: Arc<Semaphore>,
    gate: Arc<ConnectionGate>,
}

/// Whether a connection is known to work, and whose turn it is until then.
#[derive(Default)]
struct ConnectionGate {
    is_open: AtomicBool,
    turn: AsyncMutex<()>,
}

impl ConnectionGate {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Release);
    }

    /// Sends at once if the connection works, otherwise in turn.
    async fn send_through<T, E>(&self, send: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let turn = if self.is_open() { None } else { timeout(TURN, self.turn.lock()).await.ok() };
        let turn = turn.filter(|_| !self.is_open());
        let answer = send.await;
        self.set_open(answer.is_ok());
        drop(turn);
        answer
    }
}

/// A request's place on a connection. It is held until the answer has been read or dropped.
type RequestPermit = Option<OwnedSemaphorePermit>;

impl<C: Clone> ClientPool<C> {
    pub fn new(make: impl Fn() -> C + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), lines: Arc::default() }
    }

    /// The first connection with room, so that later ones become idle and may be closed.
    fn first_with_room(&self) -> (PooledClient<C>, RequestPermit) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |line: &PooledClient<C>| Arc::clone(&line.room).try_acquire_owned().ok();
        if let Some((line, place)) = lines.iter().find_map(|line| Some((line.clone(), place(line)?))) {
            return (line, Some(place));
        }
        if lines.len() >= MOST {
            return (lines[MOST - 1].clone(), None);
        }
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let line = PooledClient { client: (self.make)(), room, gate: Arc::default() };
        lines.push(line.clone());
        let place = place(&line);
        (line, place)
    }
}

/// A body that holds its place on the connection and reports when it breaks.
pub(crate) struct PermitBody<B> {
    body: B,
    gate: Arc<ConnectionGate>,
    _place: RequestPermit,
}

impl<B: Body + Unpin> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if matches!(frame, Some(Err(_))) {
            self.gate.set_open(false);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<C, R, B> Service<Request<R>> for ClientPool<C>
where
    C: Service<Request<R>, Response = Response<B>> + Clone + Send + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
    R: Send + 'static,
    B: Body + Unpin + 'static,
{
    type Response = Response<PermitBody<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    /// Each connection reports its own readiness.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<R>) -> Self::Future {
        let (PooledClient { client, gate, .. }, place) = self.first_with_room();
        Box::pin(async move {
            let connection = capture_connection(&mut request);
            let send = tower::ServiceExt::oneshot(client, request);
            let answer = gate.send_through(answer_or_lost(send, connection)).await?;
            Ok(answer.map(|body| PermitBody { body, gate, _place: place }))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_connection_is_filled_before_the_next_one_is_made_and_used_again_when_it_has_room() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let spread = ClientPool::new(move || count.fetch_add(1, Ordering::SeqCst));
        let mut held: Vec<_> = (0..AT_ONCE + 1).map(|_| spread.first_with_room()).collect();
        assert_eq!(held.iter().filter(|(line, _)| line.client == 0).count(), AT_ONCE);
        assert_eq!((held[AT_ONCE].0.client, made.load(Ordering::SeqCst)), (1, 2));
        held.remove(0);
        assert_eq!(spread.first_with_room().0.client, 0);
        held.extend((0..AT_ONCE * MOST).map(|_| spread.first_with_room()));
        assert_eq!(made.load(Ordering::SeqCst), MOST, "beyond the last one they wait");
        assert!(held.last().is_some_and(|(line, place)| line.client == MOST - 1 && place.is_none()));
    }

    /// A request that is answered when the test says so.
    fn request() -> (oneshot::Sender<bool>, impl Future<Output = Result<(), ()>>) {
        let (answer, answered) = oneshot::channel();
        (answer, async move { if answered.await == Ok(true) { Ok(()) } else { Err(()) } })
    }

    #[tokio::test]
    async fn until_one_was_answered_requests_go_one_at_a_time_and_again_after_one_failed() {
        let gate = ConnectionGate::default();
        for round in 0..2 {
            let ((fails, first), (works, second), (_unanswered, third)) = (request(), request(), request());
            let mut passing = [
                gate.send_through(first).boxed(),
                gate.send_through(second).boxed(),
                gate.send_through(third).boxed(),
            ];
            let sent =
                |passing: &mut [_; 3]| passing.each_mut().map(|pass| FutureExt::now_or_never(pass).is_some());
            assert_eq!(sent(&mut passing), [false; 3]);
            assert!(gate.turn.try_lock().is_err(), "round {round}: the first has its turn");
            fails.send(false).unwrap();
            let [first, mut second, mut third] = passing;
            assert_eq!(first.await, Err(()));
            assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
            assert!(gate.turn.try_lock().is_err(), "round {round}: the second has its turn");
            works.send(true).unwrap();
            assert_eq!(second.await, Ok(()));
            assert!(third.now_or_never().is_none() && gate.turn.try_lock().is_ok(), "the third goes at once");
            assert!(gate.is_open());
            gate.set_open(false);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_not_answered_holds_the_others_up_for_a_moment_only() {
        let gate = ConnectionGate::default();
        let ((_never, first), (works, second)) = (request(), request());
        works.send(true).unwrap();
        let mut first = gate.send_through(first).boxed();
        assert!((&mut first).now_or_never().is_none());
        assert_eq!(gate.send_through(second).await, Ok(()));
    }
}
