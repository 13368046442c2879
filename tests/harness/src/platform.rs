//! Reads the persistence plugin's tables, as somebody who depends on them would.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::sqlite::SqliteRow;
use sqlx::{ConnectOptions, Row as _, SqliteConnection};

/// A writer commits in milliseconds; a test machine may be slow.
const BUSY: Duration = Duration::from_secs(20);

/// The columns that both tables have; this list is the contract.
const COLUMNS: &str = "id, seq, source, api_group, kind, namespace, name, uid, resource_version, change, phase, \
    reason, message, attempt, ready, total, exit_code, terminal, owner_kind, owner_name, observed_at";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub id: String,
    pub seq: i64,
    pub source: String,
    pub api_group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub change: String,
    pub phase: String,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub attempt: i64,
    pub ready: i64,
    pub total: i64,
    pub exit_code: Option<i64>,
    pub terminal: bool,
    pub owner_kind: Option<String>,
    pub owner_name: Option<String>,
    pub observed_at: String,
}

fn read(row: &SqliteRow) -> Result<Row, sqlx::Error> {
    Ok(Row {
        id: row.try_get("id")?,
        seq: row.try_get("seq")?,
        source: row.try_get("source")?,
        api_group: row.try_get("api_group")?,
        kind: row.try_get("kind")?,
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
        uid: row.try_get("uid")?,
        resource_version: row.try_get("resource_version")?,
        change: row.try_get("change")?,
        phase: row.try_get("phase")?,
        reason: row.try_get("reason")?,
        message: row.try_get("message")?,
        attempt: row.try_get("attempt")?,
        ready: row.try_get("ready")?,
        total: row.try_get("total")?,
        exit_code: row.try_get("exit_code")?,
        terminal: row.try_get("terminal")?,
        owner_kind: row.try_get("owner_kind")?,
        owner_name: row.try_get("owner_name")?,
        observed_at: row.try_get("observed_at")?,
    })
}

pub struct Platform {
    connection: SqliteConnection,
}

impl Platform {
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(BUSY);
        let connection = options.connect().await.with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { connection })
    }

    /// Every state of one source, by position.
    pub async fn history(&mut self, source: &str) -> Result<Vec<Row>> {
        self.rows("object_history", source).await
    }

    /// The newest state of each object of one source.
    pub async fn status(&mut self, source: &str) -> Result<Vec<Row>> {
        self.rows("object_status", source).await
    }

    async fn rows(&mut self, table: &'static str, source: &str) -> Result<Vec<Row>> {
        let statement = format!("SELECT {COLUMNS} FROM {table} WHERE source = ? ORDER BY seq");
        let rows =
            sqlx::query(sqlx::AssertSqlSafe(statement)).bind(source).fetch_all(&mut self.connection).await;
        let rows = rows.with_context(|| format!("reading {table}"))?;
        rows.iter().map(read).collect::<Result<_, _>>().with_context(|| format!("a row of {table}"))
    }

    pub async fn count(&mut self) -> Result<i64> {
        let count =
            sqlx::query_scalar("SELECT count(*) FROM object_history").fetch_one(&mut self.connection).await;
        count.context("counting object_history")
    }

    /// What the history says each state's phase was before.
    pub async fn previous_phases(&mut self, uid: &str) -> Result<Vec<(Option<String>, String)>> {
        let statement = "SELECT previous_phase, phase FROM object_history WHERE uid = ? ORDER BY seq";
        let rows = sqlx::query_as(statement).bind(uid).fetch_all(&mut self.connection).await;
        rows.context("reading previous phases")
    }
}
