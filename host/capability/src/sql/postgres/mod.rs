//! PostgreSQL.
//!
//! One statement writes any number of rows, as one array for each column, so the text stays the same and can
//! be prepared once. A failed statement aborts the transaction, so each has a savepoint before it.
//!
//! The fence is an advisory lock, which ends with the transaction; a row would have to be created and
//! removed. It keeps no pool, and knows no other capability.

mod faults;
mod rights;
mod values;

use std::collections::HashMap;
use std::str::FromStr;

use futures::StreamExt;
use kubewitness_core::address::is_cut;
use kubewitness_core::files::send_at_once;
use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue, TableWrite};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, Row, SqlSafeStr, Statement as _};

use super::guard::{self, GuardedStatement};
use super::receipt::{self, ReceiptRow as Kept, StoredReceipt};
use super::servers::columns::{self, TableColumn, TableColumns};
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

pub const CREATE: &str = "CREATE TABLE IF NOT EXISTS kubewitness_receipts (\
    plugin text NOT NULL, first bigint NOT NULL, last bigint NOT NULL, states bytea NOT NULL, \
    token text NOT NULL, at bigint NOT NULL)";
/// A lock for creating tables: two transactions that create the same table at once would fail.
const SHAPING: &str = "kubewitness/tables";
const COLUMNS: &str = "SELECT a.attname::text, format_type(a.atttypid, NULL) FROM pg_attribute a \
    WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped";
/// The most tables whose columns a connection remembers.
const TABLES: usize = 64;

pub struct PostgresLink {
    connection: PgConnection,
    /// The server's number of its session.
    session: i32,
    tables: HashMap<String, TableColumns>,
    /// Set when prepared statements or remembered columns may be outdated.
    stale: bool,
    number: u64,
}

/// The number of an advisory lock, from the FNV-1a hash of its name.
fn lock_number(name: &str) -> i64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.cast_signed()
}

fn fence_of(plugin: &str) -> i64 {
    lock_number(&format!("kubewitness/plugin/{plugin}"))
}

/// The settings of every connection. Waiting is limited on the server too, so that work that a client has
/// given up ends. An acknowledged commit is on disk, whatever the server's default is. A client that was
/// stopped in the middle of a large answer accepts nothing, and no statement timeout ends a server that waits
/// to send.
fn connection_settings() -> String {
    format!(
        "SET standard_conforming_strings = on; SET client_min_messages = warning; \
         SET default_transaction_isolation = 'read committed'; \
         SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
         SET tcp_user_timeout = {}; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; \
         SELECT pg_backend_pid()",
        STATEMENT.as_millis(),
        LOCK.as_millis(),
        SILENT.as_millis(),
        SILENT.as_millis()
    )
}

impl PostgresLink {
    /// Begins a transaction that holds a lock, in the session that was prepared. Returns whether it may
    /// write.
    async fn begin_behind(&mut self, begin: &str, lock: &str) -> Result<bool, sqlx::Error> {
        let text = format!(
            "{begin}; SELECT pg_backend_pid(), current_setting('transaction_read_only') <> 'on', {lock}; SAVEPOINT kw"
        );
        let answers = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut self.connection).await?;
        let row = answers.first().ok_or(sqlx::Error::RowNotFound)?;
        let answered: i32 = row.try_get(0)?;
        expect_session(self.session.into(), answered.into())?;
        row.try_get(1)
    }

    async fn table_columns(&mut self, table: &str, quoted: &str) -> Result<TableColumns, SqlFault> {
        if let Some(columns) = self.tables.get(table) {
            return Ok(columns.clone());
        }
        let rows = sqlx::query(COLUMNS).bind(quoted).fetch_all(&mut self.connection).await;
        let mut columns = TableColumns::new();
        for row in rows.map_err(|error| Self::classify_fault(&error))? {
            let read = || Ok::<_, sqlx::Error>((row.try_get::<String, _>(0)?, row.try_get::<String, _>(1)?));
            let (name, of) = read().map_err(|error| Self::classify_fault(&error))?;
            columns.insert(name, TableColumn { kind: values::column_kind(&of), of });
        }
        if columns.is_empty() {
            return Err(SqlFault::Own(GrantError::Invalid(format!("no such table: {table}"))));
        }
        if self.tables.len() >= TABLES {
            self.tables.clear();
        }
        self.tables.insert(table.to_owned(), columns.clone());
        Ok(columns)
    }

    /// Forgets remembered facts after an error: another program may have changed a table since its columns
    /// were read.
    fn note_result<T>(&mut self, done: Result<T, SqlFault>) -> Result<T, SqlFault> {
        if done.is_err() {
            self.tables.clear();
            self.stale = true;
        }
        done
    }

    async fn prepare_statement(&mut self, statement: &str) -> Result<sqlx::postgres::PgStatement, SqlFault> {
        let text = AssertSqlSafe(statement.to_owned()).into_sql_str();
        // No types are passed, so that the server reports the types that it expects.
        self.connection.prepare(text).await.map_err(|error| Self::classify_fault(&error))
    }

    async fn run_prepared(&mut self, statement: &str, given: Vec<SqlValue>) -> Result<u64, SqlFault> {
        let prepared = self.prepare_statement(statement).await?;
        let arguments = values::bind_values(&prepared, given)?;
        let done = prepared.query_with(arguments).execute(&mut self.connection).await;
        done.map(|done| done.rows_affected()).map_err(|error| Self::classify_fault(&error))
    }

    async fn write_rows(&mut self, write: TableWrite) -> Result<u64, SqlFault> {
        let own = SqlFault::Own;
        write::check_shape(&write, SqlDialect::Postgres).map_err(own)?;
        let quoted = write::quote_name(&write.table, SqlDialect::Postgres);
        let known = self.table_columns(&write.table, &quoted).await?;
        let of = columns::check(&write, &known, SqlDialect::Postgres).map_err(own)?;
        let mut plan = write::plan_write(write, SqlDialect::Postgres).map_err(own)?;
        let arrays: Vec<_> = of.iter().map(|column| values::array_type(column.kind)).collect();
        let casts: Vec<_> = of.iter().map(|column| values::cast_type(column)).collect();
        let text = plan.unnested_statement(&arrays, &casts);
        let arguments = values::bind_arrays(std::mem::take(&mut plan.rows), &of)?;
        let done = sqlx::query_with(AssertSqlSafe(text), arguments).execute(&mut self.connection).await;
        done.map(|done| done.rows_affected()).map_err(|error| Self::classify_fault(&error))
    }

    async fn read(
        &mut self,
        statement: &GuardedStatement<'_>,
        given: Vec<SqlValue>,
    ) -> Result<ValueRows, SqlFault> {
        let text = guard::with_dollars(statement.text).map_err(SqlFault::Own)?;
        let prepared = self.prepare_statement(&text).await?;
        values::check_columns(&prepared)?;
        let arguments = values::bind_values(&prepared, given)?;
        let rows = prepared.query_with(arguments).fetch(&mut self.connection);
        let rows = rows.map(|row| {
            row.and_then(|row| values::decode_row(&row)).map_err(|error| Self::classify_fault(&error))
        });
        collect_bounded(rows, SqlFault::Own).await
    }
}

impl ServerLink for PostgresLink {
    type Options = PgConnectOptions;

    const DIALECT: SqlDialect = SqlDialect::Postgres;
    const FAILS_WHOLE: bool = true;
    const TABLES: &str = "deploy/schema/postgres/receipts.sql";
    const SHAPING_COMMITS: bool = false;

    fn parse_options(url: &str) -> Result<Self::Options, ServerFailure> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(ServerFailure::OtherScheme("postgres://"));
        }
        // The client's message could repeat a part of the address.
        let options = PgConnectOptions::from_str(url).map_err(|_| ServerFailure::UnreadableAddress)?;
        if options.get_database().is_some_and(is_cut) {
            return Err(ServerFailure::UnreadableAddress);
        }
        Ok(options
            .application_name("kubewitness")
            // PgBouncer refuses the client's default, which is also the server's own since PostgreSQL 12.
            .extra_float_digits(None)
            .statement_cache_capacity(STATEMENTS)
            .disable_statement_logging())
    }

    async fn connect_link(options: &Self::Options) -> Result<Self, sqlx::Error> {
        let mut connection = options.connect().await?;
        send_at_once(options.get_port());
        let answers = sqlx::raw_sql(AssertSqlSafe(connection_settings())).fetch_all(&mut connection).await?;
        let session = answers.last().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        Ok(Self {
            connection,
            session,
            tables: HashMap::new(),
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

    const SET_MARK: &str =
        "SELECT set_config('kubewitness.mark', md5(random()::text || clock_timestamp()), false)";
    const READ_MARK: &str = "SELECT current_setting('kubewitness.mark', true)";

    async fn read_mark(&mut self, text: &'static str) -> Result<Option<String>, sqlx::Error> {
        let answers = sqlx::raw_sql(text).fetch_all(&mut self.connection).await?;
        answers.last().map_or(Ok(None), |row| row.try_get(0))
    }

    async fn run(&mut self, text: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(&mut self.connection).await.map(drop)
    }

    async fn create_own_tables(&mut self) -> Result<(), sqlx::Error> {
        // If the tables exist, the right to create them is not needed.
        let find_table = sqlx::query("SELECT to_regclass('kubewitness_receipts') IS NOT NULL");
        if find_table.fetch_one(&mut self.connection).await?.try_get(0)? {
            return Ok(());
        }
        let shaping = lock_number(SHAPING);
        self.run(&format!("BEGIN; SELECT pg_advisory_xact_lock({shaping}); {CREATE}; COMMIT")).await
    }

    async fn begin_fenced(&mut self, mode: TransactionMode, plugin: &str) -> Result<bool, sqlx::Error> {
        let lock = format!("pg_advisory_xact_lock_shared({})", fence_of(plugin));
        match mode {
            TransactionMode::ReadWrite => expect_writable(self.begin_behind("BEGIN", &lock).await?)?,
            TransactionMode::ReadOnly => drop(self.begin_behind("BEGIN READ ONLY", &lock).await?),
        }
        Ok(true)
    }

    async fn begin_behind_fence(&mut self, mode: TransactionMode, plugin: &str) -> Result<(), sqlx::Error> {
        let lock = format!("pg_advisory_xact_lock({})", fence_of(plugin));
        let may_write = self.begin_behind("BEGIN", &lock).await?;
        expect_writable(may_write || mode == TransactionMode::ReadOnly)
    }

    async fn await_schema_turn(&mut self) -> Result<(), sqlx::Error> {
        self.tables.clear();
        self.run(&format!("SELECT pg_advisory_xact_lock({})", lock_number(SHAPING))).await
    }

    fn receipt_text(receipt: &StoredReceipt) -> String {
        let text = receipt_text(receipt, |hex| format!("'\\x{hex}'::bytea"));
        // A transaction that failed would take a lone COMMIT for a rollback, without a word.
        format!("{}COMMIT", if text.is_empty() { "SELECT 1; " } else { &text })
    }

    async fn execute(&mut self, statement: &str, values: Vec<SqlValue>) -> Result<u64, SqlFault> {
        let text = guard::with_dollars(statement).map_err(SqlFault::Own)?;
        let done = self.run_prepared(&text, values).await;
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

    const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

    async fn excess_rights(&mut self) -> Result<ExcessRights, sqlx::Error> {
        rights::excess_rights(&mut self.connection).await
    }

    async fn receipt_rows(&mut self) -> Result<Option<Vec<Kept>>, sqlx::Error> {
        let find_table = sqlx::query("SELECT to_regclass('kubewitness_receipts') IS NOT NULL");
        if !find_table.fetch_one(&mut self.connection).await?.try_get(0)? {
            return Ok(None);
        }
        let rows: Vec<receipt::ReceiptColumns> =
            sqlx::query_as(receipt::KEPT).fetch_all(&mut self.connection).await?;
        Ok(Some(rows.into_iter().map(Kept::from).collect()))
    }
}
