//! Checks the counts of sources and segments, and for each plugin observed = delivered + filtered + dead +
//! waiting + taken.

use std::collections::{BTreeMap, HashMap};

use kubewitness_core::ports::PluginProgress;
use kubewitness_core::{Seq, State};

use super::findings::ProblemList;
use super::story;
use crate::report::code;
use crate::store::StoreReader;
use crate::store::rows::removal::{RemovedCounts, TakenStates};
use crate::store::rows::{ROW_BYTES, SEGMENT, SourceEpoch, StoreResult};

struct VerifiedPlugin {
    name: String,
    progress: PluginProgress,
    observed: u64,
    finished: u64,
    /// The states that retention removed.
    taken: TakenStates,
    /// The dropped letters that retention removed.
    removed_letters: u64,
}

impl VerifiedPlugin {
    fn count_state(&mut self, state: &State) {
        if !self.progress.sources.iter().any(|start| start.covers_state(state)) {
            return;
        }
        self.observed += 1;
        self.finished += u64::from(self.progress.has_finished(&state.source, state.seq));
    }
}

/// Sums saturate: the numbers in the rows may be damaged.
pub(super) struct VerifiedAccounts {
    plugins: Vec<VerifiedPlugin>,
    /// States and bytes by segment and stream.
    tallies: BTreeMap<(u64, i64), (u64, u64)>,
    /// By stream, the number of states that retention removed.
    taken: BTreeMap<i64, u64>,
    /// By stream, the greatest numeric version of its states.
    versions: BTreeMap<i64, u64>,
    pub newest: Seq,
}

impl VerifiedAccounts {
    pub async fn load(rows: &mut dyn StoreReader, findings: &mut ProblemList) -> StoreResult<Self> {
        let taken = rows.retention_reader().taken_of_streams().await?;
        let RemovedCounts { states: mut of_plugins, mut letters, .. } =
            rows.retention_reader().removed_counts().await?;
        let mut plugins = Vec::new();
        for (name, body) in rows.plugin_rows().await? {
            findings.report.plugins_checked += 1;
            match serde_json::from_str(&body) {
                Ok(progress) => {
                    let taken = of_plugins.remove(&name).unwrap_or_default();
                    let removed_letters = letters.remove(&name).unwrap_or_default();
                    let (observed, finished) = (0, 0);
                    plugins.push(VerifiedPlugin {
                        name,
                        progress,
                        observed,
                        finished,
                        taken,
                        removed_letters,
                    });
                }
                Err(error) => {
                    findings.add(
                        code::CURSOR,
                        None,
                        format!("the progress of {name} does not decode: {error}"),
                    );
                }
            }
        }
        for name in of_plugins.into_keys().chain(letters.into_keys()) {
            let text = format!("retention took states of {name}, which has no progress");
            findings.add(code::COMPLETENESS, None, text);
        }
        Ok(Self { plugins, tallies: BTreeMap::new(), taken, versions: BTreeMap::new(), newest: 0 })
    }

    /// How many states retention removed from all sources.
    pub fn taken_count(&self) -> u64 {
        self.taken.values().fold(0, |sum, taken| sum.saturating_add(*taken))
    }

    pub fn count_state(&mut self, stream: i64, state: &State, stored: &[u8]) {
        let tally = self.tallies.entry((state.seq / SEGMENT, stream)).or_default();
        tally.0 += 1;
        tally.1 += stored.len() as u64 + ROW_BYTES;
        if let Some(number) = state.resource_version.as_number() {
            let newest = self.versions.entry(stream).or_default();
            *newest = number.max(*newest);
        }
        for plugin in &mut self.plugins {
            plugin.count_state(state);
        }
    }

    pub async fn check_accounts(
        self,
        rows: &mut dyn StoreReader,
        findings: &mut ProblemList,
    ) -> StoreResult<()> {
        self.check_streams(rows, findings).await?;
        self.check_segments(rows, findings).await?;
        for plugin in &self.plugins {
            self.check_cursor(plugin, findings);
            check_letters(rows, plugin, findings).await?;
        }
        Ok(())
    }

    async fn check_streams(&self, rows: &mut dyn StoreReader, findings: &mut ProblemList) -> StoreResult<()> {
        let mut totals: HashMap<i64, u64> = HashMap::new();
        for ((_, stream), (states, _)) in &self.tallies {
            *totals.entry(*stream).or_default() += states;
        }
        let mut before: Option<(i64, String)> = None;
        for SourceEpoch { id, source, epoch, checkpoint, states, .. } in rows.source_streams().await? {
            let counted = totals.remove(&id).unwrap_or_default();
            let taken = self.taken.get(&id).copied().unwrap_or_default();
            if counted.saturating_add(taken) != states {
                let text = format!(
                    "{source} has {counted} states in epoch {epoch}, retention took {taken}, and its counter says \
                     {states}"
                );
                findings.add(code::COUNT, None, text);
            }
            let newest = self.versions.get(&id).copied().unwrap_or_default();
            let resumes = checkpoint.map(|checkpoint| story::check_checkpoint(&source, &checkpoint, newest));
            if let Some(Err(contradiction)) = resumes {
                let text = format!("{} in epoch {epoch}", contradiction.text);
                findings.add(contradiction.code, None, text);
            }
            if before.as_ref().is_some_and(|(last, name)| *name == source && *last > id) {
                findings.add(
                    code::CHECKPOINT,
                    None,
                    format!("epoch {epoch} of {source} is older than the one before"),
                );
            }
            before = Some((id, source));
        }
        for stream in totals.into_keys().filter(|stream| *stream != 0) {
            findings.add(code::COUNT, None, format!("stream {stream} has states, and its row is missing"));
        }
        Ok(())
    }

    async fn check_segments(
        &self,
        rows: &mut dyn StoreReader,
        findings: &mut ProblemList,
    ) -> StoreResult<()> {
        let mut sizes = rows.retention_reader().segment_sizes().await?;
        let mut kept: BTreeMap<(u64, i64), (u64, u64)> = BTreeMap::new();
        for (segment, stream, states) in rows.segment_tallies().await? {
            let place = (segment as u64, stream);
            let bytes = sizes.remove(&place).unwrap_or_default();
            kept.insert(place, (states as u64, bytes));
        }
        for place in self.tallies.keys().chain(kept.keys().filter(|place| !self.tallies.contains_key(place)))
        {
            let (counted, says) = (self.tallies.get(place), kept.get(place));
            if counted != says {
                let (first, stream) = (place.0.saturating_mul(SEGMENT), place.1);
                let (counted, says) =
                    (counted.copied().unwrap_or_default(), says.copied().unwrap_or_default());
                let text = format!(
                    "stream {stream} has {} states and {} bytes from position {first}, its tally says {} and {}",
                    counted.0, counted.1, says.0, says.1
                );
                findings.add(code::COUNT, Some(first), text);
            }
        }
        Ok(())
    }

    fn check_cursor(&self, plugin: &VerifiedPlugin, findings: &mut ProblemList) {
        let (name, newest) = (&plugin.name, self.newest);
        let PluginProgress { start, cursor, above, sources, former_cursors, .. } = &plugin.progress;
        if *cursor > newest {
            findings.add(
                code::CURSOR,
                Some(*cursor),
                format!("the cursor of {name} is ahead of the newest state, {newest}"),
            );
        }
        if start > cursor {
            findings.add(
                code::CURSOR,
                Some(*cursor),
                format!("the cursor of {name} is before its start, {start}"),
            );
        }
        for source in sources.iter().filter(|source| source.after > newest) {
            let text = format!(
                "{name} starts with {} after {}, and the newest is {newest}",
                source.source, source.after
            );
            findings.add(code::CURSOR, None, text);
        }
        let former = former_cursors.iter().map(|former| (former.cursor, &former.above));
        for (cursor, above) in former.chain([(*cursor, above)]) {
            let mut last = cursor;
            for (from, through) in above {
                if *from <= last || through < from || *through > newest {
                    findings.add(
                        code::CURSOR,
                        Some(*from),
                        format!("{name} has an impossible finished range {from} to {through}"),
                    );
                }
                last = *through;
            }
        }
        for former in former_cursors.iter().filter(|former| former.cursor > newest) {
            let text = format!("a former cursor of {name} is ahead of the newest state, {newest}");
            findings.add(code::CURSOR, Some(former.cursor), text);
        }
    }
}

/// Every finished position was delivered or filtered, or left a letter that is parked or replayed.
async fn check_letters(
    rows: &mut dyn StoreReader,
    plugin: &VerifiedPlugin,
    findings: &mut ProblemList,
) -> StoreResult<()> {
    let VerifiedPlugin { name, progress, observed, finished, taken, removed_letters } = plugin;
    let finished = finished.saturating_add(taken.finished);
    let observed = observed.saturating_add(taken.finished).saturating_add(taken.untold);
    let (all, parked) = rows.letter_counts(name).await?;
    let (all, parked) = ((all as u64).saturating_add(*removed_letters), parked as u64);
    let PluginProgress { delivered, filtered, dead, .. } = progress;
    // A letter that is being replayed is owed again, and counts as dead until the next save.
    if !(parked..=all).contains(dead) {
        let text = format!("{name} counts {dead} dead letters, and there are {parked}");
        findings.add(code::COMPLETENESS, None, text);
    }
    let accounts_for = delivered.saturating_add(*filtered).saturating_add(all);
    if !progress.sources.is_empty() && finished != accounts_for {
        let accounted = format!("{delivered} delivered + {filtered} filtered + {all} dead or taken back");
        let text = format!("{name} finished {finished} of {observed} states, and accounts for {accounted}");
        findings.add(code::COMPLETENESS, None, text);
    }
    // A letter has the id of its state.
    for seq in rows.orphaned_letters(name).await? {
        findings.add(
            code::LETTER,
            Some(seq as u64),
            format!("{name} has a dead letter of a state that is missing"),
        );
    }
    Ok(())
}
