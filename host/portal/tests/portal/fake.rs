//! Views over made-up data: a training job with two pods that was preempted and came back,
//! plugins in every condition, dead letters and gaps.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::{DeadLetter, Watched};
use kubewitness_core::views::*;
use kubewitness_core::{Change, Gap, ObjectRef, Seq, State, StateId, Status, Version};
use tokio::sync::watch;

pub const START: u64 = 1_795_182_311_000;

pub const POISON: [&[u8]; 2] =
    [b"{\"type\":<script>alert(1)</script>\x1b[2J", b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Job\"}}"];

pub struct Fake {
    pub states: Mutex<Vec<Arc<State>>>,
    pub empty: bool,
    pub broken: bool,
    pub stuck: bool,
    pub ready: Result<(), String>,
    pub problems: Vec<String>,
    pub replays: Mutex<Vec<ReplayRequest>>,
    pub drops: Mutex<Vec<ReplayRequest>>,
    /// Of the plugin `notification`.
    pub paused: Mutex<Option<PausedView>>,
    pub newest: watch::Sender<Seq>,
}

pub fn object(kind: &str, namespace: &str, name: &str, uid: &str) -> ObjectRef {
    ObjectRef {
        group: if kind == "Job" { "batch".into() } else { String::new() },
        version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
    }
}

pub fn status(phase: &str, reason: &str, message: &str) -> Status {
    let attempt = u32::from(!matches!(phase, "Queued" | "Admitted" | "Pending"));
    let ready = if phase == "Running" { 2 } else { 0 };
    let terminal = matches!(phase, "Succeeded" | "Failed" | "Deleted");
    Status {
        phase: phase.into(),
        reason: reason.into(),
        message: message.into(),
        attempt,
        ready,
        total: 2,
        exit_code: (phase == "Failed").then_some(137),
        terminal,
    }
}

pub fn state(seq: Seq, object: &ObjectRef, change: Change, seconds: u64, status: Status) -> State {
    let version = Version::new(&(1000 + seq).to_string());
    State {
        id: StateId::of("jobs", 0, object, change, &version, None),
        seq,
        source: if object.kind == "Job" { "jobs".into() } else { "pods".into() },
        epoch: 0,
        change,
        owner: (object.kind == "Pod")
            .then(|| Arc::new(crate::fake::object("Job", "research", "llm-train-7", "uid-train"))),
        object: Arc::new(object.clone()),
        resource_version: version,
        status: Arc::new(status),
        previous: None,
        observed_ms: START + seconds * 1000,
        late: false,
    }
}

/// About the job's first pod: one that happened again and again, and one that happened once.
fn events() -> Vec<EventView> {
    let about = object("Pod", "research", "llm-train-7-0-x8k2p", "uid-llm-train-7-0-x8k2p");
    let event = |seconds: u64, kind: &str, reason: &str, message: &str, count| EventView {
        object: object(
            "Event",
            "research",
            &format!("llm-train-7.{seconds}"),
            &format!("uid-event-{seconds}"),
        ),
        about: about.clone(),
        kind: kind.into(),
        reason: reason.into(),
        message: message.into(),
        count,
        first_ms: START + seconds * 1000 - (count - 1) * 60_000,
        last_ms: START + seconds * 1000,
        from: "default-scheduler".into(),
        seq: 4,
    };
    let gpus = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu.";
    vec![
        event(125, "Warning", "FailedScheduling", gpus, 3),
        event(130, "Normal", "Scheduled", "Successfully assigned research/llm-train-7-0-x8k2p to node-7", 1),
    ]
}

fn story() -> Vec<Arc<State>> {
    let job = object("Job", "research", "llm-train-7", "uid-train");
    let workers = ["llm-train-7-0-x8k2p", "llm-train-7-1-q9d4z"];
    let pods: Vec<_> =
        workers.iter().map(|name| object("Pod", "research", name, &format!("uid-{name}"))).collect();
    let p = Change::Present;
    let image = "Back-off pulling image \"registry.example/train:9\": the tag does not exist there <yet>";
    let list = [
        (&job, p, 0, status("Queued", "JobSuspended", "Job suspended")),
        (&job, p, 95, status("Admitted", "Resuming", "")),
        (&job, p, 97, status("Starting", "", "")),
        (
            &pods[0],
            p,
            97,
            status("Pending", "Unschedulable", "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."),
        ),
        (
            &pods[1],
            p,
            98,
            status("Pending", "Unschedulable", "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."),
        ),
        (&pods[0], p, 130, status("Starting", "ContainerCreating", "")),
        (&pods[1], p, 131, status("Starting", "ImagePullBackOff", image)),
        (&pods[0], p, 150, status("Running", "", "")),
        (&pods[1], p, 190, status("Running", "", "")),
        (&job, p, 191, status("Running", "", "")),
        (
            &pods[1],
            p,
            420,
            status(
                "Preempted",
                "PreemptionByScheduler",
                "default-scheduler: preempting to accommodate a higher priority pod",
            ),
        ),
        (&pods[1], Change::Gone, 425, status("Deleted", "Preempted", "")),
        (&job, p, 426, status("Restarting", "PodFailed", "")),
        (&job, Change::Gap, 427, status("Restarting", "PodFailed", "")),
        (&job, p, 470, status("Running", "", "")),
        (&pods[0], p, 900, status("Succeeded", "Completed", "")),
        (&job, p, 903, status("Running", "SuccessCriteriaMet", "Reached expected number of succeeded pods")),
        (
            &job,
            p,
            904,
            status("Succeeded", "CompletionsReached", "Reached expected number of succeeded pods"),
        ),
    ];
    list.into_iter()
        .enumerate()
        .map(|(index, (object, change, seconds, status))| {
            Arc::new(state(index as u64 + 1, object, change, seconds, status))
        })
        .collect()
}

impl Default for Fake {
    fn default() -> Self {
        let states = story();
        Self {
            newest: watch::Sender::new(states.len() as u64),
            states: Mutex::new(states),
            empty: false,
            broken: false,
            stuck: false,
            ready: Ok(()),
            problems: Vec::new(),
            replays: Mutex::default(),
            drops: Mutex::default(),
            paused: Mutex::default(),
        }
    }
}

impl Fake {
    pub fn push(&self, state: State) {
        let seq = state.seq;
        self.states.lock().unwrap().push(Arc::new(state));
        self.newest.send_replace(seq);
    }

    async fn check(&self) -> Result<(), ViewError> {
        if self.stuck {
            std::future::pending::<()>().await;
        }
        match self.broken {
            true => Err(ViewError::Unavailable("the journal can't be read now: disk I/O error".into())),
            false => Ok(()),
        }
    }
}

fn jobs() -> Vec<ObjectView> {
    let phases = [
        ("Running", "", ""),
        ("Running", "", ""),
        ("Queued", "JobSuspended", "Job suspended"),
        ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"),
        ("Succeeded", "CompletionsReached", "Reached expected number of succeeded pods"),
        ("Restarting", "PodFailed", ""),
        (
            "Preempted",
            "Preempted",
            "Preempted to accommodate a workload of higher priority in the ClusterQueue",
        ),
        ("Starting", "", ""),
        ("Suspended", "JobSuspended", "Job suspended"),
        ("Cancelled", "Deleting", ""),
        ("Pending", "", ""),
        ("Admitted", "Resuming", ""),
        ("Unknown", "StatusIsBehind", ""),
    ];
    let names = ["llm-train-7", "resnet-sweep-12", "eval-nightly", "tokenizer-build", "<b>bold</b>"];
    (0..26)
        .map(|index| {
            let (phase, reason, message) = phases[index % phases.len()];
            let namespace = ["research", "platform", "vision"][index % 3];
            let (name, uid) = match index {
                0 => (names[0].to_owned(), "uid-train".to_owned()),
                _ => (format!("{}-{index}", names[index % names.len()]), format!("uid-{index}")),
            };
            ObjectView {
                source: "jobs".into(),
                object: object("Job", namespace, &name, &uid),
                owner: None,
                resource_version: (2000 + index).to_string(),
                status: status(phase, reason, message),
                seq: 100 - index as u64,
                observed_at: format!("2026-11-20T13:{:02}:11.250Z", 59 - index),
                ..ObjectView::default()
            }
        })
        .collect()
}

/// A source whose server was restored from a backup, compacts, and sends what is no object.
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
            memory_limit: 64 << 20,
            call_limit_ms: 2000,
        })),
        calls: calls(),
        ..PluginView::default()
    }
}

/// Of every capability, so that the reference of metrics names all of them.
const HOST_CALLS: [(&str, u64); 10] = [
    ("clock", 3),
    ("config", 1),
    ("documents", 40),
    ("http", 690),
    ("kv", 5),
    ("ledger", 6),
    ("lister", 8),
    ("log", 12),
    ("mail", 2),
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

fn no_plugin(name: &str) -> ViewError {
    ViewError::NotFound {
        message: format!("there is no plugin `{name}`"),
        hint: "the page of plugins lists those that there are".into(),
    }
}

fn letter(plugin: &str, seq: Seq, error: &str) -> DeadLetterView {
    let object = object("Job", "research", "llm-train-7", "uid-train");
    DeadLetterView {
        letter: DeadLetter {
            plugin: plugin.into(),
            seq,
            id: StateId::of("jobs", 0, &object, Change::Present, &Version::new("1007"), None),
            attempts: 9,
            error: error.into(),
            first_ms: START,
            last_ms: START + 60_000,
            replaying: seq == 9,
            dropped: false,
            tries: Vec::new(),
        },
        object,
        phase: "Running".into(),
    }
}

#[async_trait]
impl Views for Fake {
    async fn status(&self) -> Result<StatusView, ViewError> {
        self.check().await?;
        let journal = JournalView {
            store: "postgres".into(),
            place: "PostgreSQL at db:5432/journal".into(),
            states: 48_211,
            bytes: 9_131_008,
            oldest_seq: 1,
            oldest_at: Some("2026-11-18T09:00:00.000Z".into()),
            newest_seq: *self.newest.borrow(),
        };
        if self.empty {
            return Ok(StatusView::default());
        }
        let mut degraded = plugin("notification", "degraded", [44_102, 3_998, 3, 108]);
        degraded.message = Some("the destination `portal` timed out: it did not answer within 10 s".into());
        degraded.retrying = 12;
        degraded.paused = self.paused.lock().unwrap().clone();
        (degraded.resyncs, degraded.resynced, degraded.resync_failed) = (2, 52, 1);
        let mut wrong = plugin("audit", "active", [48_000, 0, 0, 11]);
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
        Ok(StatusView {
            version: "0.1.0".into(),
            replica: Some(kubewitness_core::views::ReplicaView {
                name: "pod-1_a".into(),
                dispatches: false,
                dispatcher: Some("pod-2_b".into()),
                lease: "kubewitness/election".into(),
                replicas: vec!["pod-1_a".into(), "pod-2_b".into()],
                condition: None,
            }),
            sources,
            plugins: vec![plugin("persistence", "active", [48_211, 0, 0, 0]), degraded, wrong],
            streams: vec![kubewitness_core::views::StreamView {
                name: "platform".into(),
                carries: vec!["jobs".into()],
                carried: 48_200,
                waiting: 11,
                condition: Some("the stream `platform`: its server can't be reached: <refused>".into()),
            }],
            journal,
            held: self.held(),
            problems: self.problems.clone(),
            restricted: false,
            configuration_problems: 3,
        })
    }

    fn watched(&self) -> Vec<Watched> {
        let watched = |source: &str, group: &str, kind: &str, resource: &str| Watched {
            source: source.into(),
            group: group.into(),
            kind: kind.into(),
            resource: resource.into(),
        };
        vec![watched("jobs", "batch", "Job", "jobs"), watched("pods\"\\", "", "Pod", "pods")]
    }

    async fn namespaces(&self, _source: &str, _: bool, most: usize) -> Result<BTreeSet<String>, ViewError> {
        Ok(jobs().into_iter().map(|view| view.object.namespace).take(most).collect())
    }

    async fn objects(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError> {
        self.check().await?;
        let fits = |asked: &Option<String>, value: &str| {
            asked.as_ref().is_none_or(|asked| asked.eq_ignore_ascii_case(value))
        };
        let mut jobs = if self.empty { Vec::new() } else { jobs() };
        if query.label_selector.as_deref().is_some_and(|text| text.contains("==="))
            || query.index.as_deref().is_some_and(|text| !text.contains('='))
        {
            return Err(ViewError::Invalid("this can't be looked up".into()));
        }
        // Of the labels only one is known here: every third job is of team a.
        if query.label_selector.as_deref() == Some("team=a") {
            jobs = jobs.into_iter().step_by(3).collect();
        }
        let is = |view: &ObjectView, kind: &str| is_kind(&view.object.group, &view.object.kind, kind);
        jobs.retain(|view| {
            query.kind.as_ref().is_none_or(|kind| is(view, kind))
                && fits(&query.namespace, &view.object.namespace)
                && fits(&query.phase, &view.status.phase)
                && fits(&query.name, &view.object.name)
                && query.source.as_ref().is_none_or(|source| *source == view.source)
        });
        if query.gone != Gone::No {
            let ended_at = Some("2026-11-20T12:00:00.000Z".into());
            let gone = ObjectView { ended_at, ..jobs[jobs.len() - 1].clone() };
            let object = object("Job", "research", "deleted-yesterday", "uid-deleted");
            jobs.push(ObjectView { object, status: status("Deleted", "Failed", ""), seq: 2, ..gone });
        }
        jobs.retain(|view| query.gone != Gone::Only || view.ended_at.is_some());
        let mut page = ObjectPage { objects: jobs, ..ObjectPage::default() };
        if query.at.is_some() {
            page.notices.push("The journal begins at 2026-11-20T11:00:00.000Z.".into());
            let message = Some("Between 12:00 and 12:05 versions are missing.".into());
            let then = ThenView { known: "missing".into(), until: None, message };
            page.objects.iter_mut().for_each(|view| view.then = Some(then.clone()));
        }
        if query.details {
            let plugins = [("audit", "delivered"), ("notification", "dead")];
            let plugins = plugins.map(|(name, state)| (name.to_owned(), state.to_owned())).into();
            let details = DetailsView {
                created_at: Some("2026-11-20T11:30:00Z".into()),
                queued_ms: 240_000,
                running_ms: 7_800_000,
                restarts: 2,
                submitter: Some("ana@example.com".into()),
                cut: false,
                plugins,
            };
            page.objects.iter_mut().for_each(|view| view.details = Some(details.clone()));
        }
        let limit = query.limit.unwrap_or(usize::MAX);
        if page.objects.len() > limit {
            page.objects.truncate(limit);
            page.next = page.objects.last().map(|view| view.seq.to_string());
        }
        Ok(page)
    }

    async fn counts(&self, query: &ObjectQuery) -> Result<Counts, ViewError> {
        let mut counts = Counts::default();
        for view in self.objects(query).await?.objects {
            *counts.phases.entry(view.status.phase).or_default() += 1;
            counts.namespaces.insert(view.object.namespace);
        }
        Ok(counts)
    }

    async fn timeline(&self, query: &TimelineQuery) -> Result<TimelineView, ViewError> {
        self.check().await?;
        let known = query.uid.as_deref() == Some("uid-train") || query.name.as_deref() == Some("llm-train-7");
        let mut states = self.states.lock().unwrap().clone();
        if !known {
            states.retain(|state| Some(&state.object.name) == query.name.as_ref());
            return Ok(TimelineView { states, ..TimelineView::default() });
        }
        let (states, related) = states.into_iter().partition(|state| state.object.uid == "uid-train");
        let events = if query.events { events() } else { Vec::new() };
        Ok(TimelineView { states, related, events })
    }

    async fn deliveries(&self, states: &[Arc<State>]) -> Result<Deliveries, ViewError> {
        let told = states.iter().map(|state| match state.seq {
            3 => (state.seq, Told::Dead),
            18.. => (state.seq, Told::Waiting),
            seq => (seq, Told::Delivered),
        });
        Ok(Deliveries::from([("audit".to_owned(), told.collect())]))
    }

    async fn document(&self, seq: Seq) -> Result<Vec<u8>, ViewError> {
        self.check().await?;
        let lines: Vec<&str> = include_str!("../../../core/testdata/jobs.jsonl").lines().collect();
        match seq {
            12 => Ok(Vec::new()),
            14 => {
                let gaps = self.gaps(&GapQuery::default()).await?;
                Ok(serde_json::to_vec(&gaps[0]).unwrap())
            }
            1..=18 => {
                let line = lines[seq as usize % lines.len()].as_bytes();
                Ok(kubewitness_core::project::frame(line).unwrap().object.to_vec())
            }
            _ => Err(ViewError::NotFound {
                message: format!("there is no state at position {seq}"),
                hint: "it may be older than what the journal keeps".into(),
            }),
        }
    }

    async fn gaps(&self, query: &GapQuery) -> Result<Vec<Gap>, ViewError> {
        self.check().await?;
        if self.empty {
            return Ok(Vec::new());
        }
        let gap = |object, before: &str, reason: &str, message: &str| Gap {
            source: "jobs".into(),
            object,
            epoch: 0,
            after: "1013".into(),
            before: before.into(),
            reason: reason.into(),
            message: message.into(),
            recorded_ms: START + 427_000,
        };
        let train = object("Job", "research", "llm-train-7", "uid-train");
        let mut gaps = vec![
            gap(
                Some(train),
                "1019",
                "Compacted",
                "The API server had compacted these versions before they could be read.",
            ),
            gap(
                None,
                "",
                "HistoryReplaced",
                "The API server's history went back: it was restored from a backup.",
            ),
        ];
        let about = |asked: &Option<String>, of: fn(&ObjectRef) -> &String, gap: &Gap| {
            asked.as_ref().is_none_or(|asked| gap.object.as_ref().is_some_and(|object| of(object) == asked))
        };
        gaps.retain(|gap| {
            let of_kind = |kind: &String| {
                gap.object.as_ref().is_some_and(|object| is_kind(&object.group, &object.kind, kind))
            };
            query.source.as_ref().is_none_or(|source| *source == gap.source)
                && query.kind.as_ref().is_none_or(of_kind)
                && about(&query.uid, |object| &object.uid, gap)
                && about(&query.namespace, |object| &object.namespace, gap)
                && about(&query.name, |object| &object.name, gap)
        });
        gaps.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(gaps)
    }

    async fn poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError> {
        self.check().await?;
        let other = query.source.as_ref().is_some_and(|source| source != "jobs");
        if self.empty || other {
            return Ok(Vec::new());
        }
        let poison = |number, error: &str, raw: &[u8]| PoisonView {
            number,
            source: "jobs".into(),
            epoch: 1,
            error: error.into(),
            observed_ms: START + 500_000 + number,
            bytes: raw.len() as u64,
            excerpt: String::from_utf8_lossy(raw).into_owned(),
        };
        Ok(vec![
            poison(2, "the object has no metadata.uid", POISON[1]),
            poison(1, "expected value at line 1 column 9", POISON[0]),
        ])
    }

    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError> {
        self.check().await?;
        let raw = POISON.get((number as usize).wrapping_sub(1));
        raw.map(|raw| raw.to_vec()).ok_or_else(|| ViewError::NotFound {
            message: format!("there is no poison message {number}"),
            hint: "the page of gaps lists them".into(),
        })
    }

    async fn dead_letters(&self, plugin: Option<&str>) -> Result<Vec<DeadLetterView>, ViewError> {
        self.check().await?;
        let mut letters = vec![
            letter("notification", 7, "the destination answered 500 Internal Server Error"),
            letter("notification", 9, "the destination timed out"),
            letter("persistence", 4, "rejected: the name is longer than the column"),
        ];
        if let Some(name) = plugin.filter(|name| !["notification", "persistence", "audit"].contains(name)) {
            return Err(no_plugin(name));
        }
        letters.retain(|view| !self.empty && plugin.is_none_or(|name| name == view.letter.plugin));
        Ok(letters)
    }

    async fn replay(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError> {
        self.check().await?;
        if request.plugin != "notification" {
            return Err(no_plugin(&request.plugin));
        }
        self.replays.lock().unwrap().push(request.clone());
        Ok(ReplayView {
            replayed: request.seqs.len() as u64,
            who: request.who.clone(),
            dry_run: request.dry_run,
        })
    }

    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError> {
        self.check().await?;
        self.drops.lock().unwrap().push(request.clone());
        Ok(DropView {
            dropped: request.seqs.len() as u64,
            who: request.who.clone(),
            dry_run: request.dry_run,
        })
    }

    async fn pause(
        &self,
        plugin: &str,
        pauses: bool,
        request: &PauseRequest,
    ) -> Result<PauseView, ViewError> {
        self.check().await?;
        if plugin != "notification" {
            return Err(no_plugin(plugin));
        }
        let mut paused = self.paused.lock().unwrap();
        let changed = paused.is_some() != pauses;
        if changed {
            let view = PausedView {
                who: request.who().to_owned(),
                why: request.reason.clone(),
                since: "2026-11-20T14:00:00.000Z".into(),
            };
            *paused = pauses.then_some(view);
        }
        Ok(PauseView { plugin: plugin.to_owned(), changed, paused: paused.clone() })
    }

    async fn letter_records(&self, _plugin: Option<&str>) -> Result<Vec<LetterRecordView>, ViewError> {
        self.check().await?;
        Ok(vec![LetterRecordView {
            number: 1,
            plugin: "notification".into(),
            what: "drop".into(),
            who: "ada".into(),
            why: "the <receiver> is gone".into(),
            seqs: vec![3, 4],
            at: "2026-11-20T14:00:00.000Z".into(),
        }])
    }

    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, ViewError> {
        self.check().await?;
        let states = self.states.lock().unwrap();
        Ok(states.iter().filter(|state| state.seq > after).take(limit).cloned().collect())
    }

    fn newest(&self) -> watch::Receiver<Seq> {
        self.newest.subscribe()
    }

    fn held(&self) -> Vec<HeldView> {
        if self.empty {
            return Vec::new();
        }
        vec![HeldView {
            source: "jobs".into(),
            holder: "plugin audit".into(),
            states: 12_345,
            since: "2026-11-20T13:59:58.120Z".into(),
            remedy: "it is failed (<no table>): repair it".into(),
        }]
    }

    fn ready(&self) -> Result<(), String> {
        self.ready.clone()
    }
}
