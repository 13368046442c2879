//! Compares a trail with the journal: every state that the plugin has finished must be in the trail, once.
//!
//! The trail's own chain proves that no record was changed, but not that none is missing. `writer` finds out
//! which plugin writes the trail, and its progress. Without that, a trail is compared from its first record
//! of a source to its last.

mod writer;

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use kubewitness_core::{Change, ObjectRef, Seq, State, calendar};
use kubewitness_journal::{ExportQuery, JournalLocation, OpeningProgress, ids_at, read_states};
use serde::Deserialize;

use self::writer::MissingOutcome;
pub use self::writer::{LedgerWriter, find_ledger_writer};
use super::findings::{AuditReport, TrailGap};
use super::merkle::sha256;
use crate::commands::journal::place_hint;

/// How many positions are named as examples.
const EXAMPLES: usize = 5;
/// How many gaps are listed for programs. A text names fewer.
const GAPS: usize = 1000;

/// Records of older versions lack some fields.
#[derive(Deserialize)]
struct CompletenessRecord {
    seq: Seq,
    id: String,
    source: String,
    change: Option<String>,
    api_group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    phase: Option<String>,
    observed_at: Option<String>,
    document_sha256: Option<String>,
}

/// Half of an id's hash.
type HalfHash = [u8; 16];

fn half_hash(id: &str) -> HalfHash {
    sha256(&[id.as_bytes()]).first_chunk().copied().unwrap_or_default()
}

/// A record's words about its state, compared with the journal.
struct RecordComparison {
    id: HalfHash,
    /// The object and what happened to it.
    shown: Option<HalfHash>,
    document: Option<HalfHash>,
}

impl From<&CompletenessRecord> for RecordComparison {
    fn from(record: &CompletenessRecord) -> Self {
        let CompletenessRecord {
            change,
            api_group,
            kind,
            namespace,
            name,
            uid,
            resource_version,
            phase,
            observed_at,
            ..
        } = record;
        let shown = [change, api_group, kind, namespace, name, uid, resource_version, phase, observed_at]
            .map(Option::as_deref);
        let shown: Option<Vec<_>> = shown.into_iter().collect();
        Self {
            id: half_hash(&record.id),
            shown: shown.map(|shown| half_hash(&shown.join("\0"))),
            document: record.document_sha256.as_deref().map(half_hash),
        }
    }
}

impl RecordComparison {
    fn of(state: &State, document: Option<&[u8]>) -> Self {
        let ObjectRef { group, kind, namespace, name, uid, .. } = &*state.object;
        let phase = if state.change == Change::Gone { "Deleted" } else { &state.status.phase };
        let (version, at) = (state.resource_version.as_str(), calendar::format_rfc3339(state.observed_ms));
        let shown =
            [state.change.as_str(), group, kind, namespace, name, uid, version, phase, &at].join("\0");
        let document = document.map(|document| half_hash(&hex::encode(sha256(&[document]))));
        Self { id: half_hash(state.id.as_str()), shown: Some(half_hash(&shown)), document }
    }
}

#[derive(Default)]
struct TrailSource {
    first: Seq,
    last: Seq,
    states: HashMap<Seq, RecordComparison>,
}

/// The states of a trail that were not yet found in the journal.
#[derive(Default)]
pub struct UnmatchedTrail {
    sources: BTreeMap<String, TrailSource>,
    compared: u64,
    others: Vec<Seq>,
    changed: Vec<Seq>,
    has_digests: bool,
    /// Records whose digest is not that of the raw document.
    documents: Vec<Seq>,
    missing: Vec<Seq>,
    missing_count: u64,
    /// The first position, if the first files are missing.
    from_middle: Option<Seq>,
    /// States that the plugin has not finished, and those that became dead letters.
    waiting: u64,
    letters: u64,
    gaps: u64,
}

impl UnmatchedTrail {
    pub fn add(&mut self, text: &[u8]) {
        let Ok(record) = serde_json::from_slice::<CompletenessRecord>(text) else { return };
        let comparison = RecordComparison::from(&record);
        self.has_digests |= comparison.document.is_some();
        let source = self
            .sources
            .entry(record.source)
            .or_insert_with(|| TrailSource { first: Seq::MAX, ..TrailSource::default() });
        source.first = source.first.min(record.seq);
        source.last = source.last.max(record.seq);
        source.states.insert(record.seq, comparison);
    }

    /// Compares a state of the journal.
    fn compare_state(&mut self, state: &State, has: &RecordComparison, writer: &LedgerWriter) {
        let Some(own) =
            self.sources.get_mut(&*state.source).and_then(|source| source.states.remove(&state.seq))
        else {
            return self.note_missing(state, writer);
        };
        let differs = |own: Option<HalfHash>, other: Option<HalfHash>| {
            own.zip(other).is_some_and(|(own, other)| own != other)
        };
        let examples = match () {
            () if own.id != has.id => &mut self.others,
            () if differs(own.shown, has.shown) => &mut self.changed,
            () if differs(own.document, has.document) => &mut self.documents,
            () => return self.compared += 1,
        };
        if examples.len() < EXAMPLES {
            examples.push(state.seq);
        }
    }

    /// The trail has no record of this state.
    fn note_missing(&mut self, state: &State, writer: &LedgerWriter) {
        let is_owed = match writer.outcome_of_state(state) {
            Some(MissingOutcome::Waiting) => return self.waiting += 1,
            Some(MissingOutcome::DeadLetter) => return self.letters += 1,
            Some(MissingOutcome::Other) => false,
            Some(MissingOutcome::Finished) => self.is_from(state),
            None => self.is_within(state) && !writer.selective.contains(&*state.source),
        };
        if is_owed {
            self.missing_count += 1;
            if self.missing.len() < EXAMPLES {
                self.missing.push(state.seq);
            }
        }
    }

    /// If the first files are missing, only states after the first record of the source count, or after the
    /// first record of any source.
    fn is_from(&self, state: &State) -> bool {
        let Some(first) = self.from_middle else { return true };
        state.seq >= self.sources.get(&*state.source).map_or(first, |source| source.first)
    }

    /// Whether it is between the trail's records of the source.
    fn is_within(&self, state: &State) -> bool {
        let source = self.sources.get(&*state.source);
        source.is_some_and(|source| (source.first..=source.last).contains(&state.seq))
    }

    /// Takes a gap of the journal between the trail's records of the source.
    fn take_gap(&mut self, state: &State, report: &mut AuditReport) {
        if state.change != Change::Gap || !self.is_within(state) {
            return;
        }
        self.gaps += 1;
        if report.gaps.len() < GAPS {
            report.gaps.push(TrailGap { id: state.id.as_str().to_owned(), seq: state.seq });
        }
    }

    fn count_left(&self) -> usize {
        self.sources.values().map(|source| source.states.len()).sum()
    }

    /// `is_retained` is set if retention has removed states of the journal.
    fn report_result(self, report: &mut AuditReport, is_retained: bool, writer: &LedgerWriter) {
        report.compared = Some(self.compared);
        match self.fault_text(report.lines, is_retained, writer) {
            Some(fault) => report.note_break("", None, fault),
            None => report.not_shown.extend(self.not_shown(report, writer)),
        }
    }

    fn fault_text(&self, records: u64, is_retained: bool, writer: &LedgerWriter) -> Option<String> {
        let left = self.count_left();
        let delivered = writer.count_delivered().filter(|_| self.from_middle.is_none()).unwrap_or_default();
        Some(match () {
            () if !self.others.is_empty() => format!(
                "the journal has other states at the positions {}: it is of another installation",
                join_positions(&self.others)
            ),
            () if !self.changed.is_empty() => format!(
                "records say something else than the journal of the states at the positions {}: somebody changed them",
                join_positions(&self.changed)
            ),
            () if !self.documents.is_empty() => format!(
                "the documents at the positions {} have another digest in the journal: somebody changed the records, or \
                 the plugin was granted `documents: digest` only later",
                join_positions(&self.documents)
            ),
            () if self.missing_count > 0 => format!(
                "{} states of the journal are not in the trail, such as those at the positions {}: {}",
                self.missing_count,
                join_positions(&self.missing),
                writer.why_missing()
            ),
            () if delivered > records => format!(
                "the plugin was handed {delivered} states, and the trail has {records} records: {ELSEWHERE}"
            ),
            () if left > 0 && !is_retained => {
                format!("{left} records are of states that the journal never had: somebody added them")
            }
            () => return None,
        })
    }

    fn not_shown(&self, report: &AuditReport, writer: &LedgerWriter) -> Vec<String> {
        let mut reasons = Vec::new();
        if !writer.is_known() {
            reasons.push(
                "whether states before the first record of a source or after the last are missing, or all of a source: the \
                 data folder does not say which plugin writes these files, and how far it is"
                    .to_owned(),
            );
        }
        let sources =
            writer.selective.iter().filter(|source| writer.is_known() || self.sources.contains_key(*source));
        reasons.extend(sources.map(|source| {
            format!("whether every state of `{source}` is there: the plugin subscribes to some of them (`mode` or `filter`)")
        }));
        if self.waiting > 0 {
            reasons.push(format!("{} states that wait: the plugin has not finished them yet", self.waiting));
        }
        if self.letters > 0 {
            reasons.push(format!("{} dead letters: `kubewitness deadletters list` names them", self.letters));
        }
        if self.has_digests && !writer.has_digests {
            reasons.push(
                "whether the digests of documents are right: the plugin is not granted `documents: digest`"
                    .to_owned(),
            );
        }
        if self.gaps > 0 {
            reasons.push(gaps_told(self.gaps, &report.gaps));
        }
        let left = self.count_left();
        if left > 0 {
            reasons
                .push(format!("whether {left} records were in the journal: its retention has taken states"));
        }
        reasons
    }
}

/// Where missing records of a trail may be.
const ELSEWHERE: &str =
    "somebody removed some, or an older ledger or that of another replica has them (`--from-middle`)";

fn gaps_told(count: u64, gaps: &[TrailGap]) -> String {
    // A gap's id ends with its bounds.
    let named: Vec<_> =
        gaps.iter().take(EXAMPLES).map(|gap| format!("{} at position {}", gap.id, gap.seq)).collect();
    let more = match count - named.len() as u64 {
        0 => String::new(),
        more => format!(", and {more} more (`-o json` names up to {GAPS})"),
    };
    format!(
        "what happened in {count} gaps of the journal, of which nobody has the states: {}{more}",
        named.join(", ")
    )
}

fn join_positions(seqs: &[Seq]) -> String {
    seqs.iter().map(Seq::to_string).collect::<Vec<_>>().join(", ")
}

/// `is_from_middle` is set if the trail's first files were not given.
pub async fn compare_with_journal(
    report: &mut AuditReport,
    mut trail: UnmatchedTrail,
    place: &JournalLocation,
    writer: &LedgerWriter,
    is_from_middle: bool,
) -> Result<()> {
    let first = trail.sources.values().map(|source| source.first).min();
    let last = trail.sources.values().map(|source| source.last).max().unwrap_or_default();
    trail.from_middle = first.filter(|_| is_from_middle);
    let query = ExportQuery {
        after: first.filter(|_| is_from_middle || !writer.is_known()).and_then(|first| first.checked_sub(1)),
        through: (!writer.is_known()).then_some(last),
        documents: writer.has_digests,
        ..ExportQuery::default()
    };
    let progress = OpeningProgress::default();
    let reading = read_states(place, &query, &progress, |state, document| {
        trail.take_gap(state, report);
        trail.compare_state(state, &RecordComparison::of(state, document.as_deref()), writer);
        ControlFlow::Continue(())
    });
    reading.await.with_context(|| place_hint("reading", place))?;
    let known = ids_at(place, &[]).await.with_context(|| place_hint("reading", place))?;
    trail.report_result(report, known.retained, writer);
    Ok(())
}

#[cfg(test)]
mod tests;
