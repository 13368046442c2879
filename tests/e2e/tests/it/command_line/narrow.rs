//! The output of commands on terminals of 40, 60 and 80 columns and into a pipe, of a controller whose
//! answers never change.

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use kubewitness_core::events::EventView;
use kubewitness_core::ports::DeadLetter;
use kubewitness_core::views::{
    DeadLetterView, DetailsView, JournalView, LetterRecordView, ObjectView, PluginView, PoisonView,
    SourceView, StatusView, TimelineView,
};
use kubewitness_core::{Change, Gap, ObjectRef, State, StateId, Status, Version, calendar};
use kubewitness_harness::{command_in, generated, skip};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::manners::on_a_terminal;

const GOLDEN: &str = "tests/e2e/tests/it/command_line/narrow.txt";
/// Six days and a half ago, whatever day it is, and 11 seconds after the minute.
static AT_MS: LazyLock<u64> = LazyLock::new(|| {
    let days = Duration::from_hours(6 * 24 + 12);
    let then = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970") - days;
    then.as_secs() / 60 * 60_000 + 11_000
});
/// The minutes of the two times that commands print, and what stands for them in the file.
const MINUTES: [(u64, &str); 2] = [(0, "2026-11-20 13:45"), (60_000, "2026-11-20 13:46")];
const NAME: &str = "llama-70b-finetune-with-a-long-name-r7k2x";

const COMMANDS: [&str; 11] = [
    "jobs --gone=too",
    "get jobs -A",
    "get events -A",
    "timeline event/llama.17a -n team-vision",
    "timeline job/llama -n team-vision",
    "gaps",
    "poison",
    "deadletters list",
    "deadletters records",
    "plugins",
    "status",
];

#[tokio::test]
#[allow(clippy::disallowed_methods)]
async fn commands_fit_narrow_terminals_and_print_everything_into_a_pipe() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let controller = tokio::spawn(answer(listener));
    let told = all(&server).await.unwrap();
    controller.abort();
    match told {
        Some(text) => generated(Path::new(GOLDEN), &text),
        None => skip("narrow::commands_fit_narrow_terminals", "the program `script` is not on the PATH"),
    }
}

/// Returns the output of each command; `None` where no program makes a terminal.
async fn all(server: &str) -> Result<Option<String>> {
    let mut text = String::new();
    for command in COMMANDS {
        let line = format!("{command} --server {server}");
        for columns in ["40", "60", "80"] {
            let env = [("COLUMNS", columns), ("TZ", "UTC"), ("NO_COLOR", "1")];
            let Some(told) = on_a_terminal(&line, &env).await? else { return Ok(None) };
            let told = told.replace("\r\n", "\n");
            ensure!(!told.contains('\u{1b}'), "{command}: a colour in spite of NO_COLOR: {told:?}");
            text.push_str(&format!("$ {command}   # {columns} columns\n{told}\n"));
        }
        let words: Vec<_> = line.split(' ').collect();
        let (code, told, said) = command_in(&words, &[("TZ".to_owned(), "UTC".to_owned())]).await?;
        ensure!(code == Some(0) && !told.contains('\u{1b}'), "{command}: {code:?} {told}{said}");
        text.push_str(&format!("$ {command} | cat\n{told}\n"));
    }
    for (after, shown) in MINUTES {
        let minute = calendar::format_rfc3339(*AT_MS + after)[..16].replace('T', " ");
        text = text.replace(&minute, shown);
    }
    Ok(Some(text))
}

/// A controller that has one answer to each path.
async fn answer(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await?;
        let request = String::from_utf8_lossy(&request[..read]).into_owned();
        let path = request.split([' ', '?']).nth(1).unwrap_or_default();
        let of_event = request.lines().next().is_some_and(|line| line.contains("kind=event"));
        let body = body(path.trim_start_matches("/api/v1/"), of_event).to_string();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
        let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await?;
    }
}

fn body(path: &str, of_event: bool) -> Value {
    match path {
        "objects" if of_event => json!([witnessed(backed_off()), witnessed(failed_event())]),
        "timeline" if of_event => json!(timeline_of(backed_off())),
        "objects" => json!([object("team-vision", NAME, "Failed"), object("a", "größe-完了", "Running")]),
        "timeline" => json!(timeline()),
        "gaps" => json!([gap(Some(train())), gap(None)]),
        "poison" => json!([poison()]),
        "deadletters" => json!([letter()]),
        "deadletters/records" => json!([record()]),
        "plugins" => json!([plugin()]),
        "status" => json!(status()),
        other => json!({"error": {"message": format!("nothing is at {other}")}}),
    }
}

fn train() -> ObjectRef {
    ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: "team-vision".into(),
        name: NAME.into(),
        uid: "0f31c8e2-8b1f-4a52-9a55-0d8f7f6f2b10".into(),
    }
}

fn failed() -> Status {
    Status {
        phase: "Failed".into(),
        reason: "BackoffLimitExceeded".into(),
        message: "Job has reached the specified backoff limit".into(),
        attempt: 4,
        total: 2,
        terminal: true,
        ..Status::default()
    }
}

pub(super) fn object(namespace: &str, name: &str, phase: &str) -> ObjectView {
    let status =
        if phase == "Failed" { failed() } else { Status { phase: phase.into(), ..Status::default() } };
    ObjectView {
        source: "jobs".into(),
        object: ObjectRef { namespace: namespace.into(), name: name.into(), ..train() },
        status,
        seq: 7,
        observed_at: calendar::format_rfc3339(*AT_MS),
        ended_at: (phase == "Failed").then(|| calendar::format_rfc3339(*AT_MS + 60_000)),
        ..ObjectView::default()
    }
}

fn failed_event() -> EventView {
    EventView {
        object: event_named("llama.17b"),
        about: train(),
        kind: "Warning".into(),
        reason: "BackoffLimitExceeded".into(),
        message: "Job has reached the specified backoff limit".into(),
        count: 3,
        first_ms: *AT_MS,
        last_ms: *AT_MS + 5_000,
        ..EventView::default()
    }
}

fn backed_off() -> EventView {
    let message = "Back-off restarting failed container trainer in pod \
        llama-70b-finetune-with-a-long-name-r7k2x-0_team-vision(5b0c5a52-6a2b-4c39-9f3e-0d6a3c1d2e4f)";
    let pod = ObjectRef { kind: "Pod".into(), name: "llama-70b-r7k2x-0".into(), ..train() };
    EventView {
        object: event_named("llama.17a"),
        about: pod,
        reason: "BackOff".into(),
        message: message.into(),
        from: "kubelet".into(),
        ..failed_event()
    }
}

fn event_named(name: &str) -> ObjectRef {
    let (kind, name, uid) = ("Event".into(), name.into(), "9d1e7c40-1f02-4b7e-8f66-3c9f0a7a4e55".into());
    ObjectRef { group: String::new(), kind, name, uid, ..train() }
}

fn witnessed(event: EventView) -> ObjectView {
    let object = event.object.clone();
    let details = Some(DetailsView { event: Some(event), ..DetailsView::default() });
    let now = self::object("team-vision", NAME, "Unknown");
    ObjectView { source: "events".into(), object, details, ..now }
}

fn state(source: &str, object: ObjectRef, seq: u64, status: Status) -> State {
    State {
        id: StateId::of(source, 0, &object, Change::Present, &Version::new("1007"), None),
        seq,
        source: source.into(),
        epoch: 0,
        change: Change::Present,
        object: object.into(),
        owner: None,
        resource_version: Version::new("184467440737095"),
        status: status.into(),
        previous: None,
        observed_ms: *AT_MS + seq,
        late: false,
        quotes_none_under: None,
    }
}

fn timeline_of(event: EventView) -> TimelineView {
    let unknown = || Status { phase: "Unknown".into(), ..Status::default() };
    let version = |seq| state("events", event.object.clone(), seq, unknown()).into();
    let states = vec![version(5), version(6)];
    TimelineView { states, events: vec![event], ..TimelineView::default() }
}

fn timeline() -> TimelineView {
    let running = Status { phase: "Running".into(), ready: 2, total: 2, ..Status::default() };
    TimelineView {
        states: vec![state("jobs", train(), 7, running).into(), state("jobs", train(), 8, failed()).into()],
        events: vec![failed_event()],
        ..TimelineView::default()
    }
}

fn gap(object: Option<ObjectRef>) -> Gap {
    Gap {
        source: "jobs".into(),
        object,
        epoch: 0,
        after: "184467440737095".into(),
        before: "184467440737099".into(),
        reason: "Compacted".into(),
        message:
            "versions between 184467440737095 and 184467440737099 are missing: compaction has removed them"
                .into(),
        recorded_ms: *AT_MS,
    }
}

fn poison() -> PoisonView {
    PoisonView {
        number: 12,
        source: "jobs".into(),
        error: "expected value at line 1 column 9".into(),
        observed_ms: *AT_MS,
        bytes: 4096,
        ..PoisonView::default()
    }
}

fn letter() -> DeadLetterView {
    let letter = DeadLetter {
        plugin: "notification".into(),
        seq: 8,
        id: StateId::parse("jobs/0/x"),
        attempts: 9,
        error: "the destination answered 500 Internal Server Error".into(),
        first_ms: *AT_MS,
        last_ms: *AT_MS + 60_000,
        replaying: false,
        dropped: false,
        tries: Vec::new(),
    };
    DeadLetterView { letter, object: train(), phase: "Failed".into() }
}

fn record() -> LetterRecordView {
    LetterRecordView {
        number: 1,
        plugin: "notification".into(),
        what: "replay".into(),
        who: "ada@example.com".into(),
        why: "the receiver of the notifications is back".into(),
        seqs: vec![7, 8],
        at: calendar::format_rfc3339(*AT_MS),
    }
}

fn plugin() -> PluginView {
    PluginView {
        name: "notification".into(),
        state: "active".into(),
        digest: "32e196b2217d".into(),
        observed: 1_234_567,
        delivered: 1_234_000,
        filtered: 500,
        dead: 1,
        waiting: 66,
        lag_seq: 66,
        lag_seconds: 12.0,
        ..PluginView::default()
    }
}

fn status() -> StatusView {
    let source = SourceView {
        name: "jobs".into(),
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        synced: true,
        objects: 12_345,
        gaps: 2,
        poison: 1,
        ..SourceView::default()
    };
    StatusView {
        version: "0.1.0".into(),
        sources: vec![source],
        plugins: vec![plugin()],
        journal: JournalView {
            store: "sqlite".into(),
            place: "/var/lib/kubewitness/journal.db".into(),
            states: 1_234_567,
            bytes: 98_765_432,
            oldest_seq: 1,
            newest_seq: 1_234_567,
            oldest_at: Some(calendar::format_rfc3339(*AT_MS)),
        },
        ..StatusView::default()
    }
}
