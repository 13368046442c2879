//! The wire between the source and the servers: it passes everything on as it is, unless a test says
//! otherwise. It is a proxy that speaks HTTP/1.1 on both sides, so that requests and the frames of a watch
//! can be told apart; connections are real ones.

pub mod opaque;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::seeds::Dice;

/// Frames on their way through the proxy; a source that doesn't read is felt by the server.
const FRAMES: usize = 64;
/// Long enough for a connection to send what it holds.
const FLUSH: Duration = Duration::from_millis(5);
/// Streams that don't take a signal at once still get it.
const SIGNALS: usize = 1024;

/// One request that came by.
#[derive(Clone, Debug)]
pub struct WireRequest {
    /// Path and query.
    pub target: String,
    pub at: Instant,
}

impl WireRequest {
    /// Whether the query has this, such as `limit=1`.
    fn has(&self, pair: &str) -> bool {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        query.split('&').any(|found| found == pair)
    }

    fn names(&self, key: &str) -> bool {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        query.split('&').any(|found| found.split('=').next() == Some(key))
    }

    pub fn is_stream(&self) -> bool {
        self.has("watch=true")
    }

    pub fn is_watch(&self) -> bool {
        self.is_stream() && !self.names("sendInitialEvents")
    }

    /// A list of the whole: a page of it, or as a stream.
    pub fn is_list(&self) -> bool {
        let paged = self.names("limit") && !self.is_probe() && !self.is_exact();
        paged || self.is_stream() && self.names("sendInitialEvents")
    }

    pub fn is_later_page(&self) -> bool {
        self.names("continue")
    }

    /// A consistent list of one object, which tells where the server is.
    pub fn is_probe(&self) -> bool {
        self.has("limit=1") && !self.names("fieldSelector") && !self.is_exact()
    }

    /// A list at an exact version: reading back.
    pub fn is_exact(&self) -> bool {
        self.has("resourceVersionMatch=Exact")
    }
}

/// The fate of a request.
pub enum RequestFate {
    /// Answered by the wire.
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// The connection ends without an answer.
    Close,
    /// Nothing ever comes back.
    Silence,
    /// Passed on once the sender says so or is dropped, as this where it is to be another request.
    Hold { gate: oneshot::Receiver<()>, instead: Option<String> },
}

impl RequestFate {
    /// A `Status` as the server would send it.
    pub fn status(code: u16, reason: &str) -> Self {
        let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("spoiled: {reason}"), "reason": reason, "code": code});
        Self::Answer { status: code, headers: Vec::new(), body: body.to_string() }
    }
}

type WireRule = Box<dyn FnMut(&WireRequest) -> Option<RequestFate> + Send>;

/// The fate of a line of a watch, which comes without its end.
pub enum PassedLine {
    As(Vec<Bytes>),
    /// Some bytes, then the connection breaks.
    Break(Bytes),
    /// Nothing comes any more, and the connection stays.
    Stall,
}

type WireTap = Box<dyn FnMut(Bytes) -> PassedLine + Send>;

/// A signal to the streams that are open.
#[derive(Clone)]
enum WireSignal {
    End,
    Break,
    Stall,
}

struct WireInner {
    upstream: Mutex<SocketAddr>,
    /// Refused connections: the servers can't be reached.
    down: Mutex<bool>,
    rules: Mutex<Vec<WireRule>>,
    tap: Mutex<Option<WireTap>>,
    /// Bodies are cut into pieces at random places.
    shred: Mutex<Option<Dice>>,
    asked: Mutex<Vec<WireRequest>>,
    signals: broadcast::Sender<WireSignal>,
    connections: Mutex<JoinSet<()>>,
    /// Versions are words.
    opaque: bool,
}

/// Clones are the same wire.
#[derive(Clone)]
pub struct FaultyWire {
    pub address: SocketAddr,
    inner: Arc<WireInner>,
}

type WireAnswer = Response<BoxBody<Bytes, io::Error>>;

impl FaultyWire {
    pub async fn new(upstream: SocketAddr, opaque: bool) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let inner = WireInner {
            upstream: Mutex::new(upstream),
            down: Mutex::default(),
            rules: Mutex::default(),
            tap: Mutex::default(),
            shred: Mutex::default(),
            asked: Mutex::default(),
            signals: broadcast::channel(SIGNALS).0,
            connections: Mutex::default(),
            opaque,
        };
        let wire = Self { address, inner: Arc::new(inner) };
        tokio::spawn(wire.clone().accept(listener));
        Ok(wire)
    }

    async fn accept(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            if *self.inner.down.lock().unwrap() {
                continue;
            }
            // Small frames are small packets.
            drop(stream.set_nodelay(true));
            let wire = self.clone();
            let serve = hyper::service::service_fn(move |request| wire.clone().handle(request));
            self.inner.connections.lock().unwrap().spawn(async move {
                // A connection that was told to break ends with an error, which is what was asked for.
                drop(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), serve)
                        .await,
                );
            });
        }
    }

    async fn handle(self, request: Request<Incoming>) -> Result<WireAnswer, io::Error> {
        let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let mut asked = WireRequest { target, at: Instant::now() };
        self.inner.asked.lock().unwrap().push(asked.clone());
        let fate = self.inner.rules.lock().unwrap().iter_mut().find_map(|rule| rule(&asked));
        match fate {
            Some(RequestFate::Answer { status, headers, body }) => return Ok(answer(status, &headers, body)),
            Some(RequestFate::Close) => return Err(io::ErrorKind::ConnectionReset.into()),
            Some(RequestFate::Silence) => std::future::pending().await,
            Some(RequestFate::Hold { gate, instead }) => {
                // A sender that is gone lets it pass as well.
                drop(gate.await);
                asked.target = instead.unwrap_or(asked.target);
            }
            None => {}
        }
        self.pass(request, &asked).await.map_err(io::Error::other)
    }

    async fn pass(&self, request: Request<Incoming>, asked: &WireRequest) -> Result<WireAnswer> {
        let upstream = *self.inner.upstream.lock().unwrap();
        let stream = TcpStream::connect(upstream).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        self.inner.connections.lock().unwrap().spawn(async move { drop(connection.await) });
        let (mut head, body) = request.into_parts();
        head.uri =
            if self.inner.opaque { opaque::plain(&asked.target) } else { asked.target.clone() }.parse()?;
        let response = sender.send_request(Request::from_parts(head, body)).await?;
        let (mut head, body) = response.into_parts();
        if self.inner.opaque {
            head.headers.remove(CONTENT_LENGTH);
        }
        let signals = asked.is_stream().then(|| self.inner.signals.subscribe());
        let (out, frames) = mpsc::channel(FRAMES);
        let pump = BodyPump { inner: Arc::clone(&self.inner), out, line: BytesMut::new() };
        self.inner.connections.lock().unwrap().spawn(async move {
            pump.run(body, signals).await;
            drop(sender);
        });
        let frames = futures::stream::unfold(frames, async |mut frames| {
            let next = frames.recv().await?;
            Some((next, frames))
        });
        Ok(Response::from_parts(
            head,
            BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(frames.boxed())))),
        ))
    }

    // ---- what a test says ----------------------------------------------------------------

    /// Where new connections go.
    pub fn leads_to(&self, upstream: SocketAddr) {
        *self.inner.upstream.lock().unwrap() = upstream;
    }

    /// Refuses connections, and breaks those that are there, or takes them again.
    pub fn down(&self, down: bool) {
        *self.inner.down.lock().unwrap() = down;
        if down {
            self.break_all();
        }
    }

    /// Every connection breaks, whatever is under way on it.
    pub fn break_all(&self) {
        let mut connections = self.inner.connections.lock().unwrap();
        connections.abort_all();
        *connections = JoinSet::new();
    }

    /// The first rule that has an answer decides.
    pub fn rule(&self, rule: impl FnMut(&WireRequest) -> Option<RequestFate> + Send + 'static) {
        self.inner.rules.lock().unwrap().push(Box::new(rule));
    }

    /// Spoils the next so many requests of one sort.
    pub fn spoil(
        &self,
        times: u32,
        of: fn(&WireRequest) -> bool,
        fate: impl Fn() -> RequestFate + Send + 'static,
    ) {
        let mut left = times;
        self.rule(move |asked| {
            if left == 0 || !of(asked) {
                return None;
            }
            left -= 1;
            Some(fate())
        });
    }

    /// Holds the next request of one sort. The gate opens when it is sent to, or dropped.
    pub fn hold(
        &self,
        of: fn(&WireRequest) -> bool,
        instead: impl Fn(&str) -> Option<String> + Send + 'static,
    ) -> oneshot::Sender<()> {
        let (open, gate) = oneshot::channel();
        let mut gate = Some(gate);
        self.rule(move |asked| {
            let gate = gate.take_if(|_| of(asked))?;
            Some(RequestFate::Hold { gate, instead: instead(&asked.target) })
        });
        open
    }

    /// The servers know nothing of lists that come as streams.
    pub fn refuse_streamed_lists(&self) {
        self.rule(|asked| {
            (asked.is_stream() && asked.is_list()).then(|| RequestFate::status(422, "Invalid"))
        });
    }

    pub fn no_rules(&self) {
        self.inner.rules.lock().unwrap().clear();
    }

    /// Every line of every watch goes through this.
    pub fn tap(&self, tap: impl FnMut(Bytes) -> PassedLine + Send + 'static) {
        *self.inner.tap.lock().unwrap() = Some(Box::new(tap));
    }

    pub fn no_tap(&self) {
        *self.inner.tap.lock().unwrap() = None;
    }

    pub fn shred(&self, dice: Dice) {
        *self.inner.shred.lock().unwrap() = Some(dice);
    }

    /// The watches that are open now end as the server's own time limit ends them.
    pub fn end_watches(&self) {
        drop(self.inner.signals.send(WireSignal::End));
    }

    /// The watches that are open now break between two frames.
    pub fn break_watches(&self) {
        drop(self.inner.signals.send(WireSignal::Break));
    }

    /// Nothing comes any more on the watches that are open now, and nothing ends.
    pub fn stall_watches(&self) {
        drop(self.inner.signals.send(WireSignal::Stall));
    }

    pub fn open_watches(&self) -> usize {
        self.inner.signals.receiver_count()
    }

    pub fn asked(&self, of: fn(&WireRequest) -> bool) -> Vec<WireRequest> {
        self.inner.asked.lock().unwrap().iter().filter(|asked| of(asked)).cloned().collect()
    }
}

fn answer(status: u16, headers: &[(&'static str, String)], body: String) -> WireAnswer {
    let mut response = Response::builder().status(status).header("Content-Type", "application/json");
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    let body = Full::new(Bytes::from(body)).map_err(|never: Infallible| match never {});
    response.body(BodyExt::boxed(body)).expect("a status and plain headers make a response")
}

/// A body must be shareable between threads, which is never asked of it.
struct SyncStream<S>(Mutex<S>);

impl<S: futures::Stream + Unpin> futures::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        self.0.lock().unwrap().poll_next_unpin(context)
    }
}

/// Carries one answer's body.
struct BodyPump {
    inner: Arc<WireInner>,
    out: mpsc::Sender<io::Result<Frame<Bytes>>>,
    /// The beginning of a line whose end has not come.
    line: BytesMut,
}

/// The stream is over, whichever way.
struct StreamOver;

impl BodyPump {
    async fn run(mut self, body: Incoming, signals: Option<broadcast::Receiver<WireSignal>>) {
        // Either way there is nothing more to carry.
        let Err(StreamOver) = match signals {
            Some(signals) => self.stream(body, signals).await,
            None => self.plain(body).await,
        };
    }

    async fn plain(&mut self, mut body: Incoming) -> Result<Infallible, StreamOver> {
        if self.inner.opaque {
            return match body.collect().await {
                Ok(whole) => self.send(opaque::worded(&whole.to_bytes())).await.and(Err(StreamOver)),
                Err(_) => self.breaks().await,
            };
        }
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => self.send(frame.into_data().unwrap_or_default()).await?,
                Err(_) => self.breaks().await?,
            }
        }
        Err(StreamOver)
    }

    async fn stream(
        &mut self,
        mut body: Incoming,
        mut signals: broadcast::Receiver<WireSignal>,
    ) -> Result<Infallible, StreamOver> {
        loop {
            tokio::select! {
                biased;
                signal = signals.recv() => self.signal(signal.map_err(|_| StreamOver)?).await?,
                // The other side has gone.
                () = self.out.closed() => return Err(StreamOver),
                frame = body.frame() => match frame {
                    Some(Ok(frame)) => self.chunk(frame.into_data().unwrap_or_default()).await?,
                    ended => {
                        // Cut in the middle of a line, as it came.
                        self.pieces(self.line.clone().freeze()).await?;
                        return match ended {
                            Some(_) => self.breaks().await,
                            None => Err(StreamOver),
                        };
                    }
                },
            }
        }
    }

    async fn signal(&mut self, signal: WireSignal) -> Result<(), StreamOver> {
        match signal {
            WireSignal::End => Err(StreamOver),
            WireSignal::Break => self.breaks().await,
            WireSignal::Stall => self.stall().await,
        }
    }

    /// Until the other side has had enough.
    async fn stall(&mut self) -> Result<(), StreamOver> {
        self.out.closed().await;
        Err(StreamOver)
    }

    async fn breaks<T>(&self) -> Result<T, StreamOver> {
        // What was written before leaves the connection while this waits.
        tokio::time::sleep(FLUSH).await;
        // One who has left already needs no break.
        drop(self.out.send(Err(io::ErrorKind::ConnectionReset.into())).await);
        Err(StreamOver)
    }

    async fn chunk(&mut self, chunk: Bytes) -> Result<(), StreamOver> {
        self.line.extend_from_slice(&chunk);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line = self.line.split_to(end + 1).freeze().slice(..end);
            let line = if self.inner.opaque { opaque::worded(&line) } else { line };
            let passed = match &mut *self.inner.tap.lock().unwrap() {
                Some(tap) => tap(line),
                None => PassedLine::As(vec![line]),
            };
            match passed {
                PassedLine::As(lines) => {
                    for line in lines {
                        self.pieces(with_end(&line)).await?;
                    }
                }
                PassedLine::Break(bytes) => {
                    self.pieces(bytes).await?;
                    return self.breaks().await;
                }
                PassedLine::Stall => return self.stall().await,
            }
        }
        Ok(())
    }

    async fn pieces(&self, mut bytes: Bytes) -> Result<(), StreamOver> {
        while !bytes.is_empty() {
            let piece = match &mut *self.inner.shred.lock().unwrap() {
                Some(dice) => (dice.between(1, 1 + bytes.len() as u64 / 8) as usize).min(bytes.len()),
                None => bytes.len(),
            };
            self.send(bytes.split_to(piece)).await?;
        }
        Ok(())
    }

    async fn send(&self, bytes: Bytes) -> Result<(), StreamOver> {
        self.out.send(Ok(Frame::data(bytes))).await.map_err(|_| StreamOver)
    }
}

fn with_end(line: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(line.len() + 1);
    bytes.extend_from_slice(line);
    bytes.extend_from_slice(b"\n");
    bytes.freeze()
}
