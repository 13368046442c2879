//! Renews the authorization header that a command or a file supplies.
//!
//! The first request that finds the token too old starts a renewal. The renewal outlives that request, and
//! all other requests wait for the same one. So a command that hangs costs one process, until its timeout.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response};
use kube::client::Body;
use tokio::time::timeout;
use tower::{BoxError, Layer, Service, ServiceExt};

use crate::connect::exec::ExecLogin;

/// `None` if requests need no header.
type LoginHeader = Result<Option<HeaderValue>, Arc<str>>;
type LoginRenewal = Shared<BoxFuture<'static, LoginHeader>>;
type LoginStart = Arc<dyn Fn() -> BoxFuture<'static, LoginHeader> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct LoginService {
    /// The command that supplies the header, as people know it.
    command: Arc<str>,
    limit: Duration,
    begin: LoginStart,
    renewal: Arc<Mutex<Option<LoginRenewal>>>,
}

impl LoginService {
    /// Takes the header from a command. A renewal that takes too long is ended together with its command.
    pub fn from_exec(exec: ExecLogin, limit: Duration) -> Self {
        let (command, exec) = (exec.command_name().to_owned(), Arc::new(exec));
        let command_name = command.clone();
        Self::new(&command, limit, move || {
            let (exec, command) = (exec.clone(), command_name.clone());
            async move {
                let header = timeout(limit, exec.authorization_header())
                    .await
                    .map_err(|_| late_command_message(&command, limit))?;
                header.map_err(|why| format!("the command `{command}` for logging in: {why}").into())
            }
            .boxed()
        })
    }

    /// Takes the header from kube's own layer.
    pub fn from_layer<L>(command: &str, limit: Duration, layer: &L) -> Self
    where
        L: Layer<EchoService>,
        L::Service:
            Service<Request<Body>, Response = Response<Option<HeaderValue>>> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send,
        <L::Service as Service<Request<Body>>>::Error: Into<BoxError>,
    {
        let asked = layer.layer(EchoService);
        Self::new(command, limit, move || {
            let asked = asked.clone().oneshot(Request::new(Body::empty()));
            let boxed_text =
                |error: <L::Service as Service<Request<Body>>>::Error| error.into().to_string().into();
            asked.map(move |header| header.map(Response::into_body).map_err(boxed_text)).boxed()
        })
    }

    fn new(
        command: &str,
        limit: Duration,
        begin: impl Fn() -> BoxFuture<'static, LoginHeader> + Send + Sync + 'static,
    ) -> Self {
        Self { command: command.into(), limit, begin: Arc::new(begin), renewal: Arc::default() }
    }

    /// The header for a request that is made now.
    pub async fn authorization_header(&self) -> Result<Option<HeaderValue>, BoxError> {
        let renewal = {
            let mut held = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
            match &*held {
                Some(renewal) if renewal.peek().is_none() => renewal.clone(),
                _ => held.insert((self.begin)().shared()).clone(),
            }
        };
        let header = timeout(self.limit, renewal)
            .await
            .map_err(|_| late_command_message(&self.command, self.limit))?;
        header.map_err(|why| why.to_string().into())
    }
}

fn late_command_message(command: &str, limit: Duration) -> String {
    format!(
        "the command `{command}` for logging in has not ended within {} s: run it by hand to see what it waits for",
        limit.as_secs()
    )
}

/// A service that answers with the header of its request.
#[derive(Clone)]
pub(crate) struct EchoService;

impl Service<Request<Body>> for EchoService {
    type Response = Response<Option<HeaderValue>>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        std::future::ready(Ok(Response::new(request.headers().get(AUTHORIZATION).cloned())))
    }
}

impl<S> Layer<S> for LoginService {
    type Service = LoggedIn<S>;

    fn layer(&self, inner: S) -> LoggedIn<S> {
        LoggedIn { login: self.clone(), inner }
    }
}

#[derive(Clone)]
pub(crate) struct LoggedIn<S> {
    login: LoginService,
    inner: S,
}

impl<S> Service<Request<Body>> for LoggedIn<S>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The clone is polled once the header is available.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (login, inner) = (self.login.clone(), self.inner.clone());
        async move {
            if let Some(header) = login.authorization_header().await? {
                request.headers_mut().insert(AUTHORIZATION, header);
            }
            inner.oneshot(request).await.map_err(Into::into)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn a_renewal_that_hangs_is_one_however_many_requests_give_it_up() {
        let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (count, closed) = (begun.clone(), gate.clone());
        let login = LoginService::new("sh", Duration::from_millis(20), move || {
            count.fetch_add(1, Ordering::SeqCst);
            let closed = closed.clone();
            async move {
                drop(closed.acquire().await);
                Ok(Some(HeaderValue::from_static("Bearer t")))
            }
            .boxed()
        });
        for _ in 0..20 {
            let error = login.authorization_header().await.unwrap_err().to_string();
            assert!(error.contains("`sh`") && error.contains("run it by hand"), "{error}");
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        gate.add_permits(1);
        assert_eq!(login.authorization_header().await.unwrap().unwrap(), "Bearer t");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        // A later request needs a new call: the token may need another renewal.
        login.authorization_header().await.unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_request_carries_the_header_that_kube_gives() {
        let login = LoginService::from_layer(
            "sh",
            Duration::from_secs(5),
            &tower::util::MapRequestLayer::new(|mut request: Request<Body>| {
                request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static("Bearer k"));
                request
            }),
        );
        let inner = service_fn(|request: Request<Body>| async move {
            Ok::<_, BoxError>(request.headers().get(AUTHORIZATION).cloned())
        });
        let seen = login.layer(inner).oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(seen.unwrap(), "Bearer k");
    }
}
