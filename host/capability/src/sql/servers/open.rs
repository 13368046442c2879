//! The transaction of one call on a server. If it is dropped without an end, it closes its connection, and
//! the server rolls it back.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use kubewitness_core::intents::commits::NotedCommit;
use kubewitness_core::ports::{GrantError, SqlValue, TableCopy, TableWrite};

use super::held::HeldLink;
use super::{RemoteDatabase, ServerLink, TransactionMode, in_time, prune_sql, silent_fault, survey_link};
use crate::sql::guard::{self, StatementPurpose};
use crate::sql::receipt::StoredReceipt;
use crate::sql::servers::reasons::CANT_BE_WRITTEN;
use crate::sql::values::{ValueRows, check_size, fits_arity};
use crate::sql::{CommitError, ReceiptPruning, ReceiptSurvey, SqlFault, SqlTransaction, only_reads, write};

/// A savepoint for the case that the next statement fails.
const SAVE: &str = "RELEASE SAVEPOINT kw; SAVEPOINT kw";
const RETURN: &str = "ROLLBACK TO SAVEPOINT kw";
/// The savepoint around several writes of one statement of the plugin. Each write may have savepoints of its
/// own.
const SAVE_ALL: &str = "SAVEPOINT kw_all";
const RETURN_ALL: &str = "ROLLBACK TO SAVEPOINT kw_all";

pub struct OpenTransaction<L: ServerLink> {
    remote: RemoteDatabase<L>,
    held: HeldLink<L>,
    connection: u64,
    plugin: String,
    mode: TransactionMode,
    began: Instant,
    wrote: bool,
    /// Whether a statement has run since the last savepoint.
    moved: bool,
    broken: Option<GrantError>,
}

impl<L: ServerLink> OpenTransaction<L> {
    pub fn new(
        remote: RemoteDatabase<L>,
        mut held: HeldLink<L>,
        link: L,
        mode: TransactionMode,
        plugin: &str,
    ) -> Self {
        let connection = link.connection_number();
        held.put_back(link);
        let (plugin, began) = (plugin.to_owned(), Instant::now());
        Self { remote, held, connection, plugin, mode, began, wrote: false, moved: false, broken: None }
    }

    fn check_may_write(&self) -> Result<(), GrantError> {
        match self.mode {
            TransactionMode::ReadWrite => Ok(()),
            TransactionMode::ReadOnly => Err(only_reads()),
        }
    }

    /// The connection, ready for a statement that may fail alone.
    async fn start(&mut self) -> Result<L, GrantError> {
        self.check_intact()?;
        let patience = self.remote.pool.patience;
        if self.began.elapsed() >= patience.transaction {
            let most = patience.transaction.as_secs();
            return Err(self.lose_transaction(GrantError::Timeout(format!(
                "a call may keep the database for {most} s"
            ))));
        }
        let mut link = self.held.take()?;
        if L::FAILS_WHOLE && self.moved {
            let saved = in_time::<L, _>(patience.answer, link.run(SAVE)).await;
            saved.map_err(|fault| self.lose_transaction(fault.into_error()))?;
            self.moved = false;
        }
        Ok(link)
    }

    fn lose_transaction(&mut self, error: GrantError) -> GrantError {
        self.broken = Some(error.clone());
        error
    }

    /// Runs one statement, and returns to the savepoint if only the statement fails.
    async fn end_statement<T>(
        &mut self,
        link: L,
        done: Result<Result<T, SqlFault>, tokio::time::error::Elapsed>,
    ) -> Result<T, GrantError> {
        let limit = self.remote.pool.patience.answer;
        match done.unwrap_or_else(|_| Err(silent_fault(limit))) {
            Ok(done) => {
                self.moved = true;
                self.held.put_back(link);
                Ok(done)
            }
            Err(SqlFault::Own(error)) => {
                self.roll_back_to_savepoint(link).await?;
                Err(error)
            }
            Err(SqlFault::Lost(error)) => {
                self.remote.pool.doubt_server();
                Err(self.lose_transaction(error))
            }
        }
    }

    async fn roll_back_to_savepoint(&mut self, mut link: L) -> Result<(), GrantError> {
        if L::FAILS_WHOLE {
            let returned = in_time::<L, _>(self.remote.pool.patience.answer, link.run(RETURN)).await;
            returned.map_err(|fault| self.lose_transaction(fault.into_error()))?;
            self.moved = false;
        }
        self.held.put_back(link);
        Ok(())
    }

    /// Runs several statements that are kept or undone together, within the call's transaction.
    async fn run_all(&mut self, statements: Vec<(Arc<str>, Vec<SqlValue>)>) -> Result<u64, GrantError> {
        let limit = self.remote.pool.patience.answer;
        let mut link = self.start().await?;
        self.wrote = true;
        let several = statements.len() > 1 && !L::FAILS_WHOLE;
        let all_writes = async {
            if several {
                link.run("SAVEPOINT kw").await.map_err(|error| L::classify_fault(&error))?;
            }
            let mut affected = 0;
            for (statement, values) in statements {
                // Each statement has its own time limit; the transaction's limit covers all of them.
                let done = tokio::time::timeout(limit, link.execute(&statement, values)).await;
                match done.unwrap_or_else(|_| Err(silent_fault(limit))) {
                    Ok(rows) => affected += rows,
                    Err(SqlFault::Own(error)) if several => {
                        link.run(RETURN).await.map_err(|error| L::classify_fault(&error))?;
                        return Err(SqlFault::Own(error));
                    }
                    Err(fault) => return Err(fault),
                }
            }
            Ok(affected)
        };
        let left = self.remote.pool.patience.transaction.saturating_sub(self.began.elapsed());
        let done = tokio::time::timeout(left, all_writes).await;
        self.end_statement(link, done).await
    }

    /// Creates, changes or removes a table on servers where that can't be part of a transaction.
    async fn shape_alone(&mut self, statement: &str) -> Result<u64, GrantError> {
        if self.wrote {
            return Err(GrantError::Invalid(
                "this database commits when a table is made or changed: do that before the call writes"
                    .into(),
            ));
        }
        let limit = self.remote.pool.patience.answer;
        let plugin = self.plugin.clone();
        let mut link = self.start().await?;
        let done = tokio::time::timeout(limit, async {
            let done = link.execute(statement, Vec::new()).await;
            // The statement has ended the transaction, whether it succeeded or not.
            let begun = link
                .begin_fenced(TransactionMode::ReadWrite, &plugin)
                .await
                .map_err(|error| L::classify_fault(&error));
            match (done, begun) {
                (_, Err(fault)) => Err(SqlFault::Lost(fault.into_error())),
                (_, Ok(false)) => Err(SqlFault::Lost(GrantError::Unavailable("the fence is gone".into()))),
                (done, Ok(true)) => {
                    // The fence was released for a moment.
                    self.remote.expect_reader(&mut link, &plugin).await?;
                    done
                }
            }
        });
        let done = done.await;
        self.end_statement(link, done).await
    }

    /// Looks up whether the commit took effect, after it was not answered properly.
    async fn look_up_commit(self, token: &str, refused: GrantError) -> Result<(), CommitError> {
        let Self { remote, held, .. } = self;
        // The lookup needs this connection's seat.
        drop(held);
        match remote.has_token(token).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(CommitError::RolledBack(refused)),
            Err(error) => {
                tracing::warn!(%error, "the database did not answer a commit, and can't be asked for its receipt: the commit is in doubt");
                Err(CommitError::InDoubt(refused))
            }
        }
    }
}

/// Writes all tables or none. On some servers a failed statement already undoes the others.
async fn write_all<L: ServerLink>(link: &mut L, writes: Vec<TableWrite>) -> Result<u64, SqlFault> {
    let fault = |error: sqlx::Error| L::classify_fault(&error);
    let several = writes.len() > 1 && !L::FAILS_WHOLE;
    if several {
        link.run(SAVE_ALL).await.map_err(fault)?;
    }
    let mut affected = 0;
    for write in writes {
        match link.write(write).await {
            Ok(rows) => affected += rows,
            Err(SqlFault::Own(error)) if several => {
                link.run(RETURN_ALL).await.map_err(fault)?;
                return Err(SqlFault::Own(error));
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(affected)
}

#[async_trait]
impl<L: ServerLink> SqlTransaction for OpenTransaction<L> {
    async fn execute(&mut self, statement: &str, rows: Vec<Vec<SqlValue>>) -> Result<u64, GrantError> {
        self.check_may_write()?;
        let checked = guard::check(statement, StatementPurpose::Execute, L::DIALECT)?;
        for row in &rows {
            fits_arity(checked.arity, row)?;
        }
        check_size(&rows)?;
        if checked.changes_schema() {
            if checked.arity > 0 {
                return Err(GrantError::Invalid("a table is made without parameters".into()));
            }
            if L::SHAPING_COMMITS {
                return self.shape_alone(checked.text).await;
            }
            let mut link = self.start().await?;
            let shaping = in_time::<L, _>(self.remote.pool.patience.answer, link.await_schema_turn()).await;
            self.end_statement(link, Ok(shaping)).await?;
        }
        self.run_all(write::statements_for_rows(&checked, rows)).await
    }

    async fn write(&mut self, write: TableWrite, copy: Option<TableCopy>) -> Result<u64, GrantError> {
        self.check_may_write()?;
        let copy = copy.map(|copy| copy.into_write(&write)).transpose()?;
        let mut writes: Vec<_> = [Some(write), copy].into_iter().flatten().collect();
        writes.iter().try_for_each(|write| check_size(&write.rows))?;
        writes.retain(|write| !write.rows.is_empty());
        if writes.is_empty() {
            return Ok(0);
        }
        let mut link = self.start().await?;
        self.wrote = true;
        let left = self.remote.pool.patience.transaction.saturating_sub(self.began.elapsed());
        let done = tokio::time::timeout(left, write_all(&mut link, writes)).await;
        self.end_statement(link, done).await
    }

    async fn query(&mut self, statement: &str, params: Vec<SqlValue>) -> Result<ValueRows, GrantError> {
        let checked = guard::check(statement, StatementPurpose::Query, L::DIALECT)?;
        fits_arity(checked.arity, &params)?;
        let mut link = self.start().await?;
        // A WITH may also write.
        self.wrote |= self.mode == TransactionMode::ReadWrite && !checked.reads_only();
        let limit = self.remote.pool.patience.answer;
        let done = tokio::time::timeout(limit, link.query(&checked, params)).await;
        let found = self.end_statement(link, done).await;
        found.map_err(|error| match (self.mode, &error) {
            // A function that the statement calls tried to write.
            (TransactionMode::ReadOnly, GrantError::Unavailable(why)) if why.starts_with(CANT_BE_WRITTEN) => {
                only_reads()
            }
            _ => error,
        })
    }

    fn has_writes(&self) -> bool {
        self.wrote
    }

    fn check_intact(&self) -> Result<(), GrantError> {
        match &self.broken {
            Some(error) => {
                Err(GrantError::Unavailable(format!("the writes of this call were undone: {error}")))
            }
            None => Ok(()),
        }
    }

    async fn commit_with_receipt(mut self: Box<Self>, receipt: &StoredReceipt) -> Result<(), CommitError> {
        self.check_intact().map_err(CommitError::RolledBack)?;
        let mut link = self.held.take().map_err(CommitError::RolledBack)?;
        let text = L::receipt_text(receipt);
        match in_time::<L, _>(self.remote.pool.patience.answer, link.run(&text)).await {
            Ok(()) => {
                self.held.return_link(link);
                Ok(())
            }
            Err(fault) => {
                drop(link);
                self.remote.pool.doubt_server();
                self.look_up_commit(&receipt.token, fault.into_error()).await
            }
        }
    }

    async fn roll_back(mut self: Box<Self>) {
        let Ok(mut link) = self.held.take() else { return };
        match in_time::<L, _>(self.remote.pool.patience.answer, link.run("ROLLBACK")).await {
            Ok(()) => self.held.return_link(link),
            // Closing the connection has the same effect.
            Err(fault) => tracing::debug!(error = %fault.into_error(), "a rollback was not answered"),
        }
    }

    async fn prune_receipts(mut self: Box<Self>, pruning: ReceiptPruning) -> Result<(), GrantError> {
        self.check_intact()?;
        let mut link = self.held.take()?;
        let text = prune_sql(&pruning);
        let pruned = in_time::<L, _>(self.remote.pool.patience.answer, link.run(&text)).await;
        pruned.map_err(SqlFault::into_error)?;
        self.held.return_link(link);
        Ok(())
    }

    fn connection_number(&self) -> u64 {
        self.connection
    }

    async fn has_token(&mut self, token: &str) -> Result<bool, GrantError> {
        let mut link = self.start().await?;
        let limit = self.remote.pool.patience.answer;
        let found = tokio::time::timeout(limit, link.has_token(token)).await;
        let found = found.map(|found| found.map_err(|error| L::classify_fault(&error)));
        // The table of receipts may be gone.
        self.end_statement(link, found).await.inspect_err(|_| self.remote.pool.doubt_server())
    }

    async fn survey_receipts(
        &mut self,
        plugin: &str,
        expected: &[NotedCommit],
    ) -> Result<ReceiptSurvey, GrantError> {
        let mut link = self.start().await?;
        let survey = survey_link(&mut link, self.remote.pool.patience.answer, plugin, expected).await;
        self.end_statement(link, Ok(survey)).await
    }
}
