//! A small API server with one kind. A test can replace each of its answers. It keeps its whole history, so
//! that a test can compare it with the witnessed states.

mod http;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

pub use http::bookmark;

/// One event of the history.
#[derive(Clone, Debug)]
pub struct HistoryEntry {
    pub version: u64,
    pub kind: &'static str,
    pub object: Value,
}

impl HistoryEntry {
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

/// The fault of the open streams.
#[derive(Clone)]
enum StreamSignal {
    Raw(String),
    Close,
    /// The connection breaks in the middle.
    Cut,
}

/// An answer in place of the true one.
#[derive(Clone)]
pub struct CannedReply {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl CannedReply {
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

type AnswerSpoiler = Box<dyn FnMut(&str) -> Option<CannedReply> + Send>;

struct WorldState {
    version: u64,
    log: Vec<HistoryEntry>,
    live: BTreeMap<(String, String), Value>,
    /// Watches and exact lists below this version are answered with 410.
    compacted: u64,
    /// Watches below this version are answered with 410, although exact lists go further back.
    forgotten: u64,
    uids: u64,
    requests: Vec<String>,
    bare_lists: usize,
    spoilers: Vec<AnswerSpoiler>,
    served: bool,
    quiet: bool,
    counts_nothing: bool,
    /// Whether lists can be asked for as streams.
    streams: bool,
    ignores_streams: bool,
    repeats_streams: bool,
    /// If objects record when they were written: the number of writes so far.
    dated: Option<u64>,
}

#[derive(Clone)]
pub struct WatchWorld {
    pub address: SocketAddr,
    state: Arc<Mutex<WorldState>>,
    spoiling: Arc<Mutex<()>>,
    signals: broadcast::Sender<StreamSignal>,
}

impl WatchWorld {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = WorldState {
            version: 100,
            log: Vec::new(),
            live: BTreeMap::new(),
            compacted: 0,
            forgotten: 0,
            uids: 0,
            requests: Vec::new(),
            bare_lists: 0,
            spoilers: Vec::new(),
            served: true,
            quiet: false,
            counts_nothing: false,
            streams: false,
            ignores_streams: false,
            repeats_streams: false,
            dated: None,
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

    /// Other resources write this many versions to the store.
    pub fn pass(&self, versions: u64) {
        self.with(|state| state.version += versions);
    }

    pub fn delete(&self, name: &str) {
        let object = self.object(name);
        self.write("DELETED", name, object);
    }

    /// Deletes all of them at one version, as expired leases are.
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
            if let Some(writes) = &mut state.dated {
                *writes += 1;
                object["metadata"]["managedFields"] = json!([{"manager": "w", "time": writes.to_string()}]);
            }
            let key = ("ml".to_string(), name.to_string());
            if kind == "DELETED" {
                state.live.remove(&key);
            } else {
                state.live.insert(key, object.clone());
            }
            let entry = HistoryEntry { version, kind, object };
            let line = entry.line();
            state.log.push(entry);
            if !state.quiet {
                drop(self.signals.send(StreamSignal::Raw(line)));
            }
        });
    }

    /// From now on objects record when they were written.
    pub fn dated(&self) {
        self.with(|state| state.dated = Some(0));
    }

    // ---- what happens to the server ------------------------------------------------------

    /// Removes old versions, for watches and exact lists.
    pub fn compact(&self) {
        self.with(|state| (state.compacted, state.forgotten) = (state.version, state.version));
    }

    pub fn compact_to(&self, version: u64) {
        self.with(|state| (state.compacted, state.forgotten) = (version, state.version));
    }

    /// Empties the watch cache, as a restart does. The store still has everything.
    pub fn forget(&self) {
        self.with(|state| state.forgotten = state.version);
    }

    /// Restores an older state of everything, as from a backup. The counter goes back, too.
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

    /// Lets a test answer requests. A request that it answers does not reach the server.
    pub fn spoil(&self, spoiler: impl FnMut(&str) -> Option<CannedReply> + Send + 'static) {
        self.with(|state| state.spoilers.push(Box::new(spoiler)));
    }

    /// Answers the first request that contains this text with `reply`.
    pub fn spoil_once(&self, part: &'static str, reply: CannedReply) {
        let mut reply = Some(reply);
        self.spoil(move |request| if request.contains(part) { reply.take() } else { None });
    }

    pub fn serve_kind(&self, served: bool) {
        self.with(|state| state.served = served);
    }

    /// Stops sending events on open streams, like a half-open connection.
    pub fn quiet(&self, quiet: bool) {
        self.with(|state| state.quiet = quiet);
    }

    pub fn stream_lists(&self, streams: bool) {
        self.with(|state| state.streams = streams);
    }

    /// Ignores the parameter of streamed lists, so that they become ordinary watches.
    pub fn ignore_streams(&self) {
        self.with(|state| (state.streams, state.ignores_streams) = (true, true));
    }

    /// Streamed lists send everything twice.
    pub fn repeat_streams(&self) {
        self.with(|state| state.repeats_streams = true);
    }

    /// Lists no longer say how many objects remain.
    pub fn count_nothing(&self, nothing: bool) {
        self.with(|state| state.counts_nothing = nothing);
    }

    pub fn send(&self, raw: &str) {
        drop(self.signals.send(StreamSignal::Raw(raw.to_string())));
    }

    pub fn bookmark(&self) {
        self.send(&http::bookmark(self.version(), false));
    }

    pub fn close(&self) {
        drop(self.signals.send(StreamSignal::Close));
    }

    pub fn cut(&self) {
        drop(self.signals.send(StreamSignal::Cut));
    }

    // ---- the truth -----------------------------------------------------------------------

    pub fn version(&self) -> u64 {
        self.with(|state| state.version)
    }

    pub fn log(&self) -> Vec<HistoryEntry> {
        self.with(|state| state.log.clone())
    }

    /// The objects that exist now: uid → version.
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

    /// The pages of which only metadata was asked for.
    pub fn bare_lists(&self) -> usize {
        self.with(|state| state.bare_lists)
    }

    pub fn watches(&self) -> usize {
        self.signals.receiver_count()
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut WorldState) -> T) -> T {
        use_it(&mut self.state.lock().unwrap())
    }
}

/// Polls until the condition holds. `what` names it if that never happens.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}
