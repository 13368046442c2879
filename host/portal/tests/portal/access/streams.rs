use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use kubewitness_portal::PortalOptions;
use tower::ServiceExt;

use super::GuardedPortal;
use super::login::{FORM, OWN, cookies, enter};
use super::tenants::{MADE_MS, TenantPortal, TenantServer, first};
use crate::request;

async fn open(portal: &GuardedPortal, token: &str, after: u64) -> Body {
    open_with(portal, ("authorization", &format!("Bearer {token}")), after).await
}

async fn open_with(portal: &GuardedPortal, (name, value): (&str, &str), after: u64) -> Body {
    let request = request("GET", &format!("/api/v1/events?after={after}"));
    let request = request.header(name, value).body(Body::empty()).unwrap();
    let response = portal.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// Reads for a while, and returns whether the stream has ended.
pub async fn read(body: &mut Body, within: Duration) -> (String, bool) {
    let mut text = String::new();
    let reading = async {
        while let Some(frame) = body.frame().await {
            text.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
        }
    };
    let ended = tokio::time::timeout(within, reading).await.is_ok();
    (text, ended)
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_stream_shows_each_tenant_its_own_states() {
    let portal = GuardedPortal::new();
    for (tenant, other, positions) in
        [("red", "blue", ["id: 1-", "id: 4-"]), ("blue", "red", ["id: 11-", "id: 14-"])]
    {
        let mut stream = open(&portal, tenant, 0).await;
        portal.views.push(other);
        let seq = portal.views.push(tenant);
        let (text, ended) = read(&mut stream, Duration::from_secs(2)).await;
        assert!(positions.iter().all(|position| text.contains(position)), "{text}");
        assert!(text.contains(&format!("id: {seq}-")) && !text.contains(other) && !ended, "{text}");
    }
    let mut guest = open(&portal, "guest", 0).await;
    let (text, ended) = read(&mut guest, Duration::from_secs(2)).await;
    assert!(!text.contains("event: state") && !ended, "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_shows_nothing_of_what_comes_tells_how_far_it_is() {
    let portal = GuardedPortal::new();
    let mut guest = open(&portal, "guest", 0).await;
    let positions = |text: &str| -> Vec<u64> {
        let ids = text.lines().filter_map(|line| line.strip_prefix("id: "));
        ids.map(|id| id.split('-').next().unwrap().parse().unwrap()).collect()
    };
    let (text, _) = read(&mut guest, Duration::from_secs(2)).await;
    assert_eq!(positions(&text), [14], "not for every state, and after the last: {text}");
    portal.views.push("blue");
    let newest = portal.views.push("red");
    let (text, ended) = read(&mut guest, Duration::from_secs(3)).await;
    let seqs = positions(&text);
    assert!(seqs.len() <= 2 && seqs.last() == Some(&newest), "once a second at most: {text}");
    assert!(text.contains("event: position") && !text.contains("event: state") && !ended, "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_right_or_a_token_that_is_withdrawn_closes_a_quiet_stream_within_a_minute() {
    for withdraw in [
        (|portal: &GuardedPortal| {
            portal.server.gone.lock().unwrap().insert("red".into());
        }) as fn(&GuardedPortal),
        |portal| {
            portal.server.denied.lock().unwrap().insert("red".into());
        },
        |portal| {
            portal.server.remade.lock().unwrap().insert("red".into(), MADE_MS + 60_000);
        },
        |portal| portal.server.is_down.store(true, Ordering::SeqCst),
    ] {
        // One stream has shown the existing states, and the other one nothing.
        for after in [0, 14] {
            let portal = GuardedPortal::new();
            let mut stream = open(&portal, "red", after).await;
            let (text, ended) = read(&mut stream, 2 * MINUTE).await;
            assert_eq!(text.contains("event: state"), after == 0, "{text}");
            assert!(!ended, "it goes on while all is as it was");
            withdraw(&portal);
            assert!(read(&mut stream, MINUTE).await.1, "after {after}");
        }
    }
}

/// Their namespace has had no object yet, so no right that could be withdrawn is noted.
#[tokio::test(start_paused = true)]
async fn a_stream_that_could_show_nothing_ends_within_a_minute_and_opens_again() {
    let portal = GuardedPortal::new();
    for _ in 0..2 {
        let mut stream = open(&portal, "guest", 14).await;
        let (text, ended) = read(&mut stream, MINUTE).await;
        assert!(ended && !text.contains("event: state"), "{text}");
    }
    let mut whole = open(&portal, "boss", 14).await;
    assert!(!read(&mut whole, 3 * MINUTE).await.1, "who may see everything has a right that is asked for");
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_somebody_with_narrow_rights_in_many_namespaces_opens_before_they_are_asked_for() {
    let views = TenantPortal { others: 240, ..TenantPortal::default() };
    let server = TenantServer { slow: Some(Duration::from_millis(500)), ..TenantServer::default() };
    let portal = GuardedPortal::of(views, server, |options| options);
    let begun = tokio::time::Instant::now();
    let mut stream = open(&portal, "red", 0).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let (text, ended) = read(&mut stream, MINUTE).await;
    assert!(text.contains("red-train") && !ended, "{text}");
}

/// Their rights lie in 256 namespaces of each of eight kinds. One round of reviews takes minutes.
#[tokio::test(start_paused = true)]
async fn a_stream_of_rights_in_2048_places_shows_states_while_slow_reviews_of_all_others_run() {
    let views = TenantPortal { others: 300, kinds: 6, ..TenantPortal::default() };
    let server = TenantServer { slow: Some(Duration::from_millis(500)), ..TenantServer::default() };
    let portal = GuardedPortal::of(views, server, |options| options);
    let mut stream = open(&portal, "roamer", 0).await;
    let (text, ended) = read(&mut stream, Duration::from_secs(10)).await;
    assert!(text.contains("red-train") && text.contains("blue-train") && !ended, "{text}");
    assert!(portal.server.reviews.load(Ordering::SeqCst) < 1000, "the first round still runs");
    // Through more than a round, no state waits for one.
    for _ in 0..60 {
        let seq = portal.views.push("red");
        let (text, ended) = read(&mut stream, Duration::from_secs(10)).await;
        assert!(text.contains(&format!("id: {seq}-")) && !ended, "{seq}: {text}");
    }
    let reviews = portal.server.reviews.load(Ordering::SeqCst);
    assert!(reviews > 3000, "the second round has begun: {reviews}");
    // What was shown by a right ends with it, at its next state.
    portal.server.denied.lock().unwrap().insert("roamer".into());
    tokio::time::advance(Duration::from_secs(31)).await;
    let seq = portal.views.push("red");
    let (text, ended) = read(&mut stream, Duration::from_secs(10)).await;
    assert!(ended && !text.contains(&format!("id: {seq}-")), "{text}");
}

/// Their namespace comes after those that are checked when the stream opens.
#[tokio::test(start_paused = true)]
async fn a_quiet_stream_of_a_right_in_the_last_of_many_namespaces_goes_on_until_that_right_is_withdrawn() {
    let views = TenantPortal { others: 300, ..TenantPortal::default() };
    let portal = GuardedPortal::of(views, TenantServer::default(), |options| options);
    let mut stream = open(&portal, "red", 14).await;
    let (text, ended) = read(&mut stream, 3 * MINUTE).await;
    assert!(!ended && !text.contains("event: state"), "{text}");
    portal.views.push("red");
    let (text, ended) = read(&mut stream, 3 * MINUTE).await;
    assert!(text.contains("red-train") && !ended, "{text}");
    portal.server.denied.lock().unwrap().insert("red".into());
    assert!(read(&mut stream, MINUTE).await.1);
}

#[tokio::test(start_paused = true)]
async fn of_many_replays_that_leave_memory_two_read_at_a_time() {
    let portal = GuardedPortal::new();
    portal.views.push_many("red", 3000, "long");
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(open(&portal, "red", 0).await);
    }
    let read = streams.iter_mut().map(|stream| read(stream, Duration::from_secs(5)));
    for (text, ended) in futures::future::join_all(read).await {
        assert!(text.contains("3014 long") && !ended, "the stream comes to its end");
    }
    assert_eq!(portal.views.most_far_readers.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_log_out_closes_the_streams_of_its_session_at_once_and_no_others() {
    let portal = GuardedPortal::new();
    let (left, stays) =
        (cookies(&enter(&portal, "red", "").await), cookies(&enter(&portal, "red", "").await));
    let mut streams = [
        open_with(&portal, ("cookie", &left), 0).await,
        open_with(&portal, ("cookie", &left), 0).await,
        open_with(&portal, ("cookie", &stays), 0).await,
        open(&portal, "red", 0).await,
    ];
    for stream in &mut streams {
        assert!(!read(stream, Duration::from_secs(1)).await.1);
    }
    assert_eq!(portal.streams().await, 4);
    portal.ask("POST", "/logout", &[FORM, OWN, ("cookie", &left)], "").await;
    portal.views.push("red");
    let mut ended = Vec::new();
    for stream in &mut streams {
        let (text, has_ended) = read(stream, Duration::from_secs(1)).await;
        assert_eq!(has_ended, text.is_empty(), "{text}");
        ended.push(has_ended);
    }
    assert_eq!(ended, [true, true, false, false]);
    drop(streams);
    assert_eq!(portal.streams().await, 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_nothing_is_shown_before_the_right_was_asked_for() {
    let portal = GuardedPortal::new();
    let mut stream = open(&portal, "red", 0).await;
    assert!(read(&mut stream, Duration::from_secs(12)).await.0.contains("red-train"));
    portal.server.denied.lock().unwrap().insert("red".into());
    tokio::time::advance(Duration::from_secs(11)).await;
    portal.views.push("red");
    let (text, ended) = read(&mut stream, Duration::from_secs(1)).await;
    assert!(ended && !text.contains("red-train"), "{text}");
}

#[tokio::test]
async fn a_thousand_attempts_at_a_stream_are_refused_at_once_and_lists_go_on() {
    let portal =
        GuardedPortal::with(TenantServer::default(), |options| PortalOptions { streams: 2, ..options });
    let _held = [open(&portal, "red", 0).await, open(&portal, "blue", 0).await];
    let attempts = (0..1000).map(|_| portal.as_token("red", "/api/v1/events"));
    let answers =
        tokio::time::timeout(Duration::from_secs(20), futures::future::join_all(attempts)).await.unwrap();
    assert!(answers.iter().all(|answer| answer.status == 503 && answer.header("retry-after") == "2"));
    assert_eq!(portal.as_token("red", "/api/v1/objects").await.status, 200);
    assert!(portal.server.authentications.load(Ordering::SeqCst) <= 2);
}

#[tokio::test]
async fn whoever_asks_is_known_to_what_takes_long_while_they_are_answered_and_no_longer() {
    let portal = GuardedPortal::new();
    let asked_by = || std::mem::take(&mut *portal.views.asked_by.lock().unwrap());
    portal.as_token("red", "/api/v1/states/1/document").await;
    let of_document = asked_by();
    let mut stream = open(&portal, "red", 0).await;
    let (text, _) = read(&mut stream, Duration::from_secs(2)).await;
    assert!(text.contains("red-train"), "{text}");
    let of_stream = asked_by();
    for asked in [of_document, of_stream] {
        assert!(!asked.is_empty());
        assert!(asked.iter().all(|name| name.as_deref() == Some("user-red")), "{asked:?}");
    }
    assert_eq!(kubewitness_portal::current_party(), None);
}

#[tokio::test]
async fn what_somebody_may_not_see_is_not_looked_through_for_secrets() {
    let portal = GuardedPortal::new();
    let mut stream = open(&portal, "blue", 0).await;
    let (text, _) = read(&mut stream, Duration::from_secs(2)).await;
    assert!(text.contains("blue-train") && !text.contains("red-"), "{text}");
    for address in
        ["/api/v1/states/1/document", "/api/v1/timeline?uid=uid-red", "/objects/uid-red", "/states/2"]
    {
        portal.as_token("blue", address).await;
    }
    let redacted = portal.views.redacted.lock().unwrap().clone();
    assert!(redacted.contains(&first("blue")), "{redacted:?}");
    assert!(redacted.iter().all(|seq| *seq >= first("blue")), "a foreign one takes time: {redacted:?}");
}
