//! Requests spread over as many connections as they need.
//!
//! On one HTTP/2 connection a server takes so many requests at a time: Kubernetes 100, Go 250,
//! others 128. What is beyond waits for one that ends, and a watch ends after minutes: the
//! hundredth source would see nothing, and no request could be asked besides. So a connection is
//! given fewer than any of them takes, and the next request goes to the next connection.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::MapFrame;
use hyper::body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{BoxError, Service};

/// Requests on one connection: well below 100, which is the least that is usual.
const AT_ONCE: usize = 64;
/// Connections; beyond them requests wait in their turn. No source has thousands beside it.
const MOST: usize = 64;

/// Clients of one connection each, made when they are needed.
pub(crate) struct Spread<C> {
    make: Arc<dyn Fn() -> C + Send + Sync>,
    lines: Arc<Mutex<Vec<Line<C>>>>,
}

impl<C> Clone for Spread<C> {
    fn clone(&self) -> Self {
        Self { make: Arc::clone(&self.make), lines: Arc::clone(&self.lines) }
    }
}

struct Line<C> {
    client: C,
    room: Arc<Semaphore>,
}

/// Its place on a connection, until its answer has been read or dropped.
type Place = Option<OwnedSemaphorePermit>;

impl<C: Clone> Spread<C> {
    pub fn new(make: impl Fn() -> C + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), lines: Arc::default() }
    }

    /// The first connection that has room: what is quiet may then be closed.
    fn line(&self) -> (C, Place) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |line: &Line<C>| Arc::clone(&line.room).try_acquire_owned().ok();
        if let Some((client, place)) = lines.iter().find_map(|line| Some((line.client.clone(), place(line)?)))
        {
            return (client, Some(place));
        }
        if lines.len() >= MOST {
            return (lines[MOST - 1].client.clone(), None);
        }
        let line = Line { client: (self.make)(), room: Arc::new(Semaphore::new(AT_ONCE)) };
        let taken = (line.client.clone(), place(&line));
        lines.push(line);
        taken
    }
}

type Pass<D> = Box<dyn FnMut(Frame<D>) -> Frame<D> + Send>;
/// A body that keeps its place on the connection.
type Placed<B> = MapFrame<B, Pass<<B as Body>::Data>>;

impl<C, R, B> Service<Request<R>> for Spread<C>
where
    C: Service<Request<R>, Response = Response<B>> + Clone + Send + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
    R: Send + 'static,
    B: Body + 'static,
{
    type Response = Response<Placed<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    /// Each connection says it for itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let (client, place) = self.line();
        Box::pin(async move {
            let answer = tower::ServiceExt::oneshot(client, request).await.map_err(Into::into)?;
            Ok(answer.map(|body| {
                let kept: Pass<B::Data> = Box::new(move |frame| {
                    let _place = &place;
                    frame
                });
                body.map_frame(kept)
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_connection_is_filled_before_the_next_one_is_made_and_used_again_when_it_has_room() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let spread = Spread::new(move || count.fetch_add(1, Ordering::SeqCst));
        let mut held: Vec<_> = (0..AT_ONCE + 1).map(|_| spread.line()).collect();
        assert_eq!(held.iter().filter(|(client, _)| *client == 0).count(), AT_ONCE);
        assert_eq!((held[AT_ONCE].0, made.load(Ordering::SeqCst)), (1, 2));
        held.remove(0);
        assert_eq!(spread.line().0, 0);
        held.extend((0..AT_ONCE * MOST).map(|_| spread.line()));
        assert_eq!(made.load(Ordering::SeqCst), MOST, "beyond the last one they wait");
        assert!(held.last().is_some_and(|(client, place)| *client == MOST - 1 && place.is_none()));
    }
}
