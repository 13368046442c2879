//! The playground's receiver of notifications. It appends each POST to a file, one line each, so that a
//! person can see notifications arrive without setting up a receiver. It does not know the sender. A repeated
//! `Idempotency-Key` is answered and not stored twice.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::post;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// The largest body. A notification is a few hundred bytes.
const BODY_BYTES: usize = 256 * 1024;

/// How many keys are remembered. A sender repeats only recent requests.
const KEYS: usize = 65_536;

/// The longest key, so that the memory of keys is also bounded in bytes.
const KEY_BYTES: usize = 1024;

pub const KEY_HEADER: &str = "idempotency-key";

#[derive(Debug, Default)]
pub struct ReceiverProgress {
    /// The lines written.
    pub received: AtomicU64,
    /// Repeats that were answered and not written.
    pub repeated: AtomicU64,
    pub refused: AtomicU64,
}

#[derive(Debug, Error)]
pub enum ReceiverError {
    #[error("{} can't be written: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the receiver's listener failed: {0}")]
    Listener(#[source] std::io::Error),
}

struct WebhookReceiver {
    progress: Arc<ReceiverProgress>,
    /// One writer at a time, so that each line is whole, and its key is remembered with it.
    inner: Mutex<ReceiverInner>,
}

struct ReceiverInner {
    file: File,
    seen: SeenKeys,
}

/// The last keys.
#[derive(Default)]
struct SeenKeys {
    keys: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl SeenKeys {
    fn contains(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    fn insert(&mut self, key: &str) {
        let key: Arc<str> = key.into();
        if self.keys.insert(key.clone()) {
            self.order.push_back(key);
        }
        while self.order.len() > KEYS {
            if let Some(oldest) = self.order.pop_front() {
                self.keys.remove(&oldest);
            }
        }
    }
}

/// Answers until `stop`, which an open connection can't delay. It appends to the file, and the keys in the
/// file count as seen.
pub async fn serve(
    listener: tokio::net::TcpListener,
    file: PathBuf,
    progress: Arc<ReceiverProgress>,
    stop: CancellationToken,
) -> Result<(), ReceiverError> {
    let inner = open(&file).await.map_err(|source| ReceiverError::File { path: file.clone(), source })?;
    let receiver = Arc::new(WebhookReceiver { progress, inner: Mutex::new(inner) });
    let router = Router::new()
        .route("/", post(receive))
        .route("/{*path}", post(receive))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(receiver.clone());
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        served = serving => served.map_err(ReceiverError::Listener)?,
        () = crate::overdue(&stop) => {}
    }
    let inner = receiver.inner.lock().await;
    inner.file.sync_all().await.map_err(|source| ReceiverError::File { path: file, source })
}

async fn open(path: &Path) -> std::io::Result<ReceiverInner> {
    let mut seen = SeenKeys::default();
    match tokio::fs::File::open(path).await {
        Ok(file) => {
            use tokio::io::AsyncBufReadExt;
            let mut lines = tokio::io::BufReader::new(file).lines();
            while let Some(line) = lines.next_line().await? {
                let line: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
                if let Some(key) = line["key"].as_str() {
                    seen.insert(key);
                }
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = File::options().create(true).append(true).open(path).await?;
    Ok(ReceiverInner { file, seen })
}

async fn receive(
    State(receiver): State<Arc<WebhookReceiver>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let refuse = |code, why| {
        receiver.progress.refused.fetch_add(1, Ordering::Relaxed);
        (code, why)
    };
    let key = headers.get(KEY_HEADER).and_then(|key| key.to_str().ok());
    if key.is_some_and(|key| key.len() > KEY_BYTES) {
        return refuse(StatusCode::BAD_REQUEST, "the Idempotency-Key is too long\n");
    }
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return refuse(StatusCode::BAD_REQUEST, "the body is not JSON\n");
    };
    let mut inner = receiver.inner.lock().await;
    if key.is_some_and(|key| inner.seen.contains(key)) {
        receiver.progress.repeated.fetch_add(1, Ordering::Relaxed);
        return (StatusCode::OK, "seen before\n");
    }
    let line = format!("{}\n", json!({"key": key, "path": uri.path(), "body": body}));
    // The key is remembered only once the line is in the file, so that a failed request can be repeated.
    let written = async {
        inner.file.write_all(line.as_bytes()).await?;
        inner.file.flush().await
    };
    if let Err(error) = written.await {
        tracing::warn!(%error, "a notification can't be kept");
        return refuse(StatusCode::INSUFFICIENT_STORAGE, "the notification can't be kept\n");
    }
    if let Some(key) = key {
        inner.seen.insert(key);
    }
    receiver.progress.received.fetch_add(1, Ordering::Relaxed);
    (StatusCode::OK, "kept\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct RunningReceiver {
        url: String,
        client: reqwest::Client,
        progress: Arc<ReceiverProgress>,
        stop: CancellationToken,
        end: tokio::task::JoinHandle<Result<(), ReceiverError>>,
    }

    #[allow(clippy::disallowed_methods)]
    async fn start(file: PathBuf) -> RunningReceiver {
        rustls::crypto::ring::default_provider().install_default().ok();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/notify", listener.local_addr().expect("an address"));
        let (progress, stop) = (Arc::new(ReceiverProgress::default()), CancellationToken::new());
        let end = tokio::spawn(serve(listener, file, progress.clone(), stop.clone()));
        RunningReceiver { url, client: reqwest::Client::new(), progress, stop, end }
    }

    impl RunningReceiver {
        async fn post(&self, key: &str, body: &str) -> u16 {
            let request = self.client.post(&self.url).header(KEY_HEADER, key).body(body.to_owned());
            request.send().await.expect("an answer").status().as_u16()
        }

        async fn stop(self) {
            self.stop.cancel();
            self.end.await.expect("no panic").expect("ends well");
        }
    }

    fn lines(file: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(file).expect("the file");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[tokio::test]
    async fn a_repeated_key_is_answered_and_not_written_twice_also_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("notifications.jsonl");
        let receiver = start(file.clone()).await;
        for key in ["a", "b", "a"] {
            assert_eq!(receiver.post(key, r#"{"phase": "Running"}"#).await, 200);
        }
        assert_eq!(receiver.progress.received.load(Ordering::Relaxed), 2);
        assert_eq!(receiver.progress.repeated.load(Ordering::Relaxed), 1);
        receiver.stop().await;
        let again = start(file.clone()).await;
        assert_eq!(again.post("b", "{}").await, 200);
        again.stop().await;
        let expected = json!({"key": "a", "path": "/notify", "body": {"phase": "Running"}});
        assert_eq!(lines(&file)[0], expected);
        assert_eq!(lines(&file).len(), 2);
    }

    #[tokio::test]
    async fn what_is_not_json_or_too_large_is_refused_and_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("notifications.jsonl");
        let receiver = start(file.clone()).await;
        assert_eq!(receiver.post("a", "{nope").await, 400);
        assert_eq!(receiver.post("b", &format!("\"{}\"", "x".repeat(BODY_BYTES))).await, 413);
        assert_eq!(receiver.post(&"k".repeat(KEY_BYTES + 1), "{}").await, 400);
        assert_eq!(receiver.progress.refused.load(Ordering::Relaxed), 2, "axum itself refused the large one");
        receiver.stop().await;
        assert!(lines(&file).is_empty());
    }

    #[tokio::test]
    async fn it_ends_though_a_client_has_sent_half_a_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let receiver = start(folder.path().join("notifications.jsonl")).await;
        let address = receiver.url.trim_start_matches("http://").trim_end_matches("/notify");
        let mut half = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let text = b"POST /notify HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
        half.write_all(text).await.expect("it is sent");
        assert_eq!(receiver.post("a", "{}").await, 200, "the half one was taken before");
        let ended = tokio::time::timeout(std::time::Duration::from_secs(20), receiver.stop());
        ended.await.expect("nobody waits for the other half");
    }

    #[test]
    fn the_memory_of_keys_is_bounded_and_forgets_the_oldest() {
        let mut seen = SeenKeys::default();
        for key in 0..=KEYS {
            seen.insert(&key.to_string());
        }
        assert_eq!((seen.keys.len(), seen.order.len()), (KEYS, KEYS));
        assert!(!seen.contains("0") && seen.contains("1"));
    }
}
