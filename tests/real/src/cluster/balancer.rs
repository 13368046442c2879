//! One address in front of several servers, as a load balancer is: it can choose the server of each connection anew, delay
//! what servers say, keep clients out, and cut every connection.
//!
//! It never loses a byte of a connection that goes on, which `kubewitness_harness::TestWire` does: TCP doesn't either.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

const BUFFER: usize = 16 * 1024;
/// Too many open files, for example, are fewer a moment later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Every second connection begins so much later where connections are reordered.
const OVERTAKEN: Duration = Duration::from_millis(400);

#[derive(Default)]
struct BalancerState {
    servers: Mutex<Vec<SocketAddr>>,
    accepted: AtomicU64,
    delay_ms: AtomicU64,
    is_shut: AtomicBool,
    is_reordered: AtomicBool,
    cut: Mutex<CancellationToken>,
}

impl BalancerState {
    /// Connections take turns among the servers.
    fn next_server(&self) -> Option<(u64, SocketAddr)> {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(number).ok()?.checked_rem(servers.len())?;
        Some((number, servers[at]))
    }

    fn until_cut(&self) -> CancellationToken {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))
    }
}

pub struct LoadBalancer {
    address: SocketAddr,
    shared: Arc<BalancerState>,
    accepting: AbortOnDropHandle<()>,
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl LoadBalancer {
    #[allow(clippy::disallowed_methods, reason = "the tasks of a test end with it")]
    pub async fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
        let address = listener.local_addr()?;
        let shared =
            Arc::new(BalancerState { servers: Mutex::new(vec![server]), ..BalancerState::default() });
        let of_task = shared.clone();
        let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let Some((number, server)) = of_task.next_server() else { continue };
                if of_task.is_shut.load(Ordering::Relaxed) {
                    continue;
                }
                let (shared, cut) = (of_task.clone(), of_task.until_cut());
                tokio::spawn(async move {
                    cut.run_until_cancelled(pipe(client, server, number, &shared)).await;
                });
            }
        }));
        Ok(Self { address, shared, accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections from now on go to these servers, one after the other. Those that exist stay where they are.
    pub fn route(&self, servers: &[SocketAddr]) {
        *self.shared.servers.lock().unwrap_or_else(PoisonError::into_inner) = servers.to_vec();
    }

    /// Ends all connections; those that come are served.
    pub fn cut(&self) {
        std::mem::take(&mut *self.shared.cut.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
    }

    pub fn delay(&self, milliseconds: u64) {
        self.shared.delay_ms.store(milliseconds, Ordering::Relaxed);
    }

    /// Whether clients are kept out. Who is in stays.
    pub fn shut(&self, is_shut: bool) {
        self.shared.is_shut.store(is_shut, Ordering::Relaxed);
    }

    /// Whether every second connection is overtaken by those after it.
    pub fn reorder(&self, is_reordered: bool) {
        self.shared.is_reordered.store(is_reordered, Ordering::Relaxed);
    }
}

async fn pipe(mut client: TcpStream, server: SocketAddr, number: u64, shared: &BalancerState) {
    if shared.is_reordered.load(Ordering::Relaxed) && number.is_multiple_of(2) {
        tokio::time::sleep(OVERTAKEN).await;
    }
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.split(), server.split());
    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.is_ok() };
    let down = async {
        let mut buffer = vec![0; BUFFER];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            tokio::time::sleep(shared.delay()).await;
            if to_client.write_all(&buffer[..read]).await.is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn server(says: u8) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        #[allow(clippy::disallowed_methods, reason = "the task of a test ends with it")]
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut asked = [0];
                tokio::spawn(async move {
                    while client.read_exact(&mut asked).await.is_ok()
                        && client.write_all(&[says]).await.is_ok()
                    {}
                });
            }
        });
        address
    }

    async fn ask(client: &mut TcpStream) -> std::io::Result<u8> {
        client.write_all(b"?").await?;
        client.read_u8().await
    }

    #[tokio::test]
    async fn a_connection_stays_with_its_server_until_it_is_cut() {
        let (one, two) = (server(1).await, server(2).await);
        let balancer = LoadBalancer::to(one).await.expect("listens");
        let mut client = TcpStream::connect(balancer.address()).await.expect("connects");
        assert_eq!(ask(&mut client).await.expect("an answer"), 1);
        balancer.route(&[two]);
        assert_eq!(ask(&mut client).await.expect("an answer"), 1);
        balancer.cut();
        ask(&mut client).await.expect_err("cut");
        let mut client = TcpStream::connect(balancer.address()).await.expect("connects");
        assert_eq!(ask(&mut client).await.expect("an answer"), 2);
    }

    #[tokio::test]
    async fn what_is_delayed_comes_late_and_whole() {
        let balancer = LoadBalancer::to(server(1).await).await.expect("listens");
        let mut client = TcpStream::connect(balancer.address()).await.expect("connects");
        assert_eq!(ask(&mut client).await.expect("an answer"), 1);
        balancer.delay(200);
        client.write_all(b"?").await.expect("is sent");
        tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await.expect_err("delayed");
        assert_eq!(client.read_u8().await.expect("an answer"), 1);
    }

    #[tokio::test]
    async fn nobody_comes_in_while_it_is_shut() {
        let balancer = LoadBalancer::to(server(1).await).await.expect("listens");
        balancer.shut(true);
        let mut client = TcpStream::connect(balancer.address()).await.expect("connects");
        assert!(ask(&mut client).await.is_err());
        balancer.shut(false);
        let mut client = TcpStream::connect(balancer.address()).await.expect("connects");
        assert_eq!(ask(&mut client).await.expect("an answer"), 1);
    }
}
