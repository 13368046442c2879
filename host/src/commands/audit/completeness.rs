//! Compares a trail with the journal: every state that the journal has between the trail's first and last record of a
//! source stands in the trail, once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kubewitness_core::Seq;
use kubewitness_core::config::{Mode, SubscribeSpec};
use kubewitness_core::ledger::is_closed_file;
use kubewitness_journal::{ExportQuery, Place, Progress, ids_at, read_states};
use serde::Deserialize;

use super::findings::Report;
use super::merkle::sha256;
use crate::commands::journal::{hint, host_of};
use crate::config::last_good::LastGood;
use crate::config::manifest::parse_plugin;

/// Positions that are named of many that are missing: enough to look at some.
const EXAMPLES: usize = 5;

#[derive(Deserialize)]
struct Record {
    seq: Seq,
    id: String,
    source: String,
}

/// Half of an id's hash.
type Half = [u8; 16];

fn half(id: &str) -> Half {
    sha256(&[id.as_bytes()]).first_chunk().copied().unwrap_or_default()
}

#[derive(Default)]
struct Source {
    first: Seq,
    last: Seq,
    states: HashMap<Seq, Half>,
}

/// The states of a trail that were not found in the journal yet.
#[derive(Default)]
pub struct Trail {
    sources: BTreeMap<String, Source>,
    compared: u64,
    others: Vec<Seq>,
    missing: Vec<Seq>,
    missing_more: u64,
}

impl Trail {
    pub fn add(&mut self, text: &[u8]) {
        let Ok(record) = serde_json::from_slice::<Record>(text) else { return };
        let source = self
            .sources
            .entry(record.source)
            .or_insert_with(|| Source { first: Seq::MAX, ..Source::default() });
        source.first = source.first.min(record.seq);
        source.last = source.last.max(record.seq);
        source.states.insert(record.seq, half(&record.id));
    }

    /// A state of the journal. Of a selective source the trail has only some.
    fn journaled(&mut self, source: &str, seq: Seq, id: &str, is_selective: bool) {
        let Some(source) = self.sources.get_mut(source) else { return };
        if !(source.first..=source.last).contains(&seq) {
            return;
        }
        match source.states.remove(&seq) {
            Some(own) if own == half(id) => self.compared += 1,
            Some(_) if self.others.len() < EXAMPLES => self.others.push(seq),
            Some(_) => {}
            None if is_selective => {}
            None if self.missing.len() < EXAMPLES => self.missing.push(seq),
            None => self.missing_more += 1,
        }
    }

    fn left(&self) -> usize {
        self.sources.values().map(|source| source.states.len()).sum()
    }

    /// Whether retention has taken states of the journal.
    fn tell(self, report: &mut Report, is_retained: bool) {
        report.compared = Some(self.compared);
        let left = self.left();
        let fault = match () {
            () if !self.others.is_empty() => format!(
                "the journal has other states at the positions {}: it is of another installation",
                listed(&self.others)
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

pub async fn compare(
    report: &mut Report,
    mut trail: Trail,
    place: &Place,
    selective: &BTreeSet<String>,
) -> Result<()> {
    let first = trail.sources.values().map(|source| source.first).min().unwrap_or_default();
    let last = trail.sources.values().map(|source| source.last).max().unwrap_or_default();
    let query = ExportQuery { after: first.checked_sub(1), through: Some(last), ..ExportQuery::default() };
    let progress = Progress::default();
    let reading = read_states(place, &query, &progress, |state, _| {
        let is_selective = selective.contains(&*state.source);
        trail.journaled(&state.source, state.seq, state.id.as_str(), is_selective);
        ControlFlow::Continue(())
    });
    reading.await.with_context(|| hint("reading", place))?;
    let known = ids_at(place, &[]).await.with_context(|| hint("reading", place))?;
    for source in trail.sources.keys().filter(|source| selective.contains(*source)) {
        report.not_shown.push(format!(
            "whether every state of `{source}` is there: the plugin subscribes to some of them (`mode` or `filter`)"
        ));
    }
    trail.tell(report, known.retained);
    Ok(())
}

/// The sources of which the plugin that writes these files is not handed every state.
pub fn selective(data: &Path, files: &[PathBuf]) -> Result<BTreeSet<String>> {
    let Some(host) = host_of(data)? else { return Ok(BTreeSet::new()) };
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
    let plugins = plugins
        .filter(|plugin| plugin.spec.grants.ledger.iter().any(|grant| ledgers.contains(&grant.ledger)));
    let is_some =
        |subscription: &SubscribeSpec| subscription.mode != Mode::Every || subscription.filter.is_some();
    Ok(plugins
        .flat_map(|plugin| plugin.spec.subscribe)
        .filter(is_some)
        .map(|subscription| subscription.source)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trail() -> Trail {
        let mut trail = Trail::default();
        for seq in [3, 4, 6] {
            trail.add(format!(r#"{{"seq":{seq},"id":"state {seq}","source":"jobs"}}"#).as_bytes());
        }
        trail.add(b"not of a trail");
        trail
    }

    fn told(mut trail: Trail, journaled: &[Seq], is_retained: bool) -> Report {
        let mut report = Report { ok: true, ..Report::default() };
        for seq in journaled {
            trail.journaled("jobs", *seq, &format!("state {seq}"), false);
            trail.journaled("pods", *seq, "of another source", false);
        }
        trail.tell(&mut report, is_retained);
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
        strange.journaled("jobs", 4, "another", false);
        let strange = told(strange, &[3, 6], false).what.unwrap();
        assert!(strange.contains("another installation") && strange.contains("positions 4"), "{strange}");
    }

    #[test]
    fn of_a_source_with_a_filter_the_trail_has_some() {
        let mut some = trail();
        some.journaled("jobs", 5, "state 5", true);
        assert!(told(some, &[3, 4, 6], false).ok);
    }
}
