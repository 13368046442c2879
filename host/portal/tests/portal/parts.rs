//! Tests of long lists in parts: each row comes once, over the API and on the pages.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use http_body_util::BodyExt;
use kubewitness_core::Change;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fake::{self, FakeViews};
use crate::{get, portal};

/// Lists of the API, each with the field that identifies its rows.
const LISTS: [(&str, &str); 3] =
    [("/api/v1/gaps", "/reason"), ("/api/v1/poison", "/number"), ("/api/v1/deadletters", "/seq")];

/// The address of the next part.
fn next(link: &str) -> Option<&str> {
    link.strip_prefix('<')?.strip_suffix(">; rel=\"next\"")
}

/// The answers from this part on.
async fn parts(portal: &Router, first: &str) -> Vec<Value> {
    let (mut parts, mut address) = (Vec::new(), Some(first.to_owned()));
    while let Some(asked) = address {
        let answer = get(portal, &asked).await;
        assert_eq!(answer.status, 200, "{asked}: {}", answer.text);
        address = next(answer.header("link")).map(str::to_owned);
        parts.push(answer.json());
        assert!(parts.len() < 100, "{first} never ends");
    }
    parts
}

fn pointer_values(rows: &[Value], pointer: &str) -> Vec<String> {
    rows.iter().map(|row| row.pointer(pointer).unwrap().to_string()).collect()
}

#[tokio::test]
async fn a_list_that_is_asked_for_in_parts_has_each_row_once_and_in_order() {
    let portal = portal(FakeViews::default());
    for (path, pointer) in LISTS {
        let whole = get(&portal, path).await;
        assert_eq!(whole.header("link"), "", "{path}: there is no part after the last");
        let rows = whole.json().as_array().unwrap().clone();
        assert!(rows.len() > 1, "{path}");
        let parts = parts(&portal, &format!("{path}?limit=1")).await;
        assert!(parts.iter().all(|part| part.as_array().unwrap().len() == 1), "{path}");
        let all: Vec<_> = parts.iter().flat_map(|part| part.as_array().unwrap().clone()).collect();
        assert_eq!(pointer_values(&all, pointer), pointer_values(&rows, pointer), "{path}");
    }
}

/// A long answer is written as it is read, without an ETag.
#[tokio::test]
async fn a_timeline_that_is_written_as_it_is_read_is_the_same_as_in_parts() {
    let fake = Arc::new(FakeViews::default());
    let object = fake::object("Job", "research", "llm-train-7", "uid-train");
    for seq in 19..1300 {
        fake.push(fake::state(seq, &object, Change::Present, seq, fake::status("Running", "", "<\u{1}>")));
    }
    let portal = kubewitness_portal::router(fake.clone(), &crate::options());
    let path = "/api/v1/timeline?uid=uid-train";
    let whole = get(&portal, &format!("{path}&limit=10000")).await;
    assert_eq!((whole.header("etag"), whole.header("content-type")), ("", "application/json"));
    assert_eq!(whole.header("link"), "");
    let whole = whole.json();
    let parts = parts(&portal, &format!("{path}&limit=400")).await;
    for list in ["states", "related"] {
        let of = |part: &Value| part[list].as_array().unwrap().clone();
        let all: Vec<_> = parts.iter().rev().flat_map(of).collect();
        assert_eq!(whole[list].as_array().unwrap(), &all, "{list}");
    }
    let mut shorter = parts[0].clone();
    for name in ["events", "reports", "why"] {
        assert_eq!(whole[name].is_null(), shorter[name].take().is_null(), "{name}");
    }
    let cut = get(&portal, &format!("{path}&limit=1200")).await;
    assert!(next(cut.header("link")).is_some() && cut.json()["cut"] == true);
}

#[tokio::test]
async fn a_timeline_breaks_off_where_retention_takes_its_states_while_it_is_written() {
    let fake = Arc::new(FakeViews::default());
    let object = fake::object("Job", "research", "llm-train-7", "uid-train");
    for seq in 19..1300 {
        fake.push(fake::state(seq, &object, Change::Present, seq, fake::status("Running", "", "")));
    }
    let portal = kubewitness_portal::router(fake.clone(), &crate::options());
    let asked = crate::request("GET", "/api/v1/timeline?uid=uid-train&limit=10000");
    let response = portal.clone().oneshot(asked.body(axum::body::Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    fake.states.lock().unwrap().retain(|state| state.seq != 1000);
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn a_story_goes_on_with_older_states_and_has_its_events_once() {
    let portal = portal(FakeViews::default());
    let whole = get(&portal, "/api/v1/timeline?uid=uid-train").await.json();
    let parts = parts(&portal, "/api/v1/timeline?uid=uid-train&limit=3").await;
    for list in ["states", "related"] {
        let of = |part: &Value| pointer_values(part[list].as_array().unwrap(), "/seq");
        let all: Vec<_> = parts.iter().rev().flat_map(of).collect();
        assert_eq!(all, of(&whole), "{list}");
    }
    let (last, others) = parts.split_last().unwrap();
    assert!(others.iter().all(|part| part["cut"] == true) && last["cut"].is_null());
    let has_events = |part: &Value| !part["events"].as_array().unwrap().is_empty();
    assert!(has_events(&parts[0]) && !parts[1..].iter().any(has_events));
}

#[tokio::test]
async fn an_object_that_owns_more_than_an_answer_is_about_says_so_and_leads_to_the_others() {
    let portal = portal(FakeViews::default());
    let parts = parts(&portal, "/api/v1/timeline?uid=uid-wide").await;
    let related: Vec<_> =
        parts.iter().map(|part| pointer_values(part["related"].as_array().unwrap(), "/seq")).collect();
    assert_eq!(related, [["5", "6"], ["2", "3"]]);
    assert_eq!((&parts[0]["owns_more"], &parts[0]["cut"]), (&true.into(), &true.into()));

    let first = get(&portal, "/objects/uid-wide").await.text;
    assert!(first.contains("This page shows the newest of the objects that it owns"), "{first}");
    assert!(
        !first.contains("Show older states") && !first.contains("more than "),
        "its own states are all here"
    );
    let next = link(&first, "Show what else it owns").unwrap().replace("&amp;", "&");
    let second = get(&portal, &next).await.text;
    assert_eq!(positions(&second), [2, 3].into());
    assert!(second.contains("Open one of them to see what it owns"), "{second}");
}

#[tokio::test]
async fn what_is_no_cursor_of_a_list_is_refused_with_where_to_find_one() {
    let portal = portal(FakeViews::default());
    let lists = ["gaps?", "poison?", "deadletters?", "deadletters/records?", "timeline?uid=uid-train&"];
    for list in lists {
        let answer = get(&portal, &format!("/api/v1/{list}cursor=-x-")).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (400, &"invalid".into()), "{list}");
        let (message, hint) = answer.problem();
        assert!(message.contains("`-x-`") && hint.contains("`Link`"), "{list}: {message} {hint}");
    }
    for page in ["/gaps?cursor=x", "/gaps?poison=x", "/deadletters?cursor=x", "/objects/uid-train?cursor=x"] {
        let answer = get(&portal, page).await;
        assert_eq!(answer.status, 400, "{page}");
        assert!(answer.text.contains("no cursor of this list"), "{page}");
    }
}

/// The address of the link with this text.
fn link<'a>(page: &'a str, text: &str) -> Option<&'a str> {
    let before = &page[..page.find(&format!(">{text}</a>"))?];
    before.rsplit_once("href=\"")?.1.split_once('"').map(|(address, _)| address)
}

fn positions(page: &str) -> BTreeSet<u64> {
    let rows = page.split("id=\"state-").skip(1);
    rows.filter_map(|row| row.split_once('"')?.0.parse().ok()).collect()
}

#[tokio::test]
async fn the_page_of_an_object_leads_to_older_states_until_the_journal_has_none() {
    let portal = portal(FakeViews::default());
    let all = positions(&get(&portal, "/objects/uid-train?all=true").await.text);
    let first = get(&portal, "/objects/uid-train?limit=3&all=true").await.text;
    let mut seen = positions(&first);
    let mut address = link(&first, "Show older states").map(|address| address.replace("&amp;", "&"));
    let mut pages = 1;
    while let Some(asked) = address {
        let page = get(&portal, &asked).await;
        assert_eq!(page.status, 200, "{asked}");
        assert!(page.text.contains("This part of the story has"), "{asked}");
        assert_eq!(link(&page.text, "First page"), Some("/objects/uid-train?limit=3&amp;all=true"));
        seen.extend(positions(&page.text));
        address = link(&page.text, "Next page").map(|address| address.replace("&amp;", "&"));
        assert_eq!(page.text.contains("The journal has none before them"), address.is_none());
        pages += 1;
        assert!(pages < 20, "the story never ends");
    }
    assert!(pages > 2);
    assert_eq!(seen, all);
    let behind = get(&portal, "/objects/uid-train?cursor=0%2F0").await;
    assert!(behind.text.contains("no states before this place"));
}

#[tokio::test]
async fn the_address_of_an_old_state_shows_the_part_that_has_it() {
    let portal = portal(FakeViews::default());
    let page = get(&portal, "/objects/uid-train?limit=3&state=2").await.text;
    assert!(page.contains("older states") && positions(&page).contains(&2));
    let row = page.split("<tr").find(|row| row.contains("id=\"state-2\"")).unwrap();
    assert!(row.split_once('>').unwrap().0.contains("chosen"), "it is marked: {row}");
}

#[tokio::test]
async fn a_page_of_gaps_or_dead_letters_begins_behind_its_cursor() {
    let portal = portal(FakeViews::default());
    let gaps = get(&portal, "/gaps?cursor=2").await.text;
    assert!(gaps.contains("HistoryReplaced") && !gaps.contains("Compacted"));
    assert!(link(&gaps, "First page").is_some_and(|address| address == "?#holes"));
    let none = get(&portal, "/gaps?cursor=1").await.text;
    assert!(none.contains("No more gaps"), "{none}");
    let poison = get(&portal, "/gaps?poison=2").await.text;
    assert!(poison.contains("expected value") && !poison.contains("has no metadata.uid"));
    let letters = get(&portal, "/deadletters?plugin=notification&cursor=7%2Fnotification").await.text;
    assert!(letters.contains("Choose position 9") && !letters.contains("Choose position 7"));
    assert!(letters.contains("1 dead letter on this page"), "{letters}");
    assert_eq!(link(&letters, "First page"), Some("/deadletters?plugin=notification"));
}

#[tokio::test]
async fn versions_fold_only_where_their_documents_say_the_same() {
    let fake = FakeViews::default();
    let job = fake::object("Job", "research", "beats", "uid-beats");
    let running = || fake::status("Running", "", "");
    for seq in 19..=23 {
        fake.push(fake::state(seq, &job, Change::Present, seq, running()));
    }
    let document = |version: u64, team: &str| {
        let metadata = json!({"name": "beats", "resourceVersion": version.to_string(), "managedFields": [version],
            "labels": {"team": team}});
        json!({"kind": "Job", "metadata": metadata}).to_string()
    };
    for (seq, team) in [(19, "a"), (20, "a"), (21, "a"), (22, "b"), (23, "b")] {
        fake.documents.lock().unwrap().insert(seq, document(seq, team));
    }
    let portal = portal(fake);
    let page = get(&portal, "/objects/uid-beats").await.text;
    assert_eq!(positions(&page), [19, 22, 23].into(), "two in a row are folded, a change of a label is not");
    assert!(page.contains("2 versions in which nothing but heartbeats and bookkeeping changed"), "{page}");
    let all = link(&page, "show them").unwrap();
    assert_eq!(positions(&get(&portal, all).await.text), (19..=23).collect());
    let chosen = get(&portal, "/objects/uid-beats?state=21").await.text;
    assert!(positions(&chosen).contains(&21), "the one that the address is about is no part of a fold");
}

#[tokio::test]
async fn no_more_versions_are_compared_than_the_bound_and_the_others_stand_alone() {
    let fake = FakeViews::default();
    let job = fake::object("Job", "research", "beats", "uid-beats");
    let document = json!({"kind": "Job", "metadata": {"name": "beats"}}).to_string();
    for seq in 19..=619 {
        fake.push(fake::state(seq, &job, Change::Present, seq, fake::status("Running", "", "")));
        fake.documents.lock().unwrap().insert(seq, document.clone());
    }
    let page = get(&portal(fake), "/objects/uid-beats").await.text;
    assert!(page.contains("500 versions in which nothing but heartbeats"), "the newest are folded");
    assert_eq!(positions(&page), (19..=119).collect(), "older ones are not compared");
    assert!(page.contains("Some versions were not compared"), "the page says so");
}

#[tokio::test(start_paused = true)]
async fn versions_whose_documents_take_long_are_not_compared_for_longer_than_a_second() {
    let fake =
        FakeViews { slow_document: Some(std::time::Duration::from_millis(150)), ..FakeViews::default() };
    let job = fake::object("Job", "research", "beats", "uid-beats");
    let document = json!({"kind": "Job", "metadata": {"name": "beats"}}).to_string();
    for seq in 19..=60 {
        fake.push(fake::state(seq, &job, Change::Present, seq, fake::status("Running", "", "")));
        fake.documents.lock().unwrap().insert(seq, document.clone());
    }
    let portal = portal(fake);
    let began = tokio::time::Instant::now();
    let page = get(&portal, "/objects/uid-beats").await.text;
    assert!(began.elapsed() < std::time::Duration::from_millis(1_500), "{:?}", began.elapsed());
    assert!(page.contains("5 versions in which nothing but heartbeats"), "those that were read are folded");
    assert!(page.contains("Some versions were not compared"), "the page says so");
}
