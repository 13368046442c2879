//! Reads the files of one ledger in order, line by line: statements of the controller, and records of the
//! trail.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kubewitness_core::files;
use kubewitness_core::limits::BATCH_MOST;

use super::anchor::{NotedAnchor, RootAnchor};
use super::findings::{AuditReport, NewestRoot};
use super::statements::{self, LedgerState, PublicKeys};
use super::trail::RecordChain;
use super::{BrokenLine, trail};

/// A ledger accepts no longer records.
pub const LINE_BYTES: u64 = 256 * 1024 + 1;
/// Hundreds of years of daily files; each is opened twice.
const FILES: usize = 100_000;

/// The demands on a proof beyond order.
#[derive(Default)]
pub struct ProofDemands {
    pub keys: PublicKeys,
    pub anchors: Vec<NotedAnchor>,
    /// Whether the first file of the ledger must be present.
    pub is_from_first: bool,
    /// `records` of the ledger's `signing`; `None` if nothing sets another number than the default.
    pub signed_every: Option<u64>,
}

/// The default of `records` in `signing`.
const SIGNED_EVERY: u64 = 1000;

impl ProofDemands {
    /// How many records the controller may leave after the newest root: it signs before it appends those of a
    /// call.
    fn open_most(&self, widest: u64) -> u64 {
        let set = self.signed_every.unwrap_or(SIGNED_EVERY).saturating_add(u64::from(BATCH_MOST));
        // As many as it left between two signed roots.
        set.max(widest)
    }
}

/// The number of an empty file among others, which comes last.
const EMPTY: u64 = u64::MAX;

/// A file, with the number in its first line.
struct NumberedFile {
    path: PathBuf,
    number: u64,
    reader: Option<BufReader<File>>,
}

/// An error means that reading failed; faults of lines are in the report. `each` gets the text of every valid
/// record.
pub fn verify_files(
    paths: &[PathBuf],
    demands: &ProofDemands,
    each: &mut dyn FnMut(&[u8]),
) -> Result<AuditReport> {
    let mut report = AuditReport { ok: true, head: trail::START.to_owned(), ..AuditReport::default() };
    let files = in_order(paths)?;
    report.first_file = files.first().map_or(1, |file| file.number);
    let is_whole = report.first_file <= 1;
    let mut proof = TrailProof {
        chain: RecordChain::new(is_whole),
        ledger: LedgerState::default(),
        demands,
        found: vec![false; demands.anchors.len()],
        each,
    };
    let last = files.len().saturating_sub(1);
    let mut before: Option<(u64, String)> = None;
    for (place, file) in files.into_iter().enumerate() {
        let name = file.path.display().to_string();
        let first = (demands.is_from_first && !is_whole).then(|| not_first(file.number));
        if let Some(fault) = misplaced_file(before.as_ref(), file.number).or(first) {
            report.note_break(&name, None, fault);
            break;
        }
        before = Some((file.number, name.clone()));
        report.files += 1;
        let number = file.number;
        let read = proof.prove_file(file, place < last).with_context(|| format!("reading {name}"))?;
        if let Err((line, broken)) = read {
            report.note_break(&name, Some(line), broken.to_string());
            break;
        }
        if let Some(missed) = proof.missed_anchor(number) {
            report.note_break(&name, None, missed);
            break;
        }
    }
    proof.report_proof(&mut report, is_whole);
    Ok(report)
}

fn not_first(number: u64) -> String {
    format!(
        "the file before it, number {} of the ledger, was not given: give all from the first on, or `--from-middle` if \
         those before are kept elsewhere",
        number.saturating_sub(1)
    )
}

/// Why this file can't come next.
fn misplaced_file(before: Option<&(u64, String)>, number: u64) -> Option<String> {
    let (before, name) = before?;
    match number {
        EMPTY => Some(format!(
            "it is empty, although {name} is closed: its lines were removed, or somebody added the file"
        )),
        _ if number == *before => Some(format!(
            "it is file {number} of the ledger, and so is {name}: one of the two is a copy, or the ledger was forked"
        )),
        _ if number != before + 1 => Some(format!(
            "file {} of the ledger is missing before it: give it as well, or find out who removed it",
            before + 1
        )),
        _ => None,
    }
}

/// In the order of their numbers, whatever their names are.
fn in_order(paths: &[PathBuf]) -> Result<Vec<NumberedFile>> {
    let paths = each_once(paths);
    if paths.len() > FILES {
        bail!("{} files are more than {FILES}: verify them in parts", paths.len());
    }
    let is_alone = paths.len() == 1;
    let mut numbered = Vec::new();
    for path in paths {
        if !is_alone && files::is_handed_over(path) {
            bail!(
                "{} is a pipe: several files are named by their paths, since each is read twice",
                path.display()
            );
        }
        let opened =
            files::open_command_input(path).with_context(|| format!("opening {}", path.display()))?;
        let mut reader = BufReader::new(opened);
        let number =
            number_of(&mut reader, is_alone).with_context(|| format!("reading {}", path.display()))?;
        numbered.push(NumberedFile { path: path.clone(), number, reader: is_alone.then_some(reader) });
    }
    numbered.sort_by_key(|file| file.number);
    Ok(numbered)
}

/// Two patterns of a shell may name the same file.
fn each_once(paths: &[PathBuf]) -> Vec<&PathBuf> {
    let mut seen = BTreeSet::new();
    let is_new = |path: &&PathBuf| path.metadata().map_or(true, |file| seen.insert((file.dev(), file.ino())));
    paths.iter().filter(is_new).collect()
}

/// Peeks at the first bytes. Only the first file has no head.
fn number_of(reader: &mut BufReader<File>, is_alone: bool) -> io::Result<u64> {
    let begin = reader.fill_buf()?;
    if begin.is_empty() && !is_alone {
        return Ok(EMPTY);
    }
    let line = begin.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(match statements::read(line) {
        Ok(head) if statements::is_statement(line) && head.is_head() => head.file,
        _ => 1,
    })
}

struct TrailProof<'a> {
    chain: RecordChain,
    ledger: LedgerState,
    demands: &'a ProofDemands,
    /// For each anchor, whether it was reached.
    found: Vec<bool>,
    each: &'a mut dyn FnMut(&[u8]),
}

impl TrailProof<'_> {
    /// Returns the invalid line, if there is one.
    fn prove_file(&mut self, file: NumberedFile, is_followed: bool) -> Result<Result<(), (u64, BrokenLine)>> {
        let mut reader = match file.reader {
            Some(reader) => reader,
            None => BufReader::new(files::open_command_input(&file.path)?),
        };
        self.ledger.begin_file(file.number);
        let mut bytes = Vec::new();
        while reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut bytes)? > 0 {
            let number = self.ledger.lines + 1;
            if let Err(broken) = self.prove_line(&bytes) {
                return Ok(Err((number, broken)));
            }
            bytes.clear();
            if let Err(fault) = self.check_anchors(file.number) {
                return Ok(Err((number, fault)));
            }
        }
        let is_cut = is_followed && !self.ledger.is_sealed;
        Ok(if is_cut { Err((self.ledger.lines + 1, BrokenLine::NoSeal)) } else { Ok(()) })
    }

    fn prove_line(&mut self, bytes: &[u8]) -> Result<(), BrokenLine> {
        let text = bytes.strip_suffix(b"\n").ok_or(BrokenLine::Cut)?;
        if statements::is_statement(text) {
            return self.ledger.take_statement(text, &self.demands.keys);
        }
        self.chain.take_record(text)?;
        self.ledger.take_record(text)?;
        (self.each)(text);
        Ok(())
    }

    fn check_anchors(&mut self, file: u64) -> Result<(), BrokenLine> {
        for (noted, found) in self.demands.anchors.iter().zip(&mut self.found) {
            if (noted.anchor.file, noted.anchor.lines) == (file, self.ledger.lines) {
                if noted.anchor.root != self.ledger.root_so_far() {
                    return Err(BrokenLine::OtherAnchor(noted.to_string()));
                }
                *found = true;
            }
        }
        Ok(())
    }

    /// An anchor of this file that its lines do not reach.
    fn missed_anchor(&self, file: u64) -> Option<String> {
        let mut anchors = self.demands.anchors.iter().zip(&self.found);
        let (noted, _) = anchors.find(|(noted, found)| noted.anchor.file == file && !**found)?;
        let has = self.ledger.lines;
        Some(format!("it has {has} lines, and {noted} covers more: its end was cut"))
    }

    fn report_proof(self, report: &mut AuditReport, is_whole: bool) {
        let Self { chain, ledger, demands, found, .. } = self;
        report.lines = chain.records;
        report.signed = chain.signed;
        report.head = chain.head_hash().to_owned();
        (report.roots, report.seals) = (ledger.roots, ledger.seals);
        (report.open, report.adopted) = (ledger.open, ledger.adopted);
        report.signed_roots = ledger.signed_roots;
        report.newest_root = ledger.newest.as_ref().map(|newest| NewestRoot {
            anchor: RootAnchor::of(newest).to_string(),
            at: newest.at.clone(),
            key: newest.key.clone(),
        });
        let by_people =
            demands.anchors.iter().zip(&found).filter(|(noted, found)| !noted.by_journal && **found);
        report.anchors = by_people.count() as u64;
        report.ledger.clone_from(&ledger.id);
        if !report.ok {
            return;
        }
        let strange = |noted: &&NotedAnchor| ledger.id.as_ref() != Some(&noted.anchor.ledger);
        if let Some(noted) = demands.anchors.iter().find(strange) {
            return report.note_break("", None, format!("{noted} is of another ledger than these files"));
        }
        if let Some((noted, _)) = demands.anchors.iter().zip(&found).find(|(_, found)| !**found) {
            let message = format!("{noted} is of file {}, which was not given", noted.anchor.file);
            return report.note_break("", None, message);
        }
        if !demands.keys.is_empty() && ledger.signed_roots == 0 && (report.lines > 0 || is_whole) {
            let message = "keys were given, and no root in these files is signed: the ledger was never signed, or somebody \
                        took the roots out";
            return report.note_break("", None, message.to_owned());
        }
        let most = demands.open_most(ledger.widest);
        if ledger.signed_roots > 0 && ledger.open > most {
            let message = format!(
                "{} records stand after the newest root, and the controller leaves {most} at most: somebody added them, or \
                 the ledger is not signed any more. Give `records` of its `signing` with `--signed-every` if that is larger",
                ledger.open
            );
            return report.note_break("", None, message);
        }
        report.not_shown = not_shown(report, demands, is_whole);
    }
}

/// The claims that the files alone can't prove.
fn not_shown(report: &AuditReport, demands: &ProofDemands, is_whole: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    if !is_whole {
        reasons.push("what was before the first of these files: it was not given".to_owned());
    }
    if report.roots > 0 && demands.keys.is_empty() {
        reasons.push("whether signatures hold: give the public key with `--key`".to_owned());
    }
    if report.roots == 0 && report.lines > 0 {
        reasons.push(
            "whether the whole file was rewritten: nothing in it is signed (`signing` of the ledger in the host's settings)"
                .to_owned(),
        );
    } else if report.open > 0 {
        reasons.push(format!(
            "whether the last {} records are all and unchanged: they have no signed root yet",
            report.open
        ));
    }
    let before = report.roots - report.signed_roots;
    if before > 0 && !demands.keys.is_empty() {
        reasons.push(format!(
            "whether the lines before the first signature were changed before it came: {before} roots there have none"
        ));
    }
    if report.adopted > 0 {
        reasons.push(format!(
            "whether {} lines are as they were written: they were there when the controller first signed the ledger, or its \
             `.receipts` had been removed",
            report.adopted
        ));
    }
    if demands.anchors.is_empty() && report.lines > 0 {
        reasons.push(
            "whether the end was cut back to an earlier root: note `kubewitness audit root` elsewhere, and give it with \
             `--anchor`"
                .to_owned(),
        );
    }
    reasons
}
