//! `kubewitness audit`: reads an audit trail and changes nothing, also beside a running controller. It calls
//! no controller, and opens a journal only to compare a trail with it.
//!
//! A verifier that shares code with the writer shares its errors. So everything here is written separately,
//! from the format in `docs/concepts/ledger.md`: its own Merkle tree, its own SHA-256, its own parser of
//! statements.
//!
//! `verify` reads the files in order. `statements` checks what the controller wrote between the records, and
//! `trail` the records themselves.

mod anchor;
mod completeness;
mod findings;
mod keys;
mod merkle;
mod persons;
mod show;
mod statements;
mod trail;
mod verify;
#[cfg(test)]
mod verify_tests;

use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::json;

use self::anchor::{NotedAnchor, RootAnchor};
use self::completeness::LedgerWriter;
use self::findings::AuditReport;
pub use self::findings::BrokenLine;
use self::verify::{ProofDemands, verify_files};
use crate::cli::{Audit, Output, TrailArgs, VerifyTrailArgs};
use crate::commands::print::{self, clean_line, coloured_mark, note};
use crate::commands::{CommandEnd, CommandResult, UsageError};
use crate::journal_place::journal_place;

pub async fn run_audit(command: Audit) -> CommandResult {
    match command {
        Audit::Verify(args) => prove_trail(args).await,
        Audit::Root { trail, output } => print_root(&trail, output),
        Audit::Show(args) => show::show_trail(&args),
        Audit::Erase(args) => persons::erase_person(&args),
        Audit::Key { file, new, output } => key(&file, new, output),
    }
}

async fn prove_trail(args: VerifyTrailArgs) -> CommandResult {
    let VerifyTrailArgs { trail, anchor, from_middle, data, journal, output } = args;
    let anchors = anchor.iter().map(|text| text.parse::<RootAnchor>().map(NotedAnchor::from));
    let anchors =
        anchors.collect::<Result<_, _>>().map_err(|error| UsageError::error(format!("--anchor {error}")))?;
    let mut demands = ProofDemands { anchors, is_from_first: !from_middle, ..proof_demands(&trail)? };
    let mut journal = match &data {
        Some(data) => Some((journal_place(&journal, data)?, LedgerWriter::default())),
        None => None,
    };
    if let (Some((place, writer)), Some(data)) = (&mut journal, &data) {
        *writer = completeness::find_ledger_writer(data, &trail.files, place).await?;
        let kept = writer.reached.clone().map(RootAnchor::from);
        demands.anchors.extend(kept.map(|anchor| NotedAnchor { anchor, by_journal: true }));
        demands.signed_every = demands.signed_every.or(writer.signed_every);
    }
    let mut records = completeness::UnmatchedTrail::default();
    let mut report = verify_files(&trail.files, &demands, &mut |text| {
        if data.is_some() {
            records.add(text);
        }
    })?;
    if let Some((place, writer)) = journal.filter(|_| report.ok) {
        completeness::compare_with_journal(&mut report, records, &place, &writer, from_middle).await?;
    }
    print::print_value(output, &report, |report| {
        let what = format!(
            "{} {}: {}\n",
            coloured_mark(report.ok),
            name_of_faulty(&trail.files, report),
            clean_line(&report.to_string())
        );
        what + &report.detail_lines()
    })?;
    Ok(if report.ok { CommandEnd::Fine } else { CommandEnd::Failed })
}

/// The demands of each command on a trail.
fn proof_demands(trail: &TrailArgs) -> anyhow::Result<ProofDemands> {
    Ok(ProofDemands {
        keys: keys::read_all(&trail.key)?,
        signed_every: trail.signed_every,
        ..ProofDemands::default()
    })
}

/// The file at fault, or all of them.
fn name_of_faulty(files: &[PathBuf], report: &AuditReport) -> String {
    match (report.bad_file.as_deref().filter(|file| !file.is_empty()), files) {
        (Some(file), _) => clean_line(file).into_owned(),
        (None, [file]) => clean_line(&file.display().to_string()).into_owned(),
        (None, files) => format!("{} files", files.len()),
    }
}

fn print_root(trail: &TrailArgs, output: Output) -> CommandResult {
    let demands = proof_demands(trail)?;
    let report = verify_files(&trail.files, &demands, &mut |_| {})?;
    if !report.ok {
        bail!(
            "the ledger does not hold, and a root of it proves nothing: `kubewitness audit verify` says why"
        );
    }
    let Some(newest) = &report.newest_root else {
        if report.ledger.is_some() {
            bail!(
                "there is no root in these files yet: give the files before them as well, or wait for the next root"
            );
        }
        bail!(
            "there is no root yet: set `signing` or `rotate` of the ledger in the host's settings, and wait until the \
             first one is due"
        );
    };
    print::print_value(output, newest, |newest| format!("{}\n", newest.anchor))?;
    Ok(CommandEnd::Fine)
}

/// Creates a private key in this file, and returns its public part as a PEM.
#[cfg(feature = "playground")]
pub fn new_key(file: &Path) -> anyhow::Result<String> {
    keys::make_key_file(file).map(|public| keys::public_pem(&public))
}

fn key(file: &Path, new: bool, output: Output) -> CommandResult {
    let public = if new { keys::make_key_file(file)? } else { keys::read(file)? };
    let shown = json!({"id": keys::id(&public), "public": keys::public_pem(&public)});
    note!("key {}", keys::id(&public));
    print::print_value(output, &shown, |_| keys::public_pem(&public))?;
    Ok(CommandEnd::Fine)
}
