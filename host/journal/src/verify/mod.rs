//! Proves a journal, or says what is wrong with it. Reads every row once, in order, and does
//! over what the writer did: positions, chains, lateness, documents, counts, each plugin's
//! accounts. Works beside a running writer, on one snapshot; while it reads, a WAL grows.
//!
//! Memory: about 200 bytes an object, and a bounded cache of documents.

mod accounts;
mod beside;
mod chains;
mod current;
pub(crate) mod story;

use kubewitness_core::Seq;
use kubewitness_core::ports::JournalError;

use self::accounts::Accounts;
use self::chains::Chains;
use crate::read::Names;
use crate::report::{VerifyReport, code};
use crate::store::{Answer, Connection, Fetch};

/// States of one query.
const PAGE: i64 = 512;

/// Finds what is wrong with a journal that was opened for it.
pub(crate) async fn verify(mut connection: Box<dyn Connection>) -> VerifyReport {
    let mut findings = Findings::default();
    let done = whole(&mut *connection, &mut findings).await;
    if let Err(error) = done {
        // What the store itself refuses to read ends the check; the rest could only be guessed.
        findings.add(code::STORE, None, format!("the check ended here: {error}"));
    }
    let mut report = findings.report;
    report.ok = report.problems.is_empty();
    report
}

#[derive(Default)]
pub(super) struct Findings {
    pub report: VerifyReport,
}

impl Findings {
    pub fn add(&mut self, code: &str, seq: Option<Seq>, message: impl Into<String>) {
        self.report.add(code, seq, message);
    }
}

async fn whole(connection: &mut dyn Connection, findings: &mut Findings) -> Answer<()> {
    connection.begin().await?;
    let rows = connection.rows();
    for line in rows.structure().await? {
        findings.add(code::STORE, None, line);
    }
    let names = Names::default();
    let mut accounts = Accounts::load(rows, findings).await?;
    let mut chains = Chains::of(accounts.taken() > 0);
    states(rows, &names, &mut chains, &mut accounts, findings).await?;
    current::check(rows, &chains, findings).await?;
    accounts.finish(rows, findings).await?;
    beside::check(rows, chains.gaps, findings).await?;
    connection.end().await
}

async fn states(
    rows: &mut dyn Fetch,
    names: &Names,
    chains: &mut Chains,
    accounts: &mut Accounts,
    findings: &mut Findings,
) -> Answer<()> {
    let mut last: i64 = 0;
    let mut missing = 0;
    let taken = accounts.taken();
    loop {
        let page = rows.stored(last, PAGE).await?;
        let is_last = (page.len() as i64) < PAGE;
        for (seq, envelope, stored) in page {
            let (from, to) = (last + 1, seq - 1);
            missing += (to - last).max(0) as u64;
            // Where retention took some, which of the holes are its own is told by the tallies.
            if seq != from && taken == 0 {
                findings.add(
                    code::SEQUENCE,
                    Some(seq as u64),
                    format!("positions {from} to {to} are missing before it"),
                );
            }
            last = seq;
            findings.report.states_checked += 1;
            let envelope = match envelope {
                Ok(envelope) => envelope,
                Err(error) => {
                    findings.add(code::ENVELOPE, Some(seq as u64), text_of(error));
                    continue;
                }
            };
            let state = match names.states(rows, std::slice::from_ref(&envelope)).await {
                Ok(mut states) => states.pop(),
                Err(error) => {
                    findings.add(code::ENVELOPE, Some(seq as u64), text_of(error));
                    None
                }
            };
            let Some(state) = state else { continue };
            chains.state(rows, names, &envelope, &state, &stored, findings).await?;
            accounts.state(names.stream_of(envelope.object), &state, &stored);
        }
        if is_last {
            accounts.newest = last as u64;
            if taken > 0 && missing != taken {
                let text = format!("{missing} positions hold no state, and retention took {taken}");
                findings.add(code::SEQUENCE, None, text);
            }
            findings.report.objects_checked = chains.objects() as u64;
            return Ok(());
        }
    }
}

/// Damage is the finding, not the end of the check.
fn text_of(error: JournalError) -> String {
    match error {
        JournalError::Fatal(text)
        | JournalError::Unavailable(text)
        | JournalError::Invalid(text)
        | JournalError::Overtaken(text) => text,
    }
}
