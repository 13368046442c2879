//! One API server of the cluster: its address, its watch cache, its open watches, and whether it is up.
//!
//! Several servers may share one store, as several kube-apiservers share one etcd. [`SharedCluster`] holds
//! what they share. Each has its own watch window, which is empty after a restart, and a cache that can lag
//! the store.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::faults::ServerFaults;
use crate::apiserver::store::{AsOf, CacheWindow};
use crate::apiserver::wire::error::ApiError;

pub struct ServerFront {
    cluster: Arc<SharedCluster>,
    /// Its number among the servers of the cluster.
    pub number: usize,
    pub address: SocketAddr,
    /// Ends the server permanently: watches end, and requests in progress are answered.
    pub stop: CancellationToken,
    pub drops: watch::Sender<(u64, WatchDrop)>,
    pub watches: AtomicUsize,
    /// Asks the clients of all connections to make new ones, as `--goaway-chance` of kube-apiserver does.
    pub goaways: watch::Sender<()>,
    pub power: watch::Sender<ServerPower>,
    /// Whether it is listening.
    pub up: watch::Sender<bool>,
    pub faults: ServerFaults,
    cache: watch::Sender<WatchCacheState>,
}

/// How a test ends watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WatchDrop {
    /// The stream ends as at a time limit.
    #[default]
    Clean,
    /// The connection breaks between frames.
    Abort,
    /// The connection breaks in the middle of a frame.
    Cut,
}

/// The state of a server's watch cache.
#[derive(Debug, Clone, Copy)]
pub struct WatchCacheState {
    /// The version at which it was filled. Watches from earlier versions expire.
    since: u64,
    /// The version at which a test holds it, behind the store's version.
    held: Option<u64>,
}

/// Whether a server should be up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerPower {
    On,
    /// Its connections break after a moment. With `back` it comes back by itself.
    Off {
        after: Duration,
        back: Option<Duration>,
    },
}

impl Deref for ServerFront {
    type Target = SharedCluster;

    fn deref(&self) -> &SharedCluster {
        &self.cluster
    }
}

impl ServerFront {
    /// Makes another server, with an empty cache.
    pub fn new(cluster: &Arc<SharedCluster>, address: SocketAddr) -> Arc<Self> {
        // The first server of a new cluster saw everything.
        let since =
            if cluster.has_fronts() { cluster.store.version() } else { cluster.store.opening_version() };
        cluster.enlist(|number| {
            Arc::new(ServerFront {
                cluster: Arc::clone(cluster),
                number,
                address,
                stop: CancellationToken::new(),
                drops: watch::Sender::new((0, WatchDrop::Clean)),
                watches: AtomicUsize::new(0),
                goaways: watch::Sender::new(()),
                power: watch::Sender::new(ServerPower::On),
                up: watch::Sender::new(false),
                faults: ServerFaults::new(
                    cluster.options.faults.clone(),
                    cluster.options.seed.map(|seed| seed.wrapping_add(number as u64)),
                ),
                cache: watch::Sender::new(WatchCacheState { since, held: None }),
            })
        })
    }

    pub fn cluster(&self) -> &Arc<SharedCluster> {
        &self.cluster
    }

    /// The newest version that has reached this server's cache.
    pub fn cached_version(&self) -> u64 {
        let held = self.cache.borrow().held;
        held.unwrap_or_else(|| self.store.version())
    }

    /// The version that reads from the cache see.
    pub fn cached(&self) -> AsOf {
        self.cache.borrow().held.map_or(AsOf::Newest, AsOf::Cached)
    }

    /// The changes that its watches can report.
    pub fn window(&self) -> CacheWindow {
        let cache = *self.cache.borrow();
        CacheWindow { since: cache.since, upto: cache.held.unwrap_or(u64::MAX) }
    }

    /// Reports when the cache is held, moved or released.
    pub fn cache_moves(&self) -> watch::Receiver<WatchCacheState> {
        self.cache.subscribe()
    }

    /// Holds the cache at a version (`None`: now) and returns it. A version that no longer exists can't be
    /// held: the oldest one that does is held instead.
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

    /// Watches from before now expire. Lists at old versions still work.
    pub fn forget_watch_window(&self) {
        let version = self.cached_version();
        self.cache.send_modify(|cache| cache.since = version);
    }

    /// Empties the cache, as a restart does.
    pub fn refill(&self) {
        self.release();
        self.forget_watch_window();
    }

    /// Ends every open watch. Returns their number.
    pub fn drop_watches(&self, how: WatchDrop) -> usize {
        self.drops.send_modify(|(count, last)| {
            *count += 1;
            *last = how;
        });
        self.watches.load(Ordering::Relaxed)
    }

    /// Waits until this server's cache has a version that a client knows.
    pub async fn wait_for_cached(&self, version: u64) -> Result<(), ApiError> {
        let reached = async {
            let mut versions = self.store.versions();
            let mut moves = self.cache.subscribe();
            loop {
                versions.borrow_and_update();
                moves.borrow_and_update();
                if self.cached_version() >= version {
                    return;
                }
                tokio::select! {
                    changed = versions.changed() => if changed.is_err() { return },
                    changed = moves.changed() => if changed.is_err() { return },
                }
            }
        };
        let waited = tokio::time::timeout(self.options.future_wait, reached).await;
        if waited.is_ok() && self.cached_version() >= version {
            return Ok(());
        }
        Err(ApiError::version_too_large(version, self.cached_version()))
    }
}
