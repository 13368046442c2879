//! Free ports, and a wire between a client and a server that can lose what the server sends.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Below those that the system gives to clients. Any client of this machine may be given one of these
/// before its server comes to it, or while that is stopped: the one that tries to reach it again and
/// again sooner or later reaches itself.
const FIRST_PORT: u32 = 10_000;
const PORTS: u32 = 20_000;

/// A port that nobody listens on now, and that nobody else in this process was told. Between this and
/// its use another process may take it.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that were started one after the other begin far from each other.
    let start = std::process::id().wrapping_mul(0x9E37_79B1) >> 8;
    for _ in 0..PORTS {
        let port = FIRST_PORT + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(port)?;
        if StdListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {FIRST_PORT} to {} is free: end what listens there", FIRST_PORT + PORTS - 1)
}

#[derive(Default)]
struct SharedWire {
    is_deaf: AtomicBool,
    is_shut: AtomicBool,
    /// Bytes of the server that nobody heard.
    lost: AtomicU64,
}

pub struct TestWire {
    address: SocketAddr,
    shared: Arc<SharedWire>,
    cut: std::sync::Mutex<CancellationToken>,
    task: AbortOnDropHandle<()>,
}

impl TestWire {
    #[allow(clippy::disallowed_methods)]
    pub async fn to(server: SocketAddr) -> Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(SharedWire::default());
        let (accepted, clients) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if accepted.send(client).is_err() {
                    return;
                }
            }
        });
        let cut = std::sync::Mutex::new(CancellationToken::new());
        let wire = Arc::new(Self { address, shared, cut, task: AbortOnDropHandle::new(task) });
        tokio::spawn(serve(Arc::downgrade(&wire), server, clients));
        Ok(wire)
    }

    pub fn address(&self) -> SocketAddr {
        debug_assert!(!self.task.is_finished());
        self.address
    }

    /// From now on what the server says is lost; what clients say still comes to it.
    pub fn deafen(&self) {
        self.shared.lost.store(0, Ordering::SeqCst);
        self.shared.is_deaf.store(true, Ordering::SeqCst);
    }

    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// From now on nobody gets in; who is in stays.
    pub fn shut(&self) {
        self.shared.is_shut.store(true, Ordering::SeqCst);
    }

    /// Ends all connections; those that come are whole.
    pub fn cut(&self) {
        self.shared.is_deaf.store(false, Ordering::SeqCst);
        let mut cut = self.cut.lock().expect("nobody panics while he has it");
        std::mem::take(&mut *cut).cancel();
    }

    fn until_cut(&self) -> CancellationToken {
        self.cut.lock().expect("nobody panics while he has it").clone()
    }
}

#[allow(clippy::disallowed_methods)]
async fn serve(
    wire: std::sync::Weak<TestWire>,
    server: SocketAddr,
    mut clients: tokio::sync::mpsc::UnboundedReceiver<TcpStream>,
) {
    while let Some(client) = clients.recv().await {
        let Some(wire) = wire.upgrade() else { return };
        let (shared, cut) = (wire.shared.clone(), wire.until_cut());
        if shared.is_shut.load(Ordering::SeqCst) {
            continue;
        }
        tokio::spawn(async move { cut.run_until_cancelled(pipe(client, server, &shared)).await });
    }
}

async fn pipe(mut client: TcpStream, server: SocketAddr, shared: &SharedWire) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.split(), server.split());
    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.is_ok() };
    let down = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            if shared.is_deaf.load(Ordering::SeqCst) {
                shared.lost.fetch_add(read as u64, Ordering::SeqCst);
            } else if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        true
    };
    tokio::select! {
        _ = up => {}
        _ = down => {}
    }
}
