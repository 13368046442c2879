//! Runs retention for one source: pass by pass, segment by segment, in small transactions. It reads the facts
//! that `decide` needs, and passes the decision to the writer together with these facts. The writer refuses a
//! decision whose facts have changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::{Backlog, JournalError, PluginProgress};
use kubewitness_core::state::gap_reason;
use kubewitness_core::{Gap, Seq, Version};

use super::leaps::ClockLeaps;
use super::rebase::rebase_successors;
use super::record_ages::RecordAges;
use super::removable::{
    HeldCounts, SegmentView, SourceFacts, count, is_still_valid, is_untold, view_segment,
};
use super::used_rows::PAGE;
use crate::journal::Journal;
use crate::report::{RetentionHolder, RetentionReport};
use crate::retention::decide::{self, BATCH, IN_HAND, RetentionBounds, RetentionCut};
use crate::store::rows::removal::{LinkRow, RemovalPlan, SegmentTally};
use crate::store::rows::{GapRow, SEGMENT};

/// Pauses between two transactions, and between two segments, so that appends and readers go first.
pub(super) const REST: Duration = Duration::from_millis(50);
pub(super) const LOOK: Duration = Duration::from_millis(2);

/// How many states must be removed before the next sweep of shared rows.
const SWEEP: u64 = 8 * SEGMENT;
/// How long facts are fresh enough to examine segments. The writer judges a removal by facts of its own.
const FRESH: Duration = Duration::from_secs(1);

/// When a segment without removable states is examined again. The holders of its states, such as existing
/// objects and dead letters, rarely release them sooner.
const AGAIN_MS: u64 = 10 * 60 * 1000;

/// Retention of one source, with the memory that passes share.
pub struct SourceRetention {
    pub(super) journal: Journal,
    source: String,
    /// Segments without removable states, each with the time until which passes skip it.
    fruitless: HashMap<u64, u64>,
    /// The holders of expired states, for each segment that has such states. It has at most one entry for
    /// each segment.
    held: HashMap<u64, HeldCounts>,
    in_hand: u64,
    /// Reports are not examined before this time: if there are many, that takes long.
    reports_after_ms: u64,
    /// States that were removed since the last sweep of shared rows.
    pub(super) taken: u64,
    leaps: ClockLeaps,
    /// When the facts were last read, by the monotonic clock.
    facts_at: Duration,
    untold: UndeliveredRecord,
    /// The newest time of an expired state. Rows that belong to no state are removed if they are older.
    beyond_ms: u64,
    record_ages: RecordAges,
}

/// For each stream, the growing record of states that were removed before plugins received them. A record
/// grows while those plugins make no progress: a plugin that is away for a year leaves one record, and not
/// one for each pass.
#[derive(Clone, Default)]
struct UndeliveredRecord(BTreeMap<i64, BegunPass>);

#[derive(Clone, Default)]
struct BegunPass {
    plugins: String,
    states: u64,
    from: Seq,
    after: String,
    through: Seq,
    before: String,
}

/// The values that the steps of a pass share. A pass has one step for each segment.
struct SegmentTurn<'p> {
    spec: &'p RetentionSpec,
    facts: &'p mut SourceFacts,
    report: &'p mut RetentionReport,
}

/// The next removal, and the records to keep once it has committed.
struct RemovalStep {
    removal: RemovalPlan,
    untold: UndeliveredRecord,
}

impl SourceRetention {
    pub fn new(journal: Journal, source: &str) -> Self {
        Self {
            journal,
            source: source.to_owned(),
            fruitless: HashMap::new(),
            held: HashMap::new(),
            in_hand: IN_HAND,
            reports_after_ms: 0,
            taken: 0,
            leaps: ClockLeaps::default(),
            facts_at: Duration::ZERO,
            untold: UndeliveredRecord::default(),
            beyond_ms: 0,
            record_ages: RecordAges::of([source]),
        }
    }

    /// Shares the ages of records with the retentions of the other sources.
    pub fn with_record_ages(mut self, ages: &RecordAges) -> Self {
        self.record_ages = ages.clone();
        self
    }

    /// Sets how many states a plugin may have read beyond its saved progress. Tests have few states, so they
    /// set a small number.
    #[doc(hidden)]
    pub fn in_hand(mut self, states: u64) -> Self {
        self.in_hand = states;
        self
    }

    /// The number of expired states that each holder keeps, as of the last pass. States that are meant to be
    /// kept do not count.
    pub fn held_states(&self) -> BTreeMap<RetentionHolder, u64> {
        let mut states_by_holder = BTreeMap::new();
        for (holder, states) in self.held.values().flatten().filter(|(holder, _)| !holder.is_meant()) {
            *states_by_holder.entry(holder.clone()).or_default() += states;
        }
        states_by_holder
    }

    /// Removes all states that may be removed now. The future may be dropped at any point.
    pub async fn run_pass(&mut self, spec: &RetentionSpec) -> Result<RetentionReport, JournalError> {
        let mut report = RetentionReport::default();
        let mut facts = self.load_facts(spec, None).await?;
        let mut cut = RetentionCut::of(RetentionBounds::of(spec, facts.now_ms), &facts.tallies);
        let tallies = Arc::clone(&facts.tallies);
        // A segment is examined again as soon as a plugin has released its states.
        let holds = |segment: &u64, held: &HashMap<u64, HeldCounts>| {
            held.get(segment).is_none_or(|held| facts.still_holds(*segment, held))
        };
        self.fruitless.retain(|segment, until| *until > facts.now_ms && holds(segment, &self.held));
        let segments: HashSet<u64> = facts.tallies.iter().map(|tally| tally.segment).collect();
        self.held.retain(|segment, _| segments.contains(segment));
        let mut timeless = Vec::new();
        for tally in &*tallies {
            if self.fruitless.contains_key(&tally.segment) {
                continue;
            }
            let goes_on = {
                let turn = SegmentTurn { spec, facts: &mut facts, report: &mut report };
                let look = self.remove_from_segment(turn, &cut, tally.segment).await?;
                self.beyond_ms = self.beyond_ms.max(cut.newest_expired(look.own_states(), &look.expired));
                cut.note_aged_states(tally.segment, look.own_states());
                timeless.extend(cut.is_timeless(look.own_states()).then_some(tally.segment));
                cut.needs_later_segment(tally.segment, look.own_states(), &look.expired)
            };
            if !goes_on {
                // All later segments are within the limits.
                self.held.retain(|segment, _| *segment <= tally.segment);
                break;
            }
        }
        // Later segments have shown by now whether these are old.
        for segment in timeless {
            let turn = SegmentTurn { spec, facts: &mut facts, report: &mut report };
            self.remove_from_segment(turn, &cut, segment).await?;
        }
        let aged_ms = RetentionBounds::of(spec, facts.now_ms).before_ms.unwrap_or_default();
        self.remove_unplaced(&facts, aged_ms.max(self.beyond_ms)).await?;
        // A bound by count or size may reach the states of the last minutes. Records of acts serve as proof for
        // longer than that, so only a bound by age removes them.
        if let Some(before_ms) = self.record_ages.note_age(&self.source, aged_ms) {
            self.remove_records(before_ms).await?;
        }
        if report.states > 0 && facts.now_ms >= self.reports_after_ms {
            let many = self.remove_reports().await? > PAGE;
            self.reports_after_ms = if many { facts.now_ms + AGAIN_MS } else { 0 };
        }
        self.taken += report.states;
        let kept: u64 = tallies.iter().map(|tally| tally.states).sum();
        if self.taken >= SWEEP.max(kept / 8) {
            self.sweep_shared_rows().await?;
        }
        Ok(report)
    }

    /// Reads the facts. If `tallies` are given, they are not read again.
    async fn load_facts(
        &mut self,
        spec: &RetentionSpec,
        tallies: Option<Arc<[SegmentTally]>>,
    ) -> Result<SourceFacts, JournalError> {
        let newest = *self.journal.newest_position().borrow();
        let mut reader = self.journal.open_reader().await?;
        let in_hand = spec.past_cursors.then_some(self.in_hand);
        let now_ms = self.leaps.now_ms(self.journal.clock(), &self.source);
        self.facts_at = self.journal.clock().elapsed();
        match tallies {
            Some(tallies) => {
                SourceFacts::with_tallies(
                    reader.retention_reader(),
                    &self.source,
                    tallies,
                    in_hand,
                    newest,
                    now_ms,
                )
                .await
            }
            None => SourceFacts::of(reader.retention_reader(), &self.source, in_hand, newest, now_ms).await,
        }
    }

    /// Removes the removable states of a segment, and returns the segment's view from before.
    async fn remove_from_segment(
        &mut self,
        turn: SegmentTurn<'_>,
        cut: &RetentionCut,
        segment: u64,
    ) -> Result<SegmentView, JournalError> {
        let SegmentTurn { spec, facts, report } = turn;
        let (mut first, mut is_stale, mut is_refused) = (None, false, false);
        loop {
            // Cursors move and objects end between two transactions.
            if is_stale || self.journal.clock().elapsed().saturating_sub(self.facts_at) > FRESH {
                // The writer judges by the present tallies. A plan that is based on the old ones would be
                // refused again.
                let tallies = (!is_refused).then(|| Arc::clone(&facts.tallies));
                *facts = self.load_facts(spec, tallies).await?;
            }
            let (look, step) = self.plan_removal(spec, facts, cut, segment).await?;
            let Some(RemovalStep { removal, untold: after }) = step else {
                self.held.insert(segment, facts.count_holders(&look));
                if first.is_none() && cut.needs_later_segment(segment, look.own_states(), &look.expired) {
                    self.fruitless.insert(segment, facts.now_ms + AGAIN_MS);
                }
                tokio::time::sleep(LOOK).await;
                return Ok(first.unwrap_or(look));
            };
            let (states, bytes) = (removal.taken.len() as u64, removal.bytes_taken());
            let untold_now = removal.plugins.values().map(|taken| taken.untold).max().unwrap_or_default();
            is_refused = !self
                .journal
                .remove(removal, |past, removal| Box::pin(is_still_valid(past, removal)))
                .await?;
            if !is_refused {
                first.get_or_insert(look);
                self.untold = after;
                report.states += states;
                report.bytes += bytes;
                report.untold += untold_now;
            }
            is_stale = true;
            tokio::time::sleep(REST).await;
        }
    }

    /// The view of a segment, and the next removal in it.
    async fn plan_removal(
        &self,
        spec: &RetentionSpec,
        facts: &SourceFacts,
        cut: &RetentionCut,
        segment: u64,
    ) -> Result<(SegmentView, Option<RemovalStep>), JournalError> {
        let mut reader = self.journal.open_reader().await?;
        let look = view_segment(reader.retention_reader(), facts, cut, segment).await?;
        let chosen = decide::select_runs(&look.states, &look.may_go, |seq| facts.passes_hold(seq));
        let runs = decide::fit_in_transaction(chosen, BATCH);
        if runs.is_empty() {
            return Ok((look, None));
        }
        let mut removal = RemovalPlan {
            source: self.source.clone(),
            streams: facts.streams.clone(),
            in_hand: spec.past_cursors.then_some(self.in_hand),
            now_ms: facts.now_ms,
            taken: runs.iter().flat_map(|run| run.links.iter().cloned()).collect(),
            ..RemovalPlan::default()
        };
        removal.owed = look.letters.owed_rows(&removal.taken);
        removal.dropped = look.letters.dropped_rows(&removal.taken);
        removal.plugins = count(&facts.plugins, &self.source, &removal.taken, &removal.owed);
        rebase_successors(&mut reader, &runs, facts.newest, &mut removal).await?;
        let untold = self.record_gaps(facts, &look.rows, &mut removal);
        Ok((look, Some(RemovalStep { removal, untold })))
    }

    /// Extends the records of undelivered states by this removal.
    fn record_gaps(
        &self,
        facts: &SourceFacts,
        rows: &[LinkRow],
        removal: &mut RemovalPlan,
    ) -> UndeliveredRecord {
        let mut untold = self.untold.clone();
        let names: Vec<&str> = removal
            .plugins
            .iter()
            .filter(|(_, taken)| taken.untold > 0)
            .map(|(name, _)| name.as_str())
            .collect();
        let names = names.join(", ");
        let mut by_stream: BTreeMap<i64, Vec<Seq>> = BTreeMap::new();
        for link in &removal.taken {
            let is_lost = |(name, progress): &(String, PluginProgress)| {
                is_untold(progress, &self.source, link.seq)
                    || removal.owed.contains(&(name.clone(), link.seq))
            };
            if facts.plugins.iter().any(is_lost) {
                by_stream.entry(link.stream).or_default().push(link.seq);
            }
        }
        let version = |seq: Seq| rows.iter().find(|row| row.seq == seq).and_then(LinkRow::version);
        for (stream, mut seqs) in by_stream {
            seqs.sort_unstable();
            let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else { continue };
            let stands = |begun: &BegunPass| {
                let mut of = facts
                    .plugins
                    .iter()
                    .filter(|(name, _)| removal.plugins.get(name).is_some_and(|taken| taken.untold > 0));
                let stands = |progress: &PluginProgress| {
                    progress.cursor < begun.from || decide::is_gone(progress, facts.now_ms)
                };
                begun.plugins == names && of.all(|(_, progress)| stands(progress))
            };
            if !untold.0.get(&stream).is_some_and(stands) {
                let (plugins, after) = (names.clone(), version_beside(version(*first), -1));
                untold.0.insert(stream, BegunPass { plugins, from: *first, after, ..BegunPass::default() });
            }
            let Some(begun) = untold.0.get_mut(&stream) else { continue };
            begun.states += seqs.len() as u64;
            if *last > begun.through {
                (begun.through, begun.before) = (*last, version_beside(version(*last), 1));
            }
            let BegunPass { plugins, states, from, after, through, before } = begun.clone();
            let gap = Gap {
                source: self.source.clone(),
                object: None,
                epoch: facts.epochs.get(&stream).copied().unwrap_or_default(),
                after,
                before,
                reason: gap_reason::RETENTION.into(),
                message: format!(
                    "retention took {states} states at positions {from} to {through} that {plugins} had not been handed"
                ),
                recorded_ms: facts.now_ms,
            };
            let body = serde_json::to_string(&gap).expect("strings and numbers always serialize");
            removal.gaps.push(GapRow { stream, seq: 0, key: format!("retention-{from}"), body });
        }
        untold
    }
}

/// The version next to one, where versions are numbers.
fn version_beside(version: Option<Version>, step: i64) -> String {
    let text = version.map(|version| version.to_string()).unwrap_or_default();
    let number = text.parse::<u64>().ok().and_then(|number| number.checked_add_signed(step));
    number.map_or(text, |number| number.to_string())
}
