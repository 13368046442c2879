use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt;
use kubewitness_core::Change;
use kubewitness_portal::{PortalOptions, router};
use tower::ServiceExt;

use crate::fake::{self, Fake};
use crate::{ask, get, options, request};

struct Stream {
    body: Body,
    text: String,
}

impl Stream {
    async fn open(router: &Router, path: &str, last: Option<&str>) -> Self {
        let mut request = request("GET", path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    /// The next event: its kind, its id, its data.
    async fn next(&mut self) -> (String, String, String) {
        let deadline = Duration::from_secs(10);
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
        (field("event"), field("id"), field("data"))
    }
}

fn with(fake: Arc<Fake>) -> Router {
    router(fake, &options())
}

#[tokio::test]
async fn a_stream_gives_what_is_there_and_then_what_comes() {
    let fake = Arc::new(Fake::default());
    let mut stream = Stream::open(&with(fake.clone()), "/api/v1/events?after=16", None).await;
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
    let router = with(Arc::new(Fake { opens: true, ..Fake::default() }));
    for path in ["/api/v1/events", "/api/v1/events?after=17"] {
        let answer = get(&router, path).await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "2"), "{path}");
    }
}

#[tokio::test]
async fn a_browser_that_comes_back_gets_what_it_missed() {
    let router = with(Arc::new(Fake::default()));
    let mut stream = Stream::open(&router, "/api/v1/events?after=3", Some("15")).await;
    assert_eq!(stream.next().await.1, "16");
}

#[tokio::test]
async fn without_a_position_the_stream_tells_its_own_and_gives_only_what_comes() {
    let fake = Arc::new(Fake::default());
    let mut stream = Stream::open(&with(fake.clone()), "/api/v1/events", None).await;
    assert_eq!(stream.next().await, ("position".into(), "18".into(), "18".into()));
    let object = fake::object("Job", "research", "next", "uid-next");
    fake.push(fake::state(19, &object, Change::Gone, 1000, fake::status("Deleted", "", "")));
    assert_eq!(stream.next().await.1, "19");
}

#[tokio::test]
async fn a_position_that_the_journal_has_not_reached_is_reset() {
    let mut stream = Stream::open(&with(Arc::new(Fake::default())), "/api/v1/events", Some("5000")).await;
    assert_eq!(stream.next().await, ("reset".into(), "18".into(), "18".into()));
}

#[tokio::test]
async fn a_stream_that_lacks_states_that_retention_removed_says_so() {
    let router = with(Arc::new(Fake { taken: 7, ..Fake::default() }));
    let notice = async |path: &str, last: Option<&str>| {
        let mut request = request("GET", path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        response.headers().get("kubewitness-notice").map(|told| told.to_str().unwrap().to_owned())
    };
    let told = notice("/api/v1/events?after=3", None).await;
    assert!(told.is_some_and(|told| told.contains("after position 3")));
    assert!(notice("/api/v1/events", Some("6")).await.is_some());
    for whole in ["/api/v1/events?after=7", "/api/v1/events?after=5000", "/api/v1/events"] {
        assert_eq!(notice(whole, None).await, None, "{whole}");
    }
}

#[tokio::test]
async fn a_position_that_is_none_is_refused() {
    let router = with(Arc::new(Fake::default()));
    assert_eq!(get(&router, "/api/v1/events?after=now").await.status, 400);
    let odd = request("GET", "/api/v1/events").header("last-event-id", "x").body(Body::empty()).unwrap();
    assert_eq!(ask(&router, odd).await.status, 400);
}

#[tokio::test]
async fn streams_are_bounded_and_their_places_come_back() {
    let router = router(Arc::new(Fake::default()), &PortalOptions { streams: 2, ..options() });
    let first = Stream::open(&router, "/api/v1/events", None).await;
    let _second = Stream::open(&router, "/api/v1/events", None).await;
    let full = get(&router, "/api/v1/events").await;
    assert_eq!(full.status, 503);
    assert!(full.problem().0.contains("too many"));
    drop(first);
    Stream::open(&router, "/api/v1/events", None).await;
}

#[tokio::test]
async fn a_stream_ends_where_states_cant_be_read() {
    let router = with(Arc::new(Fake { broken: true, ..Fake::default() }));
    let answer = get(&router, "/api/v1/events?after=1").await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, ""));
}
