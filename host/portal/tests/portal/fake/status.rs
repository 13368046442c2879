//! The content of the status: sources and plugins in every condition.

use std::sync::Arc;

use kubewitness_core::ObjectRef;
use kubewitness_core::views::*;

/// The status of a controller whose newest state has this position. `paused` is the pause of the plugin
/// `notification`.
pub fn all(newest_seq: u64, held: Vec<HeldView>, paused: Option<PausedView>) -> StatusView {
    let journal = JournalView {
        store: "postgres".into(),
        place: "PostgreSQL at db:5432/journal".into(),
        states: 48_211,
        bytes: 9_131_008,
        oldest_seq: 1,
        oldest_at: Some("2026-11-18T09:00:00.000Z".into()),
        newest_seq,
    };
    let mut degraded = plugin("notification", "degraded", [44_102, 3_998, 3, 108]);
    degraded.message = Some("the destination `portal` timed out: it did not answer within 10 s".into());
    degraded.retrying = 12;
    degraded.paused = paused;
    (degraded.resyncs, degraded.resynced, degraded.resync_failed) = (2, 52, 1);
    let loss = |gap| DatabaseLossView { database: "platform".into(), gap, ..DatabaseLossView::default() };
    degraded.losses = vec![loss(false), loss(true), loss(false)];
    let mut wrong = plugin("audit", "failed", [48_000, 0, 0, 11]);
    wrong.observed += 200;
    let source = |name: &str, objects, gaps, synced| SourceView {
        name: name.into(),
        objects,
        checkpoint: "48230".into(),
        epoch: 0,
        synced,
        gaps,
        poison: 0,
        last_event_at: synced.then(|| "2026-11-20T13:59:58.120Z".into()),
        last_event_age_seconds: synced.then_some(2.5),
        api_version: if name == "jobs" { "batch/v1".into() } else { "v1".into() },
        kind: if name == "jobs" { "Job".into() } else { "Pod".into() },
        condition: (!synced).then(|| "the server refuses: pods is <forbidden>".into()),
        ..SourceView::default()
    };
    let sources = vec![well_travelled(source("jobs", 26, 2, true)), source("pods\"\\", 61, 0, false)];
    StatusView {
        version: "0.1.0".into(),
        replica: Some(ReplicaView {
            name: "pod-1_a".into(),
            dispatches: false,
            dispatcher: Some("pod-2_b".into()),
            lease: "kubewitness/election".into(),
            replicas: vec!["pod-1_a".into(), "pod-2_b".into()],
            condition: None,
        }),
        sources,
        plugins: vec![plugin("persistence", "active", [48_211, 0, 0, 0]), degraded, wrong],
        streams: vec![StreamView {
            name: "platform".into(),
            carries: vec!["jobs".into()],
            carried: 48_200,
            waiting: 11,
            condition: Some("the stream `platform`: its server can't be reached: <refused>".into()),
            limitation: Some("the stream `platform` has no key: <forged>".into()),
        }],
        ledgers: vec![LedgerView {
            name: "trail".into(),
            waiting: 3,
            waiting_seconds: 90.5,
            shipped: 12,
            removed: 4,
            failed: 2,
            condition: Some("the storage answers 403 <Denied>".into()),
        }],
        journal,
        held,
        problems: Vec::new(),
        restricted: false,
        configuration_problems: 3,
    }
}

/// A source whose server was restored from a backup, compacts, and sends invalid objects.
fn well_travelled(source: SourceView) -> SourceView {
    let epoch = |epoch, states, checkpoint: &str, replaced: Option<&str>| EpochView {
        epoch,
        states,
        checkpoint: checkpoint.into(),
        replaced_at: replaced.map(Into::into),
        last_event_at: Some("2026-11-20T13:59:58.120Z".into()),
    };
    SourceView {
        epoch: 1,
        poison: 2,
        walking: 4,
        limitation: Some("this server does not read old versions: what a watch missed is a gap".into()),
        last_audit_at: Some("2026-11-20T13:55:00.000Z".into()),
        doubt: Some("something that the watch had not brought was found".into()),
        differed: 3,
        discrepancies: vec![DiscrepancyView {
            object: ObjectRef {
                kind: "Job".into(),
                namespace: "team-vision".into(),
                name: "differed-1".into(),
                uid: "uid-differed".into(),
                ..ObjectRef::default()
            },
            witnessed: "48100".into(),
            listed: String::new(),
            found_ms: 1_795_182_900_000,
        }],
        counts: SourceCounts {
            frames: 48_400,
            bytes: 109_000_000,
            present: 47_100,
            gone: 900,
            left: 11,
            bookmarks: 120,
            poison: 2,
            duplicates: 31,
            stale: 3,
            gaps: 2,
            watches: 19,
            lists_first: 1,
            lists_expired: 2,
            lists_replaced: 1,
            lists_audit: 6,
            lists_streamed: 1,
            expired: 2,
            epochs: 1,
            discrepancies: 1,
            walk_back_requests: 240,
            walked_back: 213,
            discarded_bytes: 0,
            decode_ns: 91_500_000,
        },
        outcomes: CauseKind::ALL
            .map(|kind| (kind.as_str().to_owned(), if kind == CauseKind::OutOfMemory { 4 } else { 0 }))
            .into(),
        epochs: vec![
            epoch(0, 31_000, "91044", None),
            epoch(1, 17_211, "48230", Some("2026-11-20T11:02:03.456Z")),
        ],
        ..source
    }
}

fn plugin(name: &str, state: &str, [delivered, filtered, dead, waiting]: [u64; 4]) -> PluginView {
    PluginView {
        name: name.into(),
        state: state.into(),
        digest: "9f2c41d07be5aa318de4c1a09877b0d3e6f1".into(),
        observed: delivered + filtered + dead + waiting,
        delivered,
        filtered,
        dead,
        waiting,
        lag_seq: waiting,
        lag_seconds: waiting as f64 / 10.0,
        queue: QueueView {
            depth: 9,
            adds: 40,
            retries: 5,
            unfinished_seconds: 2.5,
            longest_running_seconds: 1.5,
            queue_duration: HistogramView::default(),
            work_duration: HistogramView { buckets: vec![(0.1, 3), (1.0, 6)], count: 7, sum_seconds: 12.5 },
        },
        tick: Some(TickView {
            ticks: 12,
            failed: 4,
            last: Some("2026-11-20T13:59:30.000Z".into()),
            next: Some("2026-11-20T14:00:00.000Z".into()),
            error: Some("the plugin says: the server is away".into()),
        }),
        manifest: Some(Arc::new(ManifestView {
            declared: vec!["sql:main".into(), "kv".into()],
            granted: vec![
                GrantView { name: "sql:main".into(), of: "database platform".into() },
                GrantView { name: "documents".into(), of: "without secrets".into() },
            ],
            sources: vec!["jobs".into(), "pods".into()],
            config: serde_json::json!({"table": "kw_states"}).as_object().cloned(),
            fields: vec![kubewitness_core::views::ConfigField {
                field: "table".into(),
                kind: "text".into(),
                default: "\"states\"".into(),
                meaning: "Where `<rows>` go.".into(),
                ..Default::default()
            }],
            memory_limit: 64 << 20,
            call_limit_ms: 2000,
        })),
        calls: calls(),
        shadow: Some(shadow()),
        ..PluginView::default()
    }
}

fn shadow() -> ShadowView {
    let side = ShadowSideView {
        not_done: 1,
        effects: 84,
        seconds: 0.0042,
        guest_seconds: 0.0021,
        peak_memory: 3 << 19,
    };
    let act = |body: &str| ShadowActView {
        effects: vec![serde_json::json!({"call": "http.send", "to": "people", "body": body})],
        more: 0,
        verdict: "done".into(),
    };
    ShadowView {
        digest: "77aa41d07be5aa318de4c1a09877b0d3e6f1".into(),
        since: "2026-11-20T13:00:00.000Z".into(),
        states: 42,
        same: 40,
        different: 2,
        missed: 3,
        active: side.clone(),
        shadow: side,
        differences: vec![ShadowDifferenceView {
            id: "jobs/0/batch/Job/u-7/91044".into(),
            seq: 17,
            object: "Job team-vision/train-7".into(),
            change: "present".into(),
            phase: "Failed".into(),
            active: act("old"),
            shadow: act("new"),
        }],
        ..ShadowView::default()
    }
}

/// Calls of every capability, so that the reference of metrics names all of them.
const HOST_CALLS: [(&str, u64); 12] = [
    ("clock", 3),
    ("config", 1),
    ("documents", 40),
    ("http", 690),
    ("kv", 5),
    ("ledger", 6),
    ("lister", 8),
    ("log", 12),
    ("mail", 2),
    ("outcomes", 7),
    ("persons", 4),
    ("sql", 9),
];

fn calls() -> CallsView {
    CallsView {
        ended: CallEndsView {
            answered: 700,
            trapped: 5,
            timed_out: 4,
            unavailable: 1,
            ..CallEndsView::default()
        },
        states: 44_900,
        verdicts: VerdictsView { done: 44_102, retry: 70, reject: 3 },
        guest_seconds: 1.25,
        host_seconds: 90.5,
        wait_seconds: 3.5,
        bytes_in: 9_000_000,
        bytes_out: 4_000_000,
        host_calls: HOST_CALLS.map(|(capability, calls)| (capability.to_owned(), calls)).into(),
        instances: 2,
        memory: 5 << 20,
        peak_memory: 3 << 20,
        compile_seconds: 1.5,
        last_answered_at: Some("2026-11-20T13:46:38.120Z".into()),
        last_failure: Some(CallFailureView {
            at: "2026-11-20T13:46:41.000Z".into(),
            end: "timed-out".into(),
            message: "the plugin ran longer than its limit of 2000 ms".into(),
        }),
    }
}
