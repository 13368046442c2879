//! Compares a trail with the journal: every state that the journal has between the trail's first and last record of a
//! source stands in the trail, once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kubewitness_core::config::{DocumentsGrant, Mode, PluginSpec, SubscribeSpec};
use kubewitness_core::ledger::is_closed_file;
use kubewitness_core::{Change, ObjectRef, Seq, State, calendar};
use kubewitness_journal::{ExportQuery, Place, Progress, ids_at, read_states};
use serde::Deserialize;

use super::findings::Report;
use super::merkle::sha256;
use crate::commands::journal::{hint, host_of};
use crate::config::last_good::LastGood;
use crate::config::manifest::{Parsed, parse_plugin};

/// Positions that are named of many that are missing: enough to look at some.
const EXAMPLES: usize = 5;

/// Records of older versions lack some of it.
#[derive(Deserialize)]
struct Record {
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
type Half = [u8; 16];

fn half(id: &str) -> Half {
    sha256(&[id.as_bytes()]).first_chunk().copied().unwrap_or_default()
}

/// What a record says of its state, and what the journal has of it.
struct Said {
    id: Half,
    /// The object and what became of it.
    shown: Option<Half>,
    document: Option<Half>,
}

impl From<&Record> for Said {
    fn from(record: &Record) -> Self {
        let Record {
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
            id: half(&record.id),
            shown: shown.map(|shown| half(&shown.join("\0"))),
            document: record.document_sha256.as_deref().map(half),
        }
    }
}

impl Said {
    fn of(state: &State, document: Option<&[u8]>) -> Self {
        let ObjectRef { group, kind, namespace, name, uid, .. } = &*state.object;
        let phase = if state.change == Change::Gone { "Deleted" } else { &state.status.phase };
        let (version, at) = (state.resource_version.as_str(), calendar::rfc3339(state.observed_ms));
        let shown =
            [state.change.as_str(), group, kind, namespace, name, uid, version, phase, &at].join("\0");
        let document = document.map(|document| half(&hex::encode(sha256(&[document]))));
        Self { id: half(state.id.as_str()), shown: Some(half(&shown)), document }
    }
}

#[derive(Default)]
struct Source {
    first: Seq,
    last: Seq,
    states: HashMap<Seq, Said>,
}

/// What is known of the plugin that writes a ledger.
#[derive(Debug, Default)]
pub struct Writer {
    /// Sources of which it is not handed every state.
    pub selective: BTreeSet<String>,
    /// It is granted the digests of documents as the API server sent them.
    pub has_digests: bool,
}

/// The states of a trail that were not found in the journal yet.
#[derive(Default)]
pub struct Trail {
    sources: BTreeMap<String, Source>,
    compared: u64,
    others: Vec<Seq>,
    changed: Vec<Seq>,
    has_digests: bool,
    /// Records with another digest than that of the raw document.
    documents: Vec<Seq>,
    missing: Vec<Seq>,
    missing_more: u64,
    gaps: u64,
    gap_examples: Vec<String>,
}

impl Trail {
    pub fn add(&mut self, text: &[u8]) {
        let Ok(record) = serde_json::from_slice::<Record>(text) else { return };
        let said = Said::from(&record);
        self.has_digests |= said.document.is_some();
        let source = self
            .sources
            .entry(record.source)
            .or_insert_with(|| Source { first: Seq::MAX, ..Source::default() });
        source.first = source.first.min(record.seq);
        source.last = source.last.max(record.seq);
        source.states.insert(record.seq, said);
    }

    /// A state of the journal. Of a selective source the trail has only some.
    fn journaled(&mut self, source: &str, seq: Seq, has: &Said, is_selective: bool) {
        let Some(source) = self.sources.get_mut(source) else { return };
        if !(source.first..=source.last).contains(&seq) {
            return;
        }
        let differs =
            |own: Option<Half>, other: Option<Half>| own.zip(other).is_some_and(|(own, other)| own != other);
        let examples = match source.states.remove(&seq) {
            Some(own) if own.id != has.id => &mut self.others,
            Some(own) if differs(own.shown, has.shown) => &mut self.changed,
            Some(own) if differs(own.document, has.document) => &mut self.documents,
            Some(_) => {
                self.compared += 1;
                return;
            }
            None if is_selective => return,
            None => {
                self.missing_more += u64::from(self.missing.len() >= EXAMPLES);
                &mut self.missing
            }
        };
        if examples.len() < EXAMPLES {
            examples.push(seq);
        }
    }

    /// A gap of the journal between the trail's records of the source.
    fn gap(&mut self, state: &State) {
        let Some(source) = self.sources.get(&*state.source) else { return };
        if state.change != Change::Gap || !(source.first..=source.last).contains(&state.seq) {
            return;
        }
        self.gaps += 1;
        if self.gap_examples.len() < EXAMPLES {
            // A gap's id ends with its bounds.
            self.gap_examples.push(format!("{} at position {}", state.id.as_str(), state.seq));
        }
    }

    fn left(&self) -> usize {
        self.sources.values().map(|source| source.states.len()).sum()
    }

    /// Whether retention has taken states of the journal.
    fn tell(self, report: &mut Report, is_retained: bool, writer: &Writer) {
        report.compared = Some(self.compared);
        let left = self.left();
        let fault = match () {
            () if !self.others.is_empty() => format!(
                "the journal has other states at the positions {}: it is of another installation",
                listed(&self.others)
            ),
            () if !self.changed.is_empty() => format!(
                "records say something else than the journal of the states at the positions {}: somebody changed them",
                listed(&self.changed)
            ),
            () if !self.documents.is_empty() => format!(
                "the documents at the positions {} have another digest in the journal: somebody changed the records, or \
                 the plugin was granted `documents: digest` only later",
                listed(&self.documents)
            ),
            () if !self.missing.is_empty() => format!(
                "{} states of the journal are not in the trail, such as those at the positions {}: they wait, were parked \
                 (`kubewitness deadletters list`), or somebody removed them",
                self.missing.len() as u64 + self.missing_more,
                listed(&self.missing)
            ),
            () if left > 0 && !is_retained => {
                format!("{left} records are of states that the journal never had: somebody added them")
            }
            () => {
                if self.has_digests && !writer.has_digests {
                    report.not_shown.push(
                        "whether the digests of documents are right: the plugin is not granted `documents: digest`"
                            .to_owned(),
                    );
                }
                if self.gaps > 0 {
                    report.not_shown.push(format!(
                        "what happened in {} gaps of the journal, of which nobody has the states: {}",
                        self.gaps,
                        self.gap_examples.join(", ")
                    ));
                }
                if left > 0 {
                    report.not_shown.push(format!(
                        "whether {left} records were in the journal: its retention has taken states"
                    ));
                }
                return;
            }
        };
        report.breaks("", None, fault);
    }
}

fn listed(seqs: &[Seq]) -> String {
    seqs.iter().map(Seq::to_string).collect::<Vec<_>>().join(", ")
}

pub async fn compare(report: &mut Report, mut trail: Trail, place: &Place, writer: &Writer) -> Result<()> {
    let first = trail.sources.values().map(|source| source.first).min().unwrap_or_default();
    let last = trail.sources.values().map(|source| source.last).max().unwrap_or_default();
    let query = ExportQuery {
        after: first.checked_sub(1),
        through: Some(last),
        documents: writer.has_digests,
        ..ExportQuery::default()
    };
    let progress = Progress::default();
    let reading = read_states(place, &query, &progress, |state, document| {
        let is_selective = writer.selective.contains(&*state.source);
        trail.gap(state);
        trail.journaled(&state.source, state.seq, &Said::of(state, document.as_deref()), is_selective);
        ControlFlow::Continue(())
    });
    reading.await.with_context(|| hint("reading", place))?;
    let known = ids_at(place, &[]).await.with_context(|| hint("reading", place))?;
    for source in trail.sources.keys().filter(|source| writer.selective.contains(*source)) {
        report.not_shown.push(format!(
            "whether every state of `{source}` is there: the plugin subscribes to some of them (`mode` or `filter`)"
        ));
    }
    trail.tell(report, known.retained, writer);
    Ok(())
}

/// What the configuration that was taken last says of the plugin that writes these files.
pub fn writer(data: &Path, files: &[PathBuf]) -> Result<Writer> {
    let Some(host) = host_of(data)? else { return Ok(Writer::default()) };
    let kept = LastGood::open(data).and_then(|last_good| last_good.plugins());
    let kept = kept.context("reading the plugins that were taken last")?;
    let is_written = |path: &str| {
        let open = data.join(path);
        let is_it = |file: &PathBuf| {
            let same = |one: &Path, other: &Path| one.canonicalize().ok() == other.canonicalize().ok();
            same(file, &open)
                || file.file_name().is_some_and(|name| is_closed_file(&open, &open.with_file_name(name)))
        };
        files.iter().any(is_it)
    };
    let ledgers: BTreeSet<_> =
        host.ledgers.iter().filter(|ledger| is_written(&ledger.path)).map(|ledger| &ledger.name).collect();
    let plugins = kept.values().filter_map(|good| parse_plugin(&good.entry, &host).ok());
    let plugins: Vec<_> = plugins
        .filter(|plugin| plugin.spec.grants.ledger.iter().any(|grant| ledgers.contains(&grant.ledger)))
        .collect();
    let has_digests = |plugin: &Parsed<PluginSpec>| plugin.spec.grants.documents != DocumentsGrant::Redacted;
    let has_digests = !plugins.is_empty() && plugins.iter().all(has_digests);
    let is_some =
        |subscription: &SubscribeSpec| subscription.mode != Mode::Every || subscription.filter.is_some();
    let selective = plugins
        .into_iter()
        .flat_map(|plugin| plugin.spec.subscribe)
        .filter(is_some)
        .map(|subscription| subscription.source)
        .collect();
    Ok(Writer { selective, has_digests })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_core::{StateId, Version};

    use super::*;

    fn trail() -> Trail {
        let mut trail = Trail::default();
        for seq in [3, 4, 6] {
            trail.add(format!(r#"{{"seq":{seq},"id":"state {seq}","source":"jobs"}}"#).as_bytes());
        }
        trail.add(b"not of a trail");
        trail
    }

    fn said(id: &str) -> Said {
        Said { id: half(id), shown: None, document: None }
    }

    fn told(mut trail: Trail, journaled: &[Seq], is_retained: bool) -> Report {
        let mut report = Report { ok: true, ..Report::default() };
        for seq in journaled {
            trail.journaled("jobs", *seq, &said(&format!("state {seq}")), false);
            trail.journaled("pods", *seq, &said("of another source"), false);
        }
        trail.tell(&mut report, is_retained, &Writer::default());
        report
    }

    #[test]
    fn each_state_between_the_first_and_the_last_record_is_there_once() {
        let report = told(trail(), &[1, 2, 3, 4, 6, 7], false);
        assert_eq!((report.ok, report.compared), (true, Some(3)));
    }

    #[test]
    fn missing_added_and_strange_states_are_named() {
        let missing = told(trail(), &[3, 4, 5, 6], false).what.unwrap();
        assert!(
            missing.contains("1 states of the journal are not in the trail")
                && missing.contains("positions 5:"),
            "{missing}"
        );
        let added = told(trail(), &[3, 6], false).what.unwrap();
        assert!(added.contains("1 records are of states that the journal never had"), "{added}");
        let retained = told(trail(), &[4, 6], true);
        assert!(retained.ok && retained.not_shown[0].contains("retention"), "{retained}");
        let mut strange = trail();
        strange.journaled("jobs", 4, &said("another"), false);
        let strange = told(strange, &[3, 6], false).what.unwrap();
        assert!(strange.contains("another installation") && strange.contains("positions 4"), "{strange}");
    }

    #[test]
    fn of_a_source_with_a_filter_the_trail_has_some() {
        let mut some = trail();
        some.journaled("jobs", 5, &said("state 5"), true);
        assert!(told(some, &[3, 4, 6], false).ok);
    }

    /// What the plugin writes of a state, with this digest of a document.
    fn record(state: &State, digest: &str) -> String {
        let State { id, seq, source, object, .. } = state;
        let ObjectRef { group, kind, namespace, name, uid, .. } = &**object;
        serde_json::json!({
            "seq": seq, "id": id, "source": source, "change": state.change, "api_group": group, "kind": kind,
            "namespace": namespace, "name": name, "uid": uid, "resource_version": state.resource_version.as_str(),
            "phase": state.status.phase, "observed_at": calendar::rfc3339(state.observed_ms),
            "document_sha256": digest,
        })
        .to_string()
    }

    #[test]
    fn gaps_of_the_journal_are_counted_and_named_with_their_bounds() {
        let mut trail = trail();
        for seq in 2..20 {
            let mut gap = state();
            (gap.id, gap.seq, gap.change) =
                (StateId::parse(&format!("jobs/0///x/gap:7-{seq}")), seq, Change::Gap);
            trail.gap(&gap);
            gap.change = Change::Present;
            trail.gap(&gap);
        }
        let report = told(trail, &[3, 4, 6], false);
        assert!(report.ok);
        let [gaps] = report.not_shown.as_slice() else { panic!("{report}") };
        assert!(gaps.contains("4 gaps") && gaps.contains("x/gap:7-3 at position 3"), "{gaps}");
    }

    fn state() -> State {
        let object = ObjectRef { kind: "Job".into(), namespace: "vision".into(), ..ObjectRef::default() };
        State {
            id: StateId::parse("jobs/0/x"),
            seq: 3,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            object: object.into(),
            owner: None,
            resource_version: Version::new("7"),
            status: Arc::default(),
            previous: None,
            observed_ms: 5000,
            late: false,
        }
    }

    #[test]
    fn a_record_that_says_something_else_than_the_journal_is_named() {
        let state = state();
        let (own, digest) = (
            record(&state, &hex::encode(sha256(&[b"{}"]))),
            Writer { has_digests: true, ..Writer::default() },
        );
        let told = |text: &str, writer: &Writer| {
            let mut trail = Trail::default();
            trail.add(text.as_bytes());
            let document = writer.has_digests.then_some(b"{}".as_slice());
            trail.journaled(&state.source, state.seq, &Said::of(&state, document), false);
            let mut report = Report { ok: true, ..Report::default() };
            trail.tell(&mut report, false, writer);
            report
        };
        assert_eq!((told(&own, &digest).ok, told(&own, &digest).compared), (true, Some(1)));
        let moved = told(&own.replace("vision", "speech"), &digest).what.unwrap();
        assert!(moved.contains("something else than the journal"), "{moved}");
        let other = record(&state, &"0f".repeat(32));
        let what = told(&other, &digest).what.unwrap();
        assert!(what.contains("another digest"), "{what}");
        let redacted = told(&other, &Writer::default());
        assert!(redacted.ok && redacted.not_shown[0].contains("digests of documents"), "{redacted}");
    }
}
