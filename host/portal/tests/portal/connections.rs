//! Tests of clients that send nothing, send incompletely, or do not read: they cost little, and keep nobody
//! else out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_harness::{Scratch, tls};
use kubewitness_portal::{
    ListenerBounds, ListenerTraffic, PortalOptions, TlsFiles, listen_on, serve_health, serve_portal,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::fake::FakeViews;

/// Longer than anything here takes, unless it hangs.
const LONGEST: Duration = Duration::from_secs(60);
/// A limit that no test reaches.
const NEVER: Duration = Duration::from_secs(600);

const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
const HALF_A_HEADER: &str = "GET /healthz HTTP/1.1\r\nHost: loc";
const HALF_A_BODY: &str = "POST /api/v1/deadletters/replay HTTP/1.1\r\nHost: localhost\r\n\
    Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"plugin\":";
const EVENTS: &str = "GET /api/v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n";
const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn bounds() -> ListenerBounds {
    ListenerBounds {
        connections: 16,
        of_one_peer: 16,
        header: NEVER,
        stall: NEVER,
        grace: Duration::from_millis(200),
    }
}

fn options(bounds: ListenerBounds) -> PortalOptions {
    PortalOptions { bounds, ..crate::options() }
}

struct BoundedServer {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

#[allow(clippy::disallowed_methods)]
impl BoundedServer {
    fn portal(fake: FakeViews, options: PortalOptions) -> Self {
        let listener = listen_on(([127, 0, 0, 1], 0).into()).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving = serve_portal(listener, Arc::new(fake), options, stop.clone());
        Self { address, stop, serving: tokio::spawn(async { serving.await.unwrap() }) }
    }

    fn health(options: PortalOptions) -> Self {
        let listener = listen_on(([127, 0, 0, 1], 0).into()).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving = serve_health(listener, Arc::new(FakeViews::default()), options, stop.clone());
        Self { address, stop, serving: tokio::spawn(serving) }
    }

    async fn connect(&self, says: &str) -> RawClient {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(says.as_bytes()).await.unwrap();
        RawClient { stream }
    }

    async fn ends(self) {
        self.stop.cancel();
        tokio::time::timeout(LONGEST, self.serving).await.expect("it ends whatever clients do").unwrap();
    }

    async fn metric(&self, line: &str) -> u64 {
        let text = self.connect(METRICS).await.rest().await;
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
    }

    /// Waits until the metrics contain this line.
    async fn counts(&self, line: &str, wanted: u64) {
        let counted = async {
            while self.metric(line).await != wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONGEST, counted).await.unwrap_or_else(|_| panic!("{line} never is {wanted}"));
    }
}

struct RawClient {
    stream: TcpStream,
}

impl RawClient {
    async fn says(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the text has this end.
    async fn hears(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.contains(end) {
            let mut bytes = [0; 1024];
            let read = tokio::time::timeout(LONGEST, self.stream.read(&mut bytes)).await.expect("an answer");
            let read = read.unwrap();
            assert!(read > 0, "closed after {text}");
            text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        text
    }

    async fn expect_answer(&mut self) {
        self.says(HEALTHZ).await;
        assert!(self.hears("ok\n").await.starts_with("HTTP/1.1 200"));
    }

    async fn whole(mut self) -> String {
        self.rest().await
    }

    /// Reads everything that comes until the server closes the connection.
    async fn rest(&mut self) -> String {
        let mut text = Vec::new();
        let read = tokio::time::timeout(LONGEST, self.stream.read_to_end(&mut text)).await;
        // If the server has unread data, the connection is reset, which also ends it.
        read.expect("the server closes it").ok();
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Requests a story that is larger than all buffers on the way, and reads nothing.
async fn unread(server: &BoundedServer, says: &str) -> RawClient {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = RawClient { stream: socket.connect(server.address).await.unwrap() };
    client.says(says).await;
    // The first bytes have arrived, so the answer is in progress.
    let mut first = [0; 1];
    tokio::time::timeout(LONGEST, client.stream.peek(&mut first)).await.expect("an answer").unwrap();
    client
}

fn long_story() -> FakeViews {
    let fake = FakeViews::default();
    let object = crate::fake::object("Job", "research", "long", "uid-long");
    let message = "x".repeat(4096);
    for seq in 19..2019 {
        let status = crate::fake::status("Running", "", &message);
        fake.push(crate::fake::state(seq, &object, kubewitness_core::Change::Present, seq, status));
    }
    fake
}

#[tokio::test]
async fn a_header_that_is_not_complete_in_time_ends_its_connection() {
    let bounds = ListenerBounds { header: Duration::from_millis(200), ..bounds() };
    let server = BoundedServer::portal(FakeViews::default(), options(bounds));
    for half in ["", HALF_A_HEADER] {
        server.connect(half).await.rest().await;
    }
    server.counts(r#"kubewitness_http_connections_closed_total{listener="portal",reason="header"}"#, 2).await;
    server.ends().await;
}

#[tokio::test]
async fn a_header_that_comes_byte_by_byte_gets_no_more_time() {
    let bounds = ListenerBounds { header: Duration::from_millis(500), ..bounds() };
    let server = BoundedServer::portal(FakeViews::default(), options(bounds));
    let mut client = server.connect("GET / HTTP/1.1\r\nX: ").await;
    let dripping = async {
        while client.stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONGEST, dripping).await.expect("it is closed while it drips");
    server.ends().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_that_asks_again_in_time_is_kept() {
    let bounds = ListenerBounds { header: Duration::from_secs(2), ..bounds() };
    let server = BoundedServer::portal(FakeViews::default(), options(bounds));
    let mut client = server.connect("").await;
    for _ in 0..3 {
        client.expect_answer().await;
    }
    assert_eq!(client.rest().await, "", "it is closed without a word");
    let closed = r#"kubewitness_http_connections_closed_total{listener="portal",reason="header"}"#;
    assert_eq!(server.metric(closed).await, 0, "an idle one is nothing to count");
    server.ends().await;
}

#[tokio::test]
async fn a_body_that_is_not_complete_in_time_is_answered_and_its_connection_ends() {
    let options = PortalOptions { request_timeout: Duration::from_millis(200), ..options(bounds()) };
    let server = BoundedServer::portal(FakeViews::default(), options);
    let answer = server.connect(HALF_A_BODY).await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    server.ends().await;
}

#[tokio::test]
async fn a_header_that_is_too_large_is_refused() {
    let server = BoundedServer::portal(FakeViews::default(), options(bounds()));
    let mut client = server.connect(&format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(20_000))).await;
    client.says(&"x".repeat(20_000)).await;
    assert!(client.hears("\r\n\r\n").await.starts_with("HTTP/1.1 431"));
    server.ends().await;
}

#[tokio::test]
async fn a_stream_that_is_not_read_loses_its_connection_and_gives_its_place_back() {
    let bounds = ListenerBounds { stall: Duration::from_millis(300), ..bounds() };
    let server = BoundedServer::portal(long_story(), PortalOptions { streams: 1, ..options(bounds) });
    let _unread = unread(&server, EVENTS).await;
    server
        .counts(r#"kubewitness_http_connections_closed_total{listener="portal",reason="stalled"}"#, 1)
        .await;
    let mut next = server.connect(EVENTS).await;
    assert!(next.hears("\r\n\r\n").await.starts_with("HTTP/1.1 200"), "the one place for a stream is free");
    server.ends().await;
}

#[tokio::test]
async fn serving_ends_whatever_clients_hold_open() {
    let server = BoundedServer::portal(long_story(), options(bounds()));
    let _silent = server.connect("").await;
    let _half = server.connect(HALF_A_HEADER).await;
    let _body = server.connect(HALF_A_BODY).await;
    let _unread = unread(&server, EVENTS).await;
    let mut idle = server.connect("").await;
    idle.expect_answer().await;
    server.ends().await;
}

#[tokio::test]
async fn told_to_stop_at_once_serving_waits_for_no_answer() {
    let abort = CancellationToken::new();
    let bounds = ListenerBounds { grace: NEVER, ..bounds() };
    let server =
        BoundedServer::portal(long_story(), PortalOptions { abort: abort.clone(), ..options(bounds) });
    let _unread = unread(&server, EVENTS).await;
    abort.cancel();
    server.ends().await;
}

#[tokio::test]
async fn an_answer_that_has_begun_is_finished_at_the_end() {
    let bounds = ListenerBounds { grace: NEVER, ..bounds() };
    let server = BoundedServer::portal(long_story(), options(bounds));
    let mut reader =
        unread(&server, "GET /api/v1/timeline?uid=uid-train&limit=5000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await;
    server.stop.cancel();
    let answer = reader.rest().await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str::<serde_json::Value>(&chunks(body)).expect("it is whole");
    server.ends().await;
}

/// The text of a chunked body, up to its last chunk.
fn chunks(mut body: &str) -> String {
    let mut text = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").expect("a chunk has a size");
        let size = usize::from_str_radix(size, 16).expect("a size in hexadecimal digits");
        if size == 0 {
            return text;
        }
        text.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
}

#[tokio::test]
async fn more_connections_than_places_keep_no_client_out() {
    let server = BoundedServer::portal(FakeViews::default(), options(bounds()));
    let mut known = server.connect("").await;
    known.expect_answer().await;
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(server.connect(HALF_A_HEADER).await);
        held.push(server.connect("").await);
    }
    known.expect_answer().await;
    for _ in 0..20 {
        server.connect("").await.expect_answer().await;
    }
    // This machine may use 14 of 16 places, and this request has one.
    assert!(server.metric(r#"kubewitness_http_connections{listener="portal"}"#).await <= 14);
    assert!(
        server
            .metric(r#"kubewitness_http_connections_closed_total{listener="portal",reason="crowded"}"#)
            .await
            > 100
    );
    server.ends().await;
}

#[tokio::test]
async fn requests_whose_body_never_comes_keep_no_client_out() {
    let bounds = ListenerBounds { connections: 2, of_one_peer: 2, ..bounds() };
    let options = PortalOptions { request_timeout: NEVER, ..options(bounds) };
    let server = BoundedServer::portal(FakeViews::default(), options);
    let mut half_sent = Vec::new();
    for _ in 0..6 {
        let mut client = server.connect(&HALF_A_BODY.replace("Host", "Expect: 100-continue\r\nHost")).await;
        client.hears("100 Continue").await;
        half_sent.push(client);
        server.connect("").await.expect_answer().await;
    }
    // A client whose body arrives in the end is answered.
    let (header, body) = HALF_A_BODY.split_once("{").unwrap();
    let whole = r#"{"plugin":"none"}"#;
    let header = header.replace("1000", &whole.len().to_string());
    let mut slow = server.connect(&header).await;
    slow.says(whole).await;
    assert!(slow.hears("\r\n\r\n").await.starts_with("HTTP/1.1 4"), "{body}");
    server.ends().await;
}

#[tokio::test]
async fn where_all_have_requests_under_way_a_client_is_told_to_come_again() {
    let bounds = ListenerBounds { connections: 2, of_one_peer: 2, ..bounds() };
    let traffic = ListenerTraffic::default();
    let options = PortalOptions { traffic: traffic.clone(), request_timeout: NEVER, ..options(bounds) };
    let server = BoundedServer::portal(long_story(), options.clone());
    let health = BoundedServer::health(PortalOptions { traffic, ..options });
    let story = "GET /api/v1/timeline?uid=uid-long&limit=5000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let busy = [unread(&server, story).await, unread(&server, story).await];
    for _ in 0..40 {
        let answer = server.connect("").await.rest().await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 2"), "{answer}");
    }
    health.connect("").await.expect_answer().await;
    health.counts(r#"kubewitness_http_connections_refused_total{listener="portal"}"#, 40).await;
    drop(busy);
    let answered = async {
        loop {
            let answer =
                server.connect(&HEALTHZ.replace("Host", "Connection: close\r\nHost")).await.rest().await;
            if answer.starts_with("HTTP/1.1 200") {
                return;
            }
        }
    };
    tokio::time::timeout(LONGEST, answered).await.expect("a place is free again");
    server.ends().await;
    health.ends().await;
}

fn trusting(authority: &std::path::Path) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

#[tokio::test]
async fn over_https_a_handshake_has_its_time_and_its_connection_a_place() {
    let scratch = Scratch::new("portal-https").unwrap();
    let made = tls::make(scratch.path()).unwrap();
    let files = TlsFiles { certificate: made.certificate.clone(), key: made.key.clone() };
    let bounds = ListenerBounds { connections: 4, header: Duration::from_millis(500), ..bounds() };
    let server =
        BoundedServer::portal(FakeViews::default(), PortalOptions { tls: Some(files), ..options(bounds) });
    for says in ["", HEALTHZ, HALF_A_HEADER, "\x16\x03\x01"] {
        // More clients than places.
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(server.connect(says).await);
        }
        for answer in futures::future::join_all(clients.into_iter().map(RawClient::whole)).await {
            assert!(!answer.contains("HTTP"), "what is not encrypted is not answered: {answer}");
        }
    }
    let client = trusting(&made.authority);
    let name: rustls::pki_types::ServerName<'static> = "127.0.0.1".try_into().unwrap();
    // A busy machine may take longer than the limit for one handshake, but not for each.
    let shaken = async {
        loop {
            let stream = TcpStream::connect(server.address).await.unwrap();
            if let Ok(stream) = client.connect(name.clone(), stream).await {
                return stream;
            }
        }
    };
    let mut stream = tokio::time::timeout(LONGEST, shaken).await.expect("a handshake");
    let ask = HEALTHZ.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    server.ends().await;
}

#[tokio::test]
async fn without_its_certificate_nothing_is_served() {
    let files = TlsFiles { certificate: "/none/tls.crt".into(), key: "/none/tls.key".into() };
    let listener = listen_on(([127, 0, 0, 1], 0).into()).unwrap();
    let options = PortalOptions { tls: Some(files), ..crate::options() };
    let error = serve_portal(listener, Arc::new(FakeViews::default()), options, CancellationToken::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("/none/tls.crt"), "{error}");
}

#[tokio::test]
async fn one_that_is_read_slowly_keeps_its_place_while_another_one_rests() {
    let server = BoundedServer::portal(long_story(), options(ListenerBounds { connections: 3, ..bounds() }));
    let mut slow = unread(&server, EVENTS).await;
    // The client would take longer for a third of the send buffer than an unread answer may stay.
    let reading = async {
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_secs(6) {
            let mut bytes = [0; 2048];
            let read = slow.stream.read(&mut bytes).await.unwrap();
            assert!(read > 0, "it was cut off after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(100) * read as u32 / 2048).await;
        }
    };
    let others = async {
        let mut known = Vec::new();
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let mut client = server.connect("").await;
            client.expect_answer().await;
            known.push(client);
        }
    };
    tokio::join!(reading, others);
    server.ends().await;
}
