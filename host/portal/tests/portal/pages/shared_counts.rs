//! Tests of what open pages of figures cost: one count for all of them, and none that is out of date.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures::future::join_all;
use kubewitness_portal::PortalOptions;

use crate::access::GuardedPortal;
use crate::fake::FakeViews;
use crate::{PortalAnswer, ask, get, options, request};

const PAGES: [&str; 6] = ["/plugins", "/sources", "/health", "/gaps", "/deadletters", "/"];
const TABS: usize = 50;

fn slow_portal(broken: bool) -> (Arc<FakeViews>, Router) {
    portal_that_counts_for(Duration::from_millis(100), broken)
}

fn portal_that_counts_for(time: Duration, broken: bool) -> (Arc<FakeViews>, Router) {
    let slow_count = Some(time);
    let fake = Arc::new(FakeViews { slow_count, broken, ..FakeViews::default() });
    // As long as in production: longer than a count may take.
    let options = PortalOptions { request_timeout: PortalOptions::default().request_timeout, ..options() };
    (fake.clone(), kubewitness_portal::router(fake, &options))
}

/// Fifty tabs look again, each at one of these addresses.
async fn look(portal: &Router, addresses: &[&str]) -> Vec<PortalAnswer> {
    let again = |path: &str| request("GET", path).header("kubewitness-content", "again").body(Body::empty());
    let looks = addresses.iter().cycle().take(TABS).map(|path| ask(portal, again(path).unwrap()));
    join_all(looks).await
}

#[tokio::test(start_paused = true)]
async fn fifty_tabs_that_look_within_half_a_second_cost_one_count() {
    let (fake, portal) = slow_portal(false);
    for second in 1..=3 {
        let answers = look(&portal, &PAGES).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        // Some look a little later.
        tokio::time::advance(Duration::from_millis(200)).await;
        look(&portal, &PAGES).await;
        assert_eq!(fake.counts.load(Ordering::Relaxed), second, "in second {second}");
        tokio::time::advance(Duration::from_millis(700)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_count_that_fails_is_told_to_all_who_wait_for_it_and_is_tried_again() {
    let (fake, portal) = slow_portal(true);
    let answers = look(&portal, &["/plugins", "/sources"]).await;
    assert!(answers.iter().all(|answer| answer.status == 503 && answer.text.contains("disk I/O error")));
    assert_eq!(fake.counts.load(Ordering::Relaxed), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    look(&portal, &["/plugins"]).await;
    assert_eq!(fake.counts.load(Ordering::Relaxed), 2);
}

/// A count that takes longer than its result is recent is shared all the same by all who waited for it.
#[tokio::test(start_paused = true)]
async fn fifty_tabs_that_wait_for_a_slow_count_take_its_result() {
    for (broken, status) in [(false, 200), (true, 503)] {
        let (fake, portal) = portal_that_counts_for(Duration::from_secs(3), broken);
        let answers = look(&portal, &["/plugins", "/sources"]).await;
        assert!(answers.iter().all(|answer| answer.status == status));
        assert_eq!(fake.counts.load(Ordering::Relaxed), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_count_that_hangs_is_given_up_for_all_who_wait() {
    let (fake, portal) = portal_that_counts_for(Duration::from_secs(60), false);
    let answers = look(&portal, &["/plugins", "/sources"]).await;
    assert!(answers.iter().all(|answer| answer.status == 503 && answer.text.contains("within 10 s")));
    assert_eq!(fake.counts.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_in_the_middle_of_a_count_keeps_nobody_from_the_next() {
    let (fake, portal) = slow_portal(false);
    let left = tokio::time::timeout(Duration::from_millis(50), get(&portal, "/plugins")).await;
    assert!(left.is_err(), "the count takes longer");
    assert_eq!(get(&portal, "/plugins").await.status, 200);
    assert_eq!(fake.counts.load(Ordering::Relaxed), 2);
}

/// A script compares figures with what it did a moment ago.
#[tokio::test(start_paused = true)]
async fn the_api_answers_with_a_count_that_began_after_the_request() {
    let (fake, portal) = slow_portal(false);
    get(&portal, "/plugins").await;
    for (path, counts) in [("/api/v1/status", 2), ("/api/v1/plugins", 3), ("/plugins", 3)] {
        assert_eq!(get(&portal, path).await.status, 200);
        assert_eq!(fake.counts.load(Ordering::Relaxed), counts, "{path}");
    }
    look(&portal, &["/api/v1/status"]).await;
    assert_eq!(
        fake.counts.load(Ordering::Relaxed),
        5,
        "one for the first, and one for all that came during it"
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_pauses_a_plugin_sees_it_paused_also_where_a_count_is_under_way() {
    let (_, portal) = slow_portal(false);
    assert!(!get(&portal, "/plugins").await.text.contains("ada paused it"));
    tokio::time::advance(Duration::from_secs(1)).await;
    let pause = async {
        // A count began before it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let form = request("POST", "/plugins/notification/pause")
            .header("origin", "http://localhost:8787")
            .header("content-type", "application/x-www-form-urlencoded");
        let answer = ask(&portal, form.body(Body::from("who=ada&reason=repair")).unwrap()).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        get(&portal, "/plugins").await.text
    };
    let (_, after) = tokio::join!(get(&portal, "/health"), pause);
    assert!(after.contains("ada paused it"), "{after}");
}

#[tokio::test(start_paused = true)]
async fn a_count_that_an_operator_asked_for_shows_others_no_more_than_their_own() {
    let portal = GuardedPortal::new();
    for path in ["/plugins", "/sources", "/health", "/gaps", "/"] {
        let alone = portal.as_token("red", path).await.text;
        tokio::time::advance(Duration::from_secs(1)).await;
        let whole = portal.as_token("boss", path).await.text;
        let after = portal.as_token("red", path).await.text;
        assert_eq!(after, alone, "{path}");
        assert_eq!(portal.as_token("boss", path).await.text, whole, "{path}");
        assert_ne!(after, whole, "{path}");
    }
}
