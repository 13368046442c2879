//! Tests of the parts of lists and stories, and of what their ends reveal.

use std::sync::atomic::Ordering;

use super::GuardedPortal;
use super::tenants::{STOPPED_AT, TenantPortal, TenantServer};
use crate::PortalAnswer;

fn next(answer: &PortalAnswer) -> Option<String> {
    let link = answer.header("link");
    let address = link.strip_prefix('<')?.split_once(">; rel=\"next\"")?.0;
    Some(address.to_owned())
}

#[tokio::test]
async fn a_cursor_of_a_list_tells_nothing_and_opens_for_its_person_alone() {
    let portal = GuardedPortal::new();
    for (person, list) in [("red", "/api/v1/objects?namespace=red"), ("guest", "/api/v1/objects")] {
        let first = portal.as_token(person, list).await;
        let next = next(&first).expect("a link to the next part");
        assert!(!next.contains("blue") && !next.contains("uid-"), "{next}");
        assert_eq!(portal.as_token(person, &next).await.status, 200);
        let begun = portal.views.begun.lock().unwrap().pop().unwrap();
        assert_eq!(begun.as_deref(), Some(STOPPED_AT), "it goes on where it stopped");
        assert_eq!(portal.as_token("blue", &next).await.status, 400, "somebody else can't use it");
    }
    let page = portal.as_token("red", "/?kind=Job&namespace=red").await.text;
    assert!(page.contains("cursor=") && !page.contains("blue-secret"), "{page}");
    let looked = portal.views.begun.lock().unwrap().len();
    for chosen in ["0//blue-t", "17", "ended-7"] {
        let answer = portal.as_token("red", &format!("/api/v1/objects?cursor={chosen}")).await;
        assert_eq!(answer.status, 400, "{chosen}");
        assert!(answer.problem().1.contains("as it is"), "{}", answer.text);
    }
    assert_eq!(portal.views.begun.lock().unwrap().len(), looked, "nothing was looked up");
}

fn cut(refused: &[&str]) -> GuardedPortal {
    let server = TenantServer::default();
    server.refused.lock().unwrap().extend(refused.iter().map(|resource| (*resource).to_owned()));
    GuardedPortal::of(TenantPortal { cuts: true, ..TenantPortal::default() }, server, |options| options)
}

/// The cursors to all parts of a story.
async fn cursors(portal: &GuardedPortal, person: &str, address: &str) -> Vec<String> {
    let (mut at, mut cursors) = (address.to_owned(), Vec::new());
    while let Some(next) = next(&portal.as_token(person, &at).await) {
        cursors.push(next.split_once("cursor=").expect("a cursor").1.replace("%2F", "/"));
        at = next;
    }
    cursors
}

#[tokio::test]
async fn a_foreign_story_that_is_cut_is_told_like_one_that_was_never_there() {
    let portal = cut(&[]);
    for cursor in ["", "&cursor=999/999", "&cursor=0/999"] {
        let foreign = portal.as_token("red", &format!("/api/v1/timeline?uid=uid-blue{cursor}")).await;
        let unknown = portal.as_token("red", &format!("/api/v1/timeline?uid=uid-none{cursor}")).await;
        assert_eq!((next(&foreign), foreign.text), (next(&unknown), unknown.text), "{cursor}");
    }
}

#[tokio::test]
async fn who_may_get_a_job_and_not_its_pods_is_not_told_where_the_pods_have_states() {
    let address = "/api/v1/timeline?uid=uid-red";
    assert_eq!(cursors(&cut(&[]), "red", address).await, ["4/2", "3/0"]);
    let portal = cut(&["pods"]);
    assert_eq!(cursors(&portal, "red", address).await, ["4/0", "3/0"]);
    assert!(cursors(&portal, "red", &format!("{address}&cursor=1/99")).await.is_empty());
}

#[tokio::test]
async fn what_is_hidden_of_what_a_job_owns_cuts_nothing_and_tells_no_position() {
    let portal = cut(&["configmaps"]);
    let hidden = portal.views.push_owned("ConfigMap", "red", "red");
    let part = async |before: u64| {
        let address = format!("/api/v1/timeline?uid=uid-red&limit=1&cursor=0/{before}");
        let answer = portal.as_token("red", &address).await;
        let positions: Vec<_> =
            answer.json()["related"].as_array().unwrap().iter().map(|state| state["seq"].clone()).collect();
        (positions, next(&answer))
    };
    let seen = part(hidden + 1).await;
    assert_eq!(seen, (vec![serde_json::json!(2)], None), "the pod, which is all that they may see");
    assert_eq!(part(hidden).await, seen);
    assert_eq!(part(hidden - 1).await, seen);
    let whole = portal.as_token("boss", "/api/v1/timeline?uid=uid-red&limit=1&cursor=0/99").await;
    assert!(whole.text.contains("uid-red-configmap") && next(&whole).is_some(), "{}", whole.text);
}

#[tokio::test]
async fn a_cursor_of_one_list_is_none_of_another_and_no_answer_says_what_it_holds() {
    let portal = GuardedPortal::new();
    let first = portal.as_token("red", "/api/v1/objects?namespace=red&sort=name").await;
    let cursor = next(&first).expect("a link to the next part");
    let cursor = cursor.split_once("cursor=").expect("a cursor").1;
    let looked = portal.views.begun.lock().unwrap().len();
    for other in
        ["gone=only&sort=name", "was=Failed", "at=2026-11-20T00:00:00Z", "sort=-name", "kind=Pod&sort=name"]
    {
        for path in ["/api/v1/objects", "/"] {
            let address = format!("{path}?namespace=red&{other}&cursor={cursor}");
            let answer = portal.as_token("red", &address).await;
            assert_eq!(answer.status, 400, "{address}");
            assert!(!answer.text.contains("secret"), "{}", answer.text);
        }
    }
    assert_eq!(portal.views.begun.lock().unwrap().len(), looked, "nothing was looked up");
}

#[tokio::test]
async fn to_look_up_events_by_their_owner_takes_the_right_to_every_owner() {
    let tenants = TenantPortal { has_events: true, ..TenantPortal::default() };
    let portal = GuardedPortal::of(tenants, TenantServer::default(), |options| options);
    let events = "/api/v1/objects?limit=5";
    for (person, index, are_asked) in [
        ("red", "", true),
        ("red", "&index=owner%3Duid-red", false),
        ("boss", "&index=owner%3Duid-red", true),
    ] {
        let answer = portal.as_token(person, &format!("{events}{index}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let looked_in = portal.views.looked_in.lock().unwrap().pop().unwrap();
        assert_eq!(looked_in.contains("events"), are_asked, "{person}{index}");
    }
}

#[tokio::test]
async fn the_owner_that_the_controller_has_found_of_an_event_is_for_whoever_may_get_it() {
    let portal = GuardedPortal::new();
    portal.views.push_event("red", "blue");
    for (person, sees) in [("boss", true), ("reader", true), ("red", false)] {
        let story = portal.as_token(person, "/api/v1/timeline?uid=uid-red-event").await;
        assert!(story.text.contains("uid-red-event"), "{person}: {}", story.text);
        assert_eq!(story.text.contains("uid-blue"), sees, "{person}: {}", story.text);
    }
}

#[tokio::test]
async fn a_list_does_not_tell_what_is_hidden_behind_its_last_row() {
    let portal = GuardedPortal::new();
    for list in ["/api/v1/deadletters", "/api/v1/gaps"] {
        for limit in ["1", "2", "1000"] {
            let answer = portal.as_token("red", &format!("{list}?limit={limit}")).await;
            assert_eq!((answer.json().as_array().unwrap().len(), next(&answer)), (1, None), "{list} {limit}");
        }
        let whole = portal.as_token("boss", &format!("{list}?limit=1")).await;
        let next = next(&whole).expect("a link to the next part");
        assert!(!portal.as_token("boss", &next).await.text.contains("red-"), "{next}");
    }
}

#[tokio::test]
async fn a_page_of_dead_letters_is_the_same_however_many_are_hidden() {
    let portal = GuardedPortal::new();
    for address in ["/deadletters", "/deadletters?plugin=persistence", "/deadletters?error=red"] {
        let mut pages = Vec::new();
        for hidden in [0, 700, 6_000] {
            portal.views.letters.store(hidden, Ordering::SeqCst);
            pages.push(portal.as_token("red", address).await.text);
        }
        assert!(pages[0].contains("1 dead letter") && pages[0].contains("red-train"), "{}", pages[0]);
        assert!(pages.iter().all(|page| *page == pages[0]), "{address}: {}", pages[2]);
    }
    portal.views.letters.store(700, Ordering::SeqCst);
    let blue = portal.as_token("blue", "/deadletters").await.text;
    assert!(blue.contains("More than 500 dead letters"), "{blue}");
}

#[tokio::test]
async fn a_preemptor_is_named_to_those_who_may_see_it_and_to_nobody_else() {
    let said = async |preemptor: &str, person: &str| {
        let views = TenantPortal { has_workloads: true, ..TenantPortal::default() };
        let portal = GuardedPortal::of(views, TenantServer::default(), |options| options);
        portal.views.push_preemption("red", preemptor);
        let answer = portal.as_token(person, "/api/v1/timeline?uid=uid-red").await;
        answer.json()["why"]["sentence"].as_str().unwrap_or_default().to_owned()
    };
    let (hidden, told) = (said("blue", "red").await, said("blue", "boss").await);
    assert!(hidden.contains("was preempted to accommodate a workload (UID: uid-x,"), "{hidden}");
    assert!(!hidden.contains("blue-train"), "{hidden}");
    assert!(told.contains("was preempted for job blue-train due to"), "{told}");
    let own = said("red", "red").await;
    assert!(own.contains("was preempted for job red-train due to"), "{own}");
}

#[tokio::test]
async fn an_explanation_says_that_pods_are_hidden_from_those_who_may_not_see_them_and_from_nobody_else() {
    let doubt = async |refused: &[&str], person: &str| {
        let server = TenantServer::default();
        server.refused.lock().unwrap().extend(refused.iter().map(|resource| (*resource).to_owned()));
        let portal = GuardedPortal::of(TenantPortal::default(), server, |options| options);
        portal.views.push_failure("red");
        let answer = portal.as_token(person, "/api/v1/timeline?uid=uid-red").await;
        answer.json()["why"]["doubt"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(doubt(&["pods"], "red").await, "pods that you may not see may explain it");
    for person in ["red", "boss"] {
        assert_eq!(doubt(&[], person).await, "no recorded pod failure explains it", "{person}");
    }
}
