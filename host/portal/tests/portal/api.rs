use axum::body::Body;
use serde_json::{Value, json};

use crate::fake::FakeViews;
use crate::{ask, get, portal, request};

/// Every route of the API and of the probes. `openapi_and_routes_agree` keeps it complete.
const ROUTES: [(&str, &str); 25] = [
    ("get", "/api/v1/status"),
    ("get", "/api/v1/objects"),
    ("get", "/api/v1/timeline"),
    ("get", "/api/v1/states/{seq}/document"),
    ("get", "/api/v1/plugins"),
    ("post", "/api/v1/plugins/{name}/pause"),
    ("post", "/api/v1/plugins/{name}/resume"),
    ("get", "/api/v1/gaps"),
    ("get", "/api/v1/poison"),
    ("get", "/api/v1/poison/{number}/raw"),
    ("get", "/api/v1/deadletters"),
    ("post", "/api/v1/deadletters/replay"),
    ("post", "/api/v1/deadletters/drop"),
    ("get", "/api/v1/deadletters/records"),
    ("get", "/api/v1/events"),
    ("post", "/api/v1/login"),
    ("get", "/api/v1/templates"),
    ("post", "/api/v1/jobs"),
    ("get", "/api/v1/mutes"),
    ("post", "/api/v1/mute"),
    ("post", "/api/v1/unmute"),
    ("get", "/api/v1/openapi.json"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
];

#[tokio::test]
async fn openapi_and_routes_agree() {
    let portal = portal(FakeViews::default());
    let openapi = get(&portal, "/api/v1/openapi.json").await.json();
    let paths = openapi["paths"].as_object().unwrap();
    assert_eq!(paths.len(), ROUTES.len());
    for (method, path) in ROUTES {
        let operations = paths[path].as_object().unwrap_or_else(|| panic!("{path} is not described"));
        assert_eq!(operations.keys().collect::<Vec<_>>(), [method], "{path}");
        // The route itself refuses the other method, so it exists and accepts only one.
        let other = if method == "get" { "POST" } else { "GET" };
        let answer = ask(
            &portal,
            request(other, &path.replace("{seq}", "1").replace("{number}", "1").replace("{name}", "p"))
                .body(Body::empty())
                .unwrap(),
        )
        .await;
        assert_eq!(answer.status, 405, "{path}");
        assert!(answer.header("allow").to_lowercase().contains(method), "{path}");
    }
    for reference in references(&openapi) {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(openapi.pointer(pointer).is_some(), "{reference} points nowhere");
    }
}

fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value) {
                ("$ref", Value::String(text)) => vec![text.clone()],
                _ => references(value),
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// Checks an answer against the part of JSON Schema that the description uses.
fn fits(openapi: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        return fits(openapi, openapi.pointer(&reference[1..]).unwrap(), value, reference);
    }
    // A plugin's effects are any JSON, which the description can't restrict.
    let says_nothing = schema.as_object().is_some_and(|schema| schema.keys().all(|key| key == "description"));
    if *schema == Value::Bool(true) || says_nothing {
        return;
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().into_iter().collect(),
    };
    let right = types.iter().any(|kind| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    });
    assert!(right, "{place}: {value} is none of {types:?}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{place}: {value}");
    }
    for (index, element) in value.as_array().into_iter().flatten().enumerate() {
        fits(openapi, schema["prefixItems"].get(index).unwrap_or(&schema["items"]), element, place);
    }
    if let (Some(members), Some(properties)) = (value.as_object(), schema["properties"].as_object()) {
        for (name, member) in members {
            let schema = properties.get(name).unwrap_or_else(|| panic!("{place}: `{name}` is not described"));
            fits(openapi, schema, member, &format!("{place}/{name}"));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(members.contains_key(name.as_str().unwrap()), "{place}: {name} is missing");
        }
    }
}

#[tokio::test]
async fn answers_are_as_described() {
    let portal = portal(FakeViews::default());
    let openapi = get(&portal, "/api/v1/openapi.json").await.json();
    for (path, address) in [
        ("/api/v1/status", "/api/v1/status"),
        ("/api/v1/objects", "/api/v1/objects?kind=Job&namespace=research&phase=running&limit=5"),
        ("/api/v1/timeline", "/api/v1/timeline?kind=Job&namespace=research&name=llm-train-7"),
        ("/api/v1/plugins", "/api/v1/plugins"),
        ("/api/v1/gaps", "/api/v1/gaps"),
        ("/api/v1/poison", "/api/v1/poison?source=jobs"),
        ("/api/v1/deadletters", "/api/v1/deadletters?plugin=notification"),
    ] {
        let answer = get(&portal, address).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("content-type")),
            (200, "application/json"),
            "{address}"
        );
        let operation = &openapi["paths"][path]["get"];
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        fits(&openapi, schema, &answer.json(), address);
    }
}

#[tokio::test]
async fn objects_are_filtered_and_bounded() {
    let portal = portal(FakeViews::default());
    let running = get(&portal, "/api/v1/objects?phase=RUNNING").await.json();
    assert!(running.as_array().unwrap().iter().all(|view| view["status"]["phase"] == "Running"));
    assert_eq!(get(&portal, "/api/v1/objects?limit=3").await.json().as_array().unwrap().len(), 3);
    for limit in ["0", "10001", "-1", "many"] {
        let answer = get(&portal, &format!("/api/v1/objects?limit={limit}")).await;
        assert_eq!(answer.status, 400, "{limit}");
    }
    let (message, hint) = get(&portal, "/api/v1/objects?phase=sleeping").await.problem();
    assert!(message.contains("sleeping") && hint.contains("Running"), "{message} {hint}");
}

#[tokio::test]
async fn the_next_page_is_a_link_that_keeps_the_question_and_notices_are_headers() {
    let portal = portal(FakeViews::default());
    let first =
        get(&portal, "/api/v1/objects?kind=jobs.batch&gone=true&search=a%20b&limit=2&namespace=").await;
    assert_eq!(first.json().as_array().unwrap().len(), 2);
    let link = first.header("link");
    let next = "</api/v1/objects?kind=jobs%2Ebatch&gone=true&search=a%20b&limit=2&cursor=99>; rel=\"next\"";
    assert_eq!(link, next);
    let all = get(&portal, "/api/v1/objects").await;
    assert_eq!(all.header("link"), "", "there is no page after the last");
    assert_eq!(all.header("kubewitness-notice"), "");
    let then = get(&portal, "/api/v1/objects?at=2026-11-20T12:00:00Z").await;
    assert_eq!(then.header("kubewitness-notice"), "The journal begins at 2026-11-20T11:00:00.000Z.");
    assert_eq!(then.json()[0]["then"]["known"], "missing");
    let gone = get(&portal, "/api/v1/objects?gone=only&details=true").await.json();
    assert_eq!(gone[0]["object"]["name"], "deleted-yesterday");
    assert_eq!(gone[0]["details"]["plugins"]["notification"], "dead");
    for query in ["gone=perhaps", "details=maybe"] {
        assert_eq!(get(&portal, &format!("/api/v1/objects?{query}")).await.status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_refusal_is_a_problem_with_a_code_that_programs_can_rely_on() {
    let whole = portal(FakeViews::default());
    let broken = portal(FakeViews { broken: true, ..FakeViews::default() });
    let openapi = get(&whole, "/api/v1/openapi.json").await.json();
    for (portal, path, status, code) in [
        (&whole, "/api/v1/objects?limit=0", 400, "invalid"),
        (&whole, "/api/v1/objects?colour=red", 400, "unknown-parameter"),
        (&whole, "/api/v1/objects?limit=1&limit=2", 400, "unknown-parameter"),
        (&whole, "/api/v1/objects?source=nobody", 400, "not-witnessed"),
        (&whole, "/api/v1/objects?kind=deployments", 400, "not-witnessed"),
        (&whole, "/api/v1/states/%FF/document", 400, "invalid"),
        (&whole, "/api/v1/nowhere", 404, "not-found"),
        (&whole, "/api/v1/states/99/document", 404, "not-found"),
        (&whole, "/api/v1/deadletters/replay", 405, "method-not-allowed"),
        (&broken, "/api/v1/objects", 503, "unavailable"),
    ] {
        let answer = get(portal, path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("content-type")),
            (status, "application/problem+json"),
            "{path}"
        );
        let problem = answer.json();
        fits(&openapi, &json!({"$ref": "#/components/schemas/Problem"}), &problem, path);
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{path}");
        assert_eq!(problem["type"], format!("/api#{code}"));
        // The fields that older clients read.
        assert_eq!(problem["error"]["message"], problem["detail"]);
        assert_eq!(problem["error"]["code"], code);
        assert_eq!(answer.header("etag"), "", "a problem is not kept");
    }
}

#[tokio::test]
async fn each_operation_of_the_api_declares_its_refusals_as_problems() {
    let openapi = get(&portal(FakeViews::default()), "/api/v1/openapi.json").await.json();
    let table =
        std::fs::read_to_string(kubewitness_harness::project_root().join("docs/reference/problems.md"))
            .unwrap();
    let paths = openapi["paths"].as_object().unwrap();
    for (path, operations) in paths.iter().filter(|(path, _)| path.starts_with("/api/")) {
        let responses =
            operations.as_object().unwrap().values().next().unwrap()["responses"].as_object().unwrap();
        assert!(responses.contains_key("default"), "{path}");
        for (status, response) in
            responses.iter().filter(|(status, _)| !["200", "201", "304"].contains(&status.as_str()))
        {
            let response = openapi.pointer(&response["$ref"].as_str().unwrap()[1..]).unwrap();
            let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{path} {status}");
            let is_told = status == "default" || table.contains(&format!("` | {status} | "));
            assert!(is_told, "{path}: no code has the status {status}");
        }
    }
    let codes = &openapi["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    for code in codes.as_array().unwrap() {
        assert!(
            table.contains(&format!("\n| `{}` | ", code.as_str().unwrap())),
            "{code} is not in the table"
        );
    }
}

#[tokio::test]
async fn an_answer_that_the_client_has_already_is_not_sent_again() {
    let portal = portal(FakeViews::default());
    let asked = async |path: &str, tag: &str| {
        let request = request("GET", path).header("if-none-match", tag).body(Body::empty()).unwrap();
        ask(&portal, request).await
    };
    for path in
        ["/api/v1/objects?limit=2", "/api/v1/states/1/document", "/api/v1/status", "/api/v1/openapi.json"]
    {
        let first = get(&portal, path).await;
        let tag = first.header("etag").to_owned();
        assert!(tag.starts_with("W/\""), "{path}: {tag}");
        assert_eq!(first.header("cache-control"), "private, no-cache", "{path}");
        assert_eq!(first.header("vary"), "authorization, cookie", "{path}");
        let again = asked(path, &tag).await;
        assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""), "{path}");
        assert_eq!(
            (again.header("etag"), again.header("cache-control")),
            (tag.as_str(), "private, no-cache")
        );
        assert_eq!(again.header("link"), first.header("link"), "{path}");
        let other = asked(path, "W/\"other\"").await;
        assert_eq!((other.status.as_u16(), &other.text), (200, &first.text), "{path}");
    }
    // A page depends on its reader and the moment, and a probe must be current.
    for path in ["/", "/healthz", "/metrics"] {
        let answer = get(&portal, path).await;
        assert_eq!((answer.header("etag"), answer.header("cache-control")), ("", "no-store"), "{path}");
    }
}

#[tokio::test]
async fn objects_are_found_by_name_label_and_index_and_a_bad_question_is_refused() {
    let portal = portal(FakeViews::default());
    let count = async |query: &str| {
        let answer = get(&portal, &format!("/api/v1/objects?{query}")).await.json();
        answer.as_array().unwrap().len()
    };
    assert_eq!(count("kind=jobs.batch&name=llm-train-7").await, 1);
    assert_eq!(count("labelSelector=team%3Da").await, 9);
    assert_eq!(count("kind=job&name=nobody").await, 0, "a kind that is watched may have none");
    for query in ["labelSelector=a%3D%3D%3Db", "index=owner"] {
        let answer = get(&portal, &format!("/api/v1/objects?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_kind_or_source_that_nobody_watches_is_told_apart_from_an_empty_answer() {
    let portal = portal(FakeViews::default());
    for path in ["objects?kind=deployments", "gaps?kind=deployments"] {
        let answer = get(&portal, &format!("/api/v1/{path}")).await;
        assert_eq!(answer.status, 400, "{path}");
        let (message, hint) = answer.problem();
        assert_eq!(message, "No source witnesses `deployments`.");
        assert!(hint.contains("Job (source `jobs`), Pod"), "{hint}");
    }
    for path in ["objects?source=nobody", "gaps?source=nobody", "poison?source=nobody"] {
        let (message, hint) = get(&portal, &format!("/api/v1/{path}")).await.problem();
        assert_eq!(message, "No source is called `nobody`.", "{path}");
        assert!(hint.contains("source `jobs`"), "{hint}");
    }
    // Before the first source is configured, nothing can be refused.
    let young = crate::portal(FakeViews { empty: true, ..FakeViews::default() });
    assert_eq!(get(&young, "/api/v1/objects?kind=deployments").await.json(), json!([]));
}

#[tokio::test]
async fn gaps_are_filtered_by_what_they_are_about() {
    let portal = portal(FakeViews::default());
    let reasons = async |query: &str| {
        let answer = get(&portal, &format!("/api/v1/gaps?{query}")).await.json();
        let gaps = answer.as_array().unwrap().iter();
        gaps.map(|gap| gap["reason"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reasons("").await, ["Compacted", "HistoryReplaced"]);
    assert_eq!(reasons("source=jobs&limit=1").await, ["Compacted"]);
    for query in ["uid=uid-train", "namespace=research", "name=llm-train-7"] {
        assert_eq!(reasons(query).await, ["Compacted"], "{query}");
    }
}

#[tokio::test]
async fn poison_is_given_as_it_came_and_only_to_be_saved() {
    let portal = portal(FakeViews::default());
    let answer = get(&portal, "/api/v1/poison/1/raw").await;
    assert_eq!(answer.text.as_bytes(), crate::fake::POISON[0]);
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(answer.header("content-disposition"), "attachment; filename=\"poison-1.txt\"");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(get(&portal, "/api/v1/poison/99/raw").await.status, 404);
    assert_eq!(get(&portal, "/api/v1/poison/x/raw").await.status, 400);
}

#[tokio::test]
async fn unknown_and_repeated_parameters_are_refused_with_those_that_are_allowed() {
    let portal = portal(FakeViews::default());
    for path in [
        "status",
        "objects",
        "timeline",
        "plugins",
        "gaps",
        "poison",
        "deadletters",
        "events",
        "states/1/document",
    ] {
        let answer = get(&portal, &format!("/api/v1/{path}?colour=red")).await;
        assert_eq!(answer.status, 400, "{path}");
        let (message, hint) = answer.problem();
        assert!(message.contains("colour") && hint.starts_with("It takes"), "{message} {hint}");
    }
    assert!(
        get(&portal, "/api/v1/objects?x=1")
            .await
            .problem()
            .1
            .contains("source, kind, namespace, name, labelSelector, index, phase, was, cause, gone, since")
    );
    assert_eq!(get(&portal, "/api/v1/objects?kind=Job&kind=Pod").await.status, 400);
}

#[tokio::test]
async fn a_timeline_is_by_uid_or_by_name_and_by_nothing_else() {
    let portal = portal(FakeViews::default());
    let by_uid = get(&portal, "/api/v1/timeline?uid=uid-train").await.json();
    assert_eq!(by_uid, get(&portal, "/api/v1/timeline?kind=job&name=llm-train-7").await.json());
    let counts = ["states", "related"].map(|part| by_uid[part].as_array().unwrap().len());
    assert_eq!(counts, [9, 9]);
    for unclear in ["", "kind=Job", "name=a", "namespace=a", "uid=a&name=b", "uid=a&kind=Job&name=b"] {
        assert_eq!(get(&portal, &format!("/api/v1/timeline?{unclear}")).await.status, 400, "{unclear}");
    }
}

#[tokio::test]
async fn a_document_is_given_byte_for_byte() {
    let portal = portal(FakeViews::default());
    let line = include_str!("../../../core/testdata/jobs.jsonl").lines().nth(1).unwrap();
    let answer = get(&portal, "/api/v1/states/1/document").await;
    let object = kubewitness_core::project::split_frame(line.as_bytes()).unwrap().object;
    assert_eq!(answer.text.as_bytes(), object);
    let missing = get(&portal, "/api/v1/states/99/document").await;
    assert_eq!(
        (missing.status.as_u16(), missing.problem().0.as_str()),
        (404, "there is no state at position 99")
    );
    assert_eq!(get(&portal, "/api/v1/states/first/document").await.status, 400);
}

#[tokio::test]
async fn a_drop_needs_a_reason_and_is_on_record() {
    let portal = portal(FakeViews::default());
    let drop = async |body: Value| {
        let request = request("POST", "/api/v1/deadletters/drop").header("content-type", "application/json");
        ask(&portal, request.body(body.to_string().into()).unwrap()).await
    };
    let all = json!({"plugin": "notification", "error": "timed out", "reason": "no use"});
    let unconfirmed = drop(all.clone()).await;
    assert_eq!(unconfirmed.status, 400);
    assert!(unconfirmed.problem().1.contains("`exactly`"), "{}", unconfirmed.text);
    let counted = drop(json!({"plugin": "notification", "reason": "no use", "dry_run": true})).await;
    assert_eq!(counted.json()["dropped"], 5);
    let another = drop(json!({"plugin": "notification", "reason": "no use", "exactly": 4})).await;
    assert_eq!((another.status.as_u16(), another.json()["code"].as_str()), (409, Some("changed")));
    assert!(another.problem().0.contains("exactly 4") && another.problem().0.contains("means 5"));
    let done = drop(json!({"plugin": "notification", "reason": "no use", "exactly": 5})).await;
    assert_eq!(done.json(), json!({"dropped": 5, "dry_run": false}));
    assert_eq!(drop(json!({"plugin": "notification", "reason": ""})).await.status, 400);
    assert_eq!(drop(json!({"plugin": "notification", "reason": "x", "eror": "y"})).await.status, 422);
    let records = get(&portal, "/api/v1/deadletters/records").await.json();
    assert_eq!((&records[0]["what"], &records[0]["who"]), (&json!("drop"), &json!("ada")));
}

#[tokio::test]
async fn a_replay_needs_a_reason_and_a_plugin_that_is_there() {
    let portal = portal(FakeViews::default());
    let replay = async |body: Value| {
        let request =
            request("POST", "/api/v1/deadletters/replay").header("content-type", "application/json");
        ask(&portal, request.body(Body::from(body.to_string())).unwrap()).await
    };
    let done =
        replay(json!({"plugin": "notification", "seqs": [7, 9], "reason": "fixed", "dry_run": true})).await;
    assert_eq!(done.json(), json!({"replayed": 2, "dry_run": true}));
    assert_eq!(replay(json!({"plugin": "notification", "reason": " "})).await.status, 400);
    assert_eq!(replay(json!({"plugin": "", "reason": "x"})).await.status, 400);
    let nobody = json!({"plugin": "notification", "reason": "x", "who": "x".repeat(257)});
    assert_eq!(replay(nobody).await.status, 400);
    assert_eq!(replay(json!({"plugin": "notification", "reason": "x".repeat(2000)})).await.status, 400);
    assert_eq!(
        replay(json!({"plugin": "notification", "reason": "x", "seqs": vec![1; 1001]})).await.status,
        400
    );
    assert_eq!(replay(json!({"plugin": "nobody", "reason": "x", "exactly": 1})).await.status, 404);
    assert_eq!(replay(json!({"reason": "no plugin"})).await.status, 422);
    assert_eq!(replay(json!({"plugin": "x".repeat(100_000), "reason": "x"})).await.status, 413);
    let form = request("POST", "/api/v1/deadletters/replay").header("content-type", "text/plain");
    assert_eq!(ask(&portal, form.body(Body::from("{}")).unwrap()).await.status, 415);
}

#[tokio::test]
async fn what_keeps_a_source_or_the_configuration_from_working_is_told_and_absent_while_all_is_well() {
    let status = get(&portal(FakeViews::default()), "/api/v1/status").await.json();
    assert_eq!(status.get("problems"), None);
    assert_eq!(status["sources"][0].get("condition"), None);
    assert_eq!(status["sources"][1]["condition"], "the server refuses: pods is <forbidden>");
    let faulty = portal(FakeViews { problems: vec!["host.yaml:3: no".into()], ..FakeViews::default() });
    assert_eq!(get(&faulty, "/api/v1/status").await.json()["problems"], json!(["host.yaml:3: no"]));
}

#[tokio::test]
async fn what_is_not_there_says_where_to_look() {
    let portal = portal(FakeViews::default());
    let nobody = get(&portal, "/api/v1/deadletters?plugin=nobody").await;
    assert_eq!(nobody.status, 404);
    let (message, hint) = nobody.problem();
    assert!(message.contains("`nobody`") && hint.contains("plugins"), "{message} {hint}");
    assert!(!hint.contains("journal"), "{hint}");
    let missing = get(&portal, "/api/v2/objects").await;
    assert_eq!(missing.status, 404);
    assert!(missing.problem().1.contains("openapi.json"));
    let broken =
        get(&crate::portal(FakeViews { broken: true, ..FakeViews::default() }), "/api/v1/status").await;
    assert_eq!((broken.status.as_u16(), broken.header("retry-after")), (503, "2"));
    assert!(broken.problem().0.contains("disk I/O error"));
}

#[tokio::test]
async fn probes_tell_alive_from_ready() {
    let stopped = portal(FakeViews { not_ready: Some("the disk is full".into()), ..FakeViews::default() });
    assert_eq!(get(&stopped, "/healthz").await.status, 200);
    let ready = get(&stopped, "/readyz").await;
    assert_eq!((ready.status.as_u16(), ready.text.as_str()), (503, "not ready: the disk is full\n"));
    assert_eq!(get(&portal(FakeViews::default()), "/readyz").await.text, "ready\n");
}

#[tokio::test]
async fn a_plugin_is_paused_and_resumed_with_a_reason_and_both_are_told() {
    let portal = portal(FakeViews::default());
    let order = async |path: &str, body: Value| {
        let request = request("POST", path).header("content-type", "application/json");
        ask(&portal, request.body(Body::from(body.to_string())).unwrap()).await
    };
    let (pause, resume) = ("/api/v1/plugins/notification/pause", "/api/v1/plugins/notification/resume");
    for (path, body, status) in [
        (pause, json!({"reason": " "}), 400),
        (pause, json!({"reason": "x".repeat(1025)}), 400),
        (pause, json!({"reason": "x", "who": "x".repeat(257)}), 400),
        (pause, json!({}), 422),
        (pause, json!({"reason": "x", "why": "y"}), 422),
        ("/api/v1/plugins/nobody/pause", json!({"reason": "x"}), 404),
        ("/api/v1/plugins/No%20Name/pause", json!({"reason": "x"}), 400),
    ] {
        assert_eq!(order(path, body).await.status.as_u16(), status, "{path}");
    }
    let done = order(pause, json!({"reason": "the database moves", "who": "ada"})).await.json();
    let paused = json!({"who": "ada", "why": "the database moves", "since": "2026-11-20T14:00:00.000Z"});
    assert_eq!(done, json!({"plugin": "notification", "changed": true, "paused": paused}));
    assert_eq!(order(pause, json!({"reason": "again"})).await.json()["changed"], false);
    let plugins = get(&portal, "/api/v1/plugins").await.json();
    let pauses: Vec<_> =
        plugins.as_array().unwrap().iter().filter_map(|plugin| plugin.get("paused")).collect();
    assert_eq!(pauses, [&paused]);
    let done = order(resume, json!({"reason": "moved"})).await.json();
    assert_eq!(done, json!({"plugin": "notification", "changed": true}));
}

#[tokio::test]
async fn a_filter_that_a_kind_lacks_is_refused_with_what_to_ask_instead() {
    let portal = portal(FakeViews::default());
    for (query, wanted, instead) in [
        ("kind=pods&cause=exit-code", "`pods` have no cause", "kind=jobs&cause=exit-code"),
        ("source=pods%22%5C&cause=evicted", "`Pod` have no cause", "kind=jobs&cause=evicted"),
        ("kind=events&was=failed", "Events have no phase", "kind=jobs&was=Failed"),
        ("kind=nodes&namespace=research", "`nodes` are in no namespace", "kind=nodes"),
    ] {
        let answer = get(&portal, &format!("/api/v1/objects?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text);
        let (message, hint) = answer.problem();
        assert!(message.contains(wanted), "{query}: {message}");
        assert!(
            hint.contains(&format!("`{instead}`")) && hint.contains("`kubewitness get "),
            "{query}: {hint}"
        );
    }
    assert_eq!(get(&portal, "/api/v1/objects?kind=all&cause=exit-code").await.status, 200);

    let page = get(&portal, "/?kind=Pod&cause=exit-code&range=day").await;
    assert_eq!(page.status, 400);
    for words in [
        "Objects of the kind Pod have no cause: the cause of a failed pod is that of its job.",
        "href=\"/?kind=jobs&amp;cause=exit-code\"",
        "href=\"/?kind=Pod\"",
        "<code>kubewitness get jobs --cause exit-code</code>",
    ] {
        assert!(page.text.contains(words), "{words} is not in\n{}", page.text);
    }
    assert!(!get(&portal, "/?kind=Pod").await.text.contains("name=\"cause\""), "no field asks for it");
    assert!(get(&portal, "/?kind=Job").await.text.contains("name=\"cause\""));
}
