//! The address of a server, and the first statements of a session with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use kubewitness_core::address::{self, is_cut};
use kubewitness_core::files::{self, send_at_once};
use kubewitness_core::ports::JournalError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection as _};
use thiserror::Error;
use tokio::time::timeout;

use super::pooler;
use super::session::ServerSession;
use crate::store::rows::StoreResult;
use crate::store::server::engine::dialect::ServerDialect;
use crate::store::server::engine::fault::{classify_error, remedy_for};

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// The timeout of a second session, which is needed to detect a pooler. A server that has no free connection
/// for it delays nothing.
const SECOND: Duration = Duration::from_secs(5);

/// The most prepared statements of a connection. On MySQL, each write has eight or nine sizes.
const STATEMENTS: usize = 256;

/// A batch is far smaller, but the row of a large object has to fit.
const LEAST_PACKET: i64 = 8 << 20;

/// Every statement finds rows by a key or a range of it, but the planner assumes otherwise for tables without
/// statistics. A transaction whose client is gone must not hold the writer's row, so a silent client is
/// detected within half a minute. A client that was suspended in the middle of a large answer is not silent:
/// its machine still acknowledges packets but accepts no data. No other timeout ends a server that waits to
/// send. Other replicas end such a session sooner if it writes (`replicas::is_stalled`).
const POSTGRES: &str = "SET default_transaction_isolation = 'read committed'; SET statement_timeout = '120s'; \
     SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'; SET client_min_messages = warning; \
     SET jit = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off; \
     SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; \
     SET tcp_user_timeout = 30000";

/// A value that is too long or of another type is an error and is never truncated. A read leaves no open
/// transaction, and its answer is never truncated either, whatever the server's operator has set for
/// everybody.
const MYSQL: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     SESSION autocommit = 1, SESSION completion_type = 0, SESSION sql_select_limit = 18446744073709551615, \
     SESSION innodb_lock_wait_timeout = 10; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";

/// The most bytes of a file with an address. An address is one line.
const ADDRESS_BYTES: u64 = 64 * 1024;

/// The variables that show whether a server is part of a cluster in which each node accepts writes.
const CLUSTER: &str = "SHOW GLOBAL STATUS LIKE 'wsrep_ready'; \
     SHOW GLOBAL VARIABLES LIKE 'group_replication_single_primary_mode'";

/// Whether a server is such a node. It learns only at commit what other nodes have written, so neither locks
/// nor compared numbers exclude them.
fn is_multi_primary(name: &str, value: &str) -> bool {
    matches!((name, value), ("wsrep_ready", "ON") | ("group_replication_single_primary_mode", "OFF"))
}

/// The most steps of a recursive query. A walk along a chain takes one step for each state.
const STEPS: u32 = 100_000;

#[derive(Clone)]
enum ServerOptions {
    Postgres(PgConnectOptions),
    Mysql(MySqlConnectOptions),
}

/// Why no session could be opened.
pub(crate) struct SessionRefusal {
    pub error: JournalError,
    /// The step for a person; `None` if another try may succeed.
    pub remedy: Option<&'static str>,
}

impl SessionRefusal {
    /// As one error, for a caller that retries in any case.
    pub fn into_error(self) -> JournalError {
        match (self.error, self.remedy) {
            (JournalError::Unavailable(why), Some(remedy)) => {
                JournalError::Unavailable(format!("{why}; {remedy}"))
            }
            (error, _) => error,
        }
    }
}

impl From<JournalError> for SessionRefusal {
    fn from(error: JournalError) -> Self {
        Self { error, remedy: None }
    }
}

/// Why a text leads to no journal. It quotes no part of the text, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServerAddressError {
    #[error("an address of a journal begins with postgres:// or mysql://")]
    OtherScheme,
    #[error(
        "it is no address of a database: write {scheme}://USER:PASSWORD@HOST:PORT/DATABASE, with %40, %3A and %2F for \
         each `@`, `:` and `/` of the user and the password"
    )]
    Malformed { scheme: &'static str },
    #[error("the address names no database: mysql://USER:PASSWORD@HOST/DATABASE")]
    NoDatabase,
}

/// Names the server, without its password.
#[derive(Clone)]
pub(crate) struct ServerAddress {
    options: ServerOptions,
    place: String,
    /// The address as given. It names files, and no message contains it.
    url: String,
    /// The file with the address, whose password may change.
    file: Option<PathBuf>,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

impl ServerAddress {
    pub fn of(address: &str) -> Result<Self, ServerAddressError> {
        match address.split_once("://") {
            Some(("postgres" | "postgresql", _)) => Self::postgres(address),
            Some(("mysql" | "mariadb", rest)) => Self::mysql(&format!("mysql://{rest}")),
            _ => Err(ServerAddressError::OtherScheme),
        }
    }

    pub fn read_again_from(self, file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..self }
    }

    /// The present content of the file. If the file can't be read, the known address stays. An address of
    /// another database would lead to another journal.
    async fn now(&self) -> StoreResult<Self> {
        let Some(file) = &self.file else { return Ok(self.clone()) };
        let path = file.clone();
        let read =
            files::run_within_limit(file, files::ANSWER, move || files::text(&path, ADDRESS_BYTES)).await;
        let text = match read {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(%error, "{} can't be read, so the journal's address stays", file.display());
                return Ok(self.clone());
            }
        };
        match Self::of(text.trim()) {
            Ok(now) if now.place == self.place => Ok(now),
            Ok(now) => Err(JournalError::Unavailable(format!(
                "{} now leads to {now} instead of {self}: restart the controller if that is meant",
                file.display()
            ))),
            Err(why) => Err(JournalError::Unavailable(format!("the address in {}: {why}", file.display()))),
        }
    }

    pub fn postgres(url: &str) -> Result<Self, ServerAddressError> {
        let malformed = ServerAddressError::Malformed { scheme: "postgres" };
        let Ok(options) = PgConnectOptions::from_str(url) else { return Err(malformed) };
        let options = options.application_name("kubewitness").statement_cache_capacity(STATEMENTS);
        // PgBouncer refuses the client's default. PostgreSQL itself has had the same default since version
        // 12.
        let options = options.extra_float_digits(None).disable_statement_logging();
        let database = options.get_database().unwrap_or_else(|| options.get_username());
        if is_cut(database) {
            return Err(malformed);
        }
        let place = format!("PostgreSQL at {}:{}/{database}", options.get_host(), options.get_port());
        Ok(Self { options: ServerOptions::Postgres(options), place, url: url.to_owned(), file: None })
    }

    pub fn mysql(url: &str) -> Result<Self, ServerAddressError> {
        let malformed = ServerAddressError::Malformed { scheme: "mysql" };
        let Ok(options) = MySqlConnectOptions::from_str(url) else { return Err(malformed) };
        let options = options.statement_cache_capacity(STATEMENTS).disable_statement_logging();
        let Some(database) = options.get_database() else {
            return Err(ServerAddressError::NoDatabase);
        };
        if is_cut(database) {
            return Err(malformed);
        }
        let place = format!("MySQL at {}:{}/{database}", options.get_host(), options.get_port());
        Ok(Self { options: ServerOptions::Mysql(options), place, url: url.to_owned(), file: None })
    }

    pub fn kind(&self) -> &'static str {
        match self.dialect() {
            ServerDialect::Postgres => "postgres",
            ServerDialect::Mysql => "mysql",
        }
    }

    pub fn dialect(&self) -> ServerDialect {
        match self.options {
            ServerOptions::Postgres(_) => ServerDialect::Postgres,
            ServerOptions::Mysql(_) => ServerDialect::Mysql,
        }
    }

    /// A session for reading, on the primary: a replica of the server would lag.
    pub async fn connect_for_reading(&self) -> StoreResult<ServerSession> {
        let mut session = self.dial_server().await.map_err(|refusal| refusal.error)?;
        let text = match self.dialect() {
            ServerDialect::Postgres => "SELECT CASE WHEN pg_is_in_recovery() THEN 1 ELSE 0 END",
            ServerDialect::Mysql => "SELECT CAST(@@global.read_only AS SIGNED)",
        };
        let is_copy =
            session.fetch_rows(text, Vec::new()).await?.first().map(|row| row.int_at(0)).transpose()?;
        if is_copy != Some(1) {
            return Ok(session);
        }
        Err(JournalError::Unavailable(format!(
            "{self} leads to a server that takes no writes, such as a replica of the primary: the address has to \
             lead to the primary"
        )))
    }

    /// Opens a session, or returns why not and whether a retry may succeed.
    pub async fn dial_server(&self) -> Result<ServerSession, SessionRefusal> {
        let late = |_| JournalError::Unavailable(format!("{self} has not answered for {CONNECT:?}"));
        let refused = |error| {
            let remedy = remedy_for(self.dialect(), &error);
            SessionRefusal { error: classify_error(self.dialect(), error), remedy }
        };
        let unread = |error| JournalError::Unavailable(format!("{self}: {error}"));
        let now = self.now().await?;
        address::expect_files(&now.url).await.map_err(unread)?;
        let mut session = match &now.options {
            ServerOptions::Postgres(options) => {
                let connected = timeout(CONNECT, PgConnection::connect_with(options)).await.map_err(late)?;
                let connected = connected.map_err(refused)?;
                send_at_once(options.get_port());
                ServerSession::new(Box::new(connected))
            }
            ServerOptions::Mysql(options) => {
                let connected =
                    timeout(CONNECT, MySqlConnection::connect_with(options)).await.map_err(late)?;
                let connected = connected.map_err(refused)?;
                send_at_once(options.get_port());
                ServerSession::new(Box::new(connected))
            }
        };
        match self.send_first_statements(&mut session).await {
            Ok(()) => Ok(session),
            Err(error) => Err(SessionRefusal { error, remedy: session.remedy() }),
        }
    }

    /// A session that no pooler shares.
    pub async fn dial_directly(&self) -> Result<ServerSession, SessionRefusal> {
        let mut session = self.dial_server().await?;
        let mut second = match timeout(SECOND, self.dial_server()).await {
            Ok(Ok(second)) => second,
            // The writer checks again in each transaction.
            Ok(Err(SessionRefusal { error, .. })) => {
                tracing::debug!(%error, "no second session to recognise a pooler by");
                return Ok(session);
            }
            Err(_) => {
                tracing::debug!("no second session to recognise a pooler by within {SECOND:?}");
                return Ok(session);
            }
        };
        match pooler::is_shared_by_pooler(&mut session, &mut second).await? {
            true => {
                let error = JournalError::Unavailable(pooler::LENT.into());
                Err(SessionRefusal { error, remedy: Some(pooler::REMEDY) })
            }
            false => Ok(session),
        }
    }

    /// Sends the first statements of every session.
    async fn send_first_statements(&self, session: &mut ServerSession) -> StoreResult<()> {
        match self.dialect() {
            ServerDialect::Postgres => session.run_script(POSTGRES).await,
            ServerDialect::Mysql => {
                session.run_script(MYSQL).await?;
                let rows = session.fetch_rows("SELECT CAST(version() AS @TEXT)", Vec::new()).await?;
                let version = rows.into_iter().next().map(|mut row| row.text(0)).transpose()?;
                let settings = match version.is_some_and(|version| version.contains("MariaDB")) {
                    true => format!("max_recursive_iterations = {STEPS}"),
                    // By default the server would report table sizes that are up to a day old.
                    false => {
                        format!(
                            "cte_max_recursion_depth = {STEPS}, SESSION information_schema_stats_expiry = 0"
                        )
                    }
                };
                session.run_script(&format!("SET SESSION {settings}")).await
            }
        }
    }

    async fn expect_one_primary(&self, session: &mut ServerSession) -> StoreResult<()> {
        for mut row in session.run_script_for_rows(CLUSTER).await? {
            if is_multi_primary(&row.text(0)?, &row.text(1)?) {
                session.note_remedy(
                    "keep the journal on a server with one primary, or in a group in single-primary mode",
                );
                return Err(JournalError::Unavailable(format!(
                    "{self} is a node of a cluster in which several nodes take writes (Galera, or a group in \
                     multi-primary mode): two controllers could write to one journal there"
                )));
            }
        }
        Ok(())
    }

    /// Makes a writer's commits durable as far as a session can choose, and reports a server that is
    /// configured otherwise.
    pub async fn make_durable(&self, session: &mut ServerSession) -> StoreResult<()> {
        match self.dialect() {
            ServerDialect::Postgres => {
                let text = "SELECT set_config('synchronous_commit', 'on', false)::bytea \
                            WHERE current_setting('synchronous_commit') = 'off'";
                session.fetch_rows(text, Vec::new()).await?;
                let text = "SELECT CAST(current_setting('fsync') AS @TEXT)";
                let rows = session.fetch_rows(text, Vec::new()).await?;
                let fsync = rows.into_iter().next().map(|mut row| row.text(0)).transpose()?;
                if fsync.as_deref() == Some("off") {
                    tracing::warn!(
                        "{self} has `fsync = off`: commits that it confirmed are lost when its machine dies"
                    );
                }
            }
            ServerDialect::Mysql => {
                self.expect_one_primary(session).await?;
                let text = "SELECT CAST(@@innodb_flush_log_at_trx_commit AS @BIGINT), \
                            CAST(@@max_allowed_packet AS @BIGINT), \
                            CAST(@@log_bin AS @BIGINT), CAST(@@sync_binlog AS @BIGINT)";
                let row = session.fetch_rows(text, Vec::new()).await?.into_iter().next();
                let Some(row) = row else { return Ok(()) };
                // After a crash, transactions that the binary log lacks are rolled back.
                let unsynced = [
                    ("innodb_flush_log_at_trx_commit", row.int_at(0)? != 1),
                    ("sync_binlog", row.int_at(2)? != 0 && row.int_at(3)? != 1),
                ];
                for (setting, _) in unsynced.into_iter().filter(|(_, is_unsynced)| *is_unsynced) {
                    tracing::warn!(
                        "{self} has `{setting}` other than 1: commits that it confirmed are lost when its machine \
                         dies"
                    );
                }
                if row.int_at(1)? < LEAST_PACKET {
                    session.note_remedy("raise it, 64 MiB is a good value");
                    return Err(JournalError::Unavailable(format!(
                        "the server's max_allowed_packet is below {} MiB",
                        LEAST_PACKET >> 20
                    )));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_cluster_with_several_primaries_is_told_from_other_servers() {
        for (name, value, expected) in [
            ("wsrep_ready", "ON", true),
            ("wsrep_ready", "OFF", false),
            ("group_replication_single_primary_mode", "OFF", true),
            ("group_replication_single_primary_mode", "ON", false),
        ] {
            assert_eq!(is_multi_primary(name, value), expected, "{name} = {value}");
        }
    }

    #[test]
    fn a_server_is_named_without_its_password() {
        let server = ServerAddress::postgres("postgres://ann:hush@db.example.com:5433/journal").unwrap();
        assert_eq!(server.to_string(), "PostgreSQL at db.example.com:5433/journal");
        let server =
            ServerAddress::mysql("mysql://ann:hush@db.example.com/journal?ssl-mode=REQUIRED").unwrap();
        assert_eq!(server.to_string(), "MySQL at db.example.com:3306/journal");
        for wrong in ["postgres://ann:hu sh@:x/", "nonsense hush", "postgres://ann:hu@s/h@db:5432/journal"] {
            let error = ServerAddress::postgres(wrong).err().unwrap().to_string();
            assert!(!error.contains("hu"), "{error}");
        }
        let error_of = |address: &str| ServerAddress::mysql(address).err().unwrap().to_string();
        assert!(error_of("mysql://ann:p@s/h@db/journal").contains("%40"));
        assert!(ServerAddress::mysql("mysql://ann:p%40s%2Fh@db/journal").is_ok());
        assert!(error_of("mysql://ann:hush@db").contains("names no database"));
    }

    #[tokio::test]
    async fn a_rotated_password_is_read_with_the_next_connection_and_another_database_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("address");
        let of = |server: &ServerAddress| server.url.clone();
        let server = ServerAddress::of("postgres://ann:old@db/journal").unwrap().read_again_from(&file);
        assert_eq!(of(&server.now().await.unwrap()), "postgres://ann:old@db/journal", "there is no file");
        std::fs::write(&file, "postgres://ann:new@db/journal\n").unwrap();
        assert_eq!(of(&server.now().await.unwrap()), "postgres://ann:new@db/journal");
        for (other, why) in
            [("postgres://ann:hush@db2/journal", "restart the controller"), ("hush", "begins with")]
        {
            std::fs::write(&file, other).unwrap();
            let error = server.now().await.err().unwrap().to_string();
            assert!(error.contains(why) && !error.contains("hush"), "{error}");
        }
    }
}
