//! Turns requests into selections, and figures of sources, plugins and journal into answers.

use std::collections::BTreeMap;

use kubewitness_capability::{GrantUses, ShippingStatus};
use kubewitness_core::calendar;
use kubewitness_core::config::{RetentionSpec, SourceSpec, SqlAccess};
use kubewitness_core::intents::commits::DatabaseLoss;
use kubewitness_core::kinds;
use kubewitness_core::lanes::Histogram;
use kubewitness_core::order::ObjectOrder;
use kubewitness_core::ports::{CurrentObject, ObjectSelection, PluginPause, WatchedResource};
use kubewitness_core::search::{SearchText, TEXT_BYTES};
use kubewitness_core::selector::LabelSelector;
use kubewitness_core::stream::ReaderPositions;
use kubewitness_core::views::{
    BackfillView, CauseKind, DatabaseLossView, DiscrepancyView, GrantUseView, HistogramView, LedgerView,
    ManifestView, ObjectQuery, ObjectView, PausedView, PluginView, QueueView, SourceView, TickView,
    ViewError,
};
use kubewitness_dispatch::{DispatchStats, SourceBackfill, TickStats};
use kubewitness_journal::{OutcomeCounts, SourceCounters};
use kubewitness_watch::SourceSnapshot;

use crate::controller::shared::{PluginPhase, PluginState};

/// The most objects on a page, for any request.
const OBJECTS: usize = 10_000;

/// How far a carried source was read, in positions of the other controller's journal.
pub fn read_through(stream: &str, checkpoint: &str) -> String {
    let places = ReaderPositions::parse(checkpoint).unwrap_or_default();
    let newest = places.of.values().map(|place| place.position).max();
    newest.map(|newest| format!("{stream}@{newest}")).unwrap_or_default()
}

pub fn ledger_view(name: String, shipping: ShippingStatus, now_ms: u64) -> LedgerView {
    let ShippingStatus { waiting, waiting_since_ms, shipped, removed, failed, trouble } = shipping;
    let waiting_ms = waiting_since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
    let waiting_seconds = waiting_ms as f64 / 1000.0;
    LedgerView { name, waiting, waiting_seconds, shipped, removed, failed, condition: trouble }
}

pub fn source_view(
    spec: &SourceSpec,
    view: SourceSnapshot,
    counters: SourceCounters,
    now_ms: u64,
) -> SourceView {
    SourceView {
        name: spec.name.clone(),
        api_version: spec.api_version.clone(),
        kind: spec.kind.clone(),
        objects: view.objects as u64,
        checkpoint: match &spec.from {
            Some(from) => read_through(&from.stream, &counters.checkpoint),
            None => counters.checkpoint,
        },
        epoch: view.epoch,
        // A blocked source shows the past instead of the present.
        synced: view.synced && view.stalled.is_none() && view.condition.is_none(),
        gaps: counters.gaps,
        poison: counters.poison,
        last_event_at: counters.last_event_ms.map(calendar::format_rfc3339),
        last_event_age_seconds: counters.last_event_ms.map(|ms| now_ms.saturating_sub(ms) as f64 / 1000.0),
        condition: view.stalled.or(view.condition),
        limitation: view.limitation,
        doubt: view.disagrees.then(|| doubt_text(view.discrepancies.first())),
        walking: view.walking as u64,
        last_audit_at: view.last_audit_ms.map(calendar::format_rfc3339),
        retention: spec.retention.as_ref().filter(|it| it.is_bounded()).map(RetentionSpec::to_string),
        counts: view.counts,
        differed: view.differed,
        discrepancies: view.discrepancies,
        outcomes: BTreeMap::new(),
        epochs: Vec::new(),
    }
}

/// For a source of jobs every cause, so that counters begin at 0; for others those that occurred.
pub fn outcomes_of(spec: &SourceSpec, counts: &OutcomeCounts) -> BTreeMap<String, u64> {
    let group = spec.api_version.split_once('/').map_or("", |(group, _)| group);
    let is_of_jobs = kinds::has_outcome(group, &spec.kind);
    let count = |kind: CauseKind| {
        let count = counts.get(&(spec.name.clone(), kind)).copied().unwrap_or_default();
        (is_of_jobs || count > 0).then(|| (kind.as_str().to_owned(), count))
    };
    CauseKind::ALL.into_iter().filter_map(count).collect()
}

pub fn doubt_text(last: Option<&DiscrepancyView>) -> String {
    let at =
        last.map(|found| format!(" at {}", calendar::format_rfc3339(found.found_ms))).unwrap_or_default();
    format!(
        "an audit found a change that the watch did not deliver{at}, and no later audit was clean: events get lost \
         between the server and this controller. Missed versions are read back, or lie in a gap"
    )
}

pub fn plugin_view(name: String, state: &PluginState, now_ms: u64) -> PluginView {
    let stats = state.handle.as_ref().map(|handle| handle.dispatch_stats()).unwrap_or_default();
    let trouble = stats.tick.as_ref().and_then(TickStats::failure_message);
    let lag_seconds = stats.oldest_unfinished_ms.map_or(0.0, |ms| now_ms.saturating_sub(ms) as f64 / 1000.0);
    PluginView {
        name,
        state: shown_phase(state, &stats).as_str().into(),
        digest: state.digest.clone(),
        module: state.module.clone(),
        observed: stats.observed,
        delivered: stats.delivered,
        filtered: stats.filtered,
        dead: stats.dead,
        dropped: stats.dropped,
        waiting: stats.waiting,
        taken: 0,
        retrying: stats.retrying,
        lag_seq: stats.lag_seq,
        lag_seconds,
        resyncs: stats.resync.rounds,
        resynced: stats.resync.delivered,
        resync_failed: stats.resync.failed,
        superseded: stats.superseded,
        queue: queue_view(&stats),
        calls: state.tally.calls_view(),
        filter_errors: stats.unclear,
        message: state.message.clone().or(stats.rest).or(stats.last_error).or(stats.filter_error).or(trouble),
        backfill: stats.backfill.as_deref().map(backfill_view),
        tick: stats.tick.map(tick_view),
        shadow: state.shadow.as_ref().map(|shadow| shadow.borrow().clone()),
        losses: Vec::new(),
        paused: stats.paused.as_deref().map(paused_view),
        manifest: state.manifest.clone(),
        grants: state
            .uses
            .counts_by_grant()
            .map(|(name, calls)| grant_view(name, calls, state.manifest.as_deref(), &state.uses))
            .collect(),
    }
}

pub fn loss_view(loss: &DatabaseLoss) -> DatabaseLossView {
    DatabaseLossView {
        database: loss.database.clone(),
        found: calendar::format_rfc3339(loss.found_ms),
        again: loss.again,
        gap: loss.is_gap(),
        message: loss.text(),
    }
}

fn backfill_view(SourceBackfill { sources, through }: &SourceBackfill) -> BackfillView {
    BackfillView { sources: sources.iter().map(|source| source.to_string()).collect(), through: *through }
}

fn tick_view(stats: TickStats) -> TickView {
    let TickStats { ticks, failed, is_running: _, last_ms, next_ms, last_error } = stats;
    TickView {
        ticks,
        failed,
        last: last_ms.map(calendar::format_rfc3339),
        next: next_ms.map(calendar::format_rfc3339),
        error: last_error.map(|error| error.to_string()),
    }
}

fn grant_view(name: String, calls: u64, manifest: Option<&ManifestView>, uses: &GrantUses) -> GrantUseView {
    let declared = manifest.is_some_and(|manifest| manifest.asks_for(&name));
    let (access, enough) =
        uses.granted_and_needed(&name).map_or((None, None), |(access, enough)| (Some(access), enough));
    let access_word = |access: Option<SqlAccess>| access.map(|access| access.as_str().to_owned());
    GrantUseView { name, declared, calls, access: access_word(access), enough: access_word(enough) }
}

pub fn paused_view(paused: &PluginPause) -> PausedView {
    let PluginPause { who, why, at_ms } = paused;
    PausedView { who: who.clone(), why: why.clone(), since: calendar::format_rfc3339(*at_ms) }
}

pub fn queue_view(stats: &DispatchStats) -> QueueView {
    let histogram = |histogram: &Histogram| HistogramView {
        buckets: histogram.cumulative_counts().collect(),
        count: histogram.count(),
        sum_seconds: histogram.sum.as_secs_f64(),
    };
    QueueView {
        depth: stats.queue.depth,
        adds: stats.queue.adds,
        retries: stats.queue.retries,
        unfinished_seconds: stats.unfinished.as_secs_f64(),
        longest_running_seconds: stats.longest.as_secs_f64(),
        queue_duration: histogram(&stats.queue.waited),
        work_duration: histogram(&stats.queue.worked),
    }
}

/// A plugin with failing calls is not healthy, whatever its configuration. A paused one is not called.
pub fn shown_phase(state: &PluginState, stats: &DispatchStats) -> PluginPhase {
    match state.phase {
        PluginPhase::Active if stats.paused.is_some() => PluginPhase::Paused,
        PluginPhase::Active if stats.open || stats.consecutive_failures > 0 => PluginPhase::Degraded,
        PluginPhase::Active if !stats.started => PluginPhase::Starting,
        phase => phase,
    }
}

pub fn watched_resource(spec: &SourceSpec) -> WatchedResource {
    let group = spec.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let usual = || kinds::plural_of_kind(&spec.kind.to_lowercase());
    WatchedResource {
        source: spec.name.clone(),
        group: group.to_owned(),
        kind: spec.kind.clone(),
        resource: spec.resource.clone().unwrap_or_else(usual),
    }
}

pub fn is_asked(spec: &SourceSpec, query: &ObjectQuery) -> bool {
    let group = spec.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    query.source.as_deref().is_none_or(|wanted| wanted == spec.name)
        && query.kind.as_deref().is_none_or(|wanted| kinds::is_kind(group, &spec.kind, wanted))
}

pub fn selection(query: &ObjectQuery) -> Result<ObjectSelection, ViewError> {
    if query.search.as_ref().is_some_and(|text| text.len() > TEXT_BYTES) {
        return Err(ViewError::Invalid(format!(
            "`search` has more than {TEXT_BYTES} bytes: look for a part of a name, of a label, or of who submitted it"
        )));
    }
    let text = query.label_selector.as_deref().unwrap_or_default();
    let labels = LabelSelector::parse(text)
        .map_err(|error| ViewError::Invalid(format!("`{text}` is not a label selector: {error}")))?;
    let index = query.index.as_deref().map(|text| {
        let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let pair = pair.map(|(name, key)| (name.to_owned(), key.to_owned()));
        pair.ok_or_else(|| {
            ViewError::Invalid(format!("`{text}` names no index: write NAME=KEY, such as node=worker-7"))
        })
    });
    let order = query.sort.as_deref().map(ObjectOrder::parse).transpose();
    let order = order.map_err(|error| ViewError::Invalid(error.to_string()))?.unwrap_or_default();
    Ok(ObjectSelection {
        namespace: query.namespace.clone(),
        name: query.name.clone(),
        phase: query.phase.clone(),
        labels,
        index: index.transpose()?,
        limit: query.limit.unwrap_or(OBJECTS).min(OBJECTS),
        search: query.search.as_deref().and_then(SearchText::new),
        order: Some(order),
        ..ObjectSelection::default()
    })
}

pub fn object_view(source: String, current: CurrentObject) -> ObjectView {
    ObjectView {
        source,
        object: (*current.object).clone(),
        owner: current.owner.map(|owner| (*owner).clone()),
        resource_version: current.resource_version.to_string(),
        status: (*current.status).clone(),
        seq: current.seq,
        observed_at: calendar::format_rfc3339(current.observed_ms),
        ..ObjectView::default()
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::config::GrantsSpec;

    use super::*;

    #[test]
    fn a_grant_is_declared_where_the_manifest_says_that_it_is_asked_for() {
        let grants: GrantsSpec = serde_json::from_value(serde_json::json!({
            "sql": [{"name": "main", "database": "d"}, {"name": "other", "database": "d"}],
            "http": [{"name": "people", "destination": "p"}],
            "keys": [{"name": "sign", "key": "k"}],
            "kv": true,
        }))
        .unwrap();
        // It uses `http` and `ledger`, but declares neither.
        let manifest = ManifestView {
            declared: ["sql:main", "http", "ledger"].map(String::from).into(),
            ..ManifestView::default()
        };
        let uses = std::sync::Arc::new(GrantUses::of(&grants));
        let state = PluginState {
            manifest: Some(std::sync::Arc::new(manifest.clone())),
            uses,
            ..PluginState::idle(PluginPhase::Active, None)
        };
        let view = plugin_view("p".into(), &state, 0);
        let declared: Vec<_> = view.grants.iter().map(|it| (it.name.as_str(), it.declared)).collect();
        let expected = [
            ("http:people", true),
            ("key:sign", true),
            ("kv", false),
            ("sql:main", true),
            ("sql:other", false),
        ];
        assert_eq!(declared, expected);
        // The portal's page takes it from there.
        assert!(expected.iter().all(|(name, is_asked)| manifest.asks_for(name) == *is_asked));
    }

    #[test]
    fn a_search_for_more_than_a_name_can_have_is_refused() {
        let asked = |bytes: usize| ObjectQuery { search: Some("a".repeat(bytes)), ..ObjectQuery::default() };
        assert!(selection(&asked(TEXT_BYTES)).is_ok());
        let error = selection(&asked(TEXT_BYTES + 1)).unwrap_err().to_string();
        assert!(error.contains("more than 253 bytes: look for a part"), "{error}");
    }

    #[test]
    fn a_source_tells_first_that_nothing_can_be_kept_and_then_what_the_server_says() {
        let refused = SourceSnapshot { condition: Some("403".into()), ..SourceSnapshot::default() };
        let stalled = SourceSnapshot { stalled: Some("the disk is full".into()), ..refused.clone() };
        let jobs = SourceSpec::of("jobs", "batch/v1", "Job");
        let condition = |view| source_view(&jobs, view, SourceCounters::default(), 0).condition;
        let synced = |view| source_view(&jobs, view, SourceCounters::default(), 0).synced;
        let seen = SourceSnapshot { synced: true, ..SourceSnapshot::default() };
        assert!(synced(seen.clone()), "and nothing holds it up");
        assert!(!synced(SourceSnapshot { condition: Some("403".into()), ..seen.clone() }));
        assert!(!synced(SourceSnapshot { stalled: Some("full".into()), ..seen }));
        assert_eq!(condition(refused).as_deref(), Some("403"));
        assert_eq!(condition(stalled).as_deref(), Some("the disk is full"));
        assert_eq!(condition(SourceSnapshot::default()), None);
    }

    #[test]
    fn a_wrong_selector_or_index_says_what_to_do() {
        let asked = |query: ObjectQuery| selection(&query).map(|selection| selection.index);
        let labels = |text: &str| ObjectQuery { label_selector: Some(text.into()), ..ObjectQuery::default() };
        let index = |text: &str| ObjectQuery { index: Some(text.into()), ..ObjectQuery::default() };
        let pair = |name: &str, key: &str| Some((name.to_string(), key.to_string()));
        assert_eq!(asked(labels("team=a,!old")).unwrap(), None);
        assert_eq!(asked(index("label=team=a")).unwrap(), pair("label", "team=a"));
        let error = asked(labels("team=a b")).unwrap_err().to_string();
        assert_eq!(error, "`team=a b` is not a label selector: at character 8: expected a comma or the end");
        let error = asked(index("node")).unwrap_err().to_string();
        assert_eq!(error, "`node` names no index: write NAME=KEY, such as node=worker-7");
    }

    #[test]
    fn a_source_is_asked_by_its_name_and_by_the_kind_that_people_write() {
        let pods = SourceSpec::of("pods", "v1", "Pod");
        let query = |source: Option<&str>, kind: Option<&str>| ObjectQuery {
            source: source.map(str::to_owned),
            kind: kind.map(str::to_owned),
            ..ObjectQuery::default()
        };
        assert!(is_asked(&pods, &query(None, None)) && is_asked(&pods, &query(Some("pods"), Some("pod"))));
        assert!(!is_asked(&pods, &query(Some("jobs"), None)) && !is_asked(&pods, &query(None, Some("jobs"))));
    }
}
