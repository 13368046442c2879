//! Tests of the order of reviews: first for the whole cluster, and then for the namespace.

use super::GuardedPortal;

/// The namespace and name of each review about jobs.
async fn asked(person: &str, path: &str, verb: &str) -> Vec<(String, String)> {
    let portal = GuardedPortal::new();
    let answer = portal.as_token(person, path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    let asked = portal.server.asked.lock().unwrap();
    let of_jobs = asked.iter().filter(|attempt| attempt.verb == verb && attempt.resource == "jobs");
    of_jobs.map(|attempt| (attempt.namespace.clone(), attempt.name.clone())).collect()
}

fn of(attempts: &[(&str, &str)]) -> Vec<(String, String)> {
    attempts.iter().map(|(namespace, name)| ((*namespace).to_owned(), (*name).to_owned())).collect()
}

#[tokio::test]
async fn a_right_in_the_whole_cluster_is_asked_for_before_one_in_a_namespace() {
    let list = "/api/v1/objects?kind=Job&namespace=red";
    assert_eq!(asked("red", list, "list").await, of(&[("", ""), ("red", "")]));
    assert_eq!(asked("boss", list, "list").await, of(&[("", "")]), "it says enough");
    let everywhere = asked("red", "/api/v1/objects?kind=Job", "list").await;
    assert_eq!(everywhere[0], (String::new(), String::new()));
    assert!(everywhere[1..].iter().all(|(namespace, _)| !namespace.is_empty()), "{everywhere:?}");
    let document = "/api/v1/states/1/document";
    assert_eq!(asked("red", document, "get").await, of(&[("", ""), ("red", "")]));
    let by_name = of(&[("", ""), ("red", ""), ("red", "red-train")]);
    assert_eq!(asked("named", document, "get").await, by_name, "a right to one name comes last");
}
