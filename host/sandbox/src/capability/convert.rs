//! Converts between the generated types and those of the core. The shapes are equal; values are moved and
//! never copied.

use kubewitness_core::ObjectRef;
use kubewitness_core::ports::{
    ChangedOutcome, ExplainedOutcome, HttpRequest, HttpResponse, LogLevel, MailMessage, MailRefusal,
    OnConflict, OutcomeFinding, OutcomePage, SqlDialect, SqlValue, TableCopy, TableWrite,
};
use kubewitness_core::views::{Cause, ContainerRole, FailedContainer};

use crate::bindings::types::ObjectRefResult;
use crate::bindings::{http, log, mail, outcomes, sql};

/// The bytes of a value in addition to its text.
pub const VALUE_BYTES: usize = 16;

pub fn to_wit_dialect(dialect: SqlDialect) -> sql::Dialect {
    match dialect {
        SqlDialect::Sqlite => sql::Dialect::Sqlite,
        SqlDialect::Postgres => sql::Dialect::Postgres,
        SqlDialect::Mysql => sql::Dialect::Mysql,
    }
}

pub fn value_in(value: sql::Value) -> SqlValue {
    match value {
        sql::Value::Null => SqlValue::Null,
        sql::Value::Boolean(value) => SqlValue::Boolean(value),
        sql::Value::Integer(value) => SqlValue::Integer(value),
        sql::Value::Float(value) => SqlValue::Float(value),
        sql::Value::Text(value) => SqlValue::Text(value),
        sql::Value::Blob(value) => SqlValue::Blob(value),
    }
}

fn value_out(value: SqlValue) -> sql::Value {
    match value {
        SqlValue::Null => sql::Value::Null,
        SqlValue::Boolean(value) => sql::Value::Boolean(value),
        SqlValue::Integer(value) => sql::Value::Integer(value),
        SqlValue::Float(value) => sql::Value::Float(value),
        SqlValue::Text(value) => sql::Value::Text(value),
        SqlValue::Blob(value) => sql::Value::Blob(value),
    }
}

pub fn rows_in(rows: Vec<Vec<sql::Value>>) -> Vec<Vec<SqlValue>> {
    rows.into_iter().map(|row| row.into_iter().map(value_in).collect()).collect()
}

pub fn rows_out(rows: Vec<Vec<SqlValue>>) -> Vec<Vec<sql::Value>> {
    rows.into_iter().map(|row| row.into_iter().map(value_out).collect()).collect()
}

pub fn value_bytes(values: &[sql::Value]) -> usize {
    let bytes = |value: &sql::Value| match value {
        sql::Value::Text(text) => VALUE_BYTES + text.len(),
        sql::Value::Blob(blob) => VALUE_BYTES + blob.len(),
        _ => VALUE_BYTES,
    };
    values.iter().map(bytes).sum()
}

pub fn row_bytes(rows: &[Vec<sql::Value>]) -> usize {
    rows.iter().map(|row| VALUE_BYTES + value_bytes(row)).sum()
}

pub fn table_write(write: sql::TableWrite) -> TableWrite {
    TableWrite {
        table: write.table,
        columns: write.columns,
        key: write.key,
        on_conflict: on_conflict(write.on_conflict),
        rows: rows_in(write.rows),
    }
}

pub fn table_copy(copy: sql::TableCopy) -> TableCopy {
    TableCopy {
        table: copy.table,
        columns: copy.columns,
        key: copy.key,
        on_conflict: on_conflict(copy.on_conflict),
        without: copy.without.into_iter().map(|place| place as usize).collect(),
    }
}

pub fn on_conflict(on_conflict: sql::OnConflict) -> OnConflict {
    match on_conflict {
        sql::OnConflict::Ignore => OnConflict::Ignore,
        sql::OnConflict::ReplaceOlder(newer) => OnConflict::ReplaceOlder { newer },
    }
}

pub fn header_bytes(headers: &[(String, String)]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

pub fn from_wit_request(request: http::Request) -> HttpRequest {
    HttpRequest { method: request.method, path: request.path, headers: request.headers, body: request.body }
}

pub fn to_wit_response(response: HttpResponse) -> http::Response {
    http::Response { status: response.status, headers: response.headers, body: response.body }
}

pub fn message_bytes(message: &mail::Message) -> usize {
    let mail::Message { to, subject, text, html, id } = message;
    let to: usize = to.iter().map(String::len).sum();
    to + subject.len() + text.len() + html.as_ref().map_or(0, String::len) + id.len()
}

pub fn from_wit_message(message: mail::Message) -> MailMessage {
    let mail::Message { to, subject, text, html, id } = message;
    MailMessage { to, subject, text, html, id }
}

pub fn mail_refusal(refusal: MailRefusal) -> mail::Refusal {
    let MailRefusal { recipient, is_permanent, reason } = refusal;
    mail::Refusal { recipient, permanent: is_permanent, reason }
}

pub fn object_bytes(object: &ObjectRef) -> usize {
    let ObjectRef { group, version, kind, namespace, name, uid } = object;
    [group, version, kind, namespace, name, uid].into_iter().map(String::len).sum()
}

pub fn to_wit_object(object: ObjectRef) -> ObjectRefResult {
    let ObjectRef { group, version, kind, namespace, name, uid } = object;
    ObjectRefResult { group, version, kind, namespace, name, uid }
}

pub fn to_wit_finding(finding: OutcomeFinding) -> outcomes::Finding {
    match finding {
        OutcomeFinding::Nothing => outcomes::Finding::Nothing,
        OutcomeFinding::Pending => outcomes::Finding::Pending,
        OutcomeFinding::Explained(told) => outcomes::Finding::Found(to_wit_explanation(*told)),
    }
}

fn to_wit_explanation(told: ExplainedOutcome) -> outcomes::Explanation {
    let ExplainedOutcome { object: ended, seq, ended_ms, headline, sentence, doubt, cause } = told;
    let Cause { kind, object: failed, container, node, reason, message, by, at_ms, seq: cause_seq } = cause;
    let role = container.as_ref().map_or("", |container| match container.role {
        ContainerRole::Init => "init",
        ContainerRole::Main => "main",
        ContainerRole::Sidecar => "sidecar",
    });
    let FailedContainer { name, exit_code, signal, .. } = container.unwrap_or_default();
    outcomes::Explanation {
        object: to_wit_object(ended),
        seq,
        ended_ms,
        kind: kind.as_str().to_owned(),
        headline,
        sentence,
        doubt,
        failed: failed.map(to_wit_object),
        container: name,
        container_role: role.to_owned(),
        exit_code,
        signal,
        node: node.unwrap_or_default(),
        reason,
        message,
        by,
        cause_ms: at_ms,
        cause_seq,
        extra: Vec::new(),
    }
}

pub fn finding_bytes(finding: &outcomes::Finding) -> usize {
    let outcomes::Finding::Found(told) = finding else { return 0 };
    let reference = |it: &ObjectRefResult| {
        [&it.group, &it.version, &it.kind, &it.namespace, &it.name, &it.uid]
            .map(String::len)
            .iter()
            .sum::<usize>()
    };
    let texts = [
        &told.kind,
        &told.headline,
        &told.sentence,
        &told.doubt,
        &told.container,
        &told.node,
        &told.reason,
        &told.message,
        &told.by,
    ];
    reference(&told.object)
        + told.failed.as_ref().map_or(0, reference)
        + texts.map(String::len).iter().sum::<usize>()
}

pub fn change_page(page: OutcomePage) -> outcomes::ChangePage {
    let OutcomePage { outcomes: changed, next, has_more, is_restarted } = page;
    let changed = changed.into_iter().map(|outcome| {
        let ChangedOutcome { source, namespace, name, uid, seq, kind } = outcome;
        let kind = kind.map(|kind| kind.as_str().to_owned());
        outcomes::ChangedOutcome { source, namespace, name, uid, seq, kind }
    });
    outcomes::ChangePage { outcomes: changed.collect(), next, more: has_more, restarted: is_restarted }
}

pub fn change_page_bytes(page: &outcomes::ChangePage) -> usize {
    let texts = |it: &outcomes::ChangedOutcome| {
        let kind = it.kind.as_ref().map_or(0, String::len);
        VALUE_BYTES + it.source.len() + it.namespace.len() + it.name.len() + it.uid.len() + kind
    };
    page.next.len() + page.outcomes.iter().map(texts).sum::<usize>()
}

pub fn from_wit_level(level: log::Level) -> LogLevel {
    match level {
        log::Level::Trace => LogLevel::Trace,
        log::Level::Debug => LogLevel::Debug,
        log::Level::Info => LogLevel::Info,
        log::Level::Warn => LogLevel::Warn,
        log::Level::Error => LogLevel::Error,
    }
}
