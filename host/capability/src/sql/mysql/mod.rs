//! MySQL and MariaDB.
//!
//! A statement writes several rows. A failed statement is undone alone, so no savepoint is needed. The fence
//! is a row, which a transaction locks in shared or exclusive mode: locks by name outlive the transaction
//! there.
//!
//! Creating a table commits implicitly, so that happens before a call writes. It keeps no pool, and knows no
//! other capability.

mod cluster;
mod faults;
mod rights;
mod tables;
mod values;

use std::str::FromStr;

use futures::StreamExt;
use kubewitness_core::address::is_cut;
use kubewitness_core::files::send_at_once;
use kubewitness_core::ports::{SqlDialect, SqlValue, TableWrite};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

#[cfg(test)]
pub use self::tables::REMEMBERS_KEYS;
use self::tables::{ENGINE, KnownTables};
use super::guard::GuardedStatement;
use super::receipt::{self, ReceiptRow as Kept, StoredReceipt};
use super::servers::columns;
use super::servers::pooler::expect_session;
use super::servers::reasons::{ServerFailure, expect_writable};
use super::servers::rights::ExcessRights;
use super::servers::{
    LOCK, SILENT, STATEMENT, STATEMENTS, ServerLink, floor_sql, receipt_text, survey_sql, text_literal,
};
use super::values::{ValueRows, collect_bounded};
use super::{
    FloorColumns, SqlFault, SurveyColumns, SurveyRow, TransactionMode, next_connection_number, write,
};

/// The columns have primary keys because replicated groups accept no rows without one, and some servers no
/// such tables.
pub const CREATE: &str = "CREATE TABLE IF NOT EXISTS kubewitness_receipts (\
    plugin VARCHAR(63) NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, states LONGBLOB NOT NULL, \
    token VARCHAR(128) NOT NULL, at BIGINT NOT NULL, INDEX (plugin, last), INDEX (token), \
    number BIGINT AUTO_INCREMENT PRIMARY KEY) \
    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin; \
    CREATE TABLE IF NOT EXISTS kubewitness_fences (plugin VARCHAR(63) NOT NULL PRIMARY KEY) \
    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
const THERE: &str = "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
    AND table_name IN ('kubewitness_receipts', 'kubewitness_fences')";
/// Checked even if the user has the right to write: such a user could write to a replica.
const READ_ONLY: &str = "CAST(@@GLOBAL.read_only AS CHAR)";
/// Standard quotes, no escapes, and no silent conversion of values that do not fit.
const MODE: &str = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,STRICT_ALL_TABLES,NO_ZERO_DATE,\
    NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION";
pub struct MysqlLink {
    connection: MySqlConnection,
    /// The server's number of its session.
    session: i64,
    /// Other nodes of its cluster take writes, too.
    has_several_primaries: bool,
    /// The most bytes of values in one statement.
    most: usize,
    tables: KnownTables,
    stale: bool,
    number: u64,
}

/// The settings of every connection. Waiting is limited on the server too, so that work that a client has
/// given up ends.
fn connection_settings(version: &str) -> String {
    let seconds = STATEMENT.as_secs();
    let statement = if version.contains("MariaDB") {
        format!("max_statement_time = {seconds}")
    } else {
        // Only for reading statements; MySQL has no limit for others.
        format!("max_execution_time = {}", seconds * 1000)
    };
    let (lock, silent) = (LOCK.as_secs(), SILENT.as_secs());
    format!(
        "SET SESSION sql_mode = '{MODE}', autocommit = 1, completion_type = 0, \
         sql_select_limit = 18446744073709551615, {statement}, innodb_lock_wait_timeout = {lock}, \
         lock_wait_timeout = {lock}, wait_timeout = {silent}, default_storage_engine = InnoDB; \
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )
}

/// Expects that the server accepts writes, unless the transaction only reads.
fn expect_mode(mode: TransactionMode, read_only: &str) -> Result<(), sqlx::Error> {
    expect_writable(mode == TransactionMode::ReadOnly || matches!(read_only, "0" | "OFF"))
}

impl MysqlLink {
    async fn run_prepared(&mut self, statement: &str, given: Vec<SqlValue>) -> Result<u64, SqlFault> {
        let arguments = values::bind_values(given)?;
        let query = sqlx::query_with(AssertSqlSafe(statement.to_owned()), arguments);
        let done = query.execute(&mut self.connection).await;
        done.map(|done| done.rows_affected()).map_err(|error| Self::classify_fault(&error))
    }

    async fn write_rows(&mut self, write: TableWrite) -> Result<u64, SqlFault> {
        write::check_shape(&write, SqlDialect::Mysql).map_err(SqlFault::Own)?;
        let table = self.tables.describe_table(&mut self.connection, &write.table).await?;
        table.check_key(&write).map_err(SqlFault::Own)?;
        columns::check(&write, &table.columns, SqlDialect::Mysql).map_err(SqlFault::Own)?;
        let plan = write::plan_write(write, SqlDialect::Mysql).map_err(SqlFault::Own)?;
        let statements = plan.into_statements(self.most);
        let several = statements.len() > 1;
        let fault = |error: sqlx::Error| Self::classify_fault(&error);
        if several {
            self.run("SAVEPOINT kw").await.map_err(fault)?;
        }
        let mut affected = 0;
        for (statement, values) in statements {
            match self.run_prepared(&statement, values).await {
                Ok(rows) => affected += rows,
                Err(SqlFault::Own(error)) if several => {
                    self.run("ROLLBACK TO SAVEPOINT kw").await.map_err(fault)?;
                    return Err(SqlFault::Own(error));
                }
                Err(lost) => return Err(lost),
            }
        }
        Ok(affected)
    }

    async fn read(
        &mut self,
        statement: &GuardedStatement<'_>,
        given: Vec<SqlValue>,
    ) -> Result<ValueRows, SqlFault> {
        let arguments = values::bind_values(given)?;
        let query = sqlx::query_with(AssertSqlSafe(statement.text.to_owned()), arguments);
        let rows = query.fetch(&mut self.connection).map(|row| match row {
            Ok(row) => values::decode_row(&row),
            Err(error) => Err(Self::classify_fault(&error)),
        });
        collect_bounded(rows, SqlFault::Own).await
    }

    /// Forgets a table after an error: another program may have changed it since its columns were read.
    fn note_result<T>(&mut self, done: Result<T, SqlFault>) -> Result<T, SqlFault> {
        if done.is_err() {
            self.tables.clear();
            self.stale = true;
        }
        done
    }
}

impl ServerLink for MysqlLink {
    type Options = MySqlConnectOptions;

    const DIALECT: SqlDialect = SqlDialect::Mysql;
    const FAILS_WHOLE: bool = false;
    const TABLES: &str = "deploy/schema/mysql/receipts.sql";
    const SHAPING_COMMITS: bool = true;

    fn parse_options(url: &str) -> Result<Self::Options, ServerFailure> {
        let Some(rest) = ["mysql://", "mariadb://"].iter().find_map(|scheme| url.strip_prefix(scheme)) else {
            return Err(ServerFailure::OtherScheme("mysql://"));
        };
        // The client's message could repeat a part of the address.
        let options = MySqlConnectOptions::from_str(&format!("mysql://{rest}"));
        let options = options.map_err(|_| ServerFailure::UnreadableAddress)?;
        if options.get_database().is_some_and(is_cut) {
            return Err(ServerFailure::UnreadableAddress);
        }
        if options.get_database().is_none_or(str::is_empty) {
            return Err(ServerFailure::NoDatabaseNamed);
        }
        Ok(options
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .statement_cache_capacity(STATEMENTS)
            .disable_statement_logging())
    }

    async fn connect_link(options: &Self::Options) -> Result<Self, sqlx::Error> {
        let mut connection = options.connect().await?;
        send_at_once(options.get_port());
        let about = "SELECT VERSION(), CAST(@@max_allowed_packet AS SIGNED), CAST(connection_id() AS SIGNED)";
        let row = sqlx::query(about).fetch_one(&mut connection).await?;
        let (version, packet) = (row.try_get::<String, _>(0)?, row.try_get::<i64, _>(1)?);
        let session = row.try_get(2)?;
        let settings = format!("{}; {}", connection_settings(&version), cluster::CLUSTER);
        let answers = sqlx::raw_sql(AssertSqlSafe(settings)).fetch_all(&mut connection).await?;
        let has_several_primaries = cluster::has_several_primaries(&answers)?;
        // The other half is for the statement and for the protocol's overhead.
        let most = usize::try_from(packet / 2).unwrap_or(0).clamp(1024, super::values::VALUE_BYTES);
        Ok(Self {
            connection,
            session,
            has_several_primaries,
            most,
            tables: KnownTables::default(),
            stale: false,
            number: next_connection_number(),
        })
    }

    fn classify_connect_error(error: &sqlx::Error) -> ServerFailure {
        faults::classify_connect_error(error)
    }

    fn classify_fault(error: &sqlx::Error) -> SqlFault {
        faults::classify_fault(error)
    }

    fn is_fresh(&self) -> bool {
        !self.stale
    }

    const SET_MARK: &str = "SET @kubewitness_mark = uuid(); SELECT CAST(@kubewitness_mark AS CHAR)";
    const READ_MARK: &str = "SELECT CAST(@kubewitness_mark AS CHAR)";

    async fn read_mark(&mut self, text: &'static str) -> Result<Option<String>, sqlx::Error> {
        let answers = sqlx::raw_sql(text).fetch_all(&mut self.connection).await?;
        answers.last().map_or(Ok(None), |row| row.try_get(0))
    }

    async fn run(&mut self, text: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(&mut self.connection).await.map(drop)
    }

    async fn create_own_tables(&mut self) -> Result<(), sqlx::Error> {
        // If the tables exist, the right to create them is not needed.
        let table_count: i64 = sqlx::query_scalar(THERE).fetch_one(&mut self.connection).await?;
        if table_count == 2 { Ok(()) } else { self.run(CREATE).await }
    }

    async fn begin_fenced(&mut self, mode: TransactionMode, plugin: &str) -> Result<bool, sqlx::Error> {
        cluster::expect_one_primary(mode, self.has_several_primaries)?;
        let start = match mode {
            TransactionMode::ReadWrite => "START TRANSACTION",
            TransactionMode::ReadOnly => "START TRANSACTION READ ONLY",
        };
        let text = format!(
            "{start}; SELECT CAST(connection_id() AS SIGNED), {READ_ONLY} FROM kubewitness_fences WHERE plugin = {} \
             LOCK IN SHARE MODE",
            text_literal(plugin)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut self.connection).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        expect_session(self.session, row.try_get(0)?)?;
        expect_mode(mode, row.try_get(1)?)?;
        Ok(true)
    }

    async fn begin_behind_fence(&mut self, mode: TransactionMode, plugin: &str) -> Result<(), sqlx::Error> {
        cluster::expect_one_primary(mode, self.has_several_primaries)?;
        let plugin = text_literal(plugin);
        let text = format!(
            "START TRANSACTION; INSERT INTO kubewitness_fences (plugin) VALUES ({plugin}) \
             ON DUPLICATE KEY UPDATE plugin = {plugin}; SELECT CAST(connection_id() AS SIGNED), {READ_ONLY}"
        );
        let answers = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut self.connection).await?;
        let row = answers.last().ok_or(sqlx::Error::RowNotFound)?;
        expect_session(self.session, row.try_get(0)?)?;
        expect_mode(mode, row.try_get(1)?)
    }

    /// The server itself locks tables.
    async fn await_schema_turn(&mut self) -> Result<(), sqlx::Error> {
        self.tables.clear();
        Ok(())
    }

    fn receipt_text(receipt: &StoredReceipt) -> String {
        format!("{}COMMIT", receipt_text(receipt, |hex| format!("X'{hex}'")))
    }

    async fn execute(&mut self, statement: &str, values: Vec<SqlValue>) -> Result<u64, SqlFault> {
        let done = self.run_prepared(statement, values).await;
        self.note_result(done)
    }

    async fn write(&mut self, write: TableWrite) -> Result<u64, SqlFault> {
        let done = self.write_rows(write).await;
        self.note_result(done)
    }

    async fn query(
        &mut self,
        statement: &GuardedStatement<'_>,
        values: Vec<SqlValue>,
    ) -> Result<ValueRows, SqlFault> {
        let done = self.read(statement, values).await;
        self.note_result(done)
    }

    fn connection_number(&self) -> u64 {
        self.number
    }

    async fn floor_rows(&mut self, plugin: &str) -> Result<Vec<FloorColumns>, sqlx::Error> {
        sqlx::query_as(AssertSqlSafe(floor_sql(plugin))).fetch_all(&mut self.connection).await
    }

    async fn survey_rows(&mut self, plugin: &str) -> Result<Vec<SurveyRow>, sqlx::Error> {
        let rows = sqlx::query_as(AssertSqlSafe(survey_sql(plugin))).fetch_all(&mut self.connection).await?;
        Ok(rows.into_iter().map(|row: SurveyColumns| row.into()).collect())
    }

    async fn has_token(&mut self, token: &str) -> Result<bool, sqlx::Error> {
        let select =
            format!("SELECT 1 FROM kubewitness_receipts WHERE token = {} LIMIT 1", text_literal(token));
        let found = sqlx::query(AssertSqlSafe(select)).fetch_optional(&mut self.connection).await?;
        Ok(found.is_some())
    }

    const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
        START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

    async fn excess_rights(&mut self) -> Result<ExcessRights, sqlx::Error> {
        rights::excess_rights(&mut self.connection).await
    }

    async fn receipt_rows(&mut self) -> Result<Option<Vec<Kept>>, sqlx::Error> {
        let engine = sqlx::query(ENGINE).bind("kubewitness_receipts");
        if engine.fetch_optional(&mut self.connection).await?.is_none() {
            return Ok(None);
        }
        let rows: Vec<receipt::ReceiptColumns> =
            sqlx::query_as(receipt::KEPT).fetch_all(&mut self.connection).await?;
        Ok(Some(rows.into_iter().map(Kept::from).collect()))
    }
}
