//! Counts: of sources, of segments, and each plugin's observed = delivered + filtered + dead +
//! waiting.

use std::collections::{BTreeMap, HashMap};

use kubewitness_core::ports::{JournalError, Progress};
use kubewitness_core::{Seq, State};
use sqlx::SqliteConnection;

use super::Findings;
use crate::plan::SEGMENT;
use crate::report::code;
use crate::sqlite::fault::classify;

struct Plugin {
    name: String,
    progress: Progress,
    /// Of `progress.above`, the ranges that lie behind the states.
    passed: usize,
    observed: u64,
    finished: u64,
}

impl Plugin {
    fn state(&mut self, state: &State) {
        if !self.progress.sources.iter().any(|start| start.covers(state)) {
            return;
        }
        self.observed += 1;
        while self.progress.above.get(self.passed).is_some_and(|(_, through)| *through < state.seq) {
            self.passed += 1;
        }
        let above = self.progress.above.get(self.passed);
        let is_above = above.is_some_and(|(from, through)| (*from..=*through).contains(&state.seq));
        self.finished += u64::from(state.seq <= self.progress.cursor || is_above);
    }
}

pub(super) struct Accounts {
    plugins: Vec<Plugin>,
    tallies: BTreeMap<(u64, i64), u64>,
    pub newest: Seq,
}

impl Accounts {
    pub async fn load(
        connection: &mut SqliteConnection,
        findings: &mut Findings,
    ) -> Result<Self, JournalError> {
        let rows: Vec<(String, String)> = sqlx::query_as("SELECT name, progress FROM plugins ORDER BY name")
            .fetch_all(connection)
            .await
            .map_err(classify)?;
        let mut plugins = Vec::new();
        for (name, body) in rows {
            findings.report.plugins_checked += 1;
            match serde_json::from_str(&body) {
                Ok(progress) => plugins.push(Plugin { name, progress, passed: 0, observed: 0, finished: 0 }),
                Err(error) => {
                    findings.add(
                        code::CURSOR,
                        None,
                        format!("the progress of {name} does not decode: {error}"),
                    );
                }
            }
        }
        Ok(Self { plugins, tallies: BTreeMap::new(), newest: 0 })
    }

    pub fn state(&mut self, stream: i64, state: &State) {
        *self.tallies.entry((state.seq / SEGMENT, stream)).or_default() += 1;
        for plugin in &mut self.plugins {
            plugin.state(state);
        }
    }

    pub async fn finish(
        self,
        connection: &mut SqliteConnection,
        findings: &mut Findings,
    ) -> Result<(), JournalError> {
        self.streams(connection, findings).await.map_err(classify)?;
        self.segments(connection, findings).await.map_err(classify)?;
        for plugin in &self.plugins {
            self.cursor(plugin, findings);
            letters(connection, plugin, findings).await.map_err(classify)?;
        }
        Ok(())
    }

    async fn streams(
        &self,
        connection: &mut SqliteConnection,
        findings: &mut Findings,
    ) -> Result<(), sqlx::Error> {
        let text = "SELECT id, source, epoch, checkpoint, states FROM streams ORDER BY source, epoch";
        let rows: Vec<(i64, String, u32, Option<String>, i64)> =
            sqlx::query_as(text).fetch_all(connection).await?;
        let mut totals: HashMap<i64, u64> = HashMap::new();
        for ((_, stream), states) in &self.tallies {
            *totals.entry(*stream).or_default() += states;
        }
        let mut before: Option<(i64, String)> = None;
        for (id, source, epoch, checkpoint, states) in rows {
            let counted = totals.remove(&id).unwrap_or_default();
            if counted != states as u64 {
                let text =
                    format!("{source} has {counted} states in epoch {epoch}, and its counter says {states}");
                findings.add(code::COUNT, None, text);
            }
            if checkpoint.is_some_and(|checkpoint| checkpoint.is_empty()) {
                findings.add(
                    code::CHECKPOINT,
                    None,
                    format!("{source} has an empty checkpoint in epoch {epoch}"),
                );
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
            findings.add(code::COUNT, None, format!("stream {stream} has states and no row"));
        }
        Ok(())
    }

    async fn segments(
        &self,
        connection: &mut SqliteConnection,
        findings: &mut Findings,
    ) -> Result<(), sqlx::Error> {
        let rows: Vec<(i64, i64, i64)> =
            sqlx::query_as("SELECT segment, stream, states FROM tallies").fetch_all(connection).await?;
        let kept: BTreeMap<_, _> = rows
            .into_iter()
            .map(|(segment, stream, states)| ((segment as u64, stream), states as u64))
            .collect();
        for place in self.tallies.keys().chain(kept.keys().filter(|place| !self.tallies.contains_key(place)))
        {
            let (counted, says) = (self.tallies.get(place), kept.get(place));
            if counted != says {
                let (first, stream) = (place.0 * SEGMENT, place.1);
                let (counted, says) =
                    (counted.copied().unwrap_or_default(), says.copied().unwrap_or_default());
                let text = format!(
                    "stream {stream} has {counted} states from position {first}, its tally says {says}"
                );
                findings.add(code::COUNT, Some(first), text);
            }
        }
        Ok(())
    }

    fn cursor(&self, plugin: &Plugin, findings: &mut Findings) {
        let (name, newest) = (&plugin.name, self.newest);
        let Progress { start, cursor, above, sources, .. } = &plugin.progress;
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
        let mut last = *cursor;
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
}

/// Every finished position was delivered or filtered, or left a letter, parked or taken back.
async fn letters(
    connection: &mut SqliteConnection,
    plugin: &Plugin,
    findings: &mut Findings,
) -> Result<(), sqlx::Error> {
    let Plugin { name, progress, observed, finished, .. } = plugin;
    let text = "SELECT count(*), coalesce(sum(replaying = 0), 0) FROM letters WHERE plugin = ?";
    let (all, parked): (i64, i64) = sqlx::query_as(text).bind(name).fetch_one(&mut *connection).await?;
    let (all, parked) = (all as u64, parked as u64);
    let Progress { delivered, filtered, dead, .. } = progress;
    // A letter that was taken back is owed again, and counted as dead until the next save.
    if !(parked..=all).contains(dead) {
        let text = format!("{name} counts {dead} dead letters, and there are {parked}");
        findings.add(code::COMPLETENESS, None, text);
    }
    if !progress.sources.is_empty() && *finished != delivered + filtered + all {
        let accounted = format!("{delivered} delivered + {filtered} filtered + {all} dead or taken back");
        let text = format!("{name} finished {finished} of {observed} states, and accounts for {accounted}");
        findings.add(code::COMPLETENESS, None, text);
    }
    // A letter's id is its state's.
    let text = "SELECT l.seq, s.seq IS NOT NULL FROM letters l LEFT JOIN states s ON s.seq = l.seq \
                WHERE l.plugin = ? AND s.seq IS NULL LIMIT 100";
    let orphans: Vec<(i64, i64)> = sqlx::query_as(text).bind(name).fetch_all(connection).await?;
    for (seq, _) in orphans {
        findings.add(
            code::LETTER,
            Some(seq as u64),
            format!("{name} has a dead letter of a state that is not there"),
        );
    }
    Ok(())
}
