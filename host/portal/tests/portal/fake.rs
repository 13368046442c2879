//! Views over made-up data: a training job with two pods that was preempted and came back,
//! plugins in every condition, dead letters and gaps.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kubewitness_core::ports::DeadLetter;
use kubewitness_core::views::*;
use kubewitness_core::{Change, Gap, ObjectRef, Seq, State, StateId, Status, Version};
use tokio::sync::watch;

pub const START: u64 = 1_795_182_311_000;

pub struct Fake {
    pub states: Mutex<Vec<Arc<State>>>,
    pub empty: bool,
    pub broken: bool,
    pub stuck: bool,
    pub ready: Result<(), String>,
    pub problems: Vec<String>,
    pub replays: Mutex<Vec<ReplayRequest>>,
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
            }
        })
        .collect()
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
        ..PluginView::default()
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
            states: 48_211,
            bytes: 9_131_008,
            oldest_seq: 1,
            newest_seq: *self.newest.borrow(),
        };
        if self.empty {
            return Ok(StatusView::default());
        }
        let mut degraded = plugin("notification", "degraded", [44_102, 3_998, 3, 108]);
        degraded.message = Some("the destination `portal` timed out: it did not answer within 10 s".into());
        degraded.retrying = 12;
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
            condition: (!synced).then(|| "the server refuses: pods is <forbidden>".into()),
            ..SourceView::default()
        };
        let sources = vec![source("jobs", 26, 2, true), source("pods\"\\", 61, 0, false)];
        Ok(StatusView {
            sources,
            plugins: vec![plugin("persistence", "active", [48_211, 0, 0, 0]), degraded, wrong],
            journal,
            problems: self.problems.clone(),
        })
    }

    async fn objects(&self, query: &ObjectQuery) -> Result<Vec<ObjectView>, ViewError> {
        self.check().await?;
        let fits = |asked: &Option<String>, value: &str| {
            asked.as_ref().is_none_or(|asked| asked.eq_ignore_ascii_case(value))
        };
        let mut jobs = if self.empty { Vec::new() } else { jobs() };
        jobs.retain(|view| {
            fits(&query.kind, &view.object.kind)
                && fits(&query.namespace, &view.object.namespace)
                && fits(&query.phase, &view.status.phase)
        });
        Ok(jobs)
    }

    async fn timeline(&self, query: &TimelineQuery) -> Result<TimelineView, ViewError> {
        self.check().await?;
        let known = query.uid.as_deref() == Some("uid-train") || query.name.as_deref() == Some("llm-train-7");
        if !known {
            return Ok(TimelineView::default());
        }
        let states = self.states.lock().unwrap().clone();
        let (states, related) = states.into_iter().partition(|state| state.object.uid == "uid-train");
        Ok(TimelineView { states, related })
    }

    async fn document(&self, seq: Seq) -> Result<Vec<u8>, ViewError> {
        self.check().await?;
        let lines: Vec<&str> = include_str!("../../../core/testdata/jobs.jsonl").lines().collect();
        match seq {
            12 => Ok(Vec::new()),
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

    async fn gaps(&self) -> Result<Vec<Gap>, ViewError> {
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
        Ok(vec![
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
        ])
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
        Ok(ReplayView { replayed: request.seqs.len() as u64, dry_run: request.dry_run })
    }

    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, ViewError> {
        self.check().await?;
        let states = self.states.lock().unwrap();
        Ok(states.iter().filter(|state| state.seq > after).take(limit).cloned().collect())
    }

    fn newest(&self) -> watch::Receiver<Seq> {
        self.newest.subscribe()
    }

    fn ready(&self) -> Result<(), String> {
        self.ready.clone()
    }
}
