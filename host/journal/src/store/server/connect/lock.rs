//! Advisory locks, which a session holds on the server as long as it lives: the journal's own, and one for
//! each replica.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::session::ServerSession;
use crate::store::rows::StoreResult;
use crate::store::server::engine::dialect::ServerDialect;

/// A process that was killed a moment ago has released the lock within this time.
const LOCK: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The lock that a session holds. A process that does not share the journal holds the journal's own lock. A
/// replica holds that lock only while it joins, and then the lock of its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockRight {
    Whole,
    Replica(u8),
}

impl LockRight {
    fn lock_number(self) -> i64 {
        match self {
            Self::Whole => 0,
            Self::Replica(number) => i64::from(number) + 1,
        }
    }

    /// The SQL expressions for the lock's name.
    fn name(self, dialect: ServerDialect) -> String {
        match (dialect, self.lock_number()) {
            // The second number identifies the schema: each may have its own journal.
            (ServerDialect::Postgres, number) => format!("{}, hashtext(current_schema())", CLASS + number),
            // A name may have 64 characters. Newer versions of MySQL lack SHA-1.
            (ServerDialect::Mysql, 0) => "concat('kubewitness ', left(sha2(database(), 256), 40))".into(),
            (ServerDialect::Mysql, number) => {
                format!("concat('kubewitness {number} ', left(sha2(database(), 256), 40))")
            }
        }
    }

    fn lock_statement(self, dialect: ServerDialect) -> String {
        let name = self.name(dialect);
        match dialect {
            ServerDialect::Postgres => {
                format!("SELECT CASE WHEN pg_try_advisory_lock({name}) THEN 1 ELSE 0 END")
            }
            ServerDialect::Mysql => format!("SELECT get_lock({name}, 0)"),
        }
    }

    fn unlock_statement(self, dialect: ServerDialect) -> String {
        let name = self.name(dialect);
        match dialect {
            ServerDialect::Postgres => {
                format!("SELECT CASE WHEN pg_advisory_unlock({name}) THEN 1 ELSE 0 END")
            }
            ServerDialect::Mysql => format!("SELECT release_lock({name})"),
        }
    }

    fn holder_statement(self, dialect: ServerDialect) -> String {
        match dialect {
            ServerDialect::Postgres => format!(
                "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = {} AND objsubid = 2 \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                 AND CAST(objid AS bigint) = (CAST(hashtext(current_schema()) AS bigint) & 4294967295)",
                CLASS + self.lock_number()
            ),
            ServerDialect::Mysql => format!("SELECT CAST(is_used_lock({}) AS SIGNED)", self.name(dialect)),
        }
    }
}

/// The class of our advisory locks on PostgreSQL.
const CLASS: i64 = 1_263_291_953;

/// The holder of the lock, as far as the server reports it.
#[derive(Debug)]
pub(crate) struct LockHolder {
    pub name: String,
    /// The server's number of its session; `None` if the session has just ended.
    pub session: Option<i64>,
}

/// The result of a request for the lock.
pub(crate) enum LockAttempt {
    Mine,
    Others(LockHolder),
}

/// The description of this process in the row of the writer.
pub(crate) fn describe_this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "a machine without a name" } else { host.trim() };
    format!("process {} on {host}", std::process::id())
}

async fn optional_number(session: &mut ServerSession, text: &str) -> StoreResult<Option<i64>> {
    let rows = session.fetch_rows(text, Vec::new()).await?;
    Ok(rows.first().map(|row| row.optional_int(0)).transpose()?.flatten())
}

/// Tries once.
pub(crate) async fn try_lock(session: &mut ServerSession, seat: LockRight) -> StoreResult<bool> {
    let text = seat.lock_statement(session.dialect());
    Ok(optional_number(session, &text).await? == Some(1))
}

pub(crate) async fn release_lock(session: &mut ServerSession, seat: LockRight) -> StoreResult<()> {
    let text = seat.unlock_statement(session.dialect());
    optional_number(session, &text).await.map(drop)
}

/// The server's number of the session that holds it.
pub(crate) async fn holding_session(
    session: &mut ServerSession,
    seat: LockRight,
) -> StoreResult<Option<i64>> {
    let text = seat.holder_statement(session.dialect());
    optional_number(session, &text).await
}

/// The server's number of the present session.
pub(crate) fn own_number_expression(dialect: ServerDialect) -> &'static str {
    match dialect {
        ServerDialect::Postgres => "pg_backend_pid()",
        ServerDialect::Mysql => "CAST(connection_id() AS SIGNED)",
    }
}

pub(crate) async fn own_number(session: &mut ServerSession) -> StoreResult<i64> {
    let text = format!("SELECT {}", own_number_expression(session.dialect()));
    Ok(optional_number(session, &text).await?.unwrap_or_default())
}

/// Retries until this session has the lock, or the time is over.
pub(crate) async fn acquire_lock(session: &mut ServerSession, seat: LockRight) -> StoreResult<LockAttempt> {
    let deadline = Instant::now() + LOCK;
    loop {
        if try_lock(session, seat).await? {
            return Ok(LockAttempt::Mine);
        }
        if Instant::now() >= deadline {
            let number = holding_session(session, seat).await?;
            let rows = session.fetch_rows("SELECT holder FROM kw_journal WHERE id = 1", Vec::new()).await;
            let name = rows?.into_iter().next().map(|mut row| row.text(0)).transpose()?;
            let name = name.unwrap_or_else(|| "a process that has just begun".into());
            return Ok(LockAttempt::Others(LockHolder { name, session: number }));
        }
        sleep(LOCK_PAUSE).await;
    }
}

/// Ends a session of our own that the server still keeps: until it ends, the fate of its transaction is
/// undecided. It must hold the lock, so its number can't belong to anybody else by now.
pub(crate) async fn end_own(session: &mut ServerSession, seat: LockRight, number: i64) -> StoreResult<()> {
    if holding_session(session, seat).await? != Some(number) {
        return Ok(());
    }
    tracing::warn!("the server still has the lost session of this process: ending it");
    end_session(session, number).await
}

pub(crate) async fn end_session(session: &mut ServerSession, number: i64) -> StoreResult<()> {
    match session.dialect() {
        ServerDialect::Postgres => {
            let text = "SELECT CASE WHEN pg_terminate_backend(CAST(? AS int)) THEN 1 ELSE 0 END";
            session.fetch_rows(text, vec![number.into()]).await.map(drop)
        }
        ServerDialect::Mysql => session.run_script(&format!("KILL {number}")).await,
    }
}

/// The statement with which an operator ends a session.
pub(crate) fn how_to_end(dialect: ServerDialect, number: i64) -> String {
    match dialect {
        ServerDialect::Postgres => format!("SELECT pg_terminate_backend({number})"),
        ServerDialect::Mysql => format!("KILL {number}"),
    }
}
