//! Proves a journal, or says what is wrong with it. Reads every row once, in order, and does
//! over what the writer did: positions, chains, lateness, documents, counts, each plugin's
//! accounts. Works beside a running writer, on one snapshot; while it reads, the WAL grows.
//!
//! Memory: about 200 bytes an object, and a bounded cache of documents.

mod accounts;
mod chains;
mod current;

use std::path::Path;

use kubewitness_core::Seq;
use kubewitness_core::ports::JournalError;
use sqlx::{Connection, Row, SqliteConnection};

use self::accounts::Accounts;
use self::chains::Chains;
use super::fault::classify;
use super::open;
use super::read::{Names, envelope, envelope_column};
use crate::report::{OpenError, Problem, VerifyReport, code};

/// States of one query.
const PAGE: i64 = 512;

/// Findings of SQLite's own check.
const STORE_FINDINGS: u32 = 100;

/// Finds what is wrong with a journal. An `Err` only says that there is nothing to check.
pub(crate) async fn verify(path: &Path) -> Result<VerifyReport, OpenError> {
    let mut connection = open::open_to_verify(path).await?;
    let mut findings = Findings::default();
    let done = whole(&mut connection, &mut findings).await;
    if let Err(error) = done {
        // What SQLite itself refuses to read ends the check; the rest could only be guessed.
        findings.add(code::STORE, None, format!("the check ended here: {error}"));
    }
    connection.close().await.map_err(|error| open::open_error(path, error))?;
    let mut report = findings.report;
    report.ok = report.problems.is_empty();
    Ok(report)
}

#[derive(Default)]
pub(super) struct Findings {
    pub report: VerifyReport,
}

impl Findings {
    pub fn add(&mut self, code: &str, seq: Option<Seq>, message: impl Into<String>) {
        if self.report.problems.len() < VerifyReport::PROBLEMS {
            self.report.problems.push(Problem { code: code.to_owned(), seq, message: message.into() });
        } else {
            self.report.problems_left_out += 1;
        }
    }
}

async fn whole(connection: &mut SqliteConnection, findings: &mut Findings) -> Result<(), JournalError> {
    let mut reading = connection.begin().await.map_err(classify)?;
    structure(&mut reading, findings).await?;
    let names = Names::default();
    let mut chains = Chains::default();
    let mut accounts = Accounts::load(&mut reading, findings).await?;
    states(&mut reading, &names, &mut chains, &mut accounts, findings).await?;
    current::check(&mut reading, &chains, findings).await?;
    accounts.finish(&mut reading, findings).await?;
    reading.rollback().await.map_err(classify)
}

async fn structure(connection: &mut SqliteConnection, findings: &mut Findings) -> Result<(), JournalError> {
    let text = format!("PRAGMA integrity_check({STORE_FINDINGS})");
    let lines: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(text)).fetch_all(connection).await.map_err(classify)?;
    for line in lines.into_iter().filter(|line| line != "ok") {
        findings.add(code::STORE, None, line);
    }
    Ok(())
}

async fn states(
    connection: &mut SqliteConnection,
    names: &Names,
    chains: &mut Chains,
    accounts: &mut Accounts,
    findings: &mut Findings,
) -> Result<(), JournalError> {
    let text = concat!(
        "SELECT ",
        envelope_column!(),
        ", s.document, s.seq FROM states s WHERE s.seq > ? ORDER BY s.seq LIMIT ?"
    );
    let mut last: i64 = 0;
    loop {
        let query = sqlx::query(text).bind(last).bind(PAGE);
        let rows = query.fetch_all(&mut *connection).await.map_err(classify)?;
        for row in &rows {
            let seq: i64 = row.try_get(2).map_err(classify)?;
            if seq != last + 1 {
                let (from, to) = (last + 1, seq - 1);
                findings.add(
                    code::SEQUENCE,
                    Some(seq as u64),
                    format!("positions {from} to {to} are missing before it"),
                );
            }
            last = seq;
            findings.report.states_checked += 1;
            let read = envelope(row.try_get(0).map_err(classify)?);
            let envelope = match read {
                Ok(envelope) => envelope,
                Err(error) => {
                    findings.add(code::ENVELOPE, Some(seq as u64), text_of(error));
                    continue;
                }
            };
            let state = match names.states(connection, std::slice::from_ref(&envelope)).await {
                Ok(mut states) => states.pop(),
                Err(error) => {
                    findings.add(code::ENVELOPE, Some(seq as u64), text_of(error));
                    None
                }
            };
            let Some(state) = state else { continue };
            let stored: &[u8] = row.try_get(1).map_err(classify)?;
            chains.state(connection, names, &envelope, &state, stored, findings).await?;
            accounts.state(names.stream_of(envelope.object), &state);
        }
        if (rows.len() as i64) < PAGE {
            accounts.newest = last as u64;
            findings.report.objects_checked = chains.objects() as u64;
            return Ok(());
        }
    }
}

/// Damage is the finding, not the end of the check.
fn text_of(error: JournalError) -> String {
    match error {
        JournalError::Fatal(text) | JournalError::Unavailable(text) | JournalError::Invalid(text) => text,
    }
}
