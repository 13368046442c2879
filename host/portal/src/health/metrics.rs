//! The page that Prometheus reads: text format 0.0.4, one family for each row of a table.
//!
//! Figures that only grow are counters, end in `_total`, and begin at 0 with the process; so do sums of
//! seconds and bytes. The content of the journal is a gauge: it outlives the process, and retention lets it
//! shrink.
//!
//! The crates for Prometheus were rejected: they render a registry of counters that a process keeps, while
//! these figures are a snapshot of sources and plugins that come and go.

use kubewitness_core::views::{
    HistogramView, LedgerView, PluginView, QueueView, SourceCounts, SourceView, StatusView, StreamView,
    TickView,
};

use super::page::MetricKind::{self, Counter, Gauge, Histogram};
use super::page::{MetricsPage, seconds_of_time};
use super::plugin_metrics;
use crate::serve::ListenerTraffic;

/// Name, help, type, and the value for a source; `None` if it has no value yet.
type OfSource = (&'static str, &'static str, MetricKind, fn(&SourceView) -> Option<f64>);
type OfPlugin = (&'static str, &'static str, fn(&PluginView) -> f64);
/// The value of an additional label, and its count.
type LabelledCount = (&'static str, fn(&SourceCounts) -> u64);

/// The events of a source, by their meaning.
const EVENTS: [LabelledCount; 7] = [
    ("present", |c| c.present),
    ("gone", |c| c.gone),
    ("left", |c| c.left),
    ("bookmark", |c| c.bookmarks),
    ("poison", |c| c.poison),
    ("duplicate", |c| c.duplicates),
    ("stale", |c| c.stale),
];

const LISTS: [LabelledCount; 4] = [
    ("first", |c| c.lists_first),
    ("expired", |c| c.lists_expired),
    ("replaced", |c| c.lists_replaced),
    ("audit", |c| c.lists_audit),
];

const SOURCES: [OfSource; 27] = [
    ("objects", "Objects in the cache.", Gauge, |s| Some(s.objects as f64)),
    (
        "synced",
        "1 while the cache shows what exists: the source was listed, and nothing holds it up.",
        Gauge,
        |s| Some(flag_value(s.synced)),
    ),
    ("held_up", "1 while something keeps the source from taking in states.", Gauge, |s| {
        Some(flag_value(s.condition.is_some()))
    }),
    ("limited", "1 where the API server lacks what reading missed versions back needs.", Gauge, |s| {
        Some(flag_value(s.limitation.is_some()))
    }),
    ("doubtful", "1 while audits find changes that the watch did not bring.", Gauge, |s| {
        Some(flag_value(s.doubt.is_some()))
    }),
    ("epoch", "The epoch; it grows when the history of the API server was replaced.", Gauge, |s| {
        Some(f64::from(s.epoch))
    }),
    ("gaps", "Gaps that the journal holds.", Gauge, |s| Some(s.gaps as f64)),
    ("poison", "Poison messages that the journal holds: bytes that are no object of the kind.", Gauge, |s| {
        Some(s.poison as f64)
    }),
    (
        "differed",
        "Objects that differed from what was witnessed, as the journal has recorded them.",
        Gauge,
        |s| Some(s.differed as f64),
    ),
    ("last_event_age_seconds", "Time since the last event.", Gauge, |s| s.last_event_age_seconds),
    (
        "last_event_timestamp_seconds",
        "When the last event was observed, in seconds since 1970.",
        Gauge,
        |s| seconds_of_time(s.last_event_at.as_deref()?),
    ),
    (
        "last_audit_timestamp_seconds",
        "When an audit last compared a list with the journal, in seconds since 1970.",
        Gauge,
        |s| seconds_of_time(s.last_audit_at.as_deref()?),
    ),
    ("walk_back_waiting", "Objects whose missed versions are being read back now.", Gauge, |s| {
        Some(s.walking as f64)
    }),
    ("frames_total", "Frames that watches received.", Counter, |s| Some(s.counts.frames as f64)),
    ("received_bytes_total", "Bytes that watches and streamed lists received.", Counter, |s| {
        Some(s.counts.bytes as f64)
    }),
    ("discarded_bytes_total", "Received bytes of frames that were cut off.", Counter, |s| {
        Some(s.counts.discarded_bytes as f64)
    }),
    ("decode_seconds_total", "Time spent reading frames and deriving states.", Counter, |s| {
        Some(s.counts.decode_ns as f64 / 1e9)
    }),
    ("watches_total", "Watches that were started.", Counter, |s| Some(s.counts.watches as f64)),
    (
        "watches_expired_total",
        "Watches that the API server ended with 410: their version had expired.",
        Counter,
        |s| Some(s.counts.expired as f64),
    ),
    ("lists_streamed_total", "Lists that arrived as a stream.", Counter, |s| {
        Some(s.counts.lists_streamed as f64)
    }),
    ("relists_total", "Relists, for an expired watch or a replaced history.", Counter, |s| {
        Some((s.counts.lists_expired + s.counts.lists_replaced) as f64)
    }),
    ("walk_back_requests_total", "Requests to read missed versions back.", Counter, |s| {
        Some(s.counts.walk_back_requests as f64)
    }),
    ("walk_back_versions_total", "Missed versions that were read back.", Counter, |s| {
        Some(s.counts.walked_back as f64)
    }),
    ("gaps_recorded_total", "Gaps that were recorded.", Counter, |s| Some(s.counts.gaps as f64)),
    ("audits_total", "Audits: lists that were compared with the journal.", Counter, |s| {
        Some(s.counts.lists_audit as f64)
    }),
    (
        "discrepancies_total",
        "Objects that, by an audit or an event, differed from what was witnessed.",
        Counter,
        |s| Some(s.counts.discrepancies as f64),
    ),
    ("epochs_total", "Replaced histories of the API server that were found.", Counter, |s| {
        Some(s.counts.epochs as f64)
    }),
];

/// observed = delivered + filtered + dead + waiting, for each plugin.
const PLUGINS: [OfPlugin; 11] = [
    ("active", "1 while the plugin takes states.", |p| flag_value(p.state == "active")),
    ("paused", "1 while an operator has paused the plugin.", |p| flag_value(p.paused.is_some())),
    ("observed", "States of the plugin's sources since its subscriptions began.", |p| p.observed as f64),
    ("delivered", "Observed states that the plugin answered with done.", |p| p.delivered as f64),
    ("filtered", "Observed states that its subscriptions leave out.", |p| p.filtered as f64),
    ("superseded", "Filtered states that a newer one replaced (mode latest).", |p| p.superseded as f64),
    ("dead", "Observed states that are parked as dead letters.", |p| p.dead as f64),
    ("waiting", "Observed states that are not finished.", |p| p.waiting as f64),
    ("retrying", "Waiting states that failed at least once.", |p| p.retrying as f64),
    ("lag_positions", "Positions between the newest state and the cursor of the plugin.", |p| {
        p.lag_seq as f64
    }),
    ("lag_seconds", "Age of the oldest unfinished state.", |p| p.lag_seconds),
];

type OfQueue = (&'static str, &'static str, MetricKind, fn(&QueueView) -> f64);
type HistogramList = (&'static str, &'static str, fn(&QueueView) -> &HistogramView);

/// The names and meanings of client-go's work queues, so that people's dashboards and alerts for their
/// controllers work here, too.
const QUEUES: [OfQueue; 5] = [
    ("workqueue_depth", "States that wait and are in no call, those in the journal included.", Gauge, |q| {
        q.depth as f64
    }),
    (
        "workqueue_adds_total",
        "States that entered the lanes, each retry and replay included.",
        Counter,
        |q| q.adds as f64,
    ),
    ("workqueue_retries_total", "Retries that were scheduled.", Counter, |q| q.retries as f64),
    (
        "workqueue_unfinished_work_seconds",
        "How long the states in calls have been there, summed over the states.",
        Gauge,
        |q| q.unfinished_seconds,
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "How long the longest call has been running.",
        Gauge,
        |q| q.longest_running_seconds,
    ),
];

const QUEUE_TIMES: [HistogramList; 2] = [
    (
        "workqueue_queue_duration_seconds",
        "Time from entering a lane, or from being due again, until the state is handed over.",
        |q| &q.queue_duration,
    ),
    ("workqueue_work_duration_seconds", "Time from being handed over until the end of the call.", |q| {
        &q.work_duration
    }),
];

/// Repeated deliveries, which are in none of the figures above.
const RESYNCS: [OfPlugin; 3] = [
    ("resyncs_total", "Resyncs of the plugin's sources.", |p| p.resyncs as f64),
    ("resynced_total", "States that resyncs handed over again.", |p| p.resynced as f64),
    ("resync_failed_total", "States of resyncs that failed.", |p| p.resync_failed as f64),
];

/// Granted databases that lost commits.
const LOSSES: [OfPlugin; 2] = [
    (
        "database_losses",
        "Recorded losses of commits by the plugin's granted database; the newest 16 are kept.",
        |p| p.losses.len() as f64,
    ),
    ("database_gaps", "Recorded losses of commits after which rows may be missing for good.", |p| {
        p.losses.iter().filter(|loss| loss.gap).count() as f64
    }),
];

/// Calls on a schedule. A plugin without one has none.
const TICKS: [OfPlugin; 2] = [
    ("ticks_total", "Calls of the plugin on its schedule that have ended.", |p| {
        tick_figure(p, |tick| tick.ticks)
    }),
    ("ticks_failed_total", "Calls of the plugin on its schedule that failed.", |p| {
        tick_figure(p, |tick| tick.failed)
    }),
];

fn tick_figure(plugin: &PluginView, of: fn(&TickView) -> u64) -> f64 {
    plugin.tick.as_ref().map_or(0.0, |tick| of(tick) as f64)
}

pub(crate) fn render(status: &StatusView, ready: bool, traffic: &ListenerTraffic) -> String {
    let mut page = MetricsPage::default();
    let journal = &status.journal;
    let plain = [
        ("ready", "1 while the controller takes in states and keeps them.", flag_value(ready)),
        (
            "configuration_problems",
            "Files, documents and plugins that are refused; what was taken before goes on.",
            status.configuration_problems as f64,
        ),
        ("journal_states", "States in the journal.", journal.states as f64),
        ("journal_bytes", "Bytes of the journal.", journal.bytes as f64),
        ("journal_oldest_seq", "The oldest position that the journal holds.", journal.oldest_seq as f64),
        ("journal_newest_seq", "The newest position of the journal.", journal.newest_seq as f64),
    ];
    for (name, help, value) in plain {
        page.write_family(name, help, Gauge);
        page.write_sample(name, &[], value);
    }
    write_sources(&mut page, &status.sources);
    let gauges = PLUGINS.into_iter().chain(LOSSES).map(|family| (family, Gauge));
    let counters = RESYNCS.into_iter().chain(TICKS).map(|family| (family, Counter));
    for ((name, help, value), kind) in gauges.chain(counters) {
        let name = format!("plugin_{name}");
        page.write_family(&name, help, kind);
        for plugin in &status.plugins {
            page.write_sample(&name, &[("plugin", &plugin.name)], value(plugin));
        }
    }
    let (name, help) =
        ("plugin_filter_errors_total", "States that a filter could not judge. They were handed over.");
    page.write_family(name, help, Counter);
    for plugin in &status.plugins {
        page.write_sample(name, &[("plugin", &plugin.name)], plugin.filter_errors as f64);
    }
    plugin_metrics::write(&mut page, &status.plugins);
    write_queues(&mut page, &status.plugins);
    write_streams(&mut page, &status.streams);
    write_ledgers(&mut page, &status.ledgers);
    write_connections(&mut page, traffic);
    let (name, help) =
        ("retention_held", "States beyond the bounds of their source's retention, by what keeps them.");
    page.write_family(name, help, Gauge);
    for held in &status.held {
        page.write_sample(name, &[("source", &held.source), ("holder", &held.holder)], held.states as f64);
    }
    if let Some(replica) = &status.replica {
        page.write_family("replica_dispatches", "1 where this replica hands states to plugins.", Gauge);
        page.write_sample(
            "replica_dispatches",
            &[("replica", &replica.name)],
            flag_value(replica.dispatches),
        );
        page.write_family("replicas", "Processes that share the journal.", Gauge);
        page.write_sample("replicas", &[], replica.replicas.len() as f64);
    }
    page.text
}

fn write_streams(page: &mut MetricsPage, streams: &[StreamView]) {
    type Family = (&'static str, &'static str, MetricKind, fn(&StreamView) -> f64);
    let families: [Family; 3] = [
        ("stream_up", "1 while states are handed to the stream.", Gauge, |s| {
            flag_value(s.condition.is_none())
        }),
        ("stream_carried_total", "States that the stream's server has acknowledged.", Counter, |s| {
            s.carried as f64
        }),
        ("stream_waiting", "States in the journal that the stream does not have yet.", Gauge, |s| {
            s.waiting as f64
        }),
    ];
    for (name, help, kind, value) in families {
        page.write_family(name, help, kind);
        for stream in streams {
            page.write_sample(name, &[("stream", &stream.name)], value(stream));
        }
    }
}

fn write_ledgers(page: &mut MetricsPage, ledgers: &[LedgerView]) {
    type Family = (&'static str, &'static str, MetricKind, fn(&LedgerView) -> f64);
    let families: [Family; 6] = [
        ("ledger_shipping_up", "1 while closed files of the ledger get into their bucket.", Gauge, |l| {
            flag_value(l.condition.is_none())
        }),
        ("ledger_files_waiting", "Closed files that the bucket does not have yet.", Gauge, |l| {
            l.waiting as f64
        }),
        (
            "ledger_waiting_seconds",
            "How long the oldest file that waits for the bucket has been closed.",
            Gauge,
            |l| l.waiting_seconds,
        ),
        ("ledger_files_shipped_total", "Closed files that were shipped.", Counter, |l| l.shipped as f64),
        ("ledger_files_removed_total", "Shipped files that were removed here.", Counter, |l| {
            l.removed as f64
        }),
        ("ledger_shipping_failures_total", "Turns of shipping that failed.", Counter, |l| l.failed as f64),
    ];
    for (name, help, kind, value) in families {
        page.write_family(name, help, kind);
        for ledger in ledgers {
            page.write_sample(name, &[("ledger", &ledger.name)], value(ledger));
        }
    }
}

/// Adds the connections of this process's clients.
fn write_connections(page: &mut MetricsPage, traffic: &ListenerTraffic) {
    let listeners = [("portal", &traffic.portal), ("health", &traffic.health)];
    page.write_family("http_connections", "Connections of clients that are open.", Gauge);
    for (listener, counts) in listeners {
        page.write_sample("http_connections", &[("listener", listener)], counts.open() as f64);
    }
    page.write_family("http_streams", "Live streams of clients that are open.", Gauge);
    page.write_sample("http_streams", &[], traffic.portal.count_streams() as f64);
    let (name, help) = (
        "http_connections_refused_total",
        "Connections that found no place, since all have requests under way.",
    );
    page.write_family(name, help, Counter);
    for (listener, counts) in listeners {
        page.write_sample(name, &[("listener", listener)], counts.all_refused() as f64);
    }
    let (name, help) = (
        "http_connections_closed_total",
        "Connections that were closed: idle ones for newer ones, without a request's header, or not read from.",
    );
    page.write_family(name, help, Counter);
    for (listener, counts) in listeners {
        for (reason, count) in counts.closed_by_reason() {
            page.write_sample(name, &[("listener", listener), ("reason", reason)], count as f64);
        }
    }
}

fn write_queues(page: &mut MetricsPage, plugins: &[PluginView]) {
    for (name, help, kind, value) in QUEUES {
        page.plain_family(name, help, kind);
        for plugin in plugins {
            page.plain_sample(name, &[("name", &plugin.name)], value(&plugin.queue));
        }
    }
    for (name, help, of) in QUEUE_TIMES {
        page.plain_family(name, help, Histogram);
        for plugin in plugins {
            page.write_histogram(name, ("name", &plugin.name), of(&plugin.queue));
        }
    }
}

fn write_sources(page: &mut MetricsPage, sources: &[SourceView]) {
    for (name, help, kind, value) in SOURCES {
        let name = format!("source_{name}");
        page.write_family(&name, help, kind);
        for source in sources {
            if let Some(value) = value(source) {
                page.write_sample(&name, &[("source", &source.name)], value);
            }
        }
    }
    let by = [
        ("source_events_total", "kind", "Events of a source, by what they turned out to be.", &EVENTS[..]),
        ("source_lists_total", "reason", "Lists, by their reason.", &LISTS[..]),
    ];
    for (name, label, help, parts) in by {
        page.write_family(name, help, Counter);
        for source in sources {
            for (part, count) in parts {
                page.write_sample(
                    name,
                    &[("source", &source.name), (label, part)],
                    count(&source.counts) as f64,
                );
            }
        }
    }
    let name = "source_outcomes_total";
    page.write_family(
        name,
        "Objects that ended badly, by cause. Each is counted once it is explained.",
        Counter,
    );
    for source in sources {
        for (cause, count) in &source.outcomes {
            page.write_sample(name, &[("source", &source.name), ("cause", cause)], *count as f64);
        }
    }
}

fn flag_value(set: bool) -> f64 {
    f64::from(u8::from(set))
}
