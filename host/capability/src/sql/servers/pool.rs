//! The connections to one database: bounded in number, made on demand, reused while they are whole, and
//! retried with pauses while the server is away.
//!
//! The pool of sqlx was rejected: here each connection reads the secret of its address again, and while the
//! server is unreachable, a call is refused at once, with the reason.
//!
//! A connection serves one plugin for its whole life, so no setting, lock or temporary table of a session
//! reaches another plugin, whatever passed the guard. Resetting a session was rejected: the client has no
//! such command for MySQL, and PostgreSQL's own would also drop the statements that it prepared.
//! [`seats`](super::seats) decides which plugin has how many of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kubewitness_core::address;
use kubewitness_core::config::{SecretRef, ServerSpec};
use kubewitness_core::ports::GrantError;

use super::held::{HeldLink, SharedSeats, lock_mutex};
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
    seats: Arc<SharedSeats<L>>,
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

impl<L: ServerLink> LinkPool<L> {
    pub fn new(name: &str, spec: &ServerSpec, patience: ServerPatience) -> Self {
        Self {
            name: name.to_owned(),
            url: spec.url_from.clone(),
            patience,
            seats: SharedSeats::new(spec.connections.max(1) as usize),
            away: Mutex::default(),
            ready: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            examined: AtomicBool::new(false),
        }
    }

    /// Returns a connection of the plugin, an idle one if available.
    pub async fn hold_link(&self, plugin: &str) -> Result<HeldLink<L>, GrantError> {
        let mut held = self.seats.hold_seat(plugin, self.patience.wait).await?;
        if !held.has_link() {
            held.renew();
            held.put_back(self.connect_link().await?);
        }
        Ok(held)
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
        self.seats.close_idle();
    }

    /// Prevents the reuse of connections that are open now.
    pub fn forget_connections(&self) {
        self.seats.close_all();
    }

    /// Returns a connection in a transaction of the plugin. The server may have closed an idle connection
    /// meanwhile; nothing was done on it yet, so another one is tried.
    pub async fn begin_transaction(
        &self,
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
                held.renew();
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
