//! One API server of the cluster: its address, its watch cache, its open watches, and whether it is up.
//!
//! Several may stand over one store, as several kube-apiservers stand over one etcd. What they share is
//! [`Shared`]; what is here, each has for itself: a watch window that is empty after a restart, and a cache
//! that can lag behind the store.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::apiserver::cluster::shared::Shared;
use crate::apiserver::faults::Faults;
use crate::apiserver::store::{AsOf, Window};
use crate::apiserver::wire::error::ApiError;

pub struct Front {
    cluster: Arc<Shared>,
    /// Its place among the servers of the cluster.
    pub number: usize,
    pub address: SocketAddr,
    /// Ends it for good: watches end, requests under way are answered.
    pub stop: CancellationToken,
    pub drops: watch::Sender<(u64, Drop)>,
    pub watches: AtomicUsize,
    pub power: watch::Sender<Power>,
    /// Is it listening?
    pub up: watch::Sender<bool>,
    pub faults: Faults,
    cache: watch::Sender<Cache>,
}

/// How watches are ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Drop {
    /// The stream ends as on a time limit.
    #[default]
    Clean,
    /// The connection breaks between frames.
    Abort,
    /// The connection breaks in the middle of a frame.
    Cut,
}

/// What a server's watch cache has.
#[derive(Debug, Clone, Copy)]
pub struct Cache {
    /// The version at which it was filled; watches from before expire.
    since: u64,
    /// The version that it is held at, behind the store.
    held: Option<u64>,
}

/// Whether a server is to be up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    On,
    /// Its connections are broken after a moment, and it comes back by itself or not.
    Off {
        after: Duration,
        back: Option<Duration>,
    },
}

impl Deref for Front {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.cluster
    }
}

impl Front {
    /// One more server, with an empty cache.
    pub fn new(cluster: &Arc<Shared>, address: SocketAddr) -> Arc<Self> {
        // The first one of a new cluster saw everything.
        let since = if cluster.has_fronts() { cluster.store.version() } else { cluster.store.began() };
        cluster.enlist(|number| {
            Arc::new(Front {
                cluster: Arc::clone(cluster),
                number,
                address,
                stop: CancellationToken::new(),
                drops: watch::Sender::new((0, Drop::Clean)),
                watches: AtomicUsize::new(0),
                power: watch::Sender::new(Power::On),
                up: watch::Sender::new(false),
                faults: Faults::new(
                    cluster.options.faults.clone(),
                    cluster.options.seed.map(|seed| seed.wrapping_add(number as u64)),
                ),
                cache: watch::Sender::new(Cache { since, held: None }),
            })
        })
    }

    pub fn cluster(&self) -> &Arc<Shared> {
        &self.cluster
    }

    /// The newest version that has reached this server's cache.
    pub fn seen(&self) -> u64 {
        let held = self.cache.borrow().held;
        held.unwrap_or_else(|| self.store.version())
    }

    /// Where reads from the cache look.
    pub fn cached(&self) -> AsOf {
        self.cache.borrow().held.map_or(AsOf::Newest, AsOf::Cached)
    }

    /// The changes that its watches can be told of.
    pub fn window(&self) -> Window {
        let cache = *self.cache.borrow();
        Window { since: cache.since, upto: cache.held.unwrap_or(u64::MAX) }
    }

    /// Tells when the cache was held, moved or let go.
    pub fn cache_moves(&self) -> watch::Receiver<Cache> {
        self.cache.subscribe()
    }

    /// Holds the cache at a version (None: now). What is no longer there cannot be held: returns the version
    /// that is.
    pub fn hold(&self, version: Option<u64>) -> u64 {
        let wanted = version.unwrap_or_else(|| self.store.version());
        let held = self.store.pin(self.number, Some(wanted)).unwrap_or(wanted);
        self.cache.send_modify(|cache| cache.held = Some(held));
        held
    }

    /// Lets the cache catch up.
    pub fn release(&self) {
        self.cache.send_modify(|cache| cache.held = None);
        self.store.pin(self.number, None);
    }

    /// Watches from before now expire; lists at old versions still work.
    pub fn forget_watch_window(&self) {
        let version = self.seen();
        self.cache.send_modify(|cache| cache.since = version);
    }

    /// A cache as after a start.
    pub fn refill(&self) {
        self.release();
        self.forget_watch_window();
    }

    /// Ends every open watch. Returns how many there were.
    pub fn drop_watches(&self, how: Drop) -> usize {
        self.drops.send_modify(|(count, last)| {
            *count += 1;
            *last = how;
        });
        self.watches.load(Ordering::Relaxed)
    }

    /// Waits for a version that a client knows of and this server's cache not yet.
    pub async fn wait_for_cached(&self, version: u64) -> Result<(), ApiError> {
        let reached = async {
            let mut versions = self.store.versions();
            let mut moves = self.cache.subscribe();
            loop {
                versions.borrow_and_update();
                moves.borrow_and_update();
                if self.seen() >= version {
                    return;
                }
                tokio::select! {
                    changed = versions.changed() => if changed.is_err() { return },
                    changed = moves.changed() => if changed.is_err() { return },
                }
            }
        };
        let waited = tokio::time::timeout(self.options.future_wait, reached).await;
        if waited.is_ok() && self.seen() >= version {
            return Ok(());
        }
        Err(ApiError::version_too_large(version, self.seen()))
    }
}
