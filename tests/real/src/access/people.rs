//! People with rights of a real API server, and what each route of the controller's API shows them.
//!
//! Each namespace has one Job. Its name stands in whatever shows that Job, so an answer is searched for it. The API server's
//! own review says whether the person may get the Job. Lists and pages of one object, the documents of its states and the
//! stream of changes must agree with it, also after the right was withdrawn.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{Kubectl, Scratch, http, until, until_ok};
use reqwest::Method;
use serde_json::{Value, json};

use super::controller::ShippedController;
use crate::cluster::RealCluster;

const TEAMS: [&str; 2] = ["team-a", "team-b"];
/// A review is believed for some seconds.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(90);
/// The stream of changes never ends by itself.
const STREAMED_FOR: Duration = Duration::from_secs(2);
/// Only the person for whom nothing is allowed may be told so.
const REFUSED: [u16; 2] = [403, 404];

/// Rights of people: built-in roles that a controller aggregates, groups, and one that is narrow.
const RIGHTS: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer", "namespace": "team-a"}},
  {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "pods-only", "namespace": "team-a"}},
  {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": "team-a"}},
  {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "member", "namespace": "team-b"}},
  {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator", "namespace": "team-b"}},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
   "metadata": {"name": "jobs-part", "labels": {"example.com/readers": "true"}},
   "rules": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]}]},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "readers"},
   "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"example.com/readers": "true"}}]}, "rules": []},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "pods", "namespace": "team-a"},
   "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
   "metadata": {"name": "viewer", "namespace": "team-a"},
   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "readers"},
   "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": "team-a"}]},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
   "metadata": {"name": "pods-only", "namespace": "team-a"},
   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods"},
   "subjects": [{"kind": "ServiceAccount", "name": "pods-only", "namespace": "team-a"}]},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
   "metadata": {"name": "members", "namespace": "team-b"},
   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "readers"},
   "subjects": [{"kind": "Group", "name": "system:serviceaccounts:team-b", "apiGroup": "rbac.authorization.k8s.io"}]},
  {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "operators"},
   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "readers"},
   "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": "team-b"}]}
]}"#;
/// Namespace and name of each.
const PEOPLE: [(&str, &str); 5] = [
    ("team-a", "viewer"),
    ("team-a", "pods-only"),
    ("team-a", "nobody"),
    ("team-b", "member"),
    ("team-b", "operator"),
];

/// The answers that were compared.
#[derive(Default)]
pub(super) struct SeenAnswers {
    pub answers: usize,
    pub people: usize,
}

struct SignedIn {
    namespace: &'static str,
    name: &'static str,
    token: String,
}

struct TeamJob {
    namespace: &'static str,
    name: String,
    uid: String,
    /// The position of one of its states.
    seq: u64,
}

/// A Job that no controller of Kubernetes starts.
pub(super) fn job(namespace: &str, name: &str) -> Value {
    let container = json!({"name": "trainer", "image": "registry.example/ml/trainer:2.4"});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": namespace},
        "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}})
}

pub(super) async fn see_what_they_may(
    kubectl: &Kubectl,
    cluster: &RealCluster,
    scratch: &Scratch,
    controller: &mut ShippedController,
) -> Result<SeenAnswers> {
    for team in TEAMS {
        kubectl.ok(&["create", "namespace", team]).await?;
    }
    let mut aggregating = cluster.start_manager("clusterrole-aggregation-controller", scratch)?;
    kubectl.ok_with(&["apply", "-f", "-"], RIGHTS).await?;
    until_ok(FOLLOWS_WITHIN, "a role to be aggregated", async || {
        let rules = kubectl.ok(&["get", "clusterrole", "readers", "-o", "jsonpath={.rules}"]).await?;
        ensure!(rules.contains("jobs"), "its rules are {rules}");
        Ok(())
    })
    .await?;
    let mut people = Vec::new();
    for (namespace, name) in PEOPLE {
        let create = ["-n", namespace, "create", "token", name, "--audience", "kubewitness.dev"];
        people.push(SignedIn { namespace, name, token: kubectl.ok(&create).await?.trim().to_owned() });
    }
    let operator = people.last().context("an operator")?;
    let mut jobs = Vec::new();
    for namespace in TEAMS {
        let name = format!("secret-of-{namespace}");
        cluster
            .create(&format!("/apis/batch/v1/namespaces/{namespace}/jobs"), &job(namespace, &name))
            .await?;
        jobs.push(witnessed(controller.address(), operator, namespace, name).await?);
    }
    let mut seen = SeenAnswers { answers: 0, people: people.len() };
    for person in &people {
        for job in &jobs {
            seen.answers += compare(cluster, controller.address(), person, job).await?;
        }
    }
    kubectl.ok(&["-n", "team-a", "delete", "rolebinding", "viewer"]).await?;
    let withdrawn = people.first().context("a viewer")?;
    until_ok(FOLLOWS_WITHIN, "a withdrawn right to count", async || {
        compare(cluster, controller.address(), withdrawn, &jobs[0]).await
    })
    .await?;
    aggregating.kill().await?;
    Ok(seen)
}

/// The Job as the operator's API has it.
async fn witnessed(
    address: &str,
    operator: &SignedIn,
    namespace: &'static str,
    name: String,
) -> Result<TeamJob> {
    let path = format!("/api/v1/timeline?kind=Job&namespace={namespace}&name={name}");
    until(FOLLOWS_WITHIN, &format!("{name} to be witnessed"), async || {
        let (code, text) = get(address, operator, &path).await?;
        if code != 200 {
            return Ok(None);
        }
        let timeline: Value = serde_json::from_str(&text).context("a timeline")?;
        let state = find_state(&timeline).with_context(|| format!("no state in {text}"))?;
        let uid = state["object"]["uid"].as_str().context("a uid")?.to_owned();
        let seq = state["seq"].as_u64().context("a position")?;
        Ok(Some(TeamJob { namespace, name: name.clone(), uid, seq }))
    })
    .await
}

/// The first object with a position and an object in it.
fn find_state(value: &Value) -> Option<&Value> {
    match value {
        Value::Object(fields) if fields.contains_key("seq") && fields.contains_key("object") => Some(value),
        Value::Object(fields) => fields.values().find_map(find_state),
        Value::Array(items) => items.iter().find_map(find_state),
        _ => None,
    }
}

/// Compares each route with the API server's review. Returns how many answers there were.
async fn compare(cluster: &RealCluster, address: &str, person: &SignedIn, job: &TeamJob) -> Result<usize> {
    let may = may_get(cluster, person, job).await?;
    let (namespace, name, uid, seq) = (job.namespace, &job.name, &job.uid, job.seq);
    // With the kind of each: those that show this Job to whom may see it, and those that never name one.
    let showing = [
        "/api/v1/objects?kind=Job".to_owned(),
        format!("/api/v1/objects?kind=Job&namespace={namespace}"),
        format!("/api/v1/objects?kind=Job&search={name}"),
        format!("/api/v1/timeline?kind=Job&namespace={namespace}&name={name}"),
        format!("/api/v1/timeline?uid={uid}"),
        format!("/api/v1/states/{seq}/document"),
    ];
    let silent = [
        "/api/v1/objects?kind=Pod".to_owned(),
        format!("/api/v1/gaps?kind=Job&namespace={namespace}&name={name}"),
        "/api/v1/deadletters".to_owned(),
        "/api/v1/deadletters/records".to_owned(),
        "/api/v1/poison".to_owned(),
        "/api/v1/mutes".to_owned(),
        "/api/v1/plugins".to_owned(),
        "/api/v1/templates".to_owned(),
        "/api/v1/status".to_owned(),
        "/metrics".to_owned(),
    ];
    for path in &showing {
        let (code, text) = get(address, person, path).await?;
        let shows = code == 200 && text.contains(name.as_str());
        ensure!(
            shows == may && (may || code == 200 || REFUSED.contains(&code)),
            "{path} answered {}/{} with {code}, and may={may}: {text}",
            person.namespace,
            person.name
        );
    }
    for path in &silent {
        let (code, text) = get(address, person, path).await?;
        ensure!(
            may || !text.contains(name.as_str()),
            "{path} names {name} to {}/{}, who may not get it: {code} {text}",
            person.namespace,
            person.name
        );
    }
    let streamed = stream(address, person).await?;
    ensure!(
        streamed.contains(name.as_str()) == may,
        "the stream of {}/{} {} {name}",
        person.namespace,
        person.name,
        if may { "lacks" } else { "has" }
    );
    Ok(showing.len() + silent.len() + 1)
}

/// Asks the API server itself.
async fn may_get(cluster: &RealCluster, person: &SignedIn, job: &TeamJob) -> Result<bool> {
    let (namespace, account) = (person.namespace, person.name);
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": format!("system:serviceaccount:{namespace}:{account}"),
        "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
        "resourceAttributes": {"namespace": job.namespace, "verb": "get", "group": "batch", "resource": "jobs",
            "name": job.name},
    }});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let (code, answer) = cluster.request(Method::POST, path, Some(&review)).await?;
    ensure!(code == 201, "a review was answered with {code}: {answer}");
    Ok(answer["status"]["allowed"] == true)
}

async fn get(address: &str, person: &SignedIn, path: &str) -> Result<(u16, String)> {
    let answer = http().get(format!("http://{address}{path}")).bearer_auth(&person.token).send().await?;
    let code = answer.status().as_u16();
    if code == 401 || code >= 500 {
        bail!("{path} answered {}/{} with {code}: {}", person.namespace, person.name, answer.text().await?);
    }
    Ok((code, answer.text().await?))
}

/// Reads the stream of changes from the beginning, within its time.
async fn stream(address: &str, person: &SignedIn) -> Result<String> {
    let url = format!("http://{address}/api/v1/events?after=0");
    let mut answer = http().get(url).bearer_auth(&person.token).send().await?;
    ensure!(answer.status().is_success(), "the stream answered {}", answer.status());
    let mut text = String::new();
    let reading = async {
        while let Some(bytes) = answer.chunk().await? {
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok::<_, anyhow::Error>(())
    };
    match tokio::time::timeout(STREAMED_FOR, reading).await {
        Ok(ended) => ended.map(|()| text),
        Err(_) => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_name_each_person() {
        let rights: Value = serde_json::from_str(RIGHTS).expect("JSON");
        for (namespace, name) in PEOPLE {
            let is_it = |item: &&Value| {
                item["kind"] == "ServiceAccount"
                    && item["metadata"]["name"] == name
                    && item["metadata"]["namespace"] == namespace
            };
            assert!(rights["items"].as_array().expect("items").iter().any(|item| is_it(&item)), "{name}");
        }
    }

    #[test]
    fn a_state_is_found_wherever_it_stands() {
        let state = json!({"seq": 7, "object": {"uid": "u"}});
        assert_eq!(find_state(&json!({"states": [{"state": state}]})), Some(&state));
        assert_eq!(find_state(&json!({"states": []})), None);
    }
}
