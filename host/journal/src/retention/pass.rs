//! Retention of one source: pass by pass, segment by segment, in small transactions. Looks up what
//! `decide` needs, and hands its choice to the writer together with the facts behind it. The writer
//! refuses a choice whose facts have changed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::{Backlog, JournalError};
use kubewitness_core::state::gap_reason;
use kubewitness_core::{Gap, Seq, Version, reports};

use super::leaps::Leaps;
use super::rebase::successors;
use super::removable::{Held, Look, SourceFacts, count, is_still_so, is_untold, look};
use crate::journal::Journal;
use crate::report::{Holder, Retained};
use crate::retention::decide::{self, BATCH, Bounds, Cut, IN_HAND};
use crate::store::rows::removal::{LinkRow, Removal, SharedRows, Sweep};
use crate::store::rows::{GapRow, SEGMENT};

/// Between two transactions, and between two looks at segments: appends and readers go first.
const REST: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(2);

/// States that have to go before rows that many share are looked through, and states of one look.
const SWEEP: u64 = 8 * SEGMENT;
const PAGE: usize = 4096;

/// A segment of which nothing could go is looked at again after so long: what holds its states
/// (an object that is there, a dead letter) seldom lets go of them sooner.
const AGAIN_MS: u64 = 10 * 60 * 1000;

/// The newest reports of one object, while they are passed in order.
#[derive(Default)]
struct ObjectReports {
    uid: String,
    /// Whether the journal has something of the object.
    is_known: bool,
    newest: VecDeque<String>,
}

impl ObjectReports {
    fn new(uid: &str, is_known: bool) -> Self {
        Self { uid: uid.to_owned(), is_known, newest: VecDeque::new() }
    }

    /// The report that goes for this one: itself, where nothing of the object is known.
    fn pushed_out_by(&mut self, key: String) -> Option<String> {
        if !self.is_known {
            return Some(key);
        }
        self.newest.push_back(key);
        if self.newest.len() > reports::SHOWN { self.newest.pop_front() } else { None }
    }
}

/// Retention of one source, and what it remembers between two passes.
pub struct Retention {
    journal: Journal,
    source: String,
    /// Segments of which nothing could go, and until when they are left alone.
    fruitless: HashMap<u64, u64>,
    /// Of the segments that still have states beyond the bounds, what holds these. As many entries as
    /// there are segments, each of which was looked at anyway.
    held: HashMap<u64, Held>,
    in_hand: u64,
    /// Reports are not looked at before: where there are many, a look takes long.
    reports_after_ms: u64,
    /// States that were taken since rows that many share were looked through.
    taken: u64,
    leaps: Leaps,
}

/// What a pass took of each stream that a plugin had not been handed.
#[derive(Clone, Default)]
struct Untold(BTreeMap<i64, Begun>);

#[derive(Clone, Default)]
struct Begun {
    states: u64,
    from: Seq,
    after: String,
    through: Seq,
    before: String,
}

/// The next transaction, and what is told of it once it was done.
struct Step {
    removal: Removal,
    untold: Untold,
}

impl Retention {
    pub fn new(journal: Journal, source: &str) -> Self {
        Self {
            journal,
            source: source.to_owned(),
            fruitless: HashMap::new(),
            held: HashMap::new(),
            in_hand: IN_HAND,
            reports_after_ms: 0,
            taken: 0,
            leaps: Leaps::default(),
        }
    }

    /// How many states a plugin may have read beyond what it saved. For tests, which have fewer.
    #[doc(hidden)]
    pub fn in_hand(mut self, states: u64) -> Self {
        self.in_hand = states;
        self
    }

    /// What keeps how many states that are beyond the bounds, as the last pass has found it, but for what
    /// is meant to be kept.
    pub fn held(&self) -> BTreeMap<Holder, u64> {
        let mut all = BTreeMap::new();
        for (holder, states) in self.held.values().flatten().filter(|(holder, _)| !holder.is_meant()) {
            *all.entry(holder.clone()).or_default() += states;
        }
        all
    }

    /// Takes what may go now. May be dropped at any point.
    pub async fn pass(&mut self, spec: &RetentionSpec) -> Result<Retained, JournalError> {
        let mut told = Retained::default();
        let facts = self.facts(spec).await?;
        let cut = Cut::of(Bounds::of(spec, facts.now_ms), &facts.tallies);
        let mut untold = Untold::default();
        // What a plugin held is looked at as soon as it has let go.
        let holds = |segment: &u64, held: &HashMap<u64, Held>| {
            held.get(segment).is_none_or(|held| facts.still_holds(*segment, held))
        };
        self.fruitless.retain(|segment, until| *until > facts.now_ms && holds(segment, &self.held));
        let segments: HashSet<u64> = facts.tallies.iter().map(|tally| tally.segment).collect();
        self.held.retain(|segment, _| segments.contains(segment));
        for tally in &facts.tallies {
            let goes_on = if self.fruitless.contains_key(&tally.segment) {
                true
            } else {
                self.segment(spec, &cut, tally.segment, &mut untold, &mut told).await?
            };
            if !goes_on {
                // What lies further is within the bounds.
                self.held.retain(|segment, _| *segment <= tally.segment);
                break;
            }
        }
        if let Some(before_ms) = Bounds::of(spec, facts.now_ms).before_ms {
            self.poison(&facts, before_ms).await?;
        }
        if told.states > 0 && facts.now_ms >= self.reports_after_ms {
            let many = self.reports().await? > PAGE;
            self.reports_after_ms = if many { facts.now_ms + AGAIN_MS } else { 0 };
        }
        self.taken += told.states;
        let kept: u64 = facts.tallies.iter().map(|tally| tally.states).sum();
        if self.taken >= SWEEP.max(kept / 8) {
            self.sweep().await?;
        }
        Ok(told)
    }

    /// What came and was no object is bounded by its age.
    async fn poison(&self, facts: &SourceFacts, before_ms: u64) -> Result<(), JournalError> {
        loop {
            let mut reader = self.journal.reader().await?;
            let poison = reader.past().old_poison(&facts.streams, before_ms, BATCH).await?;
            drop(reader);
            if poison.is_empty() {
                return Ok(());
            }
            self.journal.sweep(Sweep { through: facts.newest, poison, ..Sweep::default() }).await?;
            tokio::time::sleep(REST).await;
        }
    }

    /// A report goes with the last state of its object. Of an object that has too many, the oldest go. Answers how many
    /// were looked at.
    async fn reports(&self) -> Result<usize, JournalError> {
        let mut looked = 0;
        let mut reader = self.journal.reader().await?;
        let reporters = reader.reporters().await?;
        drop(reader);
        for plugin in reporters {
            let (mut behind, mut of_object) = (String::new(), ObjectReports::default());
            loop {
                let mut reader = self.journal.reader().await?;
                let keys = reader.report_keys(&plugin, &behind, PAGE).await?;
                let (is_last, mut gone) = (keys.len() < PAGE, Vec::new());
                looked += keys.len();
                for key in keys {
                    behind.clone_from(&key);
                    let Some(uid) = reports::uid_of(&key) else { continue };
                    if uid != of_object.uid {
                        of_object = ObjectReports::new(uid, reader.knows(uid).await?);
                    }
                    gone.extend(of_object.pushed_out_by(key).map(|key| (plugin.clone(), key)));
                }
                drop(reader);
                for reports in gone.chunks(BATCH) {
                    let through = *self.journal.newest().borrow();
                    let sweep = Sweep { through, reports: reports.to_vec(), ..Sweep::default() };
                    self.journal.sweep(sweep).await?;
                    tokio::time::sleep(REST).await;
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(looked)
    }

    /// Takes rows that states shared and that none of those kept refers to: statuses, anchors,
    /// owners. Reads all states, so it is done seldom.
    pub async fn sweep(&mut self) -> Result<(), JournalError> {
        self.taken = 0;
        let (mut statuses, mut anchors, mut through) = (HashSet::new(), HashSet::new(), 0);
        loop {
            let mut reader = self.journal.reader().await?;
            let found = reader.past().references(through, PAGE).await?;
            statuses.extend(found.statuses);
            anchors.extend(found.anchors);
            let Some(last) = found.last else { break };
            through = last;
            tokio::time::sleep(LOOK).await;
        }
        loop {
            let mut reader = self.journal.reader().await?;
            let owned = reader.past().orphaned(BATCH).await?;
            drop(reader);
            if owned.is_empty() {
                break;
            }
            self.journal.sweep(Sweep { through, owned, ..Sweep::default() }).await?;
            tokio::time::sleep(REST).await;
        }
        for which in [SharedRows::Statuses, SharedRows::Anchors, SharedRows::Owners] {
            let used = match which {
                SharedRows::Statuses => &statuses,
                SharedRows::Anchors => &anchors,
                SharedRows::Owners => &HashSet::new(),
            };
            self.sweep_unused(which, used, through).await?;
        }
        Ok(())
    }

    async fn sweep_unused(
        &self,
        which: SharedRows,
        used: &HashSet<i64>,
        through: Seq,
    ) -> Result<(), JournalError> {
        let mut after = 0;
        loop {
            let mut reader = self.journal.reader().await?;
            let numbers = reader.past().shared(which, after, BATCH).await?;
            drop(reader);
            let Some(last) = numbers.last() else { return Ok(()) };
            after = *last;
            let unused: Vec<i64> = numbers.into_iter().filter(|number| !used.contains(number)).collect();
            if unused.is_empty() {
                continue;
            }
            let mut sweep = Sweep { through, ..Sweep::default() };
            match which {
                SharedRows::Statuses => sweep.statuses = unused,
                SharedRows::Anchors => sweep.anchors = unused,
                SharedRows::Owners => sweep.owners = unused,
            }
            if !self.journal.sweep(sweep).await? {
                // So much came meanwhile that it has to be looked for again, next time.
                return Ok(());
            }
            tokio::time::sleep(REST).await;
        }
    }

    async fn facts(&mut self, spec: &RetentionSpec) -> Result<SourceFacts, JournalError> {
        let newest = *self.journal.newest().borrow();
        let mut reader = self.journal.reader().await?;
        let in_hand = spec.past_cursors.then_some(self.in_hand);
        let now_ms = self.leaps.now_ms(self.journal.clock(), &self.source);
        SourceFacts::of(reader.past(), &self.source, in_hand, newest, now_ms).await
    }

    /// Whether a later one has to be looked at.
    async fn segment(
        &mut self,
        spec: &RetentionSpec,
        cut: &Cut,
        segment: u64,
        untold: &mut Untold,
        told: &mut Retained,
    ) -> Result<bool, JournalError> {
        let mut took = false;
        loop {
            // Anew each time: between two transactions, cursors moved and objects ended.
            let facts = self.facts(spec).await?;
            let (look, step) = self.plan(spec, &facts, cut, segment, untold).await?;
            let goes_on = cut.goes_on(segment, &look.expired);
            let Some(Step { removal, untold: after }) = step else {
                self.held.insert(segment, facts.held(&look));
                if !took && goes_on {
                    self.fruitless.insert(segment, facts.now_ms + AGAIN_MS);
                }
                tokio::time::sleep(LOOK).await;
                return Ok(goes_on);
            };
            let (states, bytes) = (removal.taken.len() as u64, removal.bytes());
            let untold_now = removal.plugins.values().map(|taken| taken.untold).max().unwrap_or_default();
            if self.journal.remove(removal, |past, removal| Box::pin(is_still_so(past, removal))).await? {
                took = true;
                *untold = after;
                told.states += states;
                told.bytes += bytes;
                told.untold += untold_now;
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// What of a segment's states is expired and may go, and the next removal.
    async fn plan(
        &self,
        spec: &RetentionSpec,
        facts: &SourceFacts,
        cut: &Cut,
        segment: u64,
        untold: &Untold,
    ) -> Result<(Look, Option<Step>), JournalError> {
        let mut reader = self.journal.reader().await?;
        let look = look(reader.past(), facts, cut, segment).await?;
        let chosen = decide::select(&look.states, &look.may_go, |seq| facts.passes(seq));
        let runs = decide::batch(chosen, BATCH);
        if runs.is_empty() {
            return Ok((look, None));
        }
        let mut removal = Removal {
            source: self.source.clone(),
            streams: facts.streams.clone(),
            in_hand: spec.past_cursors.then_some(self.in_hand),
            now_ms: facts.now_ms,
            taken: runs.iter().flat_map(|run| run.links.iter().cloned()).collect(),
            ..Removal::default()
        };
        removal.plugins = count(&facts.plugins, &self.source, &removal.taken);
        successors(&mut reader, &runs, facts.newest, &mut removal).await?;
        let untold = self.gaps(facts, &look.rows, untold.clone(), &mut removal);
        Ok((look, Some(Step { removal, untold })))
    }

    /// One record a pass and stream, which grows with each transaction.
    fn gaps(
        &self,
        facts: &SourceFacts,
        rows: &[LinkRow],
        mut untold: Untold,
        removal: &mut Removal,
    ) -> Untold {
        let names: Vec<&str> = removal
            .plugins
            .iter()
            .filter(|(_, taken)| taken.untold > 0)
            .map(|(name, _)| name.as_str())
            .collect();
        let names = names.join(", ");
        let mut by_stream: BTreeMap<i64, Vec<Seq>> = BTreeMap::new();
        for link in &removal.taken {
            if facts.plugins.iter().any(|(_, progress)| is_untold(progress, &self.source, link.seq)) {
                by_stream.entry(link.stream).or_default().push(link.seq);
            }
        }
        let version = |seq: Seq| rows.iter().find(|row| row.seq == seq).and_then(LinkRow::version);
        for (stream, mut seqs) in by_stream {
            seqs.sort_unstable();
            let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else { continue };
            let begun =
                Begun { states: 0, from: *first, after: beside(version(*first), -1), ..Begun::default() };
            let begun = untold.0.entry(stream).or_insert(begun);
            begun.states += seqs.len() as u64;
            if *last > begun.through {
                (begun.through, begun.before) = (*last, beside(version(*last), 1));
            }
            let Begun { states, from, after, through, before } = begun.clone();
            let gap = Gap {
                source: self.source.clone(),
                object: None,
                epoch: facts.epochs.get(&stream).copied().unwrap_or_default(),
                after,
                before,
                reason: gap_reason::RETENTION.into(),
                message: format!(
                    "retention took {states} states at positions {from} to {through} that {names} had not been handed"
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
fn beside(version: Option<Version>, step: i64) -> String {
    let text = version.map(|version| version.to_string()).unwrap_or_default();
    let number = text.parse::<u64>().ok().and_then(|number| number.checked_add_signed(step));
    number.map_or(text, |number| number.to_string())
}
