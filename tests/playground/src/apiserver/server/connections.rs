//! Listens and runs the connections of one server: it accepts and answers them, breaks them when the server
//! goes down, and waits for them when it stops.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::apiserver::cluster::front::{ServerFront, ServerPower};
use crate::apiserver::server::failing::HangUp;
use crate::apiserver::server::routes;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// How many concurrent requests one HTTP/2 connection may have, as in kube-apiserver. Further ones wait.
const STREAMS: u32 = 100;

/// The pause after a connection could not be accepted because no file descriptor was left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Why a server stopped accepting connections.
enum DownReason {
    /// Permanently. It first answers its open requests.
    Stopped,
    /// Its connections were broken.
    Off,
}

/// Follows its power switch until it is stopped permanently.
pub async fn run(front: &Arc<ServerFront>, listener: TcpListener) -> io::Result<()> {
    let mut power = front.power.subscribe();
    let mut listener = Some(listener);
    loop {
        if let Some(listener) = listener.take() {
            front.up.send_replace(true);
            let down = up(front, listener, &mut power).await;
            front.up.send_replace(false);
            if matches!(down, DownReason::Stopped) {
                return Ok(());
            }
        }
        // The port is bound but does not listen: connections are refused, and no other process gets the port.
        let port = hold_port(front.address)?;
        if !off(front, &mut power).await {
            return Ok(());
        }
        front.refill();
        listener = Some(port.listen(BACKLOG)?);
    }
}

/// Waits until the server should be up again; `false` if it never will.
async fn off(front: &ServerFront, power: &mut watch::Receiver<ServerPower>) -> bool {
    let back = match *power.borrow_and_update() {
        ServerPower::Off { back, .. } => back,
        ServerPower::On => return true,
    };
    let back = async {
        match back {
            Some(after) => tokio::time::sleep(after).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = front.stop.cancelled() => return false,
        () = back => {}
        on = power.wait_for(|power| *power == ServerPower::On) => if on.is_err() { return false },
    }
    front.power.send_replace(ServerPower::On);
    true
}

fn hold_port(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn up(
    front: &Arc<ServerFront>,
    listener: TcpListener,
    power: &mut watch::Receiver<ServerPower>,
) -> DownReason {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = front.stop.cancelled() => break,
            after = told_off(power) => {
                tokio::time::sleep(after).await;
                drop(listener);
                connections.shutdown().await;
                return DownReason::Off;
            }
            Some(ended) = connections.join_next() => reap(ended),
            taken = listener.accept() => match taken {
                // Each connection has its own task, as in any server. The tasks end with this loop.
                Ok((stream, _)) => drop(connections.spawn(connection(Arc::clone(front), stream))),
                Err(error) => {
                    tracing::debug!(%error, "a connection was not taken");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
        }
    }
    drop(listener);
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            reap(ended);
        }
    };
    tokio::select! {
        () = all_ended => {}
        () = crate::overdue(&front.stop) => connections.abort_all(),
    }
    DownReason::Stopped
}

/// How soon the connections break once the server should go down.
async fn told_off(power: &mut watch::Receiver<ServerPower>) -> Duration {
    match power.wait_for(|power| *power != ServerPower::On).await.map(|power| *power) {
        Ok(ServerPower::Off { after, .. }) => after,
        _ => std::future::pending().await,
    }
}

fn reap(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection of the simulated API server failed");
    }
}

async fn connection(front: Arc<ServerFront>, stream: TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "small frames may be delayed");
    }
    let Some(tls) = &front.tls else { return exchange(front, stream).await };
    match tls.accept(stream).await {
        Ok(stream) => exchange(Arc::clone(&front), stream).await,
        Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
    }
}

/// Answers the requests of one connection, HTTP/1.1 or HTTP/2.
async fn exchange(front: Arc<ServerFront>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = service_fn(|request: Request<Incoming>| {
        let front = Arc::clone(&front);
        async move {
            let response = routes::handle(&front, request.map(Body::new)).await;
            match response.extensions().get::<HangUp>() {
                Some(HangUp) => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
                None => Ok(response),
            }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(STREAMS);
    let mut goaways = front.goaways.subscribe();
    let mut answering = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = loop {
        tokio::select! {
            ended = answering.as_mut() => break ended,
            () = front.stop.cancelled() => {
                answering.as_mut().graceful_shutdown();
                break answering.await;
            }
            // Open requests continue, and new ones need another connection.
            Ok(()) = goaways.changed() => answering.as_mut().graceful_shutdown(),
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection broke");
    }
}
