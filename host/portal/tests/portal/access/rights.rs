use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use super::login::{cookies, enter};
use super::tenants::{MADE_MS, TenantPortal, TenantServer, first};
use super::{GuardedPortal, SECRET, addresses};

#[tokio::test]
async fn nobody_and_garbage_are_refused_everywhere() {
    let portal = GuardedPortal::new();
    let long = format!("Bearer {}", "x".repeat(16 * 1024 + 1));
    portal.server.gone.lock().unwrap().insert("redxx".into());
    for path in addresses("red").into_iter().chain(["/api/v1/events".into()]) {
        for authorization in
            ["Bearer garbage", "Bearer redxx", "Bearer ", "Bearer", "Basic cmVkOg==", "red", &long]
        {
            let answer = portal.get(&path, &[("authorization", authorization)]).await;
            assert_eq!(answer.status, 401, "{path} as {authorization:.20}");
            assert!(answer.header("www-authenticate").starts_with("Bearer"), "{path}");
            // The checksums in addresses of assets may differ.
            let text: Vec<_> = answer.text.split("?v=").map(|part| part.split('"').skip(1)).collect();
            let text: String = text.into_iter().flatten().collect();
            assert!(!answer.text.contains("red-") && !text.contains("77"), "{path}");
        }
        let answer = portal.get(&path, &[]).await;
        if path.starts_with("/api/") || ["/healthz", "/readyz", "/metrics"].contains(&&*path) {
            assert_eq!(
                (answer.status.as_u16(), answer.header("www-authenticate").is_empty()),
                (401, false),
                "{path}"
            );
            assert!(answer.problem().1.contains("kubectl create token"), "{}", answer.text);
        } else {
            assert_eq!(answer.status, 303, "{path}");
            assert!(answer.header("location").starts_with("/login?next=%2F"), "{path}");
        }
    }
    for path in ["/login", "/assets/portal.css", "/assets/portal.js"] {
        assert_eq!(portal.get(path, &[]).await.status, 200, "{path}");
    }
    assert_eq!(portal.get("/nothing/here", &[]).await.status, 303);
    for path in ["/api/v1/deadletters/replay", "/api/v1/deadletters/drop", "/deadletters/replay"] {
        let answer = portal.ask("POST", path, &[("content-type", "application/json")], "{}").await;
        assert!([401, 303].contains(&answer.status.as_u16()), "{path}: {}", answer.status);
    }
    assert!(portal.views.replays.lock().unwrap().is_empty());
}

#[tokio::test]
async fn two_tenants_never_see_each_others_words_counts_or_ids() {
    let portal = GuardedPortal::new();
    for (tenant, other) in [("red", "blue"), ("blue", "red")] {
        for path in addresses(tenant).into_iter().chain(addresses(other)) {
            let answer = portal.as_token(tenant, &path).await;
            let echoed = path.contains(other);
            let words = [
                format!("{other}-train"),
                format!("{other}-reason"),
                format!("{other}-error"),
                format!("{other}-gap"),
                format!("{other}-secret"),
                format!("{other}-worker"),
            ];
            for word in words.iter().filter(|word| !path.contains(*word)) {
                // The answer repeats the filter.
                assert!(
                    !answer.text.contains(word.as_str()),
                    "{tenant} reads `{word}` at {path}: {}",
                    answer.text
                );
            }
            assert!(
                !answer.text.contains("77\u{202f}123") && !answer.text.contains("77123"),
                "a count at {path}"
            );
            assert!(!answer.text.contains("whole-source-gap"), "{path}");
            if !echoed {
                assert!(!answer.text.contains(&format!("uid-{other}")), "{path}");
            }
        }
        let mine = portal.as_token(tenant, "/api/v1/objects").await.json();
        let names: Vec<_> =
            mine.as_array().unwrap().iter().map(|view| view["object"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, [format!("{tenant}-train"), format!("{tenant}-worker")]);
        let story = portal.as_token(tenant, &format!("/api/v1/timeline?uid=uid-{tenant}")).await.json();
        assert_eq!(
            (story["states"].as_array().unwrap().len(), story["related"].as_array().unwrap().len()),
            (3, 1)
        );
        for path in [format!("/objects/uid-{tenant}"), format!("/states/{}", first(tenant)), "/".into()] {
            let page = portal.as_token(tenant, &path).await;
            assert_eq!(page.status, 200, "{path}");
            assert!(
                page.text.contains(&format!("{tenant}-train"))
                    && page.text.contains(&format!("user-{tenant}"))
            );
        }
        for path in
            ["/".into(), "/api/v1/objects?details=true&gone=true".into(), format!("/objects/uid-{tenant}")]
        {
            let answer = portal.as_token(tenant, &path).await;
            assert!(!answer.text.contains("hidden-plugin"), "{path}: {}", answer.text);
        }
        let letters = portal.as_token(tenant, "/api/v1/deadletters").await.json();
        assert_eq!(letters.as_array().unwrap().len(), 1);
        let status = portal.as_token(tenant, "/api/v1/status").await.json();
        assert_eq!((&status["restricted"], &status["plugins"]), (&true.into(), &serde_json::json!([])));
        assert_eq!(portal.as_token(tenant, "/readyz").await.text, "not ready\n");
    }
}

#[tokio::test]
async fn what_is_not_there_and_what_is_not_allowed_are_told_in_the_same_words() {
    let portal = GuardedPortal::new();
    for (there, not) in [
        ("/objects/uid-blue", "/objects/uid-none"),
        ("/states/11", "/states/99"),
        ("/api/v1/states/11/document", "/api/v1/states/99/document"),
        ("/api/v1/timeline?uid=uid-blue", "/api/v1/timeline?uid=uid-none"),
    ] {
        let (there_said, not_said) = (portal.as_token("red", there).await, portal.as_token("red", not).await);
        assert_eq!(there_said.status, not_said.status, "{there}");
        let normal = |text: String| {
            text.replace("uid-blue", "X").replace("uid-none", "X").replace("11", "N").replace("99", "N")
        };
        assert_eq!(normal(there_said.text), normal(not_said.text), "{there}");
    }
}

#[tokio::test]
async fn nothing_is_looked_up_where_the_namespace_says_already_that_it_is_not_theirs() {
    let portal = GuardedPortal::new();
    let lookups = || portal.views.lookups.load(Ordering::SeqCst);
    for [there, not] in [
        [
            "/api/v1/timeline?kind=Job&namespace=blue&name=blue-train",
            "/api/v1/timeline?kind=Job&namespace=blue&name=none",
        ],
        [
            "/api/v1/gaps?kind=Job&namespace=blue&name=blue-train",
            "/api/v1/gaps?kind=Job&namespace=none&name=none",
        ],
        ["/api/v1/gaps?namespace=blue", "/api/v1/gaps?namespace=none"],
    ] {
        let before = lookups();
        let (there_said, not_said) = (portal.as_token("red", there).await, portal.as_token("red", not).await);
        assert_eq!((there_said.status.as_u16(), &there_said.text), (200, &not_said.text), "{there}");
        assert_eq!(lookups(), before, "{there}");
        portal.as_token("boss", there).await;
        assert_eq!(lookups(), before + 1, "{there}");
    }
    // Only a look-up shows the namespace of a uid: that of the newest state, however many there are.
    for uid in ["uid-blue", "uid-none"] {
        let before = lookups();
        portal.as_token("red", &format!("/api/v1/timeline?uid={uid}")).await;
        assert_eq!(lookups(), before + 1, "{uid}");
    }
    // A right to a single name is searched for, too.
    let mine = "/api/v1/timeline?kind=Job&namespace=red&name=red-train";
    for token in ["named", "red"] {
        let story = portal.as_token(token, mine).await.json();
        assert_eq!(story["states"].as_array().unwrap().len(), 3, "{token}");
    }
    for (token, status) in [("red", 200), ("boss", 404)] {
        let answer = portal.as_token(token, "/api/v1/deadletters?plugin=nobody").await;
        assert_eq!(answer.status, status, "the names of plugins are operators'");
        assert_eq!(portal.as_token(token, "/deadletters?plugin=nobody").await.status, status);
    }
}

/// A story has a limited length, so a foreign object of the same name must not use up its states.
#[tokio::test]
async fn a_story_by_name_is_read_in_the_kinds_and_namespaces_that_are_theirs() {
    let portal = GuardedPortal::of(
        TenantPortal { volcano: true, ..TenantPortal::default() },
        TenantServer::default(),
        |options| options,
    );
    let story = "/api/v1/timeline?kind=Job&name=red-train&limit=1";
    for (token, namespace, group) in
        [("red", "red", "batch"), ("named", "red", "batch"), ("blue", "blue", "batch")]
    {
        for story in [story.to_owned(), format!("{story}&namespace={namespace}")] {
            assert_eq!(portal.as_token(token, &story).await.status, 200, "{token}");
            let asked = portal.views.within.lock().unwrap().take().unwrap();
            let found = asked.iter().map(|kind| (kind.group.as_str(), kind.namespaces.clone().unwrap()));
            assert_eq!(found.collect::<Vec<_>>(), [(group, [namespace.to_owned()].into())], "{token}");
        }
    }
    assert_eq!(portal.as_token("guest", story).await.status, 200);
    assert_eq!(*portal.views.within.lock().unwrap(), None, "nothing is looked up");
    assert_eq!(portal.as_token("boss", story).await.status, 200);
    let all = portal.views.within.lock().unwrap().take().unwrap();
    assert!(all.len() == 2 && all.iter().all(|kind| kind.namespaces.is_none()), "everything is theirs");
    let many = GuardedPortal::of(
        TenantPortal { others: 300, ..TenantPortal::default() },
        TenantServer::default(),
        |options| options,
    );
    let answer = many.as_token("red", story).await;
    assert_eq!(answer.status, 403, "{}", answer.text);
    assert_eq!(many.as_token("red", &format!("{story}&namespace=red")).await.status, 200);
}

#[tokio::test]
async fn the_configuration_of_a_plugin_takes_a_right_of_its_own() {
    let portal = GuardedPortal::new();
    for path in ["/api/v1/status", "/api/v1/plugins", "/plugins"] {
        let (watcher, boss) = (portal.as_token("watcher", path).await, portal.as_token("boss", path).await);
        assert!(watcher.text.contains("persistence") && !watcher.text.contains("configured-table"), "{path}");
        assert!(boss.text.contains("configured-table"), "{path}");
        assert!(!watcher.text.contains("compared-job") && boss.text.contains("compared-job"), "{path}");
    }
    let page = portal.as_token("watcher", "/plugins").await.text;
    assert!(page.contains("It takes the verb <code>get</code> on <code>plugins</code>"), "{page}");
}

#[tokio::test]
async fn an_event_that_names_the_uid_of_a_foreign_object_hides_no_event_of_that() {
    let story = GuardedPortal::new().as_token("reader", "/api/v1/timeline?uid=uid-blue").await.json();
    let events: Vec<_> =
        story["events"].as_array().unwrap().iter().map(|event| &event["object"]["uid"]).collect();
    assert_eq!(events, ["uid-blue-event"]);
}

#[tokio::test]
async fn an_operator_without_rights_on_objects_sees_how_many_there_are_and_none_of_their_names() {
    let portal = GuardedPortal::new();
    for token in ["watcher", "steward"] {
        for path in ["/api/v1/status", "/api/v1/plugins", "/gaps", "/plugins", "/sources", "/deadletters"] {
            let answer = portal.as_token(token, path).await;
            assert_eq!(answer.status, 200, "{token} at {path}");
            for name in ["red-train", "blue-train", "uid-red", "uid-blue", "compared-job"] {
                assert!(!answer.text.contains(name), "{token} reads `{name}` at {path}: {}", answer.text);
            }
        }
        let gaps = portal.as_token(token, "/gaps").await.text;
        assert!(gaps.contains("154\u{202f}246 gaps that you may not see"), "{gaps}");
        assert!(gaps.contains("154\u{202f}246 that you may not see: poison") && !gaps.contains("No gaps"));
        let of_one = portal.as_token(token, "/gaps?uid=uid-none").await.text;
        assert!(of_one.contains("No gaps that you may see") && !of_one.contains("154\u{202f}246 gaps"));
        let letters = portal.as_token(token, "/deadletters").await.text;
        assert!(letters.contains("77\u{202f}123 dead letters that you may not see"), "{letters}");
        let letters = portal.as_token(token, "/deadletters?error=none").await.text;
        assert!(letters.contains("No dead letters that you may see"), "{letters}");
    }
    assert!(portal.as_token("steward", "/plugins").await.text.contains("configured-table"));
    let status = portal.as_token("boss", "/api/v1/status").await.text;
    assert!(status.contains("red-train") && status.contains("blue-train") && status.contains("compared-job"));
}

#[tokio::test]
async fn an_operator_sees_both_and_how_the_controller_works() {
    let portal = GuardedPortal::new();
    for path in addresses("blue") {
        let answer = portal.as_token("boss", &path).await;
        assert!([200, 503].contains(&answer.status.as_u16()), "{path}: {}", answer.text);
    }
    for path in ["/api/v1/status", "/api/v1/poison", "/api/v1/poison/1/raw", "/gaps", "/plugins", "/readyz"] {
        assert!(portal.as_token("boss", path).await.text.contains("red-secret"), "{path}");
    }
    assert!(portal.as_token("boss", "/api/v1/gaps").await.text.contains("whole-source-gap"));
}

#[tokio::test]
async fn a_right_to_one_name_shows_its_story_and_nothing_else() {
    let portal = GuardedPortal::new();
    let story = portal.as_token("named", "/api/v1/timeline?uid=uid-red").await.json();
    assert_eq!(
        (story["states"].as_array().unwrap().len(), story["related"].as_array().unwrap().len()),
        (3, 0)
    );
    assert_eq!(portal.as_token("named", "/api/v1/states/1/document").await.status, 200);
    assert_eq!(portal.as_token("named", "/api/v1/states/2/document").await.status, 404);
    assert_eq!(portal.as_token("named", "/api/v1/objects").await.text, "[]");
}

#[tokio::test]
async fn a_cause_tells_of_pods_so_it_is_for_whoever_may_get_pods() {
    let lists = ["/api/v1/objects?kind=Job&details=true", "/?kind=Job"];
    let (asked, page) = ("/api/v1/objects?kind=Job&cause=out-of-memory", "/?kind=Job&cause=out-of-memory");
    let portal = GuardedPortal::new();
    for path in [lists[0], asked] {
        let text = portal.as_token("red", path).await.text;
        assert!(text.contains("red-train") && text.contains(r#""cause":"out-of-memory""#), "{path}: {text}");
        assert!(!text.contains("blue-train"), "{path}");
    }
    let server = TenantServer::default();
    server.refused.lock().unwrap().insert("pods".into());
    let portal = GuardedPortal::with(server, |options| options);
    for path in lists {
        let text = portal.as_token("red", path).await.text;
        assert!(text.contains("red-train") && !text.contains(r#""cause":"out-of-memory""#), "{path}: {text}");
        assert!(!text.contains(">out of memory</a>"), "{path}: {text}");
    }
    let found = portal.as_token("red", asked).await;
    assert_eq!(found.text, "[]", "which jobs ended so would tell it as well");
    assert_eq!(found.header("kubewitness-forbidden"), "get pods");
    assert!(!portal.as_token("red", page).await.text.contains("red-train"));
}

#[tokio::test]
async fn replaying_is_a_right_of_its_own_and_the_record_has_the_signed_in_name() {
    let portal = GuardedPortal::new();
    let body = r#"{"plugin":"persistence","reason":"mended","who":"the king","seqs":[1]}"#;
    for path in ["/api/v1/deadletters/replay", "/api/v1/deadletters/drop"] {
        let post = async |token: &str| {
            let authorization = format!("Bearer {token}");
            let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
            portal.ask("POST", path, &headers, body).await
        };
        let refused = post("red").await;
        assert_eq!(refused.status, 403);
        let (message, hint) = refused.problem();
        assert!(
            message.contains("user-red may not") && hint.contains("`plugins` in `kubewitness.dev`"),
            "{message} {hint}"
        );
        assert_eq!(post("boss").await.json()["who"], "user-boss");
    }
    let recorded = || {
        let replays = portal.views.replays.lock().unwrap();
        replays.iter().map(|request| request.who.clone()).collect::<Vec<_>>()
    };
    assert_eq!(recorded(), ["user-boss"]);
    let page = portal.as_token("boss", "/deadletters").await.text;
    assert!(page.contains("Replay") && !page.contains("Your name"));
    assert!(!portal.as_token("red", "/deadletters").await.text.contains("name=\"drop\""));
}

#[tokio::test]
async fn pausing_and_resuming_are_rights_of_their_own_and_the_record_has_the_signed_in_name() {
    let portal = GuardedPortal::new();
    for verb in ["pause", "resume"] {
        let post = async |token: &str, name: &str| {
            let authorization = format!("Bearer {token}");
            let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
            let path = format!("/api/v1/plugins/{name}/{verb}");
            portal.ask("POST", &path, &headers, r#"{"reason":"a move","who":"the king"}"#).await
        };
        let refused = post("red", "persistence").await;
        assert_eq!(refused.status, 403);
        let (message, hint) = refused.problem();
        assert!(message.contains(&format!("user-red may not {verb}")), "{message}");
        assert!(hint.contains(&format!("`{verb}` on `plugins` in `kubewitness.dev`")), "{hint}");
        let missing = post("red", "nobody").await;
        assert_eq!(missing.status, 403, "what is not there is told in the same words");
        assert_eq!(missing.text.replace("nobody", "persistence"), refused.text);
        assert_eq!(post("boss", "persistence").await.status, 200);
        for (token, status) in [("red", 403), ("boss", 200)] {
            let page = portal.as_token(token, &format!("/plugins/persistence/{verb}")).await;
            assert_eq!(page.status, status, "{token}");
            assert!(!page.text.contains("Your name"));
        }
    }
    let orders: Vec<_> = portal.views.pauses.lock().unwrap().drain(..).collect();
    let orders: Vec<_> =
        orders.iter().map(|(name, pauses, asked)| (name.as_str(), *pauses, asked.actor_name())).collect();
    assert_eq!(orders, [("persistence", true, "user-boss"), ("persistence", false, "user-boss")]);
    assert!(portal.as_token("boss", "/plugins").await.text.contains("/plugins/persistence/pause"));
}

#[tokio::test]
async fn muting_takes_a_right_of_its_own_in_the_namespace_and_names_whoever_has_signed_in() {
    let portal = GuardedPortal::new();
    let post = async |token: &str, verb: &str, body: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
        portal.ask("POST", &format!("/api/v1/{verb}"), &headers, body).await
    };
    let of_red = r#"{"uid":"uid-red","who":"the king"}"#;
    let done = post("red", "mute", of_red).await.json();
    assert_eq!(
        (&done["mute"]["object"], &done["mute"]["who"]),
        (&"Job/red-train".into(), &"user-red".into())
    );
    assert_eq!(done["mute"]["namespace"], "red");
    for (token, body, status) in [
        ("blue", of_red, 404),
        ("blue", r#"{"uid":"uid-nobody"}"#, 404),
        ("named", of_red, 403),
        ("blue", r#"{"namespace":"red"}"#, 403),
        ("red", r#"{"all":true}"#, 403),
        ("red", "{}", 400),
        ("boss", r#"{"all":true}"#, 200),
    ] {
        for verb in ["mute", "unmute"] {
            assert_eq!(post(token, verb, body).await.status, status, "{token} {verb} {body}");
        }
    }
    let (message, hint) = post("named", "mute", of_red).await.problem();
    assert!(message.contains("user-named may not mute anything in the namespace `red`"), "{message}");
    assert!(hint.contains("`mute` on `notifications` in `kubewitness.dev`"), "{hint}");
    let mutes = portal.as_token("red", "/api/v1/mutes").await;
    assert!(mutes.text.contains("red-train") && !mutes.text.contains("blue"), "{}", mutes.text);
    assert_eq!(portal.as_token("named", "/api/v1/mutes").await.text, "[]");
    let page = portal.as_token("red", "/objects/uid-red").await.text;
    assert!(page.contains("value=\"unmute\"") && !page.contains("Your name"), "{page}");
    assert!(!portal.as_token("named", "/objects/uid-red").await.text.contains("value=\"mute\""));
}

#[tokio::test]
async fn a_namespace_that_was_made_again_shows_nothing_of_what_its_name_held_before() {
    let portal = GuardedPortal::new();
    portal.server.remade.lock().unwrap().insert("red".into(), MADE_MS + 60_000);
    assert_eq!(portal.as_token("red", "/api/v1/objects").await.text, "[]");
    assert_eq!(portal.as_token("red", "/api/v1/deadletters").await.text, "[]");
    assert_eq!(portal.as_token("red", "/api/v1/gaps").await.text, "[]");
    assert_eq!(portal.as_token("red", "/objects/uid-red").await.status, 404);
    assert_eq!(portal.as_token("red", "/api/v1/states/1/document").await.status, 404);
    assert_eq!(portal.as_token("boss", "/objects/uid-red").await.status, 200, "a right in the whole cluster");
}

#[tokio::test]
async fn of_the_second_in_which_a_namespace_was_made_again_only_what_lived_on_is_shown() {
    let portal = GuardedPortal::new();
    portal.server.remade.lock().unwrap().insert("red".into(), MADE_MS + 1000);
    let (page, document) = ("/objects/uid-red", "/api/v1/states/1/document");
    let seen = async || [portal.as_token("red", page).await, portal.as_token("red", document).await];
    assert_eq!(seen().await.map(|answer| answer.status.as_u16()), [404, 404], "its newest state is an end");
    portal.views.push("red");
    assert_eq!(seen().await.map(|answer| answer.status.as_u16()), [200, 200], "it is there");
}

#[tokio::test(start_paused = true)]
async fn where_the_api_server_does_not_answer_nothing_is_shown() {
    let portal = GuardedPortal::new();
    assert_eq!(portal.as_token("red", "/").await.status, 200);
    portal.server.is_down.store(true, Ordering::SeqCst);
    for path in addresses("red") {
        // Cached answers about a name and its rights are valid until they expire.
        let answer = portal.as_token("blue", &path).await;
        assert_eq!(answer.status, 503, "{path}");
        assert_eq!(answer.header("retry-after"), "2", "{path}");
        assert!(!answer.text.contains("10.0.0.1") && !answer.text.contains("blue-train"), "{path}");
    }
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(portal.as_token("red", "/").await.status, 503);
    portal.server.is_down.store(false, Ordering::SeqCst);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(portal.as_token("red", "/").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn what_is_withdrawn_counts_within_seconds() {
    let portal = GuardedPortal::new();
    let count = async || portal.as_token("red", "/api/v1/objects").await.json().as_array().map(Vec::len);
    assert_eq!(count().await, Some(2));
    portal.server.denied.lock().unwrap().insert("red".into());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(count().await, Some(0));
    portal.server.gone.lock().unwrap().insert("red".into());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(portal.as_token("red", "/api/v1/objects").await.status, 401);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_one_token_is_one_review_and_other_reviews_are_bounded() {
    let server = TenantServer { slow: Some(Duration::from_millis(50)), ..TenantServer::default() };
    let portal = GuardedPortal::with(server, |options| options);
    let storm = (0..1000).map(|_| portal.as_token("red", "/api/v1/openapi.json"));
    assert!(futures::future::join_all(storm).await.iter().all(|answer| answer.status == 200));
    assert_eq!(portal.server.authentications.load(Ordering::SeqCst), 1);
    let garbage: Vec<_> = (0..200).map(|index| format!("garbage-{index}")).collect();
    let answers =
        futures::future::join_all(garbage.iter().map(|token| portal.as_token(token, "/api/v1/status"))).await;
    let refused = answers.iter().filter(|answer| answer.status == 401).count();
    assert_eq!(refused, 80, "16 are asked about, and 64 wait");
    assert!(answers.iter().all(|answer| answer.status == 401 || answer.header("retry-after") == "2"));
    assert!(portal.server.most_at_once.load(Ordering::SeqCst) <= 16);
    let reviews = portal.server.reviews.load(Ordering::SeqCst);
    futures::future::join_all((0..100).map(|_| portal.as_token("red", "/api/v1/objects"))).await;
    assert!(
        portal.server.reviews.load(Ordering::SeqCst) - reviews <= 6,
        "one for each resource and namespace"
    );
}

#[tokio::test]
async fn a_proxy_is_believed_with_the_secret_alone() {
    let portal = GuardedPortal::new();
    let good =
        [("x-kubewitness-proxy-secret", SECRET), ("x-remote-user", "user-red"), ("x-remote-group", "red")];
    assert!(portal.get("/api/v1/objects", &good).await.text.contains("red-train"));
    let wrong = SECRET.replace('0', "1");
    for forged in [
        &good[1..],
        &[("x-kubewitness-proxy-secret", wrong.as_str()), good[1]],
        &[("x-kubewitness-proxy-secret", ""), good[1]],
        &[good[0]],
    ] {
        assert_eq!(portal.get("/api/v1/objects", forged).await.status, 401, "{forged:?}");
    }
    // If the proxy's headers are ignored, the token decides.
    let both = [("authorization", "Bearer blue"), good[1]];
    assert!(!portal.get("/api/v1/objects", &both).await.text.contains("red-train"));
}

#[tokio::test]
async fn who_may_look_into_too_many_namespaces_names_one() {
    let of = |others| {
        GuardedPortal::of(
            TenantPortal { others, ..TenantPortal::default() },
            TenantServer::default(),
            |options| options,
        )
    };
    // Both sources have the same namespaces.
    let fits = of(254);
    assert!(fits.as_token("red", "/api/v1/objects").await.text.contains("red-train"));
    assert!(fits.server.most_at_once.load(Ordering::SeqCst) <= 8);
    let many = of(255);
    let refused = many.as_token("red", "/api/v1/objects").await;
    assert_eq!(refused.status, 403);
    assert!(refused.problem().1.contains("`namespace`"), "{}", refused.text);
    assert!(many.as_token("red", "/?kind=all").await.text.contains("Which namespace?"));
    assert!(many.as_token("red", "/?kind=all&namespace=red").await.text.contains("red-train"));
    assert!(many.as_token("red", "/api/v1/objects?namespace=red").await.text.contains("red-train"));
    assert_eq!(many.as_token("red", "/api/v1/objects?namespace=blue").await.text, "[]");
    assert_eq!(many.as_token("boss", "/api/v1/objects").await.status, 200);
}

#[tokio::test]
async fn who_reads_a_document_is_logged_and_never_what_is_in_it() {
    let portal = GuardedPortal::new();
    let log = AuditLog::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    // With a single subscriber, tracing lets the thread that first reaches a line decide for all threads
    // whether it is logged, and the threads of other tests have no subscriber. With two subscribers, all are
    // asked.
    let _second = tracing::Dispatch::new(AuditLog::default());
    tracing::callsite::rebuild_interest_cache();
    for path in
        ["/api/v1/states/1/document", "/states/3?from=1", "/api/v1/states/11/document", "/api/v1/objects"]
    {
        portal.as_token("red", path).await;
    }
    for token in ["red", "boss"] {
        portal.as_token(token, "/api/v1/poison/1/raw").await;
    }
    let mut lines = log.lines.lock().unwrap().clone();
    let poison = lines.pop().unwrap();
    assert_eq!(poison, "a poison message was read person=user-boss source=jobs number=1");
    let of_red =
        |seq| format!("a document was read person=user-red object=batch/Job red/red-train uid-red seq={seq}");
    let [first, third] = [1, 3].map(of_red);
    assert_eq!(lines, [first.clone(), third, first], "what was not shown is not read");
}

/// Collects the records with the audit's target.
#[derive(Clone, Default)]
struct AuditLog {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for AuditLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "kubewitness::audit"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = AuditLine::default();
        event.record(&mut line);
        self.lines.lock().unwrap().push(format!("{}{}", line.message, line.fields));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct AuditLine {
    message: String,
    fields: String,
}

impl Visit for AuditLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push_str(&format!(" {name}={value:?}")),
        }
    }
}

#[tokio::test]
async fn a_tag_that_another_person_was_given_never_answers_that_nothing_changed() {
    let portal = GuardedPortal::new();
    let authorization = |tenant: &str| format!("Bearer {tenant}");
    for path in addresses("red").into_iter().filter(|path| path.starts_with("/api/")) {
        let mine = portal.as_token("red", &path).await;
        let tag = mine.header("etag").to_owned();
        assert_eq!(mine.status == 200, !tag.is_empty(), "{path}");
        let with_tag = async |tenant: &str| {
            let (authorization, tag) = (authorization(tenant), tag.clone());
            let headers = [("authorization", authorization.as_str()), ("if-none-match", tag.as_str())];
            portal.get(&path, &headers).await
        };
        if tag.is_empty() {
            continue;
        }
        assert_eq!(with_tag("red").await.status, 304, "{path}");
        let other = with_tag("blue").await;
        let same = other.status == 304;
        let plain = portal.as_token("blue", &path).await;
        assert_eq!(same, plain.text == mine.text && plain.status == 200, "{path}");
        let headers = [("if-none-match", tag.as_str())];
        assert_eq!(portal.get(&path, &headers).await.status, 401, "{path}");
        let any = [("authorization", "Bearer stranger"), ("if-none-match", "*")];
        assert_eq!(portal.get(&path, &any).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_report_is_seen_by_whoever_may_get_the_object_that_it_is_about() {
    let portal = GuardedPortal::new();
    let reports_of = async |token: &str, path: &str| {
        let story = portal.as_token(token, path).await.json();
        let reports = story["reports"].as_array().unwrap();
        reports.iter().map(|report| report["to"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(reports_of("red", "/api/v1/timeline?uid=uid-red").await, ["red-people".to_owned()].into());
    assert!(reports_of("blue", "/api/v1/timeline?uid=uid-red").await.is_empty());
    let page = portal.as_token("red", "/objects/uid-red").await.text;
    assert!(page.contains("red-people") && !page.contains("blue-people"), "{page}");
}

#[tokio::test]
async fn an_event_is_seen_by_whoever_may_get_events_and_the_object_that_it_is_about() {
    let reports_of = async |portal: &GuardedPortal, token: &str| {
        let story = portal.as_token(token, "/api/v1/timeline?uid=uid-red").await.json();
        let events = story["events"].as_array().unwrap().clone();
        events.iter().map(|event| event["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let portal = GuardedPortal::new();
    assert_eq!(reports_of(&portal, "boss").await, ["blue-message", "red-message", "blue-message"]);
    assert_eq!(reports_of(&portal, "red").await, ["red-message"]);
    assert!(reports_of(&portal, "blue").await.is_empty());
    // This person may get one job by its name, and no events.
    assert!(reports_of(&portal, "named").await.is_empty());
    let page = portal.as_token("red", "/objects/uid-red").await.text;
    assert!(page.contains("red-message") && !page.contains("blue-message"), "{page}");

    let without = GuardedPortal::new();
    without.server.refused.lock().unwrap().insert("events".into());
    assert!(reports_of(&without, "red").await.is_empty());
    let page = without.as_token("red", "/objects/uid-red").await;
    assert!(page.status == 200 && !page.text.contains("id=\"events\""), "the rest of the story is there");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_was_made_again_has_none_of_the_mutes_of_the_one_before() {
    let portal = GuardedPortal::new();
    let read = async |path: &str| portal.as_token("red", path).await;
    let mutes = read("/api/v1/mutes").await.json();
    assert_eq!(mutes.as_array().unwrap().len(), 2, "{mutes}");
    assert!(read("/mutes").await.text.contains("red-people"));
    portal.server.remade.lock().unwrap().insert("red".into(), MADE_MS + 60_000);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(read("/api/v1/mutes").await.json(), serde_json::json!([]));
    let page = read("/mutes").await;
    assert!(page.status == 200 && !page.text.contains("red-people"), "{}", page.text);
    // New mutes apply to the present namespace. A person who may mute everything also removes older ones.
    let ask = async |token: &str, path: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let answer = portal.ask("POST", path, &headers, r#"{"namespace":"red"}"#).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    ask("red", "/api/v1/mute").await;
    ask("red", "/api/v1/unmute").await;
    ask("boss", "/api/v1/unmute").await;
    let asked = portal.views.muted.lock().unwrap().clone();
    let of: Vec<_> = asked.iter().map(|(mute, _)| mute.namespace_uid.as_str()).collect();
    assert_eq!(of, ["ns-red-again", "ns-red-again", ""]);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_questions_about_one_persons_rights_keeps_nobody_else_waiting() {
    let slow = Some(Duration::from_millis(200));
    let portal = GuardedPortal::with(TenantServer { slow, ..TenantServer::default() }, |options| options);
    for token in ["red", "blue"] {
        assert_eq!(portal.as_token(token, "/api/v1/objects").await.status, 200);
    }
    tokio::time::advance(Duration::from_secs(11)).await;
    let storm: Vec<_> = (0..400).map(|number| format!("/api/v1/objects?namespace=ns-{number}")).collect();
    let storm = futures::future::join_all(storm.iter().map(|path| portal.as_token("red", path)));
    let theirs = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        portal.as_token("blue", "/api/v1/objects?namespace=blue").await.status.as_u16()
    };
    let theirs = tokio::time::timeout(Duration::from_secs(2), theirs);
    let (storm, theirs) = tokio::join!(storm, theirs);
    assert_eq!(theirs.expect("they wait for nobody"), 200);
    assert!(storm.iter().all(|answer| [200, 404, 503].contains(&answer.status.as_u16())));
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_tokens_that_are_nobodys_keeps_nobody_waiting_who_is_signed_in() {
    let slow_with_garbage = Some(Duration::from_secs(1));
    let portal =
        GuardedPortal::with(TenantServer { slow_with_garbage, ..TenantServer::default() }, |options| options);
    let session = cookies(&enter(&portal, "blue", "").await);
    assert_eq!(portal.as_token("red", "/api/v1/objects").await.status, 200);
    // Both cached answers have expired.
    tokio::time::advance(Duration::from_secs(11)).await;
    let storm: Vec<_> = (0..400).map(|number| format!("garbage-{number}")).collect();
    let storm =
        futures::future::join_all(storm.iter().map(|token| portal.as_token(token, "/api/v1/objects")));
    let theirs = async {
        // By now the storm has taken its places.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let by_token = portal.as_token("red", "/api/v1/objects").await.status;
        let by_session = portal.get("/api/v1/objects", &[("cookie", &session)]).await.status;
        (by_token.as_u16(), by_session.as_u16())
    };
    let (storm, theirs) = tokio::join!(storm, tokio::time::timeout(Duration::from_secs(1), theirs));
    assert_eq!(theirs.expect("they wait for nobody"), (200, 200));
    assert!(storm.iter().all(|answer| [401, 503].contains(&answer.status.as_u16())));
}

#[tokio::test(start_paused = true)]
async fn more_requests_of_one_party_than_its_bound_are_refused_at_once() {
    let slow = Some(Duration::from_millis(200));
    let portal = GuardedPortal::with(TenantServer { slow, ..TenantServer::default() }, |options| options);
    for token in ["red", "blue"] {
        assert_eq!(portal.as_token(token, "/api/v1/openapi.json").await.status, 200);
    }
    let began = tokio::time::Instant::now();
    let asked = async |number: u32| {
        let answer = portal.as_token("red", &format!("/api/v1/objects?namespace=ns-{number}")).await;
        (answer.status.as_u16(), answer.header("retry-after").to_owned(), began.elapsed())
    };
    let theirs = async { portal.as_token("blue", "/api/v1/objects").await.status };
    let (storm, theirs) = tokio::join!(futures::future::join_all((0..60).map(asked)), theirs);
    assert_eq!(theirs, 200, "another party has a bound of its own");
    let refused: Vec<_> = storm.iter().filter(|(status, ..)| *status == 503).collect();
    assert_eq!(refused.len(), 44, "16 are under way");
    let at_once = |(_, again, after): &&&(u16, String, Duration)| again == "2" && after.is_zero();
    assert_eq!(refused.iter().filter(at_once).count(), 44, "{refused:?}");
    assert_eq!(asked(0).await.0, 200, "there is room again");
}

#[tokio::test]
async fn a_list_of_what_somebody_may_not_list_says_so_whether_there_is_anything_or_not() {
    let portal = GuardedPortal::new();
    let forbidden = async |token: &str, path: &str| {
        let answer = portal.as_token(token, path).await;
        assert_eq!(answer.status, 200, "{path}");
        answer.header("kubewitness-forbidden").to_owned()
    };
    for path in [
        "/api/v1/objects?kind=job",
        "/api/v1/objects?kind=job&namespace=red",
        "/api/v1/objects?kind=job&namespace=no-such",
        "/api/v1/objects?kind=job&namespace=red&gone=true",
        "/api/v1/gaps?kind=job&namespace=red",
    ] {
        assert_eq!(forbidden("guest", path).await, "list jobs.batch", "{path}");
        assert_eq!(forbidden("boss", path).await, "", "{path}");
    }
    for path in ["/api/v1/objects", "/api/v1/deadletters", "/api/v1/deadletters?plugin=no-such"] {
        assert_eq!(forbidden("guest", path).await, "list jobs.batch, pods", "{path}");
    }
    assert_eq!(forbidden("boss", "/api/v1/deadletters").await, "");
    let timeline =
        |namespace: &str| format!("/api/v1/timeline?kind=job&namespace={namespace}&name=red-train");
    for namespace in ["red", "no-such"] {
        assert_eq!(forbidden("guest", &timeline(namespace)).await, "get jobs.batch", "{namespace}");
    }
    assert_eq!(forbidden("named", &timeline("red")).await, "");
    for path in
        ["/api/v1/objects?kind=job&name=no-such", "/api/v1/objects?kind=job&namespace=red&name=no-such"]
    {
        assert_eq!(forbidden("red", path).await, "", "{path}");
    }
    assert_eq!(forbidden("red", "/api/v1/objects?kind=job&namespace=blue").await, "list jobs.batch");
    for (token, path) in
        [("red", "/?kind=Job&namespace=blue"), ("guest", "/?kind=Job"), ("guest", "/?kind=Job&phase=Failed")]
    {
        let page = portal.as_token(token, path).await.text;
        assert!(
            page.contains("You may not list jobs.batch") && !page.contains("Nothing matches"),
            "{path}: {page}"
        );
    }
    let page = portal.as_token("boss", "/?kind=Job&namespace=no-such").await.text;
    assert!(!page.contains("You may not"), "{page}");
}
