//! One session: sends statements with a time limit, and knows whether it may be reused.

use std::time::Duration;

use kubewitness_core::ports::JournalError;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::store::rows::StoreResult;
use crate::store::server::engine::dialect::ServerDialect;
use crate::store::server::engine::fault::{classify_error, remedy_for};
use crate::store::server::engine::link::{ServerLink, SqlParam, SqlRow};

/// How long to wait for a silent server: its machine or the network may be gone, without any packet that says
/// so.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same for all writes of one transaction, which may be many large documents.
pub(crate) const WRITING: Duration = Duration::from_secs(120);

pub(crate) struct ServerSession {
    link: Box<dyn ServerLink>,
    /// False while a query is open. Its caller may leave before the answer arrives, and the next query would
    /// read that answer.
    is_clean: bool,
    in_snapshot: bool,
    /// The next step for a person after the last error, if waiting does not help.
    remedy: Option<&'static str>,
}

fn silent_server_error() -> JournalError {
    JournalError::Unavailable(format!("the server has not answered for {} s", PATIENCE.as_secs()))
}

impl ServerSession {
    pub(crate) fn new(link: Box<dyn ServerLink>) -> Self {
        Self { link, is_clean: true, in_snapshot: false, remedy: None }
    }

    pub fn dialect(&self) -> ServerDialect {
        self.link.dialect()
    }

    /// Whether no query is open on it, and no error occurred.
    pub fn is_clean(&self) -> bool {
        self.is_clean && !self.in_snapshot
    }

    pub fn remedy(&self) -> Option<&'static str> {
        self.remedy
    }

    /// Records that only a person can fix the problem with the server.
    pub fn note_remedy(&mut self, remedy: &'static str) {
        self.remedy = Some(remedy);
    }

    /// Begins a snapshot for everything until [`close_snapshot`](Self::close_snapshot).
    pub async fn open_snapshot(&mut self) -> StoreResult<()> {
        self.in_snapshot = true;
        self.run_script(match self.dialect() {
            ServerDialect::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            ServerDialect::Mysql => {
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                 START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
            }
        })
        .await
    }

    pub async fn close_snapshot(&mut self) -> StoreResult<()> {
        self.run_script("ROLLBACK").await?;
        self.in_snapshot = false;
        Ok(())
    }

    pub(crate) async fn fetch_rows(
        &mut self,
        shared: &str,
        params: Vec<SqlParam>,
    ) -> StoreResult<Vec<SqlRow>> {
        let done = timeout(PATIENCE, self.link_for_query()?.fetch_rows(shared, params)).await;
        self.note_answer(done)
    }

    pub async fn run_script(&mut self, text: &str) -> StoreResult<()> {
        self.run_script_for_rows(text).await.map(drop)
    }

    /// The answers to statements without parameters that are sent together.
    pub(crate) async fn run_script_for_rows(&mut self, text: &str) -> StoreResult<Vec<SqlRow>> {
        let done = timeout(PATIENCE, self.link_for_query()?.run_script(text)).await;
        self.note_answer(done)
    }

    /// The first column of each row.
    pub(crate) async fn fetch_numbers(&mut self, text: &str, params: Vec<SqlParam>) -> StoreResult<Vec<i64>> {
        self.fetch_rows(text, params).await?.into_iter().map(|row| row.int_at(0)).collect()
    }

    /// The link for one query, whose result goes to [`note_answer`](Self::note_answer).
    pub(crate) fn link_for_query(&mut self) -> StoreResult<&mut dyn ServerLink> {
        if !self.is_clean {
            return Err(JournalError::Unavailable("the connection was given up".into()));
        }
        self.is_clean = false;
        Ok(&mut *self.link)
    }

    pub(crate) fn note_answer<T>(&mut self, done: Result<Result<T, sqlx::Error>, Elapsed>) -> StoreResult<T> {
        let answer = done.map_err(|_| silent_server_error())?;
        let answer = answer.map_err(|error| {
            self.remedy = remedy_for(self.link.dialect(), &error);
            classify_error(self.link.dialect(), error)
        })?;
        self.is_clean = true;
        Ok(answer)
    }
}
