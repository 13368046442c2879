//! Verifies a journal, or reports its faults. Checksums alone were not enough: they find a changed row, but
//! not a missing or contradicting one. So it reads every row once, in order, and repeats the writer's work:
//! positions, chains, lateness, documents, counts, and the accounts of each plugin. It writes nothing. It
//! works on one snapshot beside a running writer; as long as it reads, the WAL grows.
//!
//! Memory: about 350 bytes for each object, and a bounded cache of documents.

mod accounts;
mod chains;
mod current;
mod findings;
mod other_rows;
pub(crate) mod story;

use std::path::Path;

use self::accounts::VerifiedAccounts;
use self::chains::ChainCheck;
use self::findings::{ProblemList, text_of};
use crate::progress::OpeningProgress;
use crate::read::SharedNames;
use crate::report::{OpenError, VerifyReport, code};
use crate::store::place::JournalLocation;
use crate::store::rows::StoreResult;
use crate::store::{OpenedJournal, StoreConnection, StoreReader};

/// States of one query.
const PAGE: i64 = 512;

/// Verifies the whole journal: order, ids, documents, current objects, counts, cursors, and for each plugin
/// observed = delivered + filtered + dead + waiting. It writes nothing, and may run beside the process that
/// writes. An `Err` means that no journal exists to check; a journal that is too damaged to be opened is a
/// finding.
pub async fn verify_file(path: &Path) -> Result<VerifyReport, OpenError> {
    verify_at(&JournalLocation::file(path)).await
}

/// The same for any location.
pub async fn verify_at(place: &JournalLocation) -> Result<VerifyReport, OpenError> {
    verify_with(place, &OpeningProgress::default()).await
}

/// The same, and reports its progress.
pub async fn verify_with(
    place: &JournalLocation,
    progress: &OpeningProgress,
) -> Result<VerifyReport, OpenError> {
    let OpenedJournal { connection, unfinished, .. } = match place.open_to_read().await {
        Ok(opened) => opened,
        Err(damaged @ OpenError::Damaged { .. }) => {
            let mut report = VerifyReport::default();
            report.add(code::STORE, None, damaged.to_string());
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let mut report = verify_connection(connection, progress).await;
    if unfinished {
        let hint = OpenError::Unfinished { place: place.to_string() };
        report.add(code::UNFINISHED, None, hint.to_string());
    }
    Ok(report)
}

async fn verify_connection(
    mut connection: Box<dyn StoreConnection>,
    progress: &OpeningProgress,
) -> VerifyReport {
    let mut findings = ProblemList::default();
    let done = verify_whole(&mut *connection, &mut findings, progress).await;
    if let Err(error) = done {
        // If the store itself refuses to read, the check ends; the rest could only be guessed.
        findings.add(code::STORE, None, format!("the check ended here: {error}"));
    }
    let mut report = findings.report;
    report.ok = report.problems.is_empty();
    report
}

async fn verify_whole(
    connection: &mut dyn StoreConnection,
    findings: &mut ProblemList,
    progress: &OpeningProgress,
) -> StoreResult<()> {
    connection.begin_snapshot().await?;
    let rows = connection.store_reader();
    for line in rows.structure_findings().await? {
        findings.add(code::STORE, None, line);
    }
    let names = SharedNames::default();
    let mut accounts = VerifiedAccounts::load(rows, findings).await?;
    let mut chains = ChainCheck::of(accounts.taken_count() > 0);
    // An unreadable counter is a finding about the accounts, and no reason to check less.
    progress.begin_counting(rows).await.ok();
    verify_states(rows, &names, &mut chains, &mut accounts, findings, progress).await?;
    current::check(rows, &chains, findings).await?;
    accounts.check_accounts(rows, findings).await?;
    other_rows::check(rows, chains.gaps, findings).await?;
    connection.end_snapshot().await
}

async fn verify_states(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    chains: &mut ChainCheck,
    accounts: &mut VerifiedAccounts,
    findings: &mut ProblemList,
    progress: &OpeningProgress,
) -> StoreResult<()> {
    let mut last: i64 = 0;
    let mut missing = 0;
    let taken = accounts.taken_count();
    loop {
        let page = rows.stored_rows(last, PAGE).await?;
        let is_last = (page.len() as i64) < PAGE;
        progress.set_done(findings.report.states_checked);
        for (seq, envelope, stored) in page {
            let (from, to) = (last + 1, seq - 1);
            missing += (to - last).max(0) as u64;
            // If retention removed states, the counts of segments show which holes it made.
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
            let state = match names.states_of(rows, std::slice::from_ref(&envelope)).await {
                Ok(mut states) => states.pop(),
                Err(error) => {
                    findings.add(code::ENVELOPE, Some(seq as u64), text_of(error));
                    None
                }
            };
            let Some(state) = state else { continue };
            chains.check_state(rows, names, &envelope, &state, &stored, findings).await?;
            accounts.count_state(names.stream_of(envelope.object), &state, &stored);
        }
        if is_last {
            progress.set_done(findings.report.states_checked);
            accounts.newest = last as u64;
            if taken > 0 && missing != taken {
                let text = format!("{missing} positions hold no state, and retention took {taken}");
                findings.add(code::SEQUENCE, None, text);
            }
            findings.report.objects_checked = chains.count_objects() as u64;
            return Ok(());
        }
    }
}
