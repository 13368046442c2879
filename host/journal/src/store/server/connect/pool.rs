//! The pool of sessions that read. A session that failed, or that has an unread answer, is closed. An idle
//! session is tested before it is used.
//!
//! The pool of sqlx was rejected: this one lends a `ServerSession`, which ends at an unread answer or a
//! silent server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::ports::JournalError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::server::ServerAddress;
use super::session::ServerSession;
use crate::store::rows::{DocumentRow, StoreResult};
use crate::store::{StoreConnection, StoreReader};

/// A session that was idle longer is tested: a restarted server has ended it.
const FRESH: Duration = Duration::from_secs(1);

/// How long a reader waits for another to finish.
const WAIT: Duration = Duration::from_secs(30);

pub(crate) struct SessionPool {
    server: ServerAddress,
    idle: Mutex<Vec<(Instant, ServerSession)>>,
    places: Arc<Semaphore>,
    is_closed: AtomicBool,
}

fn closed_error() -> JournalError {
    JournalError::Unavailable("the journal is closed".into())
}

impl SessionPool {
    pub fn new(server: ServerAddress, most: u32) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(most.max(1) as usize));
        Arc::new(Self { server, idle: Mutex::default(), places, is_closed: AtomicBool::new(false) })
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, ServerSession)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn lend_session(self: &Arc<Self>) -> StoreResult<LentSession> {
        let busy = |_| JournalError::Unavailable("all connections that read are busy".into());
        let place = timeout(WAIT, self.places.clone().acquire_owned()).await.map_err(busy)?;
        let place = place.map_err(|_| closed_error())?;
        let lent = |session| LentSession { session: Some(session), pool: self.clone(), _place: place };
        loop {
            let Some((used, mut session)) = self.lock_idle().pop() else { break };
            if used.elapsed() < FRESH || session.fetch_rows("SELECT 1", Vec::new()).await.is_ok() {
                return Ok(lent(session));
            }
        }
        Ok(lent(self.server.connect_for_reading().await?))
    }

    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.places.close();
        self.lock_idle().clear();
    }
}

pub(crate) struct LentSession {
    session: Option<ServerSession>,
    pool: Arc<SessionPool>,
    _place: OwnedSemaphorePermit,
}

#[async_trait]
impl StoreConnection for LentSession {
    fn store_reader(&mut self) -> &mut dyn StoreReader {
        self.session_mut()
    }

    fn is_on_a_server(&self) -> bool {
        true
    }

    async fn rows_at(&mut self, seqs: &[i64], most_bytes: usize) -> StoreResult<Vec<DocumentRow>> {
        self.session_mut().rows_at(seqs, most_bytes).await
    }

    async fn begin_snapshot(&mut self) -> StoreResult<()> {
        self.session_mut().open_snapshot().await
    }

    async fn end_snapshot(&mut self) -> StoreResult<()> {
        self.session_mut().close_snapshot().await
    }
}

impl LentSession {
    pub fn session_mut(&mut self) -> &mut ServerSession {
        self.session.as_mut().expect("taken only when it is given back")
    }
}

impl Drop for LentSession {
    fn drop(&mut self) {
        let kept = self.session.take().filter(ServerSession::is_clean);
        if let Some(session) = kept.filter(|_| !self.pool.is_closed.load(Ordering::Acquire)) {
            self.pool.lock_idle().push((Instant::now(), session));
        }
    }
}
