//! Passes a plugin's calls on to its grants, and records those with effects. Requests are answered here.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_capability::{check_message, check_request};
use kubewitness_core::config::GrantsSpec;
use kubewitness_core::ledger::{PersonEntry, SALT_BYTES};
use kubewitness_core::ports::{
    EffectSession, GrantError, GrantProvider, HttpRequest, HttpResponse, KvWrites, LogLevel, MailMessage,
    MailRefusal, OnConflict, OutcomeFinding, OutcomePage, ShownState, SqlDialect, SqlValue, StateDelivery,
    TableCopy, TableWrite,
};
use kubewitness_core::{ObjectRef, Seq, State};
use serde_json::{Map, Value, json};

use super::{HttpReply, MailReply, NotedEffects, TrialEffect, TrialReply};

/// The treatment of effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectKeep {
    /// Effects are not recorded, because only the cost matters.
    Nothing(Vec<TrialReply>),
    /// Records up to this many bytes of one call.
    Bytes(usize, Vec<TrialReply>),
}

#[derive(Default)]
struct RecorderNotes {
    noted: NotedEffects,
    http: VecDeque<HttpReply>,
    mail: VecDeque<MailReply>,
}

pub struct EffectRecorder {
    grants: Arc<dyn GrantProvider>,
    notes: Arc<Mutex<RecorderNotes>>,
    destinations: Arc<HashSet<String>>,
    mail: Arc<HashSet<String>>,
    /// How many bytes of one call's effects are kept. `None`: effects are not recorded.
    most: Option<usize>,
}

impl EffectRecorder {
    pub fn new(grants: Arc<dyn GrantProvider>, granted: &GrantsSpec, keep: EffectKeep) -> Self {
        let (most, replies) = match keep {
            EffectKeep::Nothing(replies) => (None, replies),
            EffectKeep::Bytes(most, replies) => (Some(most), replies),
        };
        let mut notes = RecorderNotes::default();
        for reply in replies {
            match reply {
                TrialReply::Http(reply) => notes.http.push_back(reply),
                TrialReply::Mail(reply) => notes.mail.push_back(reply),
            }
        }
        let notes = Arc::new(Mutex::new(notes));
        let destinations = Arc::new(granted.http.iter().map(|grant| grant.name.clone()).collect());
        let mail = Arc::new(granted.mail.iter().map(|grant| grant.name.clone()).collect());
        Self { grants, notes, destinations, mail, most }
    }

    /// The effects since the last call of this function.
    pub fn take(&self) -> NotedEffects {
        std::mem::take(&mut lock(&self.notes).noted)
    }
}

fn lock(notes: &Mutex<RecorderNotes>) -> MutexGuard<'_, RecorderNotes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl GrantProvider for EffectRecorder {
    fn plugin_config(&self) -> &str {
        self.grants.plugin_config()
    }

    async fn open(&self, batch: &[StateDelivery]) -> Result<Box<dyn EffectSession>, GrantError> {
        let session = self.grants.open(batch).await?;
        let (destinations, mail) = (self.destinations.clone(), self.mail.clone());
        let (notes, most) = (self.notes.clone(), self.most);
        Ok(Box::new(RecordedSession { session, notes, destinations, mail, most }))
    }
}

struct RecordedSession {
    session: Box<dyn EffectSession>,
    notes: Arc<Mutex<RecorderNotes>>,
    destinations: Arc<HashSet<String>>,
    mail: Arc<HashSet<String>>,
    most: Option<usize>,
}

impl RecordedSession {
    /// The recorded form of a call.
    fn recorded_form(&self, what: impl FnOnce() -> Value) -> Value {
        if self.most.is_none() { Value::Null } else { what() }
    }

    fn note_call<T>(&self, call: &'static str, to: &str, what: Value, answer: &Result<T, GrantError>) {
        let Some(most) = self.most else { return };
        let what = match what {
            Value::Object(what) => what,
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        let refused = answer.as_ref().err().map(ToString::to_string);
        lock(&self.notes).noted.add(TrialEffect { call, to: to.to_owned(), what, refused }, most);
    }
}

/// As JSON if it is JSON, as text if it is text, in hex otherwise.
fn bytes(bytes: &[u8]) -> Value {
    match (serde_json::from_slice(bytes), std::str::from_utf8(bytes)) {
        (Ok(value @ (Value::Object(_) | Value::Array(_))), _) => value,
        (_, Ok(text)) => text.into(),
        (_, Err(_)) => json!({"hex": hex::encode(bytes)}),
    }
}

fn value(value: &SqlValue) -> Value {
    match value {
        SqlValue::Null => Value::Null,
        SqlValue::Boolean(it) => json!(it),
        SqlValue::Integer(it) => json!(it),
        SqlValue::Float(it) => json!(it),
        SqlValue::Text(it) => json!(it),
        SqlValue::Blob(it) => bytes(it),
    }
}

fn rows(rows: &[Vec<SqlValue>]) -> Value {
    rows.iter().map(|row| row.iter().map(value).collect::<Value>()).collect()
}

/// In the words of the plugin interface.
fn conflict_value(on_conflict: &OnConflict) -> Value {
    match on_conflict {
        OnConflict::Ignore => "ignore".into(),
        OnConflict::ReplaceOlder { newer } => json!({"replaceOlder": newer}),
    }
}

fn written_value(write: &TableWrite, copy: Option<&TableCopy>) -> Value {
    let TableWrite { table, columns, key, on_conflict, rows: values } = write;
    let mut what = json!({
        "table": table, "columns": columns, "key": key, "onConflict": conflict_value(on_conflict), "rows": rows(values),
    });
    if let Some(TableCopy { table, columns, key, on_conflict, without }) = copy {
        what["copy"] = json!({
            "table": table, "columns": columns, "key": key, "onConflict": conflict_value(on_conflict), "without": without,
        });
    }
    what
}

fn pairs_value(pairs: &[(String, String)]) -> Value {
    Value::Object(pairs.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect())
}

#[async_trait]
impl EffectSession for RecordedSession {
    fn applied_states(&self) -> &HashSet<Seq> {
        self.session.applied_states()
    }

    async fn show_state(&mut self, state: &Arc<State>) -> Result<ShownState, GrantError> {
        self.session.show_state(state).await
    }

    fn sql_dialect(&self, database: &str) -> Result<SqlDialect, GrantError> {
        self.session.sql_dialect(database)
    }

    async fn sql_execute(
        &mut self,
        database: &str,
        statement: &str,
        params: Vec<Vec<SqlValue>>,
    ) -> Result<u64, GrantError> {
        let what = self.recorded_form(|| json!({"statement": statement, "rows": rows(&params)}));
        let answer = self.session.sql_execute(database, statement, params).await;
        self.note_call("sql.execute", database, what, &answer);
        answer
    }

    async fn sql_write(
        &mut self,
        database: &str,
        write: TableWrite,
        copy: Option<TableCopy>,
    ) -> Result<u64, GrantError> {
        let what = self.recorded_form(|| written_value(&write, copy.as_ref()));
        let answer = self.session.sql_write(database, write, copy).await;
        self.note_call("sql.write", database, what, &answer);
        answer
    }

    async fn sql_query(
        &mut self,
        database: &str,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError> {
        self.session.sql_query(database, statement, params).await
    }

    async fn http_send(
        &mut self,
        destination: &str,
        request: HttpRequest,
    ) -> Result<HttpResponse, GrantError> {
        let HttpRequest { method, path, headers, body } = &request;
        let mut what = self.recorded_form(
            || json!({"method": method, "path": path, "headers": pairs_value(headers), "body": bytes(body)}),
        );
        if !self.destinations.contains(destination) {
            // The refusal that the controller would also give.
            let answer = self.session.http_send(destination, request).await;
            self.note_call("http.send", destination, what, &answer);
            return answer;
        }
        if let refused @ Err(_) = check_request(&request).map(|()| HttpResponse::default()) {
            self.note_call("http.send", destination, what, &refused);
            return refused;
        }
        let reply = lock(&self.notes).http.pop_front();
        let reply = reply.unwrap_or_else(|| HttpReply { status: 200, body: String::new() });
        what["answered"] = reply.status.into();
        let answer = Ok(HttpResponse { status: reply.status, headers: Vec::new(), body: reply.body.into() });
        self.note_call("http.send", destination, what, &answer);
        answer
    }

    /// The message is recorded and never sent.
    async fn mail_send(
        &mut self,
        server: &str,
        message: MailMessage,
    ) -> Result<Vec<MailRefusal>, GrantError> {
        let MailMessage { to, subject, text, html, id } = &message;
        let mut what = self.recorded_form(
            || json!({"recipients": to, "subject": subject, "text": text, "html": html, "id": id}),
        );
        if !self.mail.contains(server) {
            // The refusal that the controller would also give.
            let answer = self.session.mail_send(server, message).await;
            self.note_call("mail.send", server, what, &answer);
            return answer;
        }
        if let refused @ Err(_) = check_message(&message).map(|()| Vec::new()) {
            self.note_call("mail.send", server, what, &refused);
            return refused;
        }
        let reply = lock(&self.notes).mail.pop_front();
        let refusals: Vec<MailRefusal> =
            reply.map(|reply| reply.refused.into_iter().map(Into::into).collect()).unwrap_or_default();
        if !refusals.is_empty() {
            what["refusedFor"] = refusals.iter().map(|it| it.recipient.as_str()).collect();
        }
        let answer = Ok(refusals);
        self.note_call("mail.send", server, what, &answer);
        answer
    }

    fn kv_get(&self, key: &str) -> Option<Vec<u8>> {
        self.session.kv_get(key)
    }

    fn kv_set(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError> {
        let what = self.recorded_form(|| json!({"value": bytes(&value)}));
        let answer = self.session.kv_set(key, value);
        self.note_call("kv.set", key, what, &answer);
        answer
    }

    fn kv_delete(&mut self, key: &str) -> Result<(), GrantError> {
        let answer = self.session.kv_delete(key);
        self.note_call("kv.delete", key, json!({}), &answer);
        answer
    }

    fn kv_keys(&self, prefix: &str, limit: usize) -> Vec<String> {
        self.session.kv_keys(prefix, limit)
    }

    async fn ledger_append(&mut self, ledger: &str, records: Vec<Vec<u8>>) -> Result<u64, GrantError> {
        let what = self.recorded_form(
            || json!({"records": records.iter().map(|record| bytes(record)).collect::<Value>()}),
        );
        let answer = self.session.ledger_append(ledger, records).await;
        self.note_call("ledger.append", ledger, what, &answer);
        answer
    }

    async fn ledger_last(&mut self, ledger: &str) -> Result<Option<Vec<u8>>, GrantError> {
        self.session.ledger_last(ledger).await
    }

    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, GrantError> {
        self.session.ledger_sign(key, message)
    }

    /// The real digest differs each time, but recorded effects are compared. No name is erased from the files
    /// of a trial, so they get a fixed digest of the same length.
    async fn conceal_name(&mut self, ledger: &str, name: String) -> Result<String, GrantError> {
        self.session.conceal_name(ledger, "x".repeat(name.len())).await?;
        Ok(PersonEntry::of_name(&name, [0; SALT_BYTES]).digest().to_owned())
    }

    async fn document_of_state(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError> {
        self.session.document_of_state(seq).await
    }

    async fn document_before(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError> {
        self.session.document_before(seq).await
    }

    async fn lister_get(
        &mut self,
        source: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Bytes>, GrantError> {
        self.session.lister_get(source, namespace, name).await
    }

    fn lister_list(
        &self,
        source: &str,
        index: &str,
        key: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError> {
        self.session.lister_list(source, index, key, limit)
    }

    async fn find_outcome(&mut self, source: &str, uid: &str) -> Result<OutcomeFinding, GrantError> {
        self.session.find_outcome(source, uid).await
    }

    async fn outcome_changes(&mut self, after: &str, limit: usize) -> Result<OutcomePage, GrantError> {
        self.session.outcome_changes(after, limit).await
    }

    fn log_message(&self, level: LogLevel, message: &str, fields: &[(String, String)]) {
        let level = match level {
            LogLevel::Trace => "trace",
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        };
        let what = self.recorded_form(|| json!({"message": message, "fields": pairs_value(fields)}));
        self.note_call("log", level, what, &Ok(()));
    }

    fn now_ms(&self) -> u64 {
        self.session.now_ms()
    }

    async fn commit_effects(self: Box<Self>, done: &[Seq]) -> Result<KvWrites, GrantError> {
        self.session.commit_effects(done).await
    }

    async fn undo_effects(self: Box<Self>, settled: &[Seq]) -> Result<KvWrites, GrantError> {
        self.session.undo_effects(settled).await
    }

    async fn roll_back_effects(self: Box<Self>) {
        self.session.roll_back_effects().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_recorded_with_what_becomes_of_a_row_that_is_there_already() {
        let newer = || OnConflict::ReplaceOlder { newer: "seq".into() };
        let write = |key: &[&str], on_conflict| TableWrite {
            table: "jobs".into(),
            columns: vec!["uid".into(), "seq".into()],
            key: key.iter().map(|it| (*it).to_owned()).collect(),
            on_conflict,
            rows: vec![vec![SqlValue::Text("u".into()), SqlValue::Integer(7)]],
        };
        let copy = |key: &str, on_conflict| TableCopy {
            table: "newest".into(),
            columns: vec!["uid".into()],
            key: vec![key.into()],
            on_conflict,
            without: vec![],
        };
        let all = [
            written_value(&write(&["uid"], newer()), None),
            written_value(&write(&["uid", "seq"], newer()), None),
            written_value(&write(&["uid"], OnConflict::Ignore), None),
            written_value(&write(&["uid"], newer()), Some(&copy("uid", newer()))),
            written_value(&write(&["uid"], newer()), Some(&copy("uid", OnConflict::Ignore))),
            written_value(&write(&["uid"], newer()), Some(&copy("name", newer()))),
        ];
        for (number, one) in all.iter().enumerate() {
            assert!(
                all[..number].iter().all(|before| before != one),
                "{number} is the same as another: {one}"
            );
        }
        let first = json!({
            "table": "jobs", "columns": ["uid", "seq"], "key": ["uid"], "onConflict": {"replaceOlder": "seq"},
            "rows": [["u", 7]],
        });
        assert_eq!(all[0], first);
        assert_eq!(all[4]["copy"]["onConflict"], "ignore");
    }
}
