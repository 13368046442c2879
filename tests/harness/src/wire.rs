//! Free ports, and a wire between a client and a server that can lose what the server sends.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Below those that the system gives to clients. Any client of this machine may be given one of these
/// before its server comes to it, or while that is stopped: the one that tries to reach it again and
/// again sooner or later reaches itself.
const FIRST_PORT: u16 = 10_000;
const BLOCKS: u16 = 400;
const PORTS_OF_A_BLOCK: u16 = 50;

/// Ports that this process alone gives away: who listens on the first owns the others. Without that, a program that found
/// its port taken would end, and its test would talk to the program of another test.
struct PortBlock {
    next: u16,
    end: u16,
    _owner: StdListener,
}

impl PortBlock {
    fn acquire() -> Result<Self> {
        // Processes that were started one after the other begin far from each other.
        let start = (std::process::id().wrapping_mul(0x9E37_79B1) >> 8) % u32::from(BLOCKS);
        let start = u16::try_from(start)?;
        for index in 0..BLOCKS {
            let first = FIRST_PORT + (start + index) % BLOCKS * PORTS_OF_A_BLOCK;
            if let Ok(owner) = StdListener::bind(("127.0.0.1", first)) {
                return Ok(Self { next: first + 1, end: first + PORTS_OF_A_BLOCK, _owner: owner });
            }
        }
        bail!("no port from {FIRST_PORT} on is free: end what listens there")
    }

    /// `None` where all were given away.
    fn free_port(&mut self) -> Option<u16> {
        let free = (self.next..self.end).find(|port| StdListener::bind(("127.0.0.1", *port)).is_ok());
        self.next = free.map_or(self.end, |port| port + 1);
        free
    }
}

/// A port that nobody listens on now, and that nobody else was told.
pub fn free_port() -> Result<u16> {
    static OWNED: Mutex<Vec<PortBlock>> = Mutex::new(Vec::new());
    let mut blocks = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(port) = blocks.last_mut().and_then(PortBlock::free_port) {
            return Ok(port);
        }
        blocks.push(PortBlock::acquire()?);
    }
}

#[derive(Default)]
struct SharedWire {
    is_deaf: AtomicBool,
    is_shut: AtomicBool,
    /// The text of a client with which the wire becomes deaf.
    deafens_at: Mutex<Option<&'static str>>,
    /// Bytes of the server that nobody heard.
    lost: AtomicU64,
}

impl SharedWire {
    fn lock_deafens_at(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.deafens_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Becomes deaf if a client says its text; `end` is the end of what the client said before.
    fn hear(&self, end: &mut Vec<u8>, said: &[u8]) {
        let mut deafens_at = self.lock_deafens_at();
        let Some(text) = *deafens_at else { return end.clear() };
        end.extend_from_slice(said);
        if end.windows(text.len()).any(|part| part == text.as_bytes()) {
            self.is_deaf.store(true, Ordering::SeqCst);
            *deafens_at = None;
        }
        end.drain(..end.len().saturating_sub(text.len() - 1));
    }
}

pub struct TestWire {
    address: SocketAddr,
    shared: Arc<SharedWire>,
    cut: Mutex<CancellationToken>,
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
        let cut = Mutex::new(CancellationToken::new());
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

    /// Like [`Self::deafen`], from the moment on at which a client says this.
    pub fn deafen_at(&self, text: &'static str) {
        self.shared.lost.store(0, Ordering::SeqCst);
        *self.shared.lock_deafens_at() = Some(text);
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
        self.shared.lock_deafens_at().take();
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
    let up = async {
        let (mut buffer, mut end) = (vec![0; 16 * 1024], Vec::new());
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            shared.hear(&mut end, &buffer[..read]);
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            if shared.is_deaf.load(Ordering::SeqCst) {
                shared.lost.fetch_add(read as u64, Ordering::SeqCst);
            } else if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        _ = up => {}
        _ = down => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_own_a_port() {
        let (mut one, two) = (PortBlock::acquire().expect("a block"), PortBlock::acquire().expect("another"));
        assert!(one.end <= two.next || two.end <= one.next);
        let ports: Vec<_> = std::iter::from_fn(|| one.free_port()).collect();
        assert!(ports.len() < usize::from(PORTS_OF_A_BLOCK) && ports.is_sorted_by(|a, b| a < b), "{ports:?}");
    }

    #[test]
    fn a_wire_becomes_deaf_at_a_text_that_comes_in_parts() {
        let (wire, mut end) = (SharedWire::default(), Vec::new());
        wire.hear(&mut end, b"PUB a.st");
        *wire.lock_deafens_at() = Some("states.");
        for (said, is_deaf) in
            [(&b"ates."[..], false), (b"PUB a.stat", false), (b"e", false), (b"s.0 ", true)]
        {
            wire.hear(&mut end, said);
            assert_eq!(wire.is_deaf.load(Ordering::SeqCst), is_deaf, "{said:?}");
        }
    }

    #[test]
    fn when_a_block_is_empty_the_next_port_is_of_another() {
        let ports: std::collections::BTreeSet<_> =
            (0..2 * PORTS_OF_A_BLOCK).map(|_| free_port().expect("a port")).collect();
        assert_eq!(ports.len(), usize::from(2 * PORTS_OF_A_BLOCK));
    }
}
