//! The stores' own bulk inserts: what somebody would write who keeps every state in a table, with
//! the fastest statement that the store has for many rows, a transaction a batch.

use std::path::Path;

use anyhow::Result;
use kubewitness_core::ports::Witnessed;
use kubewitness_harness::Service;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

/// Rows of one statement that has a place for each value.
const ROWS: usize = 64;

pub enum Bulk {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    Mysql(MySqlConnection),
}

/// One state as a row.
struct Row<'a> {
    seq: i64,
    version: i64,
    uid: &'a str,
    status: String,
    document: &'a [u8],
}

fn rows(first: usize, states: &[Witnessed]) -> Result<Vec<Row<'_>>> {
    let row = |(index, state)| {
        let state: &Witnessed = state;
        Ok(Row {
            seq: (first + index) as i64,
            version: state.resource_version.as_str().parse()?,
            uid: &state.object.uid,
            status: serde_json::to_string(&*state.status)?,
            document: &state.document,
        })
    };
    states.iter().enumerate().map(row).collect()
}

/// Binds the rows of one statement, each value in its place.
macro_rules! many {
    ($transaction:expr, $rows:expr) => {
        for rows in $rows.chunks(ROWS) {
            let places = vec!["(?,?,?,?,?)"; rows.len()].join(",");
            let text = format!("INSERT INTO states (seq, version, uid, status, document) VALUES {places}");
            let mut query = sqlx::query(AssertSqlSafe(text));
            for row in rows {
                query = query.bind(row.seq).bind(row.version).bind(row.uid);
                query = query.bind(row.status.as_str()).bind(row.document);
            }
            query.execute(&mut *$transaction).await?;
        }
    };
}

impl Bulk {
    pub async fn sqlite(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
        let mut connection = options.connect().await?;
        sqlx::raw_sql(
            "CREATE TABLE states (seq INTEGER PRIMARY KEY, version INTEGER NOT NULL, uid TEXT NOT NULL, \
             status TEXT NOT NULL, document BLOB NOT NULL, UNIQUE (version, uid))",
        )
        .execute(&mut connection)
        .await?;
        Ok(Self::Sqlite(connection))
    }

    pub async fn server(service: Service, url: &str) -> Result<Self> {
        let table = |blob: &str| {
            AssertSqlSafe(format!(
                "CREATE TABLE states (seq BIGINT PRIMARY KEY, version BIGINT NOT NULL, uid VARCHAR(64) NOT NULL, \
                 status TEXT NOT NULL, document {blob} NOT NULL, UNIQUE (version, uid))"
            ))
        };
        Ok(match service {
            Service::Postgres => {
                let mut connection = url.parse::<PgConnectOptions>()?.connect().await?;
                sqlx::raw_sql(table("BYTEA")).execute(&mut connection).await?;
                Self::Postgres(connection)
            }
            Service::MariaDb | Service::MySql => {
                let mut connection = url.parse::<MySqlConnectOptions>()?.connect().await?;
                sqlx::raw_sql(table("MEDIUMBLOB")).execute(&mut connection).await?;
                Self::Mysql(connection)
            }
        })
    }

    pub async fn insert(&mut self, first: usize, states: &[Witnessed]) -> Result<()> {
        let rows = rows(first, states)?;
        match self {
            Self::Sqlite(connection) => {
                let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
                many!(transaction, rows);
                transaction.commit().await?;
            }
            Self::Mysql(connection) => {
                let mut transaction = connection.begin().await?;
                many!(transaction, rows);
                transaction.commit().await?;
            }
            // One statement, an array a column.
            Self::Postgres(connection) => {
                let text = "INSERT INTO states (seq, version, uid, status, document) \
                            SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bytea[])";
                let query = sqlx::query(text)
                    .bind(rows.iter().map(|row| row.seq).collect::<Vec<_>>())
                    .bind(rows.iter().map(|row| row.version).collect::<Vec<_>>())
                    .bind(rows.iter().map(|row| row.uid).collect::<Vec<_>>())
                    .bind(rows.iter().map(|row| row.status.as_str()).collect::<Vec<_>>())
                    .bind(rows.iter().map(|row| row.document).collect::<Vec<_>>());
                query.execute(connection).await?;
            }
        }
        Ok(())
    }

    pub async fn close(self) -> Result<()> {
        match self {
            Self::Sqlite(connection) => connection.close().await?,
            Self::Postgres(connection) => connection.close().await?,
            Self::Mysql(connection) => connection.close().await?,
        }
        Ok(())
    }
}
