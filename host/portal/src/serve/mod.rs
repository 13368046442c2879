//! Serves connections: decides which are accepted, how long each is kept, and how all of them end. It knows
//! no route and no page. A server of a framework was not enough: it bounds requests, but not clients that
//! never send or never read.
//!
//! A client decides when it sends and when it reads, so nothing here waits only for a client. A connection
//! loses its place if it sends no request, if it does not read its answer, if it is idle while a new one
//! needs the place, and at shutdown.

mod connection;
mod large_answers;
mod long_held;
mod places;
mod reading_room;
mod recent_keys;
mod refusal;
mod stall;
mod stream_places;
mod tls;
mod traffic;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use connection::ConnectionServer;
pub(crate) use large_answers::{LargeAnswers, OF_ONE_MIB, StreamedAnswer};
pub(crate) use places::RequestConnection;
use places::{ConnectionPlaces, PeerAddress};
pub(crate) use reading_room::{ReadingRoom, ReadingTurn};
pub(crate) use recent_keys::{JobPlace, RecentKeys};
pub(crate) use stream_places::{StreamPlace, StreamPlaces};
pub(crate) use tls::TlsListener;
pub use tls::{CertificateError, TlsFiles};
pub use traffic::ListenerTraffic;
use traffic::TrafficCounts;

/// How many connections the kernel queues until they are accepted.
const BACKLOG: u32 = 1024;
/// How much unread data the kernel buffers for a client; it needs twice as much for its own bookkeeping.
/// Without a limit it would take up to 4 MiB for each connection, of the memory that the process may use.
const SEND_BUFFER: u32 = 128 * 1024;
/// The pause after a connection could not be accepted, for example because no file handle is left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// A condition that lasts for hours is logged once in this time; the metrics have the number.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The limits for the clients of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerBounds {
    /// Concurrent connections. Each is a file handle and up to some 300 KiB of buffers, beside its answer:
    /// those have their own limit.
    pub connections: usize,
    /// Concurrent connections of one address (or of one /64 network, for IPv6). The loopback address gets
    /// most of all places instead, because with `kubectl port-forward` everybody comes from there.
    pub of_one_peer: usize,
    /// A request's header must be complete within this time, and so must a handshake before it. The time
    /// begins with the connection, and again with each answer, so it also limits idle connections.
    pub header: Duration,
    /// A client that reads less of its answer than any network carries, for this long, is closed.
    pub stall: Duration,
    /// At shutdown, answers that have begun may take this long.
    pub grace: Duration,
}

/// A request is one packet or a few, and a client that reads acknowledges within milliseconds; the slowest
/// network takes seconds.
const HEADER: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(3);

impl ListenerBounds {
    /// Connections beyond the limit: those that get the answer that there is no room, and those that have
    /// just been closed and are not gone yet.
    pub const SPARE: usize = 16;

    /// A browser opens six connections, so this serves about eighty people. Live streams have their own
    /// limit.
    pub const PORTAL: Self =
        Self { connections: 512, of_one_peer: 64, header: HEADER, stall: STALL, grace: GRACE };

    /// The probes of a kubelet and some Prometheus servers, with one or two connections each.
    pub const HEALTH: Self =
        Self { connections: 128, of_one_peer: 16, header: HEADER, stall: STALL, grace: GRACE };
}

/// Listens so that a connection that nobody reads takes little memory.
pub fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Connections inherit this size.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How a listener is served.
pub(crate) struct ListenerTerms {
    /// The name in the log.
    pub(crate) name: &'static str,
    pub(crate) bounds: ListenerBounds,
    pub(crate) counts: Arc<TrafficCounts>,
    /// `None`: the connection is not encrypted.
    pub(crate) tls: Option<Arc<TlsListener>>,
    pub(crate) stop: CancellationToken,
    /// Ends the grace period.
    pub(crate) abort: CancellationToken,
}

/// Accepts connections until `stop`. After that, the open ones get `bounds.grace`, whatever they do.
pub(crate) async fn serve_listener(listener: TcpListener, router: Router, terms: ListenerTerms) {
    let stop = terms.stop.clone();
    let mut door = PortalListener::new(router, terms);
    stop.run_until_cancelled(door.keep_accepting(&listener)).await;
    drop(listener);
    door.close().await;
}

struct PortalListener {
    name: &'static str,
    abort: CancellationToken,
    server: ConnectionServer,
    places: Arc<ConnectionPlaces>,
    /// One for each socket, so that closing and refusing connections is limited, too.
    handles: Arc<Semaphore>,
    connections: JoinSet<()>,
    full: RareLog,
    failing: RareLog,
}

impl PortalListener {
    fn new(router: Router, terms: ListenerTerms) -> Self {
        let ListenerTerms { name, bounds, counts, tls, stop, abort } = terms;
        let server = ConnectionServer { router, bounds, counts, tls, stop };
        Self {
            name,
            abort,
            places: Arc::new(ConnectionPlaces::new(server.bounds, server.counts.clone())),
            handles: Arc::new(Semaphore::new(server.bounds.connections + ListenerBounds::SPARE)),
            server,
            connections: JoinSet::new(),
            full: RareLog::default(),
            failing: RareLog::default(),
        }
    }

    /// Runs forever.
    async fn keep_accepting(&mut self, listener: &TcpListener) {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.connections.join_next() => log_if_panicked(ended),
                taken = accept_with_handle(listener, self.handles.clone()) => match taken {
                    Ok((stream, peer, handle)) => self.serve_in_task(stream, peer, handle),
                    Err(error) => {
                        if self.failing.is_time() {
                            warn!(listener = self.name, %error, "a connection can't be taken; trying again");
                        }
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
    }

    /// Starts a task for each connection, as any server does. [`Self::close`] ends them.
    fn serve_in_task(&mut self, stream: TcpStream, peer: SocketAddr, handle: OwnedSemaphorePermit) {
        let peer = PeerAddress::of(peer.ip());
        let Some(place) = self.places.take(peer) else {
            self.server.counts.note_refused();
            if self.full.is_time() {
                let most = self.server.bounds.connections;
                warn!(
                    listener = self.name, %peer, most,
                    "a connection is refused: this client, or all clients together, have too many requests in \
                     progress"
                );
            }
            let is_last = self.handles.available_permits() == 0;
            // A TLS client does not understand plain text, so its connection is just closed.
            if self.server.tls.is_none()
                && let Some(refusal) = refusal::send_refusal(stream, is_last)
            {
                self.connections.spawn(hold_while(handle, refusal));
            }
            return;
        };
        let connection = self.server.clone().serve_connection(stream, place);
        self.connections.spawn(hold_while(handle, connection));
    }

    /// Waits for answers that have begun, but not for clients.
    async fn close(&mut self) {
        while let Some(ended) = self.connections.try_join_next() {
            log_if_panicked(ended);
        }
        let grace = self.server.bounds.grace;
        let open = self.connections.len();
        if open > 0 {
            info!(listener = self.name, open, "connections end; answers that have begun get {grace:?}");
        }
        let all_ended = async {
            while let Some(ended) = self.connections.join_next().await {
                log_if_panicked(ended);
            }
        };
        let in_time = tokio::time::timeout(grace, self.abort.run_until_cancelled(all_ended));
        if !matches!(in_time.await, Ok(Some(()))) {
            let left = self.connections.len();
            warn!(listener = self.name, left, "connections that did not end in time are closed");
            self.connections.abort_all();
        }
    }
}

/// Only if a handle is available: a connection that waits outside costs nothing here.
async fn accept_with_handle(
    listener: &TcpListener,
    handles: Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let handle = handles.acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, handle))
}

async fn hold_while(_handle: OwnedSemaphorePermit, connection: impl Future<Output = ()>) {
    connection.await;
}

fn log_if_panicked(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "serving a connection panicked");
    }
}

#[derive(Default)]
struct RareLog(Option<Instant>);

impl RareLog {
    fn is_time(&mut self) -> bool {
        let is_time = self.0.is_none_or(|last| last.elapsed() >= LOG_EVERY);
        if is_time {
            self.0 = Some(Instant::now());
        }
        is_time
    }
}
