//! The common part of PostgreSQL and MySQL. Each server has a [`ServerLink`]; [`pool`] keeps a bounded number
//! of them, and [`open`] is the transaction of one call. Nothing here knows a dialect beyond its
//! [`ServerLink`].
//!
//! A server continues to work for a client that is gone: a commit may take effect after the controller was
//! killed, or has given up waiting. So simply reading the receipts after a restart was rejected: one could
//! still appear. Instead, all transactions of a plugin share a *fence*. The controller reads receipts only
//! while it holds the fence exclusively, and so waits until no transaction of that plugin is left.

pub mod columns;
mod held;
mod open;
mod pool;
pub mod pooler;
pub mod reasons;
pub mod rights;
mod seats;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::config::ServerSpec;
use kubewitness_core::intents::commits::NotedCommit;
use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue, TableWrite};

use self::held::HeldLink;
use self::open::OpenTransaction;
use self::pool::LinkPool;
use self::reasons::ServerFailure;
use self::rights::ExcessRights;
use super::guard::GuardedStatement;
use super::receipt::{FLOOR, ReceiptRow, StoredReceipt, claims, floor_token};
use super::values::ValueRows;
use super::{
    DatabaseEngine, FloorColumns, ReceiptPruning, ReceiptSurvey, SqlFault, SqlTransaction, SurveyRow,
    TransactionMode,
};
use crate::receipts;
use crate::secrets;

/// How long things may take. The server has its own, shorter limits ([`STATEMENT`], [`LOCK`]); these
/// are for one that doesn't answer at all.
#[derive(Clone, Copy, Debug)]
pub struct ServerPatience {
    /// Waiting for one of the connections.
    pub wait: Duration,
    /// Connecting and being greeted.
    pub connect: Duration,
    /// The answer to one statement.
    pub answer: Duration,
    /// One call's transaction.
    pub transaction: Duration,
}

pub const PATIENCE: ServerPatience = ServerPatience {
    wait: Duration::from_secs(10),
    connect: Duration::from_secs(10),
    answer: Duration::from_secs(15),
    transaction: Duration::from_secs(30),
};
/// The server ends a statement after this.
pub const STATEMENT: Duration = Duration::from_secs(10);
/// The server ends waiting for a lock after this.
pub const LOCK: Duration = Duration::from_secs(5);
/// The server ends a transaction whose client is silent for so long: longer than any call may keep
/// it, and not for ever, since a client may be gone without a word.
pub const SILENT: Duration = Duration::from_secs(60);
/// Prepared statements that a connection keeps; a few tables in a few sizes.
pub const STATEMENTS: usize = 128;

/// One connection.
pub trait ServerLink: Send + Sync + Sized + 'static {
    type Options: Send + Sync;

    const DIALECT: SqlDialect;
    /// A statement that fails takes what was done before with it, unless there is a savepoint.
    const FAILS_WHOLE: bool;
    /// The file with the controller's own tables, for where its user may not make them.
    const TABLES: &str;
    /// Making a table commits what was done before.
    const SHAPING_COMMITS: bool;

    /// From an address; what is wrong is told without it.
    fn parse_options(url: &str) -> Result<Self::Options, ServerFailure>;
    fn connect_link(options: &Self::Options) -> impl Future<Output = Result<Self, sqlx::Error>> + Send;
    /// Why it could not be connected, without an address.
    fn classify_connect_error(error: &sqlx::Error) -> ServerFailure;
    fn classify_fault(error: &sqlx::Error) -> SqlFault;
    /// Whether the next call may have it.
    fn is_fresh(&self) -> bool;

    /// Marks the session, and answers with the mark.
    const SET_MARK: &str;
    const READ_MARK: &str;
    /// The mark that these statements answer with.
    fn read_mark(
        &mut self,
        text: &'static str,
    ) -> impl Future<Output = Result<Option<String>, sqlx::Error>> + Send;

    /// Runs the controller's own text, which may be several statements.
    fn run(&mut self, text: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Makes the controller's own tables where they are missing.
    fn create_own_tables(&mut self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Begins a transaction that shares the plugin's fence, as [`begin_behind_fence`](Self::begin_behind_fence). `false`: there is no fence to share.
    fn begin_fenced(
        &mut self,
        mode: TransactionMode,
        plugin: &str,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
    /// Begins a transaction that has the plugin's fence for itself. Unless it only reads, a server that takes no writes is
    /// refused.
    fn begin_behind_fence(
        &mut self,
        mode: TransactionMode,
        plugin: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Waits until no other transaction makes tables, and keeps others from it up to its own end.
    fn await_schema_turn(&mut self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// The text that keeps a receipt and commits.
    fn receipt_text(receipt: &StoredReceipt) -> String;

    fn execute(
        &mut self,
        statement: &str,
        values: Vec<SqlValue>,
    ) -> impl Future<Output = Result<u64, SqlFault>> + Send;
    fn write(&mut self, write: TableWrite) -> impl Future<Output = Result<u64, SqlFault>> + Send;
    fn query(
        &mut self,
        statement: &GuardedStatement<'_>,
        values: Vec<SqlValue>,
    ) -> impl Future<Output = Result<ValueRows, SqlFault>> + Send;

    /// Identifies the connection among all of this process.
    fn connection_number(&self) -> u64;
    /// Every receipt of this plugin.
    fn survey_rows(
        &mut self,
        plugin: &str,
    ) -> impl Future<Output = Result<Vec<SurveyRow>, sqlx::Error>> + Send;
    /// Its floor, which may be written twice.
    fn floor_rows(
        &mut self,
        plugin: &str,
    ) -> impl Future<Output = Result<Vec<FloorColumns>, sqlx::Error>> + Send;
    fn has_token(&mut self, token: &str) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Begins a transaction that sees one moment and writes nothing.
    const SNAPSHOT: &str;
    /// Lists the rights of its user that no plugin needs.
    fn excess_rights(&mut self) -> impl Future<Output = Result<ExcessRights, sqlx::Error>> + Send;
    /// All that the controller keeps there, of whatever plugin; `None` where it never kept anything.
    fn receipt_rows(&mut self) -> impl Future<Output = Result<Option<Vec<ReceiptRow>>, sqlx::Error>> + Send;
}

/// Who reads a plugin's receipts leaves a row under this name, where there are several: what another has
/// begun since is refused until it has read them as well. No plugin is called so.
pub const READER: &str = "/reader";

/// A granted database on a server.
pub struct RemoteDatabase<L: ServerLink> {
    pool: Arc<LinkPool<L>>,
    /// This process, where others may hand states to the same plugins.
    reader: Option<Arc<str>>,
}

impl<L: ServerLink> RemoteDatabase<L> {
    /// Nothing is connected yet, so a server that is down delays nothing. An address that can't be
    /// right is reported with its field.
    pub async fn new(name: &str, spec: &ServerSpec) -> Result<Self, ServerFailure> {
        let url = secrets::resolve_secret(&spec.url_from).await?;
        L::parse_options(url.expose_secret())?;
        Ok(Self { pool: Arc::new(LinkPool::new(name, spec, PATIENCE)), reader: None })
    }

    /// For a process that is not the only one.
    pub fn read_by(self, reader: Option<Arc<str>>) -> Self {
        Self { reader, ..self }
    }

    /// A test's.
    #[cfg(test)]
    pub fn impatient(spec: &ServerSpec, patience: ServerPatience) -> Self {
        Self { pool: Arc::new(LinkPool::new("test", spec, patience)), reader: None }
    }

    /// A connection in a transaction that has the plugin's fence for itself: what was to be committed
    /// for this plugin is committed or never will be.
    async fn behind_fence(&self, mode: TransactionMode, plugin: &str) -> Result<HeldLink<L>, GrantError> {
        let mut held = self.pool.hold_link(plugin).await?;
        self.pool.make_ready(&mut held).await?;
        let limit = self.pool.patience.answer;
        let mut link = held.take()?;
        let begun = in_time::<L, _>(limit, link.begin_behind_fence(mode, plugin)).await;
        // It may be another server the next time.
        begun.inspect_err(|_| self.pool.forget_connections()).map_err(SqlFault::into_error)?;
        held.put_back(link);
        Ok(held)
    }

    /// Expects that no other replica has read the plugin's receipts since this one did. The transaction shares the
    /// fence, so none does before it ends.
    async fn expect_reader(&self, link: &mut L, plugin: &str) -> Result<(), SqlFault> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let token = reader_token(plugin, reader);
        let mine = in_time::<L, _>(self.pool.patience.answer, link.has_token(&token)).await;
        // The table of receipts may be gone.
        if mine.inspect_err(|_| self.pool.doubt_server())? {
            return Ok(());
        }
        let why = "another replica has read the plugin's receipts since: they are read again";
        Err(SqlFault::Lost(GrantError::Unavailable(why.into())))
    }

    /// Ends what [`behind_fence`](Self::behind_fence) began.
    async fn leave_fence(&self, mut held: HeldLink<L>, text: &str) -> Result<(), GrantError> {
        let mut link = held.take()?;
        in_time::<L, _>(self.pool.patience.answer, link.run(text)).await.map_err(SqlFault::into_error)?;
        held.return_link(link);
        Ok(())
    }

    async fn has_token(&self, token: &str) -> Result<bool, GrantError> {
        let mut held = self.behind_fence(TransactionMode::ReadWrite, plugin_of(token)).await?;
        let mut link = held.take()?;
        let found = in_time::<L, _>(self.pool.patience.answer, link.has_token(token)).await;
        let found = found.map_err(SqlFault::into_error)?;
        held.put_back(link);
        self.leave_fence(held, "COMMIT").await?;
        Ok(found)
    }
}

/// Waits for an answer, up to a limit. A connection that did not answer is not used again: its holder
/// drops it.
async fn in_time<L: ServerLink, T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, SqlFault> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|error| L::classify_fault(&error)),
        Err(_) => Err(silent_fault(limit)),
    }
}

/// In a transaction of the plugin.
async fn survey_link<L: ServerLink>(
    link: &mut L,
    limit: Duration,
    plugin: &str,
    expected: &[NotedCommit],
) -> Result<ReceiptSurvey, SqlFault> {
    let rows = in_time::<L, _>(limit, link.survey_rows(plugin)).await?;
    let floors = in_time::<L, _>(limit, link.floor_rows(plugin)).await?;
    let mut survey = ReceiptSurvey::from_rows(rows, floors, expected).map_err(SqlFault::Lost)?;
    // There may be more rows than were read.
    for commit in std::mem::take(&mut survey.absent) {
        if !in_time::<L, _>(limit, link.has_token(&commit.token)).await? {
            survey.absent.push(commit);
        }
    }
    Ok(survey)
}

fn silent_fault(limit: Duration) -> SqlFault {
    SqlFault::Lost(GrantError::Unavailable(format!(
        "the database has not answered for {} s",
        limit.as_secs()
    )))
}

#[async_trait]
impl<L: ServerLink> DatabaseEngine for RemoteDatabase<L> {
    fn dialect(&self) -> SqlDialect {
        L::DIALECT
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn begin_in(
        &self,
        mode: TransactionMode,
        plugin: &str,
    ) -> Result<Box<dyn SqlTransaction>, GrantError> {
        let (held, mut link) = self.pool.begin_transaction(mode, plugin).await?;
        // Dropped, the transaction is undone.
        self.expect_reader(&mut link, plugin).await.map_err(SqlFault::into_error)?;
        let remote = RemoteDatabase { pool: self.pool.clone(), reader: self.reader.clone() };
        Ok(Box::new(OpenTransaction::new(remote, held, link, mode, plugin)))
    }

    async fn survey_receipts(
        &self,
        plugin: &str,
        mode: TransactionMode,
        expected: &[NotedCommit],
    ) -> Result<ReceiptSurvey, GrantError> {
        let mut held = self.behind_fence(mode, plugin).await?;
        let mut link = held.take()?;
        let survey = survey_link(&mut link, self.pool.patience.answer, plugin, expected).await;
        let survey = survey.map_err(SqlFault::into_error)?;
        held.put_back(link);
        let claim = self.reader.as_ref().map(|reader| reader_text(plugin, reader)).unwrap_or_default();
        self.leave_fence(held, &format!("{claim}COMMIT")).await?;
        Ok(survey)
    }

    fn forget_connections(&self) {
        self.pool.forget_connections();
    }

    async fn forget_receipts(&self, plugin: &str, through: Seq) -> Result<(), GrantError> {
        let mut held = self.pool.hold_link(plugin).await?;
        self.pool.make_ready(&mut held).await?;
        let mut link = held.take()?;
        let text = forgetting_sql(plugin, as_position(through));
        let forgotten = in_time::<L, _>(self.pool.patience.answer, link.run(&text)).await;
        forgotten.map_err(SqlFault::into_error)?;
        held.return_link(link);
        Ok(())
    }

    async fn was_committed(&self, token: &str) -> Result<bool, GrantError> {
        self.has_token(token).await
    }
}

fn reader_token(plugin: &str, reader: &str) -> String {
    format!("{plugin}.{reader}")
}

/// In a transaction that has the plugin's fence for itself.
fn reader_text(plugin: &str, reader: &str) -> String {
    let (name, all_tokens) = (text_literal(READER), text_literal(&format!("{plugin}.%")));
    let token = text_literal(&reader_token(plugin, reader));
    format!(
        "DELETE FROM kubewitness_receipts WHERE plugin = {name} AND token LIKE {all_tokens}; \
         INSERT INTO kubewitness_receipts (plugin, first, last, states, token, at) \
         VALUES ({name}, 0, 0, '', {token}, 0); "
    )
}

/// The plugin that a receipt's token belongs to.
fn plugin_of(token: &str) -> &str {
    token.split_once('.').map_or("", |(plugin, _)| plugin)
}

/// Positions and times never reach the sign bit.
fn as_position(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// A text of the controller's own as a literal.
pub fn text_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The statements that keep a receipt and what it tells of its rows, each with a semicolon behind it;
/// `blob` writes bytes.
pub fn receipt_text(receipt: &StoredReceipt, blob: impl Fn(&str) -> String) -> String {
    let StoredReceipt { plugin, marks, token, at_ms, claims, replaces, .. } = receipt;
    let mut text = String::new();
    if claims.takes {
        let owner = text_literal(claims::OWNER);
        text.push_str(&format!("DELETE FROM kubewitness_receipts WHERE plugin = {owner}; "));
    }
    if !replaces.is_empty() {
        let tokens: Vec<_> = replaces.iter().map(|token| text_literal(token)).collect();
        let tokens = tokens.join(", ");
        text.push_str(&format!("DELETE FROM kubewitness_receipts WHERE token IN ({tokens}); "));
    }
    let (first, last) = receipt.position_span();
    let row = |plugin: &str, states: &[u8]| {
        format!(
            "({}, {}, {}, {}, {}, {})",
            text_literal(plugin),
            as_position(first),
            as_position(last),
            blob(&hex::encode(states)),
            text_literal(token),
            as_position(*at_ms)
        )
    };
    let told = claims.encode(marks).map(|told| format!(", {}", row(claims::OWNER, &told)));
    let (receipt, told) = (row(plugin, &receipts::encode(marks)), told.unwrap_or_default());
    text.push_str(&format!(
        "INSERT INTO kubewitness_receipts (plugin, first, last, states, token, at) VALUES {receipt}{told}; "
    ));
    text
}

/// Removes the receipts of a plugin up to a position that were committed before a moment, with what they tell of
/// their rows.
fn removal_sql(plugin: &str, through: i64, before_ms: i64) -> String {
    let (tokens, owner) = (text_literal(&format!("{plugin}.%")), text_literal(claims::OWNER));
    let plugin = text_literal(plugin);
    format!(
        "DELETE FROM kubewitness_receipts WHERE last <= {through} AND at < {before_ms} AND (plugin = {plugin} \
         OR (plugin = {owner} AND token LIKE {tokens}))"
    )
}

/// Removes the floor of a plugin that is not above a position.
fn floor_removal_sql(plugin: &str, through: i64) -> String {
    let (floor, token) = (text_literal(FLOOR), text_literal(&floor_token(plugin)));
    format!(
        "DELETE FROM kubewitness_receipts WHERE plugin = {floor} AND token = {token} AND last <= {through}"
    )
}

/// Removes everything that is kept of a plugin up to a position.
fn forgetting_sql(plugin: &str, through: i64) -> String {
    format!("{}; {}", removal_sql(plugin, through, i64::MAX), floor_removal_sql(plugin, through))
}

/// Prunes the receipts of a plugin, keeps the floor, and commits.
fn prune_sql(pruning: &ReceiptPruning) -> String {
    let ReceiptPruning { plugin, through, before_ms, floor, pruned_before_ms } = pruning;
    let removal = removal_sql(plugin, as_position(*through), as_position(*before_ms));
    let (owner, token) = (text_literal(FLOOR), text_literal(&floor_token(plugin)));
    let (floor, before) = (as_position(*floor), as_position(*pruned_before_ms));
    format!(
        "{removal}; {}; INSERT INTO kubewitness_receipts (plugin, first, last, states, token, at) \
         VALUES ({owner}, 0, {floor}, '', {token}, {before}); COMMIT",
        floor_removal_sql(plugin, i64::MAX)
    )
}

/// Selects what [`ServerLink::survey_rows`] answers.
pub fn survey_sql(plugin: &str) -> String {
    let (plugin, most) = (text_literal(plugin), receipts::READ_RECEIPTS);
    format!(
        "SELECT states, token, at FROM kubewitness_receipts WHERE plugin = {plugin} ORDER BY last DESC LIMIT {most}"
    )
}

/// Selects what [`ServerLink::floor_rows`] answers.
pub fn floor_sql(plugin: &str) -> String {
    let (floor, token) = (text_literal(FLOOR), text_literal(&floor_token(plugin)));
    format!("SELECT last, at FROM kubewitness_receipts WHERE plugin = {floor} AND token = {token}")
}

#[cfg(test)]
mod tests;
