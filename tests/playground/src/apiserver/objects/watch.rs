//! Serves watches: a stream of frames, read from the log of changes as fast as the client takes them.
//!
//! A watch has a position instead of a queue. So a slow client costs no memory, and its watch ends when it
//! lags too far.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::apiserver::cluster::front::{ServerFront, WatchCacheState, WatchDrop};
use crate::apiserver::objects::list::ListFilter;
use crate::apiserver::objects::render::RenderView;
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::store::{StoreChange, StoreEvent, TableId};
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::{InitialEvents, WatchOptions};

/// How many changes are taken from the log at once, so that its lock is held briefly.
const BATCH: usize = 256;

/// How many bytes of frames are collected before they are passed to the connection.
const CHUNK_BYTES: usize = 64 * 1024;

/// An up-to-date watch ends when it lags by this many changes.
const MAX_BEHIND: usize = 50_000;

/// The most open watches. More of them mean that a client leaks them.
const MAX_WATCHES: usize = 10_000;

/// The last bookmark comes this long before the server's time limit.
const LAST_BOOKMARK: Duration = Duration::from_millis(200);

/// Long enough for a connection to send its buffer.
const FLUSH: Duration = Duration::from_millis(5);

/// The beginning of a frame that never ends.
const CUT_FRAME: &[u8] = b"{\"type\":\"MODIFIED\",\"object\":{\"ki";

struct ObjectWatcher {
    front: Arc<ServerFront>,
    view: RenderView,
    filter: ListFilter,
    table: TableId,
    /// The history that it reports. The watch ends if the history is replaced.
    epoch: u32,
    /// Everything up to this version was sent or did not match.
    position: u64,
    initial: std::vec::IntoIter<Arc<VersionRecord>>,
    /// The version from which on the bookmark that ends the initial events may be sent.
    end_mark: Option<u64>,
    bookmarks: bool,
    started: bool,
    caught_up: bool,
    ending: WatchEnding,
    changed: watch::Receiver<u64>,
    moved: watch::Receiver<WatchCacheState>,
    dropped: watch::Receiver<(u64, WatchDrop)>,
    deadline: Instant,
    next_bookmark: Instant,
    last_bookmark_sent: bool,
    _counted: OpenWatch,
}

/// Whether the watch continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchEnding {
    Open,
    Finished,
    /// The connection breaks.
    Breaks,
}

/// A place among the open watches.
struct OpenWatch(Arc<ServerFront>);

impl std::ops::Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a watch. The body consists of its frames.
pub async fn start(
    front: &Arc<ServerFront>,
    table: TableId,
    view: RenderView,
    filter: ListFilter,
    options: &WatchOptions,
) -> Result<Body, ApiError> {
    if front.watches.fetch_add(1, Ordering::Relaxed) >= MAX_WATCHES {
        front.watches.fetch_sub(1, Ordering::Relaxed);
        return Err(ApiError::too_many_requests("too many watches are open, please try again later"));
    }
    let counted = OpenWatch(Arc::clone(front));
    let epoch = front.store.epoch();
    // Subscribed before the first read, so that no change is lost in between.
    let changed = front.store.changes(table);
    let moved = front.cache_moves();
    let asked = options.version.unwrap_or(0);
    let from_state = match options.initial {
        InitialEvents::Streamed => true,
        InitialEvents::Skipped => false,
        InitialEvents::ByVersion => asked == 0,
    };
    let streamed = options.initial == InitialEvents::Streamed;
    if streamed
        && asked > 0
        && let Err(error) = front.wait_for_cached(asked).await
    {
        // Once its parameters are valid, a watch reports failures as events.
        return Ok(Body::from(error_frame(&error)));
    }
    // A streaming list without a version is complete once the cache has the store's present version. Until
    // then it shows the cache and its changes.
    let complete_at = if streamed && options.version.is_none() { front.store.version() } else { asked };
    let (initial, position) = if from_state {
        let page = filter.page(front, table, front.cached(), None, None);
        let page = page.map_err(|_| ApiError::list_expired())?;
        (page.items, page.version)
    } else {
        (Vec::new(), if asked == 0 { front.cached_version() } else { asked })
    };
    if options.expired_as_status
        && let Err(too_old) = front.store.changes_after(table, position, 0, front.window())
    {
        return Err(ApiError::watch_expired(position, too_old.oldest));
    }
    let timeout = options.timeout.map_or(front.options.watch_timeout, Duration::from_secs);
    let now = Instant::now();
    let watcher = ObjectWatcher {
        changed,
        moved,
        dropped: front.drops.subscribe(),
        deadline: now + timeout.min(front.options.watch_timeout),
        next_bookmark: now + front.options.bookmark_every,
        last_bookmark_sent: false,
        position,
        initial: initial.into_iter(),
        end_mark: (streamed && options.bookmarks).then_some(complete_at),
        bookmarks: options.bookmarks,
        started: false,
        caught_up: false,
        ending: WatchEnding::Open,
        front: Arc::clone(front),
        view,
        filter,
        table,
        epoch,
        _counted: counted,
    };
    let frames = futures::stream::unfold(watcher, |mut watcher| async move {
        let frames = watcher.next().await?;
        Some((frames, watcher))
    });
    Ok(Body::from_stream(frames))
}

impl ObjectWatcher {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            match std::mem::replace(&mut self.ending, WatchEnding::Finished) {
                WatchEnding::Open => self.ending = WatchEnding::Open,
                WatchEnding::Finished => return None,
                WatchEnding::Breaks => {
                    // Meanwhile the connection sends what was written before.
                    tokio::time::sleep(FLUSH).await;
                    return Some(Err(io::Error::from(io::ErrorKind::ConnectionReset)));
                }
            }
            if let Some(frames) = self.initial_frames() {
                return Some(Ok(frames));
            }
            self.changed.borrow_and_update();
            self.moved.borrow_and_update();
            if let Some(frames) = self.changed_frames() {
                return Some(Ok(frames));
            }
            if self.ending != WatchEnding::Open {
                continue;
            }
            if !self.front.serves(&self.view.kind) {
                return None;
            }
            match self.wait().await {
                WatcherEvent::Changed => {}
                WatcherEvent::Bookmark => {
                    if let Some(mark) = self.bookmark() {
                        return Some(Ok(mark));
                    }
                }
                WatcherEvent::Dropped(WatchDrop::Clean) => return None,
                WatcherEvent::Dropped(WatchDrop::Abort) => self.ending = WatchEnding::Breaks,
                WatcherEvent::Dropped(WatchDrop::Cut) => {
                    self.ending = WatchEnding::Breaks;
                    return Some(Ok(Bytes::from_static(CUT_FRAME)));
                }
            }
        }
    }

    /// The objects that exist at the start, in chunks.
    fn initial_frames(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while out.len() < CHUNK_BYTES {
            let Some(record) = self.initial.next() else { break };
            self.view.frame(&mut out, StoreEvent::Added, record.version, &record, !self.started);
            self.started = true;
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }

    fn changed_frames(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while out.len() < CHUNK_BYTES {
            let window = self.front.window();
            let batch = match self.front.store.changes_after(self.table, self.position, BATCH, window) {
                _ if self.front.store.epoch() != self.epoch => {
                    self.ending = WatchEnding::Breaks;
                    break;
                }
                Ok(batch) => batch,
                Err(too_old)
                    if self.caught_up
                        && window.since <= self.position
                        && self.front.store.has_all_since(self.table, self.position) =>
                {
                    self.position = too_old.oldest;
                    continue;
                }
                Err(too_old) => {
                    let error = ApiError::watch_expired(self.position, too_old.oldest);
                    out.extend_from_slice(&error_frame(&error));
                    self.ending = WatchEnding::Finished;
                    break;
                }
            };
            for change in &batch.changes {
                self.frame_of(&mut out, change);
            }
            // A start in the future keeps its position.
            self.position = self.position.max(batch.upto);
            if batch.behind == 0 {
                self.caught_up = true;
                self.end_initial(&mut out);
                break;
            }
            if self.caught_up && batch.behind > MAX_BEHIND {
                self.ending = WatchEnding::Finished;
                break;
            }
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }

    /// The bookmark that ends the initial events, once they are complete.
    fn end_initial(&mut self, out: &mut Vec<u8>) {
        if self.end_mark.is_some_and(|complete_at| self.position >= complete_at) {
            self.end_mark = None;
            out.extend_from_slice(&self.view.bookmark(self.position, true));
        }
    }

    fn frame_of(&mut self, out: &mut Vec<u8>, change: &StoreChange) {
        let record = &change.record;
        let now = !record.deleted && self.filter.matches(record);
        let before = change.previous.as_ref().filter(|p| self.filter.matches(p));
        let (event, content) = match (now, before) {
            (true, None) => (StoreEvent::Added, record),
            (true, Some(_)) => (StoreEvent::Modified, record),
            (false, Some(before)) => (StoreEvent::Deleted, before),
            (false, None) => return,
        };
        self.view.frame(out, event, record.version, content, !self.started);
        self.started = true;
    }

    fn bookmark(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        if now + LAST_BOOKMARK >= self.deadline {
            self.last_bookmark_sent = true;
        }
        self.next_bookmark = now + self.front.options.bookmark_every;
        // A bookmark can't promise a position in the future.
        let known = self.position <= self.front.cached_version();
        // No bookmark comes before the one that ends the initial events.
        (self.bookmarks && known && self.end_mark.is_none())
            .then(|| Bytes::from(self.view.bookmark(self.position, false)))
    }

    async fn wait(&mut self) -> WatcherEvent {
        let mut bookmark_at = self.next_bookmark;
        if !self.last_bookmark_sent {
            bookmark_at = bookmark_at.min(self.deadline - LAST_BOOKMARK);
        }
        tokio::select! {
            biased;
            () = self.front.stop.cancelled() => WatcherEvent::Dropped(WatchDrop::Clean),
            dropped = self.dropped.changed() => {
                WatcherEvent::Dropped(dropped.map_or(WatchDrop::Clean, |()| self.dropped.borrow_and_update().1))
            }
            _ = self.changed.changed() => WatcherEvent::Changed,
            _ = self.moved.changed() => WatcherEvent::Changed,
            () = tokio::time::sleep_until(self.deadline) => WatcherEvent::Dropped(WatchDrop::Clean),
            () = tokio::time::sleep_until(bookmark_at), if self.bookmarks => WatcherEvent::Bookmark,
        }
    }
}

enum WatcherEvent {
    Changed,
    Bookmark,
    Dropped(WatchDrop),
}

pub fn error_frame(error: &ApiError) -> Vec<u8> {
    format!("{}\n", json!({"type": "ERROR", "object": error.to_status()})).into_bytes()
}
