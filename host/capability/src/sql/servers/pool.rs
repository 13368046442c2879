//! The connections to one database: bounded in number, made on demand, reused while they are whole, and
//! retried with pauses while the server is away.
//!
//! The pool of sqlx was rejected: here each connection reads the secret of its address again, and while the
//! server is unreachable, a call is refused at once, with the reason.
//!
//! A connection serves one plugin for its whole life, so no setting, lock or temporary table of a session
//! reaches another plugin, whatever passed the guard. Resetting a session was rejected: the client has no
//! such command for MySQL, and PostgreSQL's own would also drop the statements that it prepared. An idle
//! connection of another plugin is closed only if the permitted number would be exceeded otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kubewitness_core::address;
use kubewitness_core::config::{SecretRef, ServerSpec};
use kubewitness_core::ports::GrantError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pooler;
use super::reasons::{REFUSES, ServerFailure};
use super::rights::ExcessRights;
use super::{ServerLink, ServerPatience, TransactionMode, in_time, silent_fault};
use crate::secrets;
use crate::sql::SqlFault;

/// The pauses between attempts to connect. They double up to the longest, which is how late a recovered
/// server may be noticed.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub struct LinkPool<L> {
    /// The controller's name of the database.
    name: String,
    /// Read again for each connection: a mounted file changes when the password is rotated.
    url: SecretRef,
    pub patience: ServerPatience,
    permits: Arc<Semaphore>,
    /// The most connections, idle ones included.
    most: usize,
    idle: Mutex<IdleLinks<L>>,
    /// Incremented when no open connection may be reused.
    generation: AtomicU64,
    away: Mutex<Option<ServerAway>>,
    /// Whether the controller's tables exist.
    ready: AtomicBool,
    /// Whether it was checked that no pooler shares the sessions.
    direct: AtomicBool,
    /// Whether the rights of its user were examined.
    examined: AtomicBool,
}

/// The server was unreachable when a connection was last attempted.
struct ServerAway {
    until: Instant,
    pause: Duration,
    why: ServerFailure,
}

/// Connections that no call uses, the latest returned last.
struct IdleLinks<L>(Vec<IdleLink<L>>);

struct IdleLink<L> {
    plugin: Arc<str>,
    link: L,
}

impl<L> IdleLinks<L> {
    /// The latest connection of the plugin.
    fn take_own(&mut self, plugin: &str) -> Option<L> {
        let found = self.0.iter().rposition(|idle| &*idle.plugin == plugin)?;
        Some(self.0.remove(found).link)
    }

    /// Removes the connection that was idle longest.
    fn take_oldest(&mut self) -> Option<L> {
        (!self.0.is_empty()).then(|| self.0.remove(0).link)
    }
}

/// A permit for one connection, and the connection while it is idle. If it is dropped, the connection is
/// closed, and the server rolls back uncommitted work.
pub struct HeldLink<L> {
    pool: Arc<LinkPool<L>>,
    plugin: Arc<str>,
    link: Option<L>,
    generation: u64,
    _permit: OwnedSemaphorePermit,
}

impl<L: ServerLink> HeldLink<L> {
    /// Takes the connection out. A caller that does not put it back, or is dropped, has lost it.
    pub fn take(&mut self) -> Result<L, GrantError> {
        self.link.take().ok_or_else(|| GrantError::Unavailable("the connection was lost".into()))
    }

    pub fn put_back(&mut self, link: L) {
        self.link = Some(link);
    }

    /// Returns the connection for the next call. No transaction is open.
    pub fn return_link(self, link: L) {
        let mut idle = lock_mutex(&self.pool.idle);
        if link.is_fresh() && self.generation == self.pool.generation.load(Ordering::Acquire) {
            idle.0.push(IdleLink { plugin: self.plugin, link });
        }
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L: ServerLink> LinkPool<L> {
    pub fn new(name: &str, spec: &ServerSpec, patience: ServerPatience) -> Self {
        let most = spec.connections.max(1) as usize;
        Self {
            name: name.to_owned(),
            url: spec.url_from.clone(),
            patience,
            permits: Arc::new(Semaphore::new(most)),
            most,
            idle: Mutex::new(IdleLinks(Vec::new())),
            generation: AtomicU64::new(0),
            away: Mutex::default(),
            ready: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            examined: AtomicBool::new(false),
        }
    }

    /// Returns a connection of the plugin, an idle one if available.
    pub async fn hold_link(self: &Arc<Self>, plugin: &str) -> Result<HeldLink<L>, GrantError> {
        let waited = tokio::time::timeout(self.patience.wait, self.permits.clone().acquire_owned()).await;
        let busy = || GrantError::Unavailable("the database is busy with other calls".into());
        let permit = waited.map_err(|_| busy())?.map_err(|_| busy())?;
        let generation = self.generation.load(Ordering::Acquire);
        let link = match self.take_idle(plugin) {
            Some(link) => link,
            None => self.connect_link().await?,
        };
        Ok(HeldLink {
            pool: self.clone(),
            plugin: plugin.into(),
            link: Some(link),
            generation,
            _permit: permit,
        })
    }

    /// An idle connection of the plugin. If there is none, makes room for a new one: each permit that is held
    /// stands for a connection, this call's own included.
    fn take_idle(&self, plugin: &str) -> Option<L> {
        let mut idle = lock_mutex(&self.idle);
        if let Some(link) = idle.take_own(plugin) {
            return Some(link);
        }
        let held = self.most.saturating_sub(self.permits.available_permits());
        let is_full = held + idle.0.len() > self.most;
        let oldest = is_full.then(|| idle.take_oldest());
        drop(idle);
        // Closed outside of the lock.
        drop(oldest);
        None
    }

    async fn connect_link(&self) -> Result<L, GrantError> {
        let refused =
            |why: &ServerFailure| GrantError::Unavailable(format!("the database can't be reached: {why}"));
        if let Some(away) = lock_mutex(&self.away).as_ref().filter(|away| Instant::now() < away.until) {
            return Err(refused(&away.why));
        }
        let connecting = async {
            let url = secrets::resolve_secret(&self.url).await?;
            let options = L::parse_options(url.expose_secret())?;
            address::expect_files(url.expose_secret()).await?;
            let refusal = |error: sqlx::Error| {
                // The full error is for the controller's log: it may name machines and users.
                tracing::warn!(database = self.name, %error, "the database can't be reached");
                L::classify_connect_error(&error)
            };
            let mut link = L::connect_link(&options).await.map_err(refusal)?;
            if !self.direct.load(Ordering::Acquire) {
                if pooler::is_shared_by_pooler(&mut link, &options).await.map_err(refusal)? {
                    let pooled = ServerFailure::Pooled;
                    tracing::warn!(database = self.name, "the database can't be used: {pooled}");
                    return Err(pooled);
                }
                self.direct.store(true, Ordering::Release);
            }
            Ok(link)
        };
        let connected = tokio::time::timeout(self.patience.connect, connecting).await;
        let connected = connected.unwrap_or_else(|_| {
            let why = ServerFailure::Silent(self.patience.connect);
            tracing::warn!(database = self.name, "the database can't be reached: {why}");
            Err(why)
        });
        let mut away = lock_mutex(&self.away);
        match connected {
            Ok(link) => {
                *away = None;
                Ok(link)
            }
            Err(why) => {
                let pause = away.as_ref().map_or(FIRST_PAUSE, |away| (away.pause * 2).min(LONGEST_PAUSE));
                let error = refused(&why);
                *away = Some(ServerAway { until: Instant::now() + pause, pause, why });
                Err(error)
            }
        }
    }

    /// Creates the controller's own tables, once.
    pub async fn make_ready(&self, held: &mut HeldLink<L>) -> Result<(), GrantError> {
        if self.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut link = held.take()?;
        let created = in_time::<L, _>(self.patience.answer, link.create_own_tables()).await;
        created.map_err(|fault| match fault.into_error() {
            GrantError::Unavailable(why) if why.contains(REFUSES) => {
                GrantError::Unavailable(format!("{why}: let a user who may make tables run {}", L::TABLES))
            }
            other => other,
        })?;
        self.ready.store(true, Ordering::Release);
        if !self.examined.swap(true, Ordering::AcqRel) {
            match in_time::<L, _>(self.patience.answer, link.excess_rights()).await {
                Ok(rights) => self.report_rights(&rights),
                Err(fault) => {
                    let error = fault.into_error();
                    tracing::warn!(database = self.name, %error, "the rights of the database's user can't be read");
                    // The connection may have an unread answer.
                    link = self.connect_link().await?;
                }
            }
        }
        held.put_back(link);
        Ok(())
    }

    fn report_rights(&self, rights: &ExcessRights) {
        if let Some(text) = rights.text() {
            tracing::warn!(
                database = self.name,
                "a granted database gives plugins more than they need: {text}"
            );
        }
    }

    /// Forgets the checks of the server after a failure that repeating them can explain.
    pub fn doubt_server(&self) {
        self.ready.store(false, Ordering::Release);
        self.direct.store(false, Ordering::Release);
        lock_mutex(&self.idle).0.clear();
    }

    /// Prevents the reuse of connections that are open now.
    pub fn forget_connections(&self) {
        let mut idle = lock_mutex(&self.idle);
        self.generation.fetch_add(1, Ordering::AcqRel);
        idle.0.clear();
    }

    /// Returns a connection in a transaction of the plugin. The server may have closed an idle connection
    /// meanwhile; nothing was done on it yet, so another one is tried.
    pub async fn begin_transaction(
        self: &Arc<Self>,
        mode: TransactionMode,
        plugin: &str,
    ) -> Result<(HeldLink<L>, L), GrantError> {
        let mut held = self.hold_link(plugin).await?;
        let first = self.begin_with(&mut held, mode, plugin).await;
        let begun = match first {
            Ok(link) => return Ok((held, link)),
            Err(SqlFault::Own(error)) => Err(error),
            Err(SqlFault::Lost(_)) => {
                self.doubt_server();
                held.generation = self.generation.load(Ordering::Acquire);
                held.put_back(self.connect_link().await?);
                self.begin_with(&mut held, mode, plugin).await.map_err(SqlFault::into_error)
            }
        };
        begun.map(|link| (held, link))
    }

    async fn begin_with(
        &self,
        held: &mut HeldLink<L>,
        mode: TransactionMode,
        plugin: &str,
    ) -> Result<L, SqlFault> {
        self.make_ready(held).await.map_err(SqlFault::Lost)?;
        let limit = self.patience.answer;
        let mut link = held.take().map_err(SqlFault::Lost)?;
        if in_time::<L, _>(limit, link.begin_fenced(mode, plugin)).await? {
            return Ok(link);
        }
        // The fence was removed, or receipts were never read.
        in_time::<L, _>(limit, link.run("ROLLBACK")).await?;
        in_time::<L, _>(limit, link.begin_behind_fence(mode, plugin)).await?;
        in_time::<L, _>(limit, link.run("COMMIT")).await?;
        match in_time::<L, _>(limit, link.begin_fenced(mode, plugin)).await? {
            true => Ok(link),
            false => Err(silent_fault(limit)),
        }
    }
}
