//! The effects of one call, over all capabilities, and how they commit together. This module opens no
//! database, no file and no connection: `grants` does.
//!
//! A distributed transaction over a file, a database and the journal was rejected: most of them support none.
//! Instead one store decides, and the others follow it. The order is: the ledger's records, the rows with
//! their receipt, then the in-memory view of `kv`. If a call wrote rows, the database's commit decides for
//! the ledger, too: the ledger's intent names the transaction, and an append without its transaction is cut
//! off. If it wrote only to a ledger, the complete append on disk decides. A call that wrote to neither needs
//! no receipt: a repeat could do nothing twice, except requests, which carry the id.
//!
//! A call whose states are not all done commits nothing: rows without a receipt would be written again by the
//! next try.

mod commit;
pub mod commits;
pub mod granted;
pub mod open_calls;
pub mod outbound;
mod post;
mod send;
pub mod uses;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::config::SqlAccess;
use kubewitness_core::ports::{
    DocumentReader, EffectSession, GrantError, HttpRequest, HttpResponse, KvWrite, KvWrites, LogLevel,
    MailMessage, MailRefusal, OutcomeFinding, OutcomePage, ShownState, SqlDialect, SqlValue, TableCopy,
    TableWrite,
};
use kubewitness_core::{ObjectRef, Seq, State, StateId};
use tokio::time::Instant;

use crate::http::IDEMPOTENCY_KEY;
use crate::ledger::LedgerHold;
use crate::objects::call_documents::CallDocuments;
use crate::objects::documents::{self, CallBatch};
use crate::secrets::redaction::RedactedDocuments;
use crate::sql::guard::{self, StatementPurpose};
use crate::sql::receipt::claims::{TransactionClaims, WriteClaim};
use crate::sql::{SqlTransaction, TransactionMode};
use crate::{denied_error, kv};
use granted::{GrantedDatabase, OpenCall, PluginAccess};
use outbound::SentRequests;
use post::{HttpPost, MailPost};
use send::await_half_of_time;

/// The next try reads the receipts again.
const READ_SINCE: &str =
    "the plugin's receipts were read again since this call began: the call is made again";

pub struct CallSession {
    granted: Arc<PluginAccess>,
    /// As the API server sent them.
    documents: Arc<CallDocuments>,
    batch: CallBatch,
    applied: HashSet<Seq>,
    /// The reading of receipts that determined what is applied. Another one may have begun since.
    reading: u64,
    /// Its states were finished before, as those of a resync.
    is_repeated: bool,
    /// The id of the only state of the batch, for requests that carry none.
    only: Option<StateId>,
    sql: Option<Box<dyn SqlTransaction>>,
    claims: TransactionClaims,
    /// Set if the database was unreachable. Whatever the plugin answers, the call then does not count as
    /// made: its states are not at fault, and use up no tries.
    unreachable: Option<GrantError>,
    ledger: Option<LedgerHold>,
    kv: Option<kv::CallOverlay>,
    outbound: SentRequests,
    /// The document that the plugin read last. A plugin often asks several things of one document.
    read: Option<(Seq, Option<Bytes>)>,
    /// When a tick is aborted.
    ends: Option<Instant>,
    /// Keeps the call's receipts; `None` for a tick and a resync.
    _open_call: Option<OpenCall>,
}

impl CallSession {
    /// `seqs` are the states of the batch in their order.
    pub fn new(
        granted: Arc<PluginAccess>,
        seqs: Vec<Seq>,
        batch: CallBatch,
        applied: HashSet<Seq>,
        only: Option<StateId>,
    ) -> Self {
        let kv = granted.kv.as_ref().map(kv::PluginKv::open);
        let claims = TransactionClaims::default();
        let reading = granted.standing.count_readings();
        let documents =
            CallDocuments::new(granted.raw.clone(), granted.reading_habit.clone(), seqs, granted.has_digest);
        Self {
            granted,
            documents: Arc::new(documents),
            batch,
            applied,
            reading,
            is_repeated: false,
            only,
            sql: None,
            claims,
            unreachable: None,
            ledger: None,
            kv,
            outbound: SentRequests::default(),
            read: None,
            ends: None,
            _open_call: None,
        }
    }

    /// The session of a tick, which is aborted after `timeout`.
    pub fn of_tick(granted: Arc<PluginAccess>, timeout: Duration) -> Self {
        let ends = Some(Instant::now() + timeout);
        Self { ends, ..Self::new(granted, Vec::new(), CallBatch::default(), HashSet::new(), None) }
    }

    fn granted_database(&self, name: &str) -> Result<&GrantedDatabase, GrantError> {
        self.granted.sql.get(name).ok_or_else(|| denied_error("database", name, "spec.grants.sql"))
    }

    /// Refuses what the grant does not allow before it reaches the database.
    fn check_access(&self, name: &str, needed: SqlAccess) -> Result<(), GrantError> {
        let access = self.granted_database(name)?.access;
        self.granted.uses.note_needed_access(name, needed);
        if needed > access {
            let (access, needed) = (access.as_str(), needed.as_str());
            return Err(GrantError::Denied(format!(
                "the database `{name}` is granted with `access: {access}`, and this needs `access: {needed}` in \
                 spec.grants.sql"
            )));
        }
        Ok(())
    }

    /// The call's transaction, begun at its first use.
    async fn open_transaction(&mut self, database: &str) -> Result<&mut Box<dyn SqlTransaction>, GrantError> {
        let GrantedDatabase { engine, access, .. } = self.granted_database(database)?;
        let (engine, mode) = (engine.clone(), TransactionMode::for_access(*access));
        if self.sql.is_none() {
            if let Some(error) = &self.unreachable {
                return Err(error.clone());
            }
            let begun = engine.begin_in(mode, &self.granted.plugin).await.inspect_err(|_| {
                // Another process may have committed meanwhile.
                self.granted.standing.mark_stale();
            });
            // The database accepts the process that read its receipts last. That may have been another call
            // of this process, which knows states that another process has applied since this call began.
            let expected = match begun {
                // A plugin with read access may have been granted a replica.
                Ok(mut begun) if mode == TransactionMode::ReadWrite => {
                    let commits = &self.granted.standing.commits;
                    commits.expect_commits(&self.granted.plugin, &mut *begun).await.map(|()| begun)
                }
                begun => begun,
            };
            let begun = expected.and_then(|begun| self.check_newest_reading().map(|()| begun));
            self.sql = Some(begun.inspect_err(|error| self.unreachable = Some(error.clone()))?);
        }
        self.sql.as_mut().ok_or_else(|| GrantError::Other("the transaction is gone".into()))
    }

    /// Refuses a call whose receipts were read again since it began.
    fn check_newest_reading(&self) -> Result<(), GrantError> {
        match self.granted.standing.count_readings() == self.reading {
            true => Ok(()),
            false => Err(GrantError::Unavailable(READ_SINCE.into())),
        }
    }

    async fn hold_ledger(&mut self, name: &str) -> Result<&mut LedgerHold, GrantError> {
        let granted = self.granted.clone();
        let ledger =
            granted.ledgers.get(name).ok_or_else(|| denied_error("ledger", name, "spec.grants.ledger"))?;
        if self.ledger.is_none() {
            self.ledger = Some(ledger.hold_for_call(&granted.deciders).await?);
        }
        self.ledger.as_mut().ok_or_else(|| GrantError::Other("the ledger is gone".into()))
    }

    fn kv_overlay(&mut self) -> Result<&mut kv::CallOverlay, GrantError> {
        self.kv
            .as_mut()
            .ok_or_else(|| GrantError::Denied("kv was not granted: add `kv: true` to spec.grants".into()))
    }

    /// Documents as the plugin may see them.
    fn shown_documents(&self) -> Arc<dyn DocumentReader> {
        let documents = self.documents.clone();
        match &self.granted.redacted {
            Some(redacted) => Arc::new(RedactedDocuments { documents, ..redacted.clone() }),
            None => documents,
        }
    }

    fn batch_seqs(&self) -> Vec<Seq> {
        let mut seqs: Vec<_> = self.batch.keys().copied().collect();
        seqs.sort_unstable();
        seqs
    }
}

#[async_trait]
impl EffectSession for CallSession {
    async fn show_state(&mut self, state: &Arc<State>) -> Result<ShownState, GrantError> {
        let PluginAccess { redacted, has_digest, subscribed, uses, .. } = &*self.granted;
        // For whole documents, reading one counts as the use.
        if *has_digest && redacted.is_some() {
            uses.count("documents", "");
        }
        documents::show_state(&*self.documents, redacted.as_ref(), *has_digest, subscribed, state).await
    }

    fn applied_states(&self) -> &HashSet<Seq> {
        &self.applied
    }

    fn sql_dialect(&self, database: &str) -> Result<SqlDialect, GrantError> {
        Ok(self.granted_database(database)?.engine.dialect())
    }

    async fn sql_execute(
        &mut self,
        database: &str,
        statement: &str,
        rows: Vec<Vec<SqlValue>>,
    ) -> Result<u64, GrantError> {
        self.granted.uses.count("sql", database);
        let dialect = self.sql_dialect(database)?;
        let statement = self.granted.statements.render_cached(statement, dialect)?;
        let checked = guard::check(&statement, StatementPurpose::Execute, dialect)?;
        self.check_access(database, checked.least_access())?;
        let done = self.open_transaction(database).await?.execute(&statement, rows).await?;
        self.claims.note_statement(&checked);
        if checked.changes_schema() {
            // A server that commits implicitly has released the fence for a moment. This process may have
            // read the receipts since, and found states that this call considers new.
            self.check_newest_reading().inspect_err(|error| self.unreachable = Some(error.clone()))?;
        }
        Ok(done)
    }

    async fn sql_write(
        &mut self,
        database: &str,
        write: TableWrite,
        copy: Option<TableCopy>,
    ) -> Result<u64, GrantError> {
        self.granted.uses.count("sql", database);
        self.check_access(database, SqlAccess::Write)?;
        let claims =
            [Some(WriteClaim::of(&write)), copy.as_ref().map(|copy| WriteClaim::of_copy(copy, &write))];
        let done = self.open_transaction(database).await?.write(write, copy).await?;
        claims.into_iter().flatten().for_each(|claim| self.claims.note_claim(claim));
        Ok(done)
    }

    async fn sql_query(
        &mut self,
        database: &str,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError> {
        self.granted.uses.count("sql", database);
        let dialect = self.sql_dialect(database)?;
        let statement = self.granted.statements.render_cached(statement, dialect)?;
        let checked = guard::check(&statement, StatementPurpose::Query, dialect)?;
        self.check_access(database, checked.least_access())?;
        let rows = self.open_transaction(database).await?.query(&statement, params).await?;
        // A WITH clause may also write.
        if !checked.reads_only() {
            self.claims.note_statement(&checked);
        }
        Ok(rows)
    }

    async fn http_send(
        &mut self,
        destination: &str,
        request: HttpRequest,
    ) -> Result<HttpResponse, GrantError> {
        self.granted.uses.count("http", destination);
        let granted = self.granted.http.get(destination).cloned();
        let granted = granted.ok_or_else(|| denied_error("destination", destination, "spec.grants.http"))?;
        let key = request.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY));
        let (id, repeat) = (key.map(|(_, id)| id.as_str()), granted.spec.repeat);
        // A request that only reads may be sent twice.
        let (seqs, digest) = match request.method.as_str() {
            "GET" | "HEAD" => (Vec::new(), String::new()),
            _ => self.known_by(id, repeat, || post::digest_of(&request))?,
        };
        let prepared =
            granted.prepare_request(request, self.only.as_ref(), self.granted.clock.now_ms()).await?;
        let ends = self.ends;
        await_half_of_time(ends, self.send_once(HttpPost { destination: &granted, prepared }, seqs, digest))
            .await
    }

    async fn mail_send(
        &mut self,
        server: &str,
        message: MailMessage,
    ) -> Result<Vec<MailRefusal>, GrantError> {
        self.granted.uses.count("mail", server);
        let granted = self.granted.mail.get(server).cloned();
        let granted = granted.ok_or_else(|| denied_error("mail server", server, "spec.grants.mail"))?;
        let letter = granted.prepare_mail(&message, self.granted.clock.now_ms())?;
        let digest = || post::digest_of_mail(&message);
        let (seqs, digest) = self.known_by(Some(&message.id), granted.spec.repeat, digest)?;
        let ends = self.ends;
        await_half_of_time(ends, self.send_once(MailPost { relay: &granted, letter }, seqs, digest)).await
    }

    fn kv_get(&self, key: &str) -> Option<Vec<u8>> {
        self.granted.uses.count("kv", "");
        self.kv.as_ref()?.get(key)
    }

    fn kv_set(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError> {
        self.granted.uses.count("kv", "");
        self.kv_overlay()?.set_key(key, value)
    }

    fn kv_delete(&mut self, key: &str) -> Result<(), GrantError> {
        self.granted.uses.count("kv", "");
        self.kv_overlay()?.delete_key(key)
    }

    fn kv_keys(&self, prefix: &str, limit: usize) -> Vec<String> {
        self.granted.uses.count("kv", "");
        self.kv.as_ref().map(|kv| kv.keys_with_prefix(prefix, limit)).unwrap_or_default()
    }

    async fn ledger_append(&mut self, ledger: &str, records: Vec<Vec<u8>>) -> Result<u64, GrantError> {
        self.granted.uses.count("ledger", ledger);
        self.hold_ledger(ledger).await?.append_records(records)
    }

    async fn ledger_last(&mut self, ledger: &str) -> Result<Option<Vec<u8>>, GrantError> {
        self.granted.uses.count("ledger", ledger);
        Ok(self.hold_ledger(ledger).await?.last_record())
    }

    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, GrantError> {
        self.granted.uses.count("key", key);
        let granted =
            self.granted.keys.get(key).ok_or_else(|| denied_error("key", key, "spec.grants.keys"))?;
        granted.sign_message(message)
    }

    async fn conceal_name(&mut self, ledger: &str, name: String) -> Result<String, GrantError> {
        self.granted.uses.count("ledger", ledger);
        let granted = self.granted.ledgers.get(ledger);
        granted.ok_or_else(|| denied_error("ledger", ledger, "spec.grants.ledger"))?.conceal_name(name).await
    }

    async fn document_of_state(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError> {
        self.granted.count_document();
        if let Some((_, document)) = self.read.as_ref().filter(|(known, _)| *known == seq) {
            return Ok(document.clone());
        }
        let document = documents::document_at(&*self.shown_documents(), &self.batch, seq).await?;
        self.read = Some((seq, document.clone()));
        Ok(document)
    }

    async fn document_before(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError> {
        self.granted.count_document();
        documents::document_before(&*self.shown_documents(), &self.batch, seq).await
    }

    async fn lister_get(
        &mut self,
        source: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Bytes>, GrantError> {
        self.granted.uses.count("lister", source);
        self.granted.lister.get(source, namespace, name).await
    }

    fn lister_list(
        &self,
        source: &str,
        index: &str,
        key: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError> {
        self.granted.uses.count("lister", source);
        self.granted.lister.list_objects(source, index, key, limit)
    }

    async fn find_outcome(&mut self, source: &str, uid: &str) -> Result<OutcomeFinding, GrantError> {
        self.granted.uses.count("outcomes", source);
        self.granted.outcomes.explain_outcome(source, uid).await
    }

    async fn outcome_changes(&mut self, after: &str, limit: usize) -> Result<OutcomePage, GrantError> {
        let page = self.granted.outcomes.changes_after(after, limit).await?;
        self.granted
            .outcomes
            .granted_sources()
            .for_each(|source| self.granted.uses.count("outcomes", source));
        Ok(page)
    }

    fn log_message(&self, level: LogLevel, message: &str, fields: &[(String, String)]) {
        self.granted.log.write(level, message, fields);
    }

    fn now_ms(&self) -> u64 {
        self.granted.clock.now_ms()
    }

    fn in_doubt(&self) -> Vec<(Seq, String)> {
        self.outbound.all_doubts()
    }

    fn writes_if_undone(&mut self, seqs: &[Seq]) -> Vec<KvWrite> {
        let mut writes = self.granted.kv.as_ref().map(|kv| kv.remove_notes(seqs)).unwrap_or_default();
        writes.extend(self.granted.outbox.remove_notes(seqs));
        writes
    }

    async fn commit_effects(self: Box<Self>, done: &[Seq]) -> Result<KvWrites, GrantError> {
        self.commit_done(done).await
    }

    async fn undo_effects(self: Box<Self>, settled: &[Seq]) -> Result<KvWrites, GrantError> {
        self.discard_effects(settled).await
    }

    async fn roll_back_effects(mut self: Box<Self>) {
        if let Some(transaction) = self.sql.take() {
            transaction.roll_back().await;
        }
    }
}

#[cfg(test)]
mod tests;
