//! Figures of a journal, source by source: its content, what retention may remove, and what keeps the rest.
//! It only reads, and may run beside the process that writes.

use std::collections::{BTreeMap, HashSet};

use kubewitness_core::calendar;
use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::JournalError;

use crate::report::{JournalStats, OpenError, RetentionStats, SourceStats, TakenStats};
use crate::retention::decide::{self, IN_HAND, RetentionBounds, RetentionCut};
use crate::retention::removable::{SourceFacts, view_segment};
use crate::store::place::JournalLocation;
use crate::store::rows::removal::LinkRow;
use crate::store::rows::{ROW_BYTES, SEGMENT};
use crate::store::{OpenedJournal, RetentionReader, StoreConnection};

/// The most segments that are examined for removable states. Beyond that, the figures cover only these
/// segments, and say so: a query must end, however many segments exist.
const SEGMENTS: usize = 16 * 1024;

/// Computes figures of a journal, source by source, and how much retention may remove by the settings of
/// each. It writes nothing, and may run beside the process that writes.
pub async fn journal_stats(
    place: &JournalLocation,
    retention: &BTreeMap<String, RetentionSpec>,
    now_ms: u64,
) -> Result<JournalStats, OpenError> {
    let OpenedJournal { mut connection, bytes, wal_bytes, unfinished } = place.open_to_read().await?;
    let stats = source_figures(&mut *connection, retention, now_ms).await;
    let path = || place.to_string().into();
    let stats = stats.map_err(|error| OpenError::Unavailable { path: path(), reason: error.to_string() })?;
    Ok(JournalStats { bytes, wal_bytes, unfinished, ..stats })
}

/// `retention` has the settings of the sources, by name.
async fn source_figures(
    connection: &mut dyn StoreConnection,
    retention: &BTreeMap<String, RetentionSpec>,
    now_ms: u64,
) -> Result<JournalStats, JournalError> {
    connection.begin_snapshot().await?;
    let rows = connection.store_reader();
    let whole = rows.journal_stats(0).await?;
    let names: Vec<String> =
        rows.source_counters().await?.into_iter().map(|counters| counters.source).collect();
    let past = rows.retention_reader();
    let mut stats = JournalStats {
        states: whole.states,
        oldest_seq: whole.oldest_seq,
        newest_seq: whole.newest_seq,
        free_bytes: past.free_bytes().await?,
        ..JournalStats::default()
    };
    let taken = past.taken_of_streams().await?;
    for name in names {
        let spec = retention.get(&name);
        let in_hand = spec.filter(|spec| spec.past_cursors).map(|_| IN_HAND);
        let facts = SourceFacts::of(past, &name, in_hand, whole.newest_seq, now_ms).await?;
        let mut source = source_stats(past, name, &facts).await?;
        source.taken = facts.streams.iter().filter_map(|stream| taken.get(stream)).sum();
        if let Some(spec) = spec {
            source.retention = Some(retention_outlook(past, &facts, spec).await?);
        }
        stats.sources.push(source);
    }
    let plugins = past.removed_counts().await?.states.into_iter();
    let plugin = |(plugin, taken): (String, crate::store::rows::removal::TakenStates)| TakenStats {
        plugin,
        finished: taken.finished,
        untold: taken.untold,
    };
    stats.plugins = plugins.map(plugin).collect();
    connection.end_snapshot().await?;
    Ok(stats)
}

async fn source_stats(
    past: &mut dyn RetentionReader,
    source: String,
    facts: &SourceFacts,
) -> Result<SourceStats, JournalError> {
    let (objects, live_objects, anchor_bytes) = past.objects_of(&facts.streams).await?;
    let states: u64 = facts.tallies.iter().map(|tally| tally.states).sum();
    let bytes: u64 = facts.tallies.iter().map(|tally| tally.bytes).sum();
    let mut stats = SourceStats {
        source,
        states,
        objects,
        live_objects,
        bytes,
        document_bytes: bytes.saturating_sub(states * ROW_BYTES),
        anchor_bytes,
        bytes_per_state: if states == 0 { 0.0 } else { bytes as f64 / states as f64 },
        ..SourceStats::default()
    };
    let observed = |row: &LinkRow| calendar::format_rfc3339(row.observed_ms);
    if let (Some(first), Some(last)) = (facts.tallies.first(), facts.tallies.last()) {
        let oldest = states_of(past, facts, first.segment).await?;
        let newest = states_of(past, facts, last.segment).await?;
        stats.oldest_seq = oldest.first().map_or(0, |row| row.seq);
        stats.newest_seq = newest.last().map_or(0, |row| row.seq);
        stats.oldest_at = oldest.first().map(observed);
        stats.newest_at = newest.last().map(observed);
    }
    Ok(stats)
}

async fn states_of(
    past: &mut dyn RetentionReader,
    facts: &SourceFacts,
    segment: u64,
) -> Result<Vec<LinkRow>, JournalError> {
    past.links_between(&facts.streams, segment * SEGMENT, (segment + 1) * SEGMENT - 1).await
}

/// Counts the expired states of a source, by holder.
async fn retention_outlook(
    past: &mut dyn RetentionReader,
    facts: &SourceFacts,
    spec: &RetentionSpec,
) -> Result<RetentionStats, JournalError> {
    let cut = RetentionCut::of(RetentionBounds::of(spec, facts.now_ms), &facts.tallies);
    let mut stats = RetentionStats { spec: *spec, ..RetentionStats::default() };
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for (looks, tally) in facts.tallies.iter().enumerate() {
        if looks >= SEGMENTS {
            stats.more = true;
            break;
        }
        let found = view_segment(past, facts, &cut, tally.segment).await?;
        let runs = decide::select_runs(&found.states, &found.may_go, |seq| facts.passes_hold(seq));
        let goes: HashSet<_> = runs.iter().flat_map(|run| &run.links).map(|link| link.seq).collect();
        for (link, expired) in found.states.iter().zip(&found.expired).filter(|(_, expired)| **expired) {
            debug_assert!(expired);
            stats.beyond += 1;
            match goes.contains(&link.seq) {
                true => {
                    stats.may_go += 1;
                    stats.may_go_bytes += link.bytes;
                }
                false => *held.entry(facts.find_holder(&found, link).to_string()).or_default() += 1,
            }
        }
        if !cut.needs_later_segment(tally.segment, found.own_states(), &found.expired) {
            break;
        }
    }
    stats.held = held;
    Ok(stats)
}
