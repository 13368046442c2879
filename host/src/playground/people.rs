//! With `--auth kubernetes`: people of the simulated cluster with different rights.

use anyhow::{Context, Result, ensure};
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions, TokenUser};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";
const VIEWER: &str = "kubewitness-viewer";
const OPERATOR: &str = "kubewitness-operator";
const SUBMITTER: &str = "kubewitness-submitter";
/// Each person and the namespace that they may see. These are two of the three in which the workload submits.
const TENANTS: [(&str, &str); 2] = [("ada", "team-vision"), ("grace", "team-speech")];
const ADMINISTRATOR: &str = "linus";

pub struct PlaygroundPerson {
    pub name: &'static str,
    pub sees: String,
    pub token: String,
}

/// Their tokens are valid as long as the playground runs.
pub fn make_people() -> Result<Vec<PlaygroundPerson>> {
    let tenants = TENANTS.iter().map(|(name, namespace)| (*name, format!("the namespace {namespace}")));
    let all = tenants.chain([(ADMINISTRATOR, "everything".to_owned())]);
    all.map(|(name, sees)| Ok(PlaygroundPerson { name, sees, token: random()? })).collect()
}

fn random() -> Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok().context("no random bytes for a token")?;
    Ok(hex::encode(bytes))
}

/// A cluster with RBAC, in which these people have tokens.
pub fn known_to(mut options: ApiServerOptions, people: &[PlaygroundPerson]) -> ApiServerOptions {
    let user = |person: &PlaygroundPerson| TokenUser {
        token: person.token.clone(),
        user: person.name.to_owned(),
        groups: Vec::new(),
    };
    options.enforce_rbac = true;
    options.tokens.extend(people.iter().map(user));
    options
}

/// Roles of `deploy/kustomize` and `deploy/examples/submit`, bound to these people.
pub async fn create_bindings(api: &ApiServer) -> Result<()> {
    let watched = json!([{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]}]);
    let works = json!([{"apiGroups": ["kubewitness.dev"], "resources": ["status"], "verbs": ["get"]},
        {"apiGroups": ["kubewitness.dev"], "resources": ["plugins"], "verbs": ["get", "replay", "drop", "pause", "resume"]}]);
    let submits = json!([{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]}]);
    for (name, rules) in [(VIEWER, watched), (OPERATOR, works), (SUBMITTER, submits)] {
        let role = json!({"metadata": {"name": name}, "rules": rules});
        create(api, &format!("{RBAC}/clusterroles"), &role).await?;
        let binding = binding(&format!("{ADMINISTRATOR}-{name}"), name, ADMINISTRATOR);
        create(api, &format!("{RBAC}/clusterrolebindings"), &binding).await?;
    }
    for (person, namespace) in TENANTS {
        create(api, "/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await?;
        let path = format!("{RBAC}/namespaces/{namespace}/rolebindings");
        create(api, &path, &binding(person, VIEWER, person)).await?;
        create(api, &path, &binding(&format!("{person}-submits"), SUBMITTER, person)).await?;
    }
    Ok(())
}

fn binding(name: &str, role: &str, person: &str) -> Value {
    json!({"metadata": {"name": name}, "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": person}]})
}

async fn create(api: &ApiServer, path: &str, object: &Value) -> Result<()> {
    let client = reqwest::Client::builder().no_proxy().build().context("making an HTTP client")?;
    let request = client.post(format!("{}{path}", api.url())).bearer_auth(api.admin_token()).json(object);
    let status = request.send().await.with_context(|| format!("creating {path}"))?.status();
    ensure!(status.is_success(), "creating {path} was answered with {status}");
    Ok(())
}
