use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt;
use kubewitness_core::Change;
use kubewitness_portal::{PortalOptions, router};
use tower::ServiceExt;

use crate::fake::{self, FakeViews};
use crate::{ask, get, options, request};

struct EventStream {
    body: Body,
    text: String,
    /// The id of the last event, unchanged.
    last: String,
}

impl EventStream {
    async fn open(router: &Router, path: &str, last: Option<&str>) -> Self {
        let mut request = request("GET", path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new(), last: String::new() }
    }

    /// The next event: its kind, its id, its data.
    async fn next(&mut self) -> (String, String, String) {
        let deadline = Duration::from_secs(20);
        while !self.text.contains("\n\n") {
            let frame =
                tokio::time::timeout(deadline, self.body.frame()).await.expect("an event comes in time");
            let data = frame.expect("the stream goes on").unwrap().into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
        let (event, rest) = self.text.split_once("\n\n").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        self.text = rest;
        let field = |name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_default().to_owned()
        };
        self.last = field("id");
        // The position without its mark.
        let number = self.last.split('-').next().unwrap_or_default().to_owned();
        (field("event"), number, field("data"))
    }
}

fn with(fake: Arc<FakeViews>) -> Router {
    router(fake, &options())
}

#[tokio::test]
async fn a_stream_gives_what_is_there_and_then_what_comes() {
    let fake = Arc::new(FakeViews::default());
    let mut stream = EventStream::open(&with(fake.clone()), "/api/v1/events?after=16", None).await;
    for id in ["17", "18"] {
        let (event, seen, data) = stream.next().await;
        assert_eq!((event.as_str(), seen.as_str()), ("state", id));
        let state: serde_json::Value = serde_json::from_str(&data).unwrap();
        assert_eq!(state["seq"].to_string(), id);
        assert_eq!(state["object"]["name"], "llm-train-7");
    }
    let object = fake::object("Job", "research", "next", "uid-next");
    fake.push(fake::state(19, &object, Change::Present, 1000, fake::status("Queued", "", "")));
    assert_eq!(stream.next().await.1, "19");
}

#[tokio::test]
async fn a_stream_that_is_asked_for_before_the_journal_is_open_is_refused_for_now() {
    let router = with(Arc::new(FakeViews { opens: true, ..FakeViews::default() }));
    for path in ["/api/v1/events", "/api/v1/events?after=17"] {
        let answer = get(&router, path).await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "2"), "{path}");
    }
}

#[tokio::test]
async fn a_browser_that_comes_back_gets_what_it_missed() {
    let router = with(Arc::new(FakeViews::default()));
    let mut stream = EventStream::open(&router, "/api/v1/events?after=3", Some("15")).await;
    assert_eq!(stream.next().await.1, "16");
}

#[tokio::test]
async fn without_a_position_the_stream_tells_its_own_and_gives_only_what_comes() {
    let fake = Arc::new(FakeViews::default());
    let mut stream = EventStream::open(&with(fake.clone()), "/api/v1/events", None).await;
    assert_eq!(stream.next().await, ("position".into(), "18".into(), "18".into()));
    let object = fake::object("Job", "research", "next", "uid-next");
    fake.push(fake::state(19, &object, Change::Gone, 1000, fake::status("Deleted", "", "")));
    assert_eq!(stream.next().await.1, "19");
}

#[tokio::test]
async fn a_stream_tells_that_causes_were_found_at_most_now_and_then_and_goes_on_where_it_was() {
    let fake = Arc::new(FakeViews::default());
    let mut stream = EventStream::open(&with(fake.clone()), "/api/v1/events?after=17", None).await;
    assert_eq!(stream.next().await.1, "18");
    let began = tokio::time::Instant::now();
    // A burst of failures is explained in parts.
    for _ in 0..100 {
        fake.outcome_news.send_modify(|count| *count += 1);
        tokio::task::yield_now().await;
    }
    assert_eq!(stream.next().await, ("causes".into(), String::new(), "found".into()), "it has no position");
    fake.outcome_news.send_modify(|count| *count += 1);
    assert_eq!(stream.next().await.0, "causes", "news is not lost while clients are spared");
    assert!(began.elapsed() >= Duration::from_millis(500), "the second waits: {:?}", began.elapsed());
    let object = fake::object("Job", "research", "next", "uid-next");
    fake.push(fake::state(19, &object, Change::Present, 1000, fake::status("Queued", "", "")));
    assert_eq!(stream.next().await.1, "19");
}

#[tokio::test]
async fn a_position_that_the_journal_has_not_reached_is_reset() {
    let mut stream =
        EventStream::open(&with(Arc::new(FakeViews::default())), "/api/v1/events", Some("500000")).await;
    assert_eq!(stream.next().await, ("reset".into(), "18".into(), "18".into()));
}

/// The id of the state at this position.
async fn id_of(router: &Router, seq: u64) -> String {
    let mut stream = EventStream::open(router, &format!("/api/v1/events?after={}", seq - 1), None).await;
    assert_eq!(stream.next().await.1, seq.to_string());
    stream.last
}

/// Replaces the state at this position by one with another time, as in a restored journal that has grown
/// again.
fn grown_again(fake: &FakeViews, seq: u64) {
    let mut states = fake.states.lock().unwrap();
    let state = states.iter_mut().find(|state| state.seq == seq).unwrap();
    Arc::make_mut(state).observed_ms += 60_000;
}

#[tokio::test]
async fn a_position_of_a_journal_that_was_replaced_is_reset_however_far_the_new_one_has_grown() {
    let (fake, restored) = (Arc::new(FakeViews::default()), Arc::new(FakeViews::default()));
    grown_again(&restored, 15);
    let (router, restored) = (with(fake), with(restored));
    let (before, lost) = (id_of(&router, 14).await, id_of(&router, 15).await);
    assert!(lost.starts_with("15-") && before.starts_with("14-"), "{before} {lost}");
    for (router, id, expected) in [
        (&router, &lost, ("state", "16")),
        (&restored, &before, ("state", "15")),
        (&restored, &lost, ("reset", "18")),
    ] {
        for last in [None, Some(id.as_str())] {
            let path = if last.is_some() {
                "/api/v1/events".to_owned()
            } else {
                format!("/api/v1/events?after={id}")
            };
            let mut stream = EventStream::open(router, &path, last).await;
            let (event, seq, _) = stream.next().await;
            assert_eq!((event.as_str(), seq.as_str()), expected, "{id}");
        }
    }
}

#[tokio::test]
async fn a_stream_waits_for_a_position_that_another_replica_has_given() {
    let (ahead, behind) = (Arc::new(FakeViews::default()), Arc::new(FakeViews::default()));
    let object = fake::object("Job", "research", "next", "uid-next");
    let state = |seq| fake::state(seq, &object, Change::Present, seq, fake::status("Queued", "", ""));
    ahead.push(state(19));
    let id = id_of(&with(ahead), 19).await;
    for (known, next) in [(id.as_str(), 20), ("21", 22)] {
        let mut stream =
            EventStream::open(&with(behind.clone()), &format!("/api/v1/events?after={known}"), None).await;
        let pushed = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            behind.push(state(next - 1));
            behind.push(state(next));
        };
        let (event, ()) = tokio::join!(stream.next(), pushed);
        let next = next.to_string();
        assert_eq!(
            (event.0.as_str(), event.1.as_str()),
            ("state", next.as_str()),
            "{known}: nothing is reset"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_position_that_the_journal_does_not_come_to_is_reset_after_a_while() {
    let ahead = Arc::new(FakeViews::default());
    let object = fake::object("Job", "research", "next", "uid-next");
    ahead.push(fake::state(19, &object, Change::Present, 19, fake::status("Queued", "", "")));
    let id = id_of(&with(ahead), 19).await;
    let router = with(Arc::new(FakeViews::default()));
    let mut stream = EventStream::open(&router, &format!("/api/v1/events?after={id}"), None).await;
    assert_eq!(stream.next().await.0, "reset");
}

#[tokio::test]
async fn a_stream_that_lacks_states_that_retention_removed_says_so() {
    let router = with(Arc::new(FakeViews { taken: 7, ..FakeViews::default() }));
    let notice = async |path: &str, last: Option<&str>| {
        let mut request = request("GET", path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        response.headers().get("kubewitness-notice").map(|told| told.to_str().unwrap().to_owned())
    };
    let removed = notice("/api/v1/events?after=3", None).await;
    assert!(removed.is_some_and(|removed| removed.contains("after position 3")));
    assert!(notice("/api/v1/events", Some("6")).await.is_some());
    for whole in ["/api/v1/events?after=7", "/api/v1/events?after=5000", "/api/v1/events"] {
        assert_eq!(notice(whole, None).await, None, "{whole}");
    }
}

#[tokio::test]
async fn a_position_that_is_none_is_refused() {
    let router = with(Arc::new(FakeViews::default()));
    assert_eq!(get(&router, "/api/v1/events?after=now").await.status, 400);
    let odd = request("GET", "/api/v1/events").header("last-event-id", "x").body(Body::empty()).unwrap();
    assert_eq!(ask(&router, odd).await.status, 400);
}

#[tokio::test]
async fn streams_are_bounded_and_their_places_come_back() {
    let router = router(Arc::new(FakeViews::default()), &PortalOptions { streams: 2, ..options() });
    let first = EventStream::open(&router, "/api/v1/events", None).await;
    let _second = EventStream::open(&router, "/api/v1/events", None).await;
    let full = get(&router, "/api/v1/events").await;
    assert_eq!(full.status, 503);
    assert!(full.problem().0.contains("too many"));
    drop(first);
    EventStream::open(&router, "/api/v1/events", None).await;
}

#[tokio::test]
async fn a_stream_ends_where_states_cant_be_read() {
    let router = with(Arc::new(FakeViews { broken: true, ..FakeViews::default() }));
    let answer = get(&router, "/api/v1/events?after=1").await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, ""));
}
