//! Tests of protocols: HTTP/2 if the server speaks it, otherwise HTTP/1.1, and connections that die.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Version};
use http_body_util::BodyExt;
use kube::client::Body;
use kubewitness_playground::apiserver::TlsOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::simulator::{SimulatedCluster, every_version_is_witnessed};
use crate::*;

/// Answers arrive within this time. A longer wait is a request that hangs.
const ANSWERED: Duration = Duration::from_secs(20);

/// A self-signed certificate for this name.
fn certificate(folder: &Path, name: &str, http2: bool) -> TlsOptions {
    let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    let key_kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let made = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=simulator"])
        .args(key_kind)
        .args(["-addext", &format!("subjectAltName={name}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    TlsOptions { certificate, key, authority: None, http2 }
}

async fn spoken(connection: &ApiConnection) -> Version {
    let request = Request::get("/version").body(Body::empty()).unwrap();
    connection.client.send(request).await.unwrap().version()
}

async fn witnessed_over(http2: bool) -> Version {
    let folder = tempfile::tempdir().unwrap();
    let cluster = SimulatedCluster::start_by(Some(certificate(folder.path(), "IP:127.0.0.1", http2))).await;
    every_version_is_witnessed(&cluster).await;
    spoken(&cluster.connection).await
}

#[tokio::test]
async fn every_version_is_witnessed_over_http_2() {
    assert_eq!(witnessed_over(true).await, Version::HTTP_2);
}

#[tokio::test]
async fn a_server_without_http_2_is_spoken_to_in_http_1() {
    assert_eq!(witnessed_over(false).await, Version::HTTP_11);
    let plain = WatchWorld::start().await;
    assert_eq!(spoken(&connected(&plain).await).await, Version::HTTP_11);
}

/// The server's kubeconfig with another address and other trust settings.
fn kubeconfig(cluster: &SimulatedCluster, address: std::net::SocketAddr, trust: Value) -> String {
    let config = cluster.server.kubeconfig();
    let token = config.split("token:").nth(1).unwrap().split_whitespace().next().unwrap().trim_matches('"');
    let mut how = json!({"server": format!("https://{address}")});
    how.as_object_mut().unwrap().extend(trust.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": how}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]})
    .to_string()
}

#[tokio::test]
async fn a_certificate_is_trusted_as_the_kubeconfig_says() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificate(folder.path(), "DNS:elsewhere", true);
    let cluster = SimulatedCluster::start_by(Some(tls.clone())).await;
    let ask = async |trust: Value| {
        let config = kubeconfig(&cluster, cluster.server.address(), trust);
        connected_by(&config).await.server_version().await
    };
    let authority = tls.certificate.to_str().unwrap();
    assert!(ask(json!({"certificate-authority": authority, "tls-server-name": "elsewhere"})).await.is_ok());
    assert!(ask(json!({"insecure-skip-tls-verify": true})).await.is_ok());
    let refused = ask(json!({"certificate-authority": authority})).await.unwrap_err().to_string();
    assert!(refused.contains("certificate"), "{refused}");
}

/// A connection to the server that can go silent without being closed.
struct SilentWire {
    address: std::net::SocketAddr,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    silent: watch::Sender<bool>,
}

impl SilentWire {
    /// With `connect`, clients first send it a CONNECT request, as to a proxy.
    async fn to(server: std::net::SocketAddr, connect: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, silent) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(false));
        let (count, state) = (Arc::clone(&connections), silent.clone());
        let open = Arc::new(AtomicUsize::new(0));
        let now = Arc::clone(&open);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let open = Arc::clone(&now);
                open.fetch_add(1, Ordering::SeqCst);
                // A connection that is made after the silence works.
                let silent = (!*state.borrow()).then(|| state.subscribe());
                tokio::spawn(async move {
                    if connect {
                        asked_to_connect(&mut client).await;
                    }
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {
                            open.fetch_sub(1, Ordering::SeqCst);
                            return;
                        }
                        () = falls_silent(silent) => {}
                    }
                    // Neither side learns of it.
                    std::future::pending::<()>().await;
                });
            }
        });
        Self { address, connections, open, silent }
    }
}

async fn falls_silent(silent: Option<watch::Receiver<bool>>) {
    match silent {
        Some(mut silent) => drop(silent.wait_for(|silent| *silent).await),
        None => std::future::pending().await,
    }
}

async fn asked_to_connect(client: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("connect 127.0.0.1:"), "{head}");
    // user:p@ss
    assert!(head.contains("proxy-authorization: basic dxnlcjpwqhnz"), "{head}");
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.unwrap();
}

#[tokio::test]
async fn a_connection_that_died_unheard_is_given_up_and_nothing_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = SimulatedCluster::start_by(Some(certificate(folder.path(), "IP:127.0.0.1", true))).await;
    let wire = SilentWire::to(cluster.server.address(), false).await;
    let config = kubeconfig(&cluster, wire.address, json!({"insecure-skip-tls-verify": true}));
    let keep_alive = KeepAlive { every: Duration::from_millis(200), within: Duration::from_secs(2) };
    let connection = connected_with(&config, &keep_alive).await;
    let memory = Arc::new(MemoryWitness::default());
    cluster.create_job("a").await;
    // No watch is dropped here for its own silence.
    let tuning = WatchTuning { idle: Duration::from_secs(600), ..tuning() };
    let running = RunningSource::start_by(&connection, &memory, spec(json!({})), tuning);
    until("synced", || running.handle.snapshot_view().synced).await;
    assert_eq!(spoken(&connection).await, Version::HTTP_2);
    assert_eq!(wire.connections.load(Ordering::SeqCst), 1, "all share one");
    wire.silent.send_replace(true);
    cluster.touch_job("a", 1).await;
    cluster.delete_job("a").await;
    until("the end", || memory.story_of("a").last().is_some_and(|last| last.starts_with("gone"))).await;
    assert_eq!(memory.story_of("a").len(), 3);
    assert_eq!(memory.object_gaps(), []);
    running.stop().await;
    cluster.stop.cancel();
}

#[tokio::test]
async fn a_proxy_of_the_kubeconfig_is_asked_to_connect_and_sees_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = SimulatedCluster::start_by(Some(certificate(folder.path(), "IP:127.0.0.1", true))).await;
    let proxy = SilentWire::to(cluster.server.address(), true).await;
    let through = |scheme: &str| {
        let url = format!("{scheme}://user:p%40ss@{}", proxy.address);
        kubeconfig(
            &cluster,
            cluster.server.address(),
            json!({"insecure-skip-tls-verify": true, "proxy-url": url}),
        )
    };
    assert_eq!(spoken(&connected_by(&through("http")).await).await, Version::HTTP_2);
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, through("gopher")).unwrap();
    let options = ConnectOptions { kubeconfig: Some(path), context: None };
    let refused = connect_with(&options, &KeepAlive::default()).await.unwrap_err().to_string();
    assert!(refused.contains("gopher"), "{refused}");
}

#[tokio::test]
async fn watches_that_are_not_read_hold_up_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = SimulatedCluster::start_by(Some(certificate(folder.path(), "IP:127.0.0.1", true))).await;
    for number in 0..4 {
        let data = json!({"text": "x".repeat(512 * 1024)});
        cluster.create_map(&format!("large-{number}"), json!({}), data).await;
    }
    let open = async || {
        let address = "/api/v1/configmaps?watch=true&resourceVersion=0";
        let request = Request::builder().method(Method::GET).uri(address).body(Body::empty()).unwrap();
        let asked = tokio::time::timeout(ANSWERED, cluster.connection.client.send(request));
        asked.await.expect("the watch is accepted").unwrap()
    };
    // More than a connection's usual window, and all of it waits.
    let mut held = Vec::new();
    for _ in 0..24 {
        held.push(open().await);
    }
    assert!(held.iter().all(|watch| watch.version() == Version::HTTP_2));
    let mut read = open().await.into_body();
    let mut bytes = 0;
    while bytes < 4 * 512 * 1024 {
        let frame = tokio::time::timeout(ANSWERED, read.frame()).await.expect("it is not held up");
        bytes += frame.unwrap().unwrap().into_data().unwrap().len();
    }
    drop(held);
    cluster.stop.cancel();
}

#[tokio::test]
async fn more_watches_than_a_connection_takes_are_spread_over_several() {
    const SOURCES: usize = 150;
    let folder = tempfile::tempdir().unwrap();
    let tls = certificate(folder.path(), "IP:127.0.0.1", true);
    let cluster = SimulatedCluster::start_by(Some(tls.clone())).await;
    let wire = SilentWire::to(cluster.server.address(), false).await;
    let trust = json!({"certificate-authority": tls.certificate.to_str().unwrap()});
    let connection = connected_by(&kubeconfig(&cluster, wire.address, trust)).await;
    let sources: Vec<_> = (0..SOURCES)
        .map(|number| {
            let (memory, name) = (Arc::new(MemoryWitness::default()), format!("jobs-{number}"));
            let running =
                RunningSource::start_by(&connection, &memory, spec(json!({"name": name})), tuning());
            (memory, running)
        })
        .collect();
    until("all watch", || {
        sources.iter().all(|(_, running)| running.handle.snapshot_view().counts.watches > 0)
    })
    .await;
    cluster.create_job("a").await;
    until("all see what happens", || sources.iter().all(|(memory, _)| memory.story_of("a").len() == 1)).await;
    // Beside the watches there is room for other requests.
    assert!(connection.server_version().await.is_ok());
    let made = wire.connections.load(Ordering::SeqCst);
    assert!((2..=8).contains(&made), "{made} connections, of which none is made in vain");
    assert!(wire.open.load(Ordering::SeqCst) >= 2);
    for (_, running) in sources {
        running.stop().await;
    }
}
