//! Runs statements on a server over connections that last. Starting a client program for each statement takes tens of
//! milliseconds, and tests run thousands.
//!
//! Tests call this from their own runtimes, which come and go, and a connection belongs to the runtime that opened it. So
//! all connections of a process live on one runtime, on a thread of its own, and the caller's thread waits.
//!
//! A connection is used again only after statements that leave nothing in its session. Otherwise the next test would
//! find an open transaction, a lock or a setting.

use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{AssertSqlSafe, Column, Connection, Row};
use tokio::runtime::{Builder, Handle};
use tokio::time::timeout;

use super::{PASSWORD, SqlService, USER};

/// For a server that was paused, or that is starting.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// Connections of a process that wait for the next statement. A server has few, and many processes share it.
const IDLE: usize = 4;
/// The first words of statements that leave nothing in a session.
const TRACELESS: [&str; 16] = [
    "ALTER", "ANALYZE", "COPY", "CREATE", "DELETE", "DO", "DROP", "FLUSH", "GRANT", "INSERT", "KILL",
    "REVOKE", "SELECT", "SHOW", "TRUNCATE", "UPDATE",
];
/// Words of statements that leave something all the same.
const TRACES: [&str; 4] = ["lock(", "set_config(", " TEMPORARY ", " TEMP "];

pub struct StatementRunner {
    service: SqlService,
    idle: Mutex<Vec<IdleSession>>,
}

struct IdleSession {
    /// `None`: the one that a client is in where it names none.
    database: Option<String>,
    connection: ClientConnection,
}

enum ClientConnection {
    Postgres(PgConnection),
    Mysql(MySqlConnection),
}

impl StatementRunner {
    pub fn of(service: SqlService) -> Self {
        Self { service, idle: Mutex::default() }
    }

    /// Runs the statements, and returns their rows as lines, with tabs between columns.
    pub fn run(&self, port: u16, database: Option<&str>, text: &str) -> Result<String> {
        // The server changes or removes a database only where nobody is in it.
        if words(text).any(|[_, what]| what.eq_ignore_ascii_case("DATABASE")) {
            self.close_idle();
        }
        let (idle, service) = (self.take(database), self.service);
        let (database, statements) = (database.map(str::to_owned), text.to_owned());
        let done = wait_for(async move {
            let mut session = ready(idle, service, port, database).await?;
            Ok::<_, anyhow::Error>((session.rows(statements).await?, session))
        });
        let (rows, session) = done?;
        if leaves_no_trace(text) {
            self.put_back(session);
        } else {
            close(session);
        }
        Ok(rows)
    }

    /// Ends the connections that wait, so that nobody sees them.
    pub fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        idle.into_iter().for_each(close);
    }

    fn take(&self, database: Option<&str>) -> Option<IdleSession> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|session| session.database.as_deref() == database)?;
        Some(idle.remove(at))
    }

    fn put_back(&self, session: IdleSession) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (idle.len() == IDLE).then(|| idle.remove(0));
        idle.push(session);
        drop(idle);
        oldest.into_iter().for_each(close);
    }
}

/// The connection that waits, unless the server has ended it meanwhile, or a new one.
async fn ready(
    idle: Option<IdleSession>,
    service: SqlService,
    port: u16,
    database: Option<String>,
) -> Result<IdleSession> {
    if let Some(mut session) = idle
        && timeout(CONNECTS_WITHIN, session.is_open()).await.unwrap_or(false)
    {
        return Ok(session);
    }
    let connection = timeout(CONNECTS_WITHIN, connect(service, port, database.as_deref())).await;
    let connection =
        connection.map_err(|_| anyhow!("{service} does not answer within {CONNECTS_WITHIN:?}"))?;
    Ok(IdleSession { database, connection: connection.with_context(|| format!("connecting to {service}"))? })
}

/// Without TLS: tests count who uses it.
async fn connect(service: SqlService, port: u16, database: Option<&str>) -> sqlx::Result<ClientConnection> {
    if service == SqlService::Postgres {
        let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port).username(USER);
        let options = options.password(PASSWORD).ssl_mode(PgSslMode::Disable);
        let options = options.database(database.unwrap_or("postgres"));
        return PgConnection::connect_with(&options).await.map(ClientConnection::Postgres);
    }
    let options = MySqlConnectOptions::new().host("127.0.0.1").port(port).username(USER).password(PASSWORD);
    // With the server's own settings, as its client has them.
    let options =
        options.ssl_mode(MySqlSslMode::Disabled).pipes_as_concat(false).no_engine_substitution(false);
    let options = options.timezone(None);
    let options = match database {
        Some(database) => options.database(database),
        None => options,
    };
    MySqlConnection::connect_with(&options).await.map(ClientConnection::Mysql)
}

impl IdleSession {
    async fn is_open(&mut self) -> bool {
        match &mut self.connection {
            ClientConnection::Postgres(connection) => connection.ping().await.is_ok(),
            ClientConnection::Mysql(connection) => connection.ping().await.is_ok(),
        }
    }

    async fn rows(&mut self, statements: String) -> Result<String> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements));
        let lines = match &mut self.connection {
            ClientConnection::Postgres(connection) => lines(&statements.fetch_all(connection).await?)?,
            ClientConnection::Mysql(connection) => lines(&statements.fetch_all(connection).await?)?,
        };
        Ok(lines)
    }
}

/// The server has sent every value as a text, whatever its type. A tab or the end of a line in a value stands as `\t` or
/// `\n`.
fn lines<R: Row>(rows: &[R]) -> Result<String>
where
    usize: sqlx::ColumnIndex<R>,
    for<'r> Option<String>: sqlx::Decode<'r, R::Database>,
{
    let mut lines = String::new();
    for row in rows {
        let values = row.columns().iter().map(|column| {
            let value: Option<String> = match row.try_get_unchecked(column.ordinal()) {
                // A list of sessions quotes their statements, which may hold documents and be cut within a character.
                Err(sqlx::Error::ColumnDecode { .. }) => Some("(not UTF-8)".into()),
                value => value?,
            };
            Ok(value.unwrap_or_default().replace('\t', "\\t").replace('\n', "\\n"))
        });
        lines.push_str(&values.collect::<sqlx::Result<Vec<_>>>()?.join("\t"));
        lines.push('\n');
    }
    Ok(lines)
}

/// The first two words of each statement.
fn words(text: &str) -> impl Iterator<Item = [&str; 2]> {
    let statements = text.split(';').filter(|statement| !statement.trim().is_empty());
    statements.map(|statement| {
        let mut words = statement.split_whitespace();
        [words.next().unwrap_or_default(), words.next().unwrap_or_default()]
    })
}

/// A text with a semicolon in it looks like another statement, and its connection is not used again.
fn leaves_no_trace(text: &str) -> bool {
    let is_traceless = |word: &str| TRACELESS.iter().any(|known| known.eq_ignore_ascii_case(word));
    words(text).all(|[first, _]| is_traceless(first)) && !TRACES.iter().any(|trace| text.contains(trace))
}

/// Runs a future on the runtime of all connections, and waits for it.
fn wait_for<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    runtime().spawn(async move { sender.send(work.await).ok() });
    receiver.recv().context("the thread of statements has ended")?
}

fn close(session: IdleSession) {
    let closed = wait_for(async move {
        let closing = async {
            match session.connection {
                ClientConnection::Postgres(connection) => connection.close().await,
                ClientConnection::Mysql(connection) => connection.close().await,
            }
        };
        // A server that is gone or paused closes nothing.
        drop(timeout(CONNECTS_WITHIN, closing).await);
        Ok(())
    });
    drop(closed);
}

#[allow(clippy::disallowed_methods)]
fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_used_again_only_where_nothing_stays_in_its_session() {
        for text in ["SELECT 1", " select 1;\nUPDATE t SET a = 'b'", "SHOW PROCESSLIST"] {
            assert!(leaves_no_trace(text), "{text}");
        }
        let traces = [
            "SET GLOBAL autocommit = 0",
            "SELECT 1; BEGIN",
            "LOCK TABLES t READ",
            "SELECT pg_advisory_lock(1)",
            "DO get_lock('a', 0)",
            "CREATE TEMPORARY TABLE t (a INTEGER)",
        ];
        for text in traces {
            assert!(!leaves_no_trace(text), "{text}");
        }
    }
}
