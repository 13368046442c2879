//! A small API server with one kind, whose every answer a test can spoil. It keeps its whole
//! history, so that a test can compare what was witnessed with what was there.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

/// One event of the history.
#[derive(Clone, Debug)]
pub struct Entry {
    pub version: u64,
    pub kind: &'static str,
    pub object: Value,
}

impl Entry {
    pub fn line(&self) -> String {
        let mut object = json!({"kind": "Job", "apiVersion": "batch/v1"});
        let fields = object.as_object_mut().unwrap();
        fields.extend(self.object.as_object().unwrap().clone());
        format!("{}\n", json!({"type": self.kind, "object": object}))
    }

    pub fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap()
    }
}

/// What is done to the streams that are open now.
#[derive(Clone)]
enum Signal {
    Raw(String),
    Close,
    /// The connection is dropped in the middle.
    Cut,
}

/// An answer in place of the true one.
#[derive(Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Reply {
    pub fn status(code: u16, reason: &str) -> Self {
        let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("spoiled: {reason}"), "reason": reason, "code": code});
        Self { status: code, headers: String::new(), body: body.to_string() }
    }

    pub fn with_header(mut self, header: &str) -> Self {
        self.headers.push_str(header);
        self.headers.push_str("\r\n");
        self
    }
}

type Spoiler = Box<dyn FnMut(&str) -> Option<Reply> + Send>;

struct State {
    version: u64,
    log: Vec<Entry>,
    live: BTreeMap<(String, String), Value>,
    /// Watches and exact lists from below this are answered with 410.
    compacted: u64,
    /// Watches from below this are, although exact lists go further back.
    forgotten: u64,
    uids: u64,
    requests: Vec<String>,
    spoilers: Vec<Spoiler>,
    served: bool,
    quiet: bool,
    counts_nothing: bool,
    /// Lists can be asked for as streams.
    streams: bool,
    ignores_streams: bool,
    repeats_streams: bool,
}

#[derive(Clone)]
pub struct World {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    spoiling: Arc<Mutex<()>>,
    signals: broadcast::Sender<Signal>,
}

impl World {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = State {
            version: 100,
            log: Vec::new(),
            live: BTreeMap::new(),
            compacted: 0,
            forgotten: 0,
            uids: 0,
            requests: Vec::new(),
            spoilers: Vec::new(),
            served: true,
            quiet: false,
            counts_nothing: false,
            streams: false,
            ignores_streams: false,
            repeats_streams: false,
        };
        let world = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::new(Mutex::new(state)),
            spoiling: Arc::default(),
            signals: broadcast::channel(4096).0,
        };
        let server = world.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move { server.serve(socket).await });
            }
        });
        world
    }

    // ---- what happens in the cluster -----------------------------------------------------

    pub fn create(&self, name: &str, labels: Value) -> String {
        let uid = self.with(|state| {
            state.uids += 1;
            format!("uid-{}", state.uids)
        });
        let object = json!({"metadata": {"name": name, "namespace": "ml", "uid": uid, "labels": labels},
            "spec": {"n": 0}});
        self.write("ADDED", name, object);
        uid
    }

    pub fn update(&self, name: &str) {
        let mut object = self.object(name);
        object["spec"]["n"] = json!(object["spec"]["n"].as_u64().unwrap() + 1);
        self.write("MODIFIED", name, object);
    }

    pub fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.object(name);
        change(&mut object);
        self.write("MODIFIED", name, object);
    }

    pub fn delete(&self, name: &str) {
        let object = self.object(name);
        self.write("DELETED", name, object);
    }

    /// Deletes them all at one version, as expired leases are.
    pub fn delete_together(&self, names: &[&str]) {
        let version = self.with(|state| {
            state.version += 1;
            state.version
        });
        for name in names {
            let object = self.object(name);
            self.write_at("DELETED", name, object, version);
        }
    }

    fn object(&self, name: &str) -> Value {
        self.with(|state| state.live[&("ml".to_string(), name.to_string())].clone())
    }

    fn write(&self, kind: &'static str, name: &str, object: Value) {
        let version = self.with(|state| {
            state.version += 1;
            state.version
        });
        self.write_at(kind, name, object, version);
    }

    fn write_at(&self, kind: &'static str, name: &str, mut object: Value, version: u64) {
        self.with(|state| {
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            let key = ("ml".to_string(), name.to_string());
            if kind == "DELETED" {
                state.live.remove(&key);
            } else {
                state.live.insert(key, object.clone());
            }
            let entry = Entry { version, kind, object };
            let line = entry.line();
            state.log.push(entry);
            if !state.quiet {
                drop(self.signals.send(Signal::Raw(line)));
            }
        });
    }

    // ---- what happens to the server ------------------------------------------------------

    /// Old versions are gone, for watches and exact lists.
    pub fn compact(&self) {
        self.with(|state| (state.compacted, state.forgotten) = (state.version, state.version));
    }

    /// The watch cache is empty, as after a restart; etcd still has everything.
    pub fn forget(&self) {
        self.with(|state| state.forgotten = state.version);
    }

    /// Back to an older state of everything, as from a backup; the counter goes back, too.
    pub fn restore(&self, version: u64) {
        self.with(|state| {
            state.log.retain(|entry| entry.version <= version);
            state.version = version;
            let mut live = BTreeMap::new();
            for entry in &state.log {
                let name = entry.object["metadata"]["name"].as_str().unwrap().to_string();
                let key = ("ml".to_string(), name);
                if entry.kind == "DELETED" {
                    live.remove(&key);
                } else {
                    live.insert(key, entry.object.clone());
                }
            }
            state.live = live;
        });
    }

    /// Requests that the spoiler answers don't reach the truth.
    pub fn spoil(&self, spoiler: impl FnMut(&str) -> Option<Reply> + Send + 'static) {
        self.with(|state| state.spoilers.push(Box::new(spoiler)));
    }

    /// The first request that contains this is answered so.
    pub fn spoil_once(&self, part: &'static str, reply: Reply) {
        let mut reply = Some(reply);
        self.spoil(move |request| if request.contains(part) { reply.take() } else { None });
    }

    pub fn serve_kind(&self, served: bool) {
        self.with(|state| state.served = served);
    }

    /// Events are no longer sent on open streams: a half-open connection.
    pub fn quiet(&self, quiet: bool) {
        self.with(|state| state.quiet = quiet);
    }

    pub fn stream_lists(&self, streams: bool) {
        self.with(|state| state.streams = streams);
    }

    /// The parameter of streamed lists is not known: it is an ordinary watch.
    pub fn ignore_streams(&self) {
        self.with(|state| (state.streams, state.ignores_streams) = (true, true));
    }

    /// Streamed lists show everything twice.
    pub fn repeat_streams(&self) {
        self.with(|state| state.repeats_streams = true);
    }

    /// Lists no longer say how many objects they have left.
    pub fn count_nothing(&self, nothing: bool) {
        self.with(|state| state.counts_nothing = nothing);
    }

    pub fn send(&self, raw: &str) {
        drop(self.signals.send(Signal::Raw(raw.to_string())));
    }

    pub fn bookmark(&self) {
        self.send(&bookmark(self.version(), false));
    }

    pub fn close(&self) {
        drop(self.signals.send(Signal::Close));
    }

    pub fn cut(&self) {
        drop(self.signals.send(Signal::Cut));
    }

    // ---- the truth -----------------------------------------------------------------------

    pub fn version(&self) -> u64 {
        self.with(|state| state.version)
    }

    pub fn log(&self) -> Vec<Entry> {
        self.with(|state| state.log.clone())
    }

    /// uid → version of what is there now.
    pub fn live(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap().to_string();
        self.with(|state| {
            let objects = state.live.values();
            objects.map(|o| (text(&o["metadata"]["uid"]), text(&o["metadata"]["resourceVersion"]))).collect()
        })
    }

    pub fn names(&self) -> Vec<String> {
        self.with(|state| state.live.keys().map(|(_, name)| name.clone()).collect())
    }

    pub fn requests(&self, part: &str) -> Vec<String> {
        self.with(|state| state.requests.iter().filter(|request| request.contains(part)).cloned().collect())
    }

    pub fn watches(&self) -> usize {
        self.signals.receiver_count()
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        use_it(&mut self.state.lock().unwrap())
    }

    // ---- HTTP ----------------------------------------------------------------------------

    async fn serve(&self, mut socket: TcpStream) {
        let mut held = Vec::new();
        loop {
            let end = loop {
                if let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                    break end;
                }
                let mut part = [0; 4096];
                match socket.read(&mut part).await {
                    Ok(read) if read > 0 => held.extend_from_slice(&part[..read]),
                    _ => return,
                }
            };
            let head = String::from_utf8_lossy(&held[..end]).to_string();
            held.drain(..end + 4);
            let target = head.split(' ').nth(1).unwrap().to_string();
            let spoiled = self.spoiled(&target);
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let query = parse(query);
            let reply = match spoiled {
                Some(reply) => reply,
                None if query.contains_key("watch") => match self.watchable(&query) {
                    Ok(()) => return self.stream(socket, &query).await,
                    Err(reply) => reply,
                },
                None => self.answer(path, &query),
            };
            let text = format!(
                "HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                reply.status,
                reply.body.len(),
                reply.headers,
                reply.body
            );
            if socket.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// Spoilers may change the world, so that they are not called under its lock.
    fn spoiled(&self, target: &str) -> Option<Reply> {
        let _one_at_a_time = self.spoiling.lock().unwrap();
        let mut spoilers = self.with(|state| {
            state.requests.push(target.to_string());
            std::mem::take(&mut state.spoilers)
        });
        let spoiled = spoilers.iter_mut().find_map(|spoiler| spoiler(target));
        self.with(|state| {
            spoilers.append(&mut state.spoilers);
            state.spoilers = spoilers;
        });
        spoiled
    }

    fn watchable(&self, query: &HashMap<String, String>) -> Result<(), Reply> {
        self.with(|state| if state.served { Ok(()) } else { Err(Reply::status(404, "NotFound")) })?;
        if query.contains_key("sendInitialEvents") {
            let streams = self.with(|state| state.streams);
            return if streams { Ok(()) } else { Err(Reply::status(422, "Invalid")) };
        }
        query["resourceVersion"].parse::<u64>().map(|_| ()).map_err(|_| Reply::status(500, "InternalError"))
    }

    async fn stream(&self, mut socket: TcpStream, query: &HashMap<String, String>) {
        let initial = query.contains_key("sendInitialEvents");
        let from: u64 = query.get("resourceVersion").map_or(0, |from| from.parse().unwrap());
        let (mut signals, backlog) = self.with(|state| {
            if initial {
                // In no order of version.
                let mut lines: Vec<String> = state
                    .live
                    .values()
                    .rev()
                    .map(|object| Entry { version: 0, kind: "ADDED", object: object.clone() }.line())
                    .collect();
                if state.repeats_streams {
                    lines.extend(lines.clone());
                }
                if !state.ignores_streams {
                    lines.push(bookmark(state.version, true));
                }
                return (Some(self.signals.subscribe()), lines);
            }
            if from < state.forgotten {
                let expired = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410,
                    "reason": "Expired", "message": "too old resource version"}});
                return (None, vec![format!("{expired}\n")]);
            }
            let backlog = state.log.iter().filter(|entry| entry.version > from).map(Entry::line).collect();
            (Some(self.signals.subscribe()), backlog)
        });
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        if socket.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        for line in backlog {
            if chunk(&mut socket, &line).await.is_err() {
                return;
            }
        }
        let Some(signals) = &mut signals else {
            return drop(socket.write_all(b"0\r\n\r\n").await);
        };
        let mut gone = [0; 1];
        loop {
            let signal = tokio::select! {
                signal = signals.recv() => signal,
                // The client has left.
                _ = socket.read(&mut gone) => return,
            };
            match signal {
                Ok(Signal::Raw(text)) => {
                    if chunk(&mut socket, &text).await.is_err() {
                        return;
                    }
                }
                Ok(Signal::Close) => return drop(socket.write_all(b"0\r\n\r\n").await),
                Ok(Signal::Cut) | Err(_) => return,
            }
        }
    }

    fn answer(&self, path: &str, query: &HashMap<String, String>) -> Reply {
        let served = self.with(|state| state.served);
        if path == "/apis/batch/v1" {
            let jobs = json!([{"name": "jobs", "kind": "Job", "namespaced": true}]);
            return json_reply(json!({"resources": if served { jobs } else { json!([]) }}));
        }
        if !served {
            return Reply::status(404, "NotFound");
        }
        if let Some((_, name)) = path.split_once("/jobs/") {
            let held = self.with(|state| state.live.get(&("ml".to_string(), name.to_string())).cloned());
            return held.map_or_else(|| Reply::status(404, "NotFound"), json_reply);
        }
        self.list(query)
    }

    fn list(&self, query: &HashMap<String, String>) -> Reply {
        let exact = query.get("resourceVersion").map(|version| version.parse::<u64>().unwrap());
        let named = query
            .get("fieldSelector")
            .map(|selector| selector.trim_start_matches("metadata.name=").to_string());
        let labels = query.get("labelSelector").and_then(|selector| selector.split_once('='));
        let limit: usize = query.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
        let (skip, pinned) = match query.get("continue").and_then(|token| token.split_once('-')) {
            // One that isn't pinned goes on with what is there now.
            Some((skip, pinned)) => (skip.parse().unwrap(), pinned.parse::<u64>().ok()),
            None => (0, None),
        };
        self.with(|state| {
            let at = exact.or(pinned).unwrap_or(state.version);
            if at < state.compacted {
                return Reply::status(410, "Expired");
            }
            let mut objects: BTreeMap<String, Value> = BTreeMap::new();
            for entry in state.log.iter().filter(|entry| entry.version <= at) {
                let name = entry.object["metadata"]["name"].as_str().unwrap().to_string();
                if entry.kind == "DELETED" {
                    objects.remove(&name);
                } else {
                    objects.insert(name, entry.object.clone());
                }
            }
            objects.retain(|name, _| named.as_ref().is_none_or(|named| named == name));
            objects.retain(|_, object| {
                labels.is_none_or(|(key, value)| object["metadata"]["labels"][key] == value)
            });
            let total = objects.len();
            let items: Vec<_> = objects.into_values().skip(skip).take(limit).collect();
            let end = skip + items.len();
            let mut metadata = json!({"resourceVersion": at.to_string()});
            if end < total {
                metadata["continue"] = json!(format!("{end}-{at}"));
                if named.is_none() && labels.is_none() && !state.counts_nothing {
                    metadata["remainingItemCount"] = json!(total - end);
                }
            }
            json_reply(
                json!({"kind": "JobList", "apiVersion": "batch/v1", "metadata": metadata, "items": items}),
            )
        })
    }
}

fn json_reply(body: Value) -> Reply {
    Reply { status: 200, headers: String::new(), body: body.to_string() }
}

fn bookmark(version: u64, ends_list: bool) -> String {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if ends_list {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let object = json!({"kind": "Job", "apiVersion": "batch/v1", "metadata": metadata});
    format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
}

async fn chunk(socket: &mut TcpStream, text: &str) -> std::io::Result<()> {
    // Larger lines go out in many chunks.
    for part in text.as_bytes().chunks(50_000) {
        socket.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
        socket.write_all(part).await?;
        socket.write_all(b"\r\n").await?;
    }
    Ok(())
}

fn parse(query: &str) -> HashMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_string(), value.replace("%3D", "=").replace("%2F", "/"))).collect()
}

/// Polls until it holds; a test that waits for ever says what for.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}
