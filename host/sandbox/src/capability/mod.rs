//! The calls of a guest to the controller. Each is counted, measured, and passed to the session of the call
//! in progress.
//!
//! A guest may call with any argument, any number of times. Trapping on a refused call was rejected: a plugin
//! could not react to it. So a refusal is an answer, limits on bytes and calls are checked before anything
//! else, and the guest's clock stands still while the controller works. No call has an effect of its own: the
//! session commits or drops all of them.

mod convert;
mod json;
mod state_rows;

use std::sync::Arc;

use kubewitness_core::limits::ERROR_TEXT;
use kubewitness_core::ports::{GrantError, LogLevel};
use kubewitness_core::shorten_text;

use crate::bindings::types::{Error, ObjectRefResult};
use crate::bindings::{
    clock, config, documents, http, kv, ledger, lister, log, mail, outcomes, persons, sql, types,
};
use crate::guest::GuestState;
use crate::tally::HostCapability;

/// How many fields of one log line are kept.
const LOG_FIELDS: usize = 32;

/// How many log lines of one call are logged before the plugin starts, for example during `check`, and the
/// bytes of their fields.
const LINES_BEFORE: u64 = 16;
const DATA_BEFORE: usize = 1024;

impl types::Host for GuestState {}

impl config::Host for GuestState {
    fn get(&mut self) -> String {
        self.work.note_call(HostCapability::Config);
        self.config.to_string()
    }
}

impl documents::Host for GuestState {
    async fn json(&mut self, seq: u64) -> Result<Option<String>, Error> {
        let Some(bytes) = self.document_for_guest(seq).await? else { return Ok(None) };
        self.count_answer(bytes.len())?;
        // Bytes that are not text belong to a poison state: a plugin can't read them.
        String::from_utf8(bytes.into())
            .map(Some)
            .map_err(|_| Error::Invalid("the document is not UTF-8".to_string()))
    }

    async fn get(&mut self, seq: u64, pointer: String) -> Result<Option<String>, Error> {
        if !json::is_pointer(&pointer) {
            return Err(Error::Invalid(format!(
                "`{pointer}` is not a JSON Pointer: it begins with `/`, or is empty"
            )));
        }
        let value = if self.has_read(seq) {
            // The document is already here, but this still counts as a call.
            self.open(HostCapability::Documents, pointer.len()).map(drop)?;
            self.parsed_document(seq)?
                .and_then(|document| document.pointer(&pointer))
                .map(ToString::to_string)
        } else {
            let Some(bytes) = self.document_for_guest(seq).await? else { return Ok(None) };
            let value = json::value_text(&bytes, &pointer)?;
            self.read = Some((seq, bytes));
            value
        };
        self.count_answer(value.as_ref().map_or(0, String::len))?;
        Ok(value)
    }

    async fn patch(&mut self, seq: u64) -> Result<Option<String>, Error> {
        if !self.has_read(seq) {
            let Some(bytes) = self.document_for_guest(seq).await? else { return Ok(None) };
            self.read = Some((seq, bytes));
        }
        let before = {
            let (session, _time) = self.open(HostCapability::Documents, 0)?;
            session.document_before(seq).await.map_err(refusal_for_guest)?
        };
        let Some((_, after)) = &self.read else { return Ok(None) };
        // The guest requests parsing and comparing, so they take the guest's time.
        let patch = match before {
            Some(before) => json::patch_text(&before, after)?,
            None => json::parse(after)?.to_string(),
        };
        self.count_answer(patch.len())?;
        Ok(Some(patch))
    }
}

impl GuestState {
    fn has_read(&self, seq: u64) -> bool {
        self.read.as_ref().is_some_and(|(read, _)| *read == seq)
    }

    /// The document that was read last. A guest that asks it for a second value probably asks for more.
    fn parsed_document(&mut self, seq: u64) -> Result<Option<&serde_json::Value>, Error> {
        if let Some((_, bytes)) = &self.read
            && self.parsed.as_ref().is_none_or(|(parsed, _)| *parsed != seq)
        {
            self.parsed = Some((seq, json::parse(bytes)?));
        }
        Ok(self.parsed.as_ref().map(|(_, document)| document))
    }

    async fn document_for_guest(&mut self, seq: u64) -> Result<Option<bytes::Bytes>, Error> {
        if self.batch.get(seq).is_none() {
            self.open(HostCapability::Documents, 0).map(drop)?;
            return Err(Error::Invalid(format!("state {seq} is not in this call")));
        }
        let (session, _time) = self.open(HostCapability::Documents, 0)?;
        session.document_of_state(seq).await.map_err(refusal_for_guest)
    }
}

impl sql::Host for GuestState {
    async fn dialect_of(&mut self, database: String) -> Result<sql::Dialect, Error> {
        let (session, _time) = self.open(HostCapability::Sql, database.len())?;
        session.sql_dialect(&database).map(convert::to_wit_dialect).map_err(refusal_for_guest)
    }

    async fn write(&mut self, database: String, rows: sql::TableWrite) -> Result<u64, Error> {
        let bytes = convert::row_bytes(&rows.rows);
        let (session, _time) = self.open(HostCapability::Sql, bytes)?;
        session.sql_write(&database, convert::table_write(rows), None).await.map_err(refusal_for_guest)
    }

    async fn write_both(
        &mut self,
        database: String,
        rows: sql::TableWrite,
        copy: sql::TableCopy,
    ) -> Result<u64, Error> {
        let bytes = convert::row_bytes(&rows.rows) + copy.without.len() * size_of::<u32>();
        let (session, _time) = self.open(HostCapability::Sql, bytes)?;
        let copy = convert::table_copy(copy);
        session.sql_write(&database, convert::table_write(rows), Some(copy)).await.map_err(refusal_for_guest)
    }

    async fn write_states(
        &mut self,
        database: String,
        rows: sql::StateWrite,
        copy: Option<sql::TableCopy>,
    ) -> Result<u64, Error> {
        let left_out = copy.as_ref().map_or(0, |copy| copy.without.len() * size_of::<u32>());
        let (batch, most) = (Arc::clone(&self.batch), self.most_bytes());
        let (session, _time) = self.open(HostCapability::Sql, state_rows::carried_bytes(&rows) + left_out)?;
        // The rows are made before the session takes the database, for which other calls may wait.
        let write = state_rows::fill_rows(rows, &batch, most)?;
        session.sql_write(&database, write, copy.map(convert::table_copy)).await.map_err(refusal_for_guest)
    }

    async fn execute(
        &mut self,
        database: String,
        statement: String,
        rows: Vec<Vec<sql::Value>>,
    ) -> Result<u64, Error> {
        let bytes = statement.len() + convert::row_bytes(&rows);
        let (session, _time) = self.open(HostCapability::Sql, bytes)?;
        session.sql_execute(&database, &statement, convert::rows_in(rows)).await.map_err(refusal_for_guest)
    }

    async fn query(
        &mut self,
        database: String,
        statement: String,
        params: Vec<sql::Value>,
    ) -> Result<Vec<Vec<sql::Value>>, Error> {
        let bytes = statement.len() + convert::value_bytes(&params);
        let (session, time) = self.open(HostCapability::Sql, bytes)?;
        let params = params.into_iter().map(convert::value_in).collect();
        let rows = session.sql_query(&database, &statement, params).await.map_err(refusal_for_guest)?;
        let rows = convert::rows_out(rows);
        drop(time);
        self.count_answer(convert::row_bytes(&rows))?;
        Ok(rows)
    }
}

impl http::Host for GuestState {
    async fn send(&mut self, destination: String, request: http::Request) -> Result<http::Response, Error> {
        let bytes = request.path.len() + request.body.len() + convert::header_bytes(&request.headers);
        let (session, time) = self.open(HostCapability::Http, bytes)?;
        let response = session
            .http_send(&destination, convert::from_wit_request(request))
            .await
            .map_err(refusal_for_guest)?;
        drop(time);
        self.count_answer(response.body.len() + convert::header_bytes(&response.headers))?;
        Ok(convert::to_wit_response(response))
    }
}

impl mail::Host for GuestState {
    async fn send(&mut self, server: String, message: mail::Message) -> Result<Vec<mail::Refusal>, Error> {
        let (session, time) = self.open(HostCapability::Mail, convert::message_bytes(&message))?;
        let refusals = session
            .mail_send(&server, convert::from_wit_message(message))
            .await
            .map_err(refusal_for_guest)?;
        drop(time);
        let refusals: Vec<_> = refusals.into_iter().map(convert::mail_refusal).collect();
        self.count_answer(refusals.iter().map(|it| it.recipient.len() + it.reason.len()).sum())?;
        Ok(refusals)
    }
}

impl kv::Host for GuestState {
    fn get(&mut self, key: String) -> Result<Option<Vec<u8>>, Error> {
        let (session, time) = self.open(HostCapability::Kv, key.len())?;
        let value = session.kv_get(&key);
        drop(time);
        self.count_answer(value.as_ref().map_or(0, Vec::len))?;
        Ok(value)
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), Error> {
        let (session, _time) = self.open(HostCapability::Kv, key.len() + value.len())?;
        session.kv_set(&key, value).map_err(refusal_for_guest)
    }

    fn delete(&mut self, key: String) -> Result<(), Error> {
        let (session, _time) = self.open(HostCapability::Kv, key.len())?;
        session.kv_delete(&key).map_err(refusal_for_guest)
    }

    fn keys(&mut self, prefix: String, limit: u32) -> Result<Vec<String>, Error> {
        let (session, time) = self.open(HostCapability::Kv, prefix.len())?;
        let keys = session.kv_keys(&prefix, limit as usize);
        drop(time);
        self.count_answer(keys.iter().map(String::len).sum())?;
        Ok(keys)
    }
}

impl ledger::Host for GuestState {
    async fn append(&mut self, ledger: String, records: Vec<Vec<u8>>) -> Result<u64, Error> {
        let bytes = records.iter().map(Vec::len).sum();
        let (session, _time) = self.open(HostCapability::Ledger, bytes)?;
        session.ledger_append(&ledger, records).await.map_err(refusal_for_guest)
    }

    async fn last(&mut self, ledger: String) -> Result<Option<Vec<u8>>, Error> {
        let (session, time) = self.open(HostCapability::Ledger, ledger.len())?;
        let record = session.ledger_last(&ledger).await.map_err(refusal_for_guest)?;
        drop(time);
        self.count_answer(record.as_ref().map_or(0, Vec::len))?;
        Ok(record)
    }

    async fn sign(&mut self, key: String, message: Vec<u8>) -> Result<Vec<u8>, Error> {
        let (session, _time) = self.open(HostCapability::Ledger, message.len())?;
        session.ledger_sign(&key, &message).map_err(refusal_for_guest)
    }
}

impl persons::Host for GuestState {
    async fn conceal(&mut self, ledger: String, name: String) -> Result<String, Error> {
        let (session, time) = self.open(HostCapability::Persons, ledger.len() + name.len())?;
        let digest = session.conceal_name(&ledger, name).await.map_err(refusal_for_guest)?;
        drop(time);
        self.count_answer(digest.len())?;
        Ok(digest)
    }
}

impl lister::Host for GuestState {
    async fn get(
        &mut self,
        source: String,
        namespace: String,
        name: String,
    ) -> Result<Option<String>, Error> {
        let (session, time) =
            self.open(HostCapability::Lister, source.len() + namespace.len() + name.len())?;
        let document = session.lister_get(&source, &namespace, &name).await.map_err(refusal_for_guest)?;
        drop(time);
        let Some(document) = document else { return Ok(None) };
        self.count_answer(document.len())?;
        String::from_utf8(document.into())
            .map(Some)
            .map_err(|_| Error::Invalid("the document is not UTF-8".to_string()))
    }

    async fn list(
        &mut self,
        source: String,
        index: String,
        key: String,
        limit: u32,
    ) -> Result<Vec<ObjectRefResult>, Error> {
        let (session, time) = self.open(HostCapability::Lister, source.len() + index.len() + key.len())?;
        let found = session.lister_list(&source, &index, &key, limit as usize).map_err(refusal_for_guest)?;
        drop(time);
        self.count_answer(found.iter().map(convert::object_bytes).sum())?;
        Ok(found.into_iter().map(convert::to_wit_object).collect())
    }
}

impl outcomes::Host for GuestState {
    async fn explain(&mut self, source: String, uid: String) -> Result<outcomes::Finding, Error> {
        let (session, time) = self.open(HostCapability::Outcomes, source.len() + uid.len())?;
        let found = session.find_outcome(&source, &uid).await.map_err(refusal_for_guest)?;
        drop(time);
        let found = convert::to_wit_finding(found);
        self.count_answer(convert::finding_bytes(&found))?;
        Ok(found)
    }

    async fn changes(&mut self, after: String, limit: u32) -> Result<outcomes::ChangePage, Error> {
        let (session, time) = self.open(HostCapability::Outcomes, after.len())?;
        let page = session.outcome_changes(&after, limit as usize).await.map_err(refusal_for_guest)?;
        drop(time);
        let page = convert::change_page(page);
        self.count_answer(convert::change_page_bytes(&page))?;
        Ok(page)
    }
}

impl log::Host for GuestState {
    fn write(&mut self, level: log::Level, mut message: String, mut fields: Vec<(String, String)>) {
        if !self.count(HostCapability::Log) {
            return;
        }
        clip_error_text(&mut message);
        fields.truncate(LOG_FIELDS);
        for (key, value) in &mut fields {
            clip_error_text(key);
            clip_error_text(value);
        }
        let level = convert::from_wit_level(level);
        match self.effect_session() {
            Some(session) => session.log_message(level, &message, &fields),
            None => self.said_before(level, &message, &fields),
        }
    }
}

impl GuestState {
    /// A log line before the plugin handles states, while it describes itself. Nothing limits the rate there,
    /// so further lines are dropped.
    fn said_before(&self, level: LogLevel, message: &str, fields: &[(String, String)]) {
        if self.work.count_calls(HostCapability::Log) > LINES_BEFORE {
            return;
        }
        let data = format!("{fields:?}");
        let data = &*shorten_text(&data, DATA_BEFORE);
        match level {
            LogLevel::Error | LogLevel::Warn => {
                tracing::warn!(target: "plugin", data, "a component says: {message:?}");
            }
            _ => tracing::debug!(target: "plugin", data, "a component says: {message:?}"),
        }
    }
}

impl clock::Host for GuestState {
    fn now_ms(&mut self) -> u64 {
        self.work.note_call(HostCapability::Clock);
        let machine = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        };
        self.effect_session().map_or_else(machine, kubewitness_core::ports::EffectSession::now_ms)
    }
}

fn refusal_for_guest(error: GrantError) -> Error {
    match error {
        GrantError::Denied(text) => Error::Denied(text),
        GrantError::Invalid(text) => Error::Invalid(text),
        GrantError::Unavailable(text) => Error::Unavailable(text),
        GrantError::TooLarge(text) => Error::TooLarge(text),
        GrantError::Timeout(text) => Error::Timeout(text),
        GrantError::RateLimited { after_ms } => Error::RateLimited(after_ms),
        GrantError::Other(text) => Error::Other(text),
    }
}

/// Cuts a guest's text to the kept length, at the end of a character.
pub fn clip_error_text(text: &mut String) {
    if text.len() > ERROR_TEXT {
        text.truncate(text.floor_char_boundary(ERROR_TEXT));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing::span;

    use super::*;
    use crate::bindings::log::Host as _;

    /// Counts the records of a stream.
    struct CountingStream(Arc<AtomicU64>);

    impl tracing::Subscriber for CountingStream {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn what_a_component_logs_before_it_handles_states_is_told_up_to_a_number_of_lines() {
        let told = Arc::new(AtomicU64::new(0));
        let mut guest = GuestState::of_test();
        tracing::subscriber::with_default(CountingStream(told.clone()), || {
            for _ in 0..1000 {
                guest.write(log::Level::Warn, "a\nb".into(), vec![("k".into(), "v".repeat(1 << 20))]);
            }
        });
        assert_eq!(told.load(Ordering::Relaxed), LINES_BEFORE);
    }
}
