//! RBAC: the roles and bindings in the store, compiled when they change.
//!
//! Rights are checked once for each request, as in a real server: a revoked right stops the next request, but
//! an open watch continues until it ends for another reason, at the latest at its time limit.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::store::PageRequest;
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::values::lock::locked;
use crate::apiserver::values::user::ClusterUser;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Members of this group may do everything.
pub const MASTERS: &str = "system:masters";

/// The action that the user wants to take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessAction {
    pub verb: String,
    /// A path that is not a resource. The other fields are then empty.
    pub path: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    pub namespace: String,
}

impl AccessAction {
    /// `jobs/status`
    pub fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    /// The text of a refusal.
    pub fn refusal(&self, user: &ClusterUser) -> String {
        if let Some(path) = &self.path {
            return format!("User \"{}\" cannot {} path \"{path}\"", user.name, self.verb);
        }
        let place = if self.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{}\"", self.namespace)
        };
        format!(
            "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
            user.name,
            self.verb,
            self.full_resource(),
            self.group
        )
    }
}

#[derive(Debug, Default)]
struct AccessRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    paths: Vec<String>,
}

struct AccessGrant {
    binding: String,
    subjects: Vec<Value>,
    /// The namespace in which it applies; `None` for all.
    namespace: Option<String>,
    rules: Arc<Vec<AccessRule>>,
}

/// The compiled grants, with the epoch and version of their tables.
type CompiledRights = ((u32, u64), Arc<Vec<AccessGrant>>);

/// The compiled roles.
#[derive(Default)]
pub struct CompiledRoles {
    compiled: Mutex<CompiledRights>,
}

/// Why the user may do it; `None` if they may not.
pub fn allowed(shared: &SharedCluster, user: &ClusterUser, action: &AccessAction) -> Option<String> {
    if user.is_in(MASTERS) {
        return Some(String::new());
    }
    grants(shared)
        .iter()
        .find(|grant| grant.reaches(user, action) && grant.rules.iter().any(|rule| rule.covers(action)))
        .map(|grant| format!("RBAC: allowed by {}", grant.binding))
}

/// The rules that apply to a user in a namespace, as a rules review shows them.
pub fn rules_of(shared: &SharedCluster, user: &ClusterUser, namespace: &str) -> (Vec<Value>, Vec<Value>) {
    let (mut resource, mut path) = (Vec::new(), Vec::new());
    if user.is_in(MASTERS) {
        resource.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        path.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    let everything = grants(shared);
    let here =
        everything.iter().filter(|g| g.names(user) && g.namespace.as_deref().is_none_or(|n| n == namespace));
    for rule in here.flat_map(|g| g.rules.iter()) {
        if rule.paths.is_empty() {
            resource.push(json!({
                "verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources,
                "resourceNames": rule.names,
            }));
        } else {
            path.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths}));
        }
    }
    (resource, path)
}

fn grants(shared: &SharedCluster) -> Arc<Vec<AccessGrant>> {
    const TABLES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];
    let newest = TABLES
        .iter()
        .map(|plural| shared.store.last_change(shared.store.table(&format!("{plural}.{GROUP}"))))
        .max()
        .unwrap_or(0);
    let newest = (shared.store.epoch(), newest);
    let mut compiled = locked(&shared.rights.compiled);
    if compiled.0 != newest {
        *compiled = (newest, Arc::new(compile(shared)));
    }
    Arc::clone(&compiled.1)
}

fn all(shared: &SharedCluster, plural: &str) -> Vec<(Arc<VersionRecord>, Value)> {
    let Ok(place) = shared.place(GROUP, plural, "") else { return Vec::new() };
    let everything = PageRequest::everything();
    let page = shared.store.page(place.table, &everything);
    let records = page.map(|p| p.items).unwrap_or_default();
    records.into_iter().map(|record| (Arc::clone(&record), record.to_value(&place.kind))).collect()
}

fn compile(shared: &SharedCluster) -> Vec<AccessGrant> {
    let roles: Vec<(String, String, String, Arc<Vec<AccessRule>>)> = ["ClusterRole", "Role"]
        .iter()
        .zip(["clusterroles", "roles"])
        .flat_map(|(kind, plural)| all(shared, plural).into_iter().map(move |(r, v)| (*kind, r, v)))
        .map(|(kind, record, value)| {
            (
                kind.to_owned(),
                record.namespace.to_string(),
                record.name.to_string(),
                Arc::new(rules(&value["rules"])),
            )
        })
        .collect();
    let find = |reference: &Value, namespace: &str| {
        let kind = reference["kind"].as_str().unwrap_or_default();
        let place = if kind == "Role" { namespace } else { "" };
        roles
            .iter()
            .find(|(k, ns, name, _)| k == kind && ns == place && reference["name"] == name.as_str())
            .map(|(_, _, _, rules)| Arc::clone(rules))
    };
    let mut grants = Vec::new();
    for (kind, plural) in [("ClusterRoleBinding", "clusterrolebindings"), ("RoleBinding", "rolebindings")] {
        for (record, value) in all(shared, plural) {
            let Some(rules) = find(&value["roleRef"], &record.namespace) else { continue };
            let (role, name) = (&value["roleRef"]["kind"], &value["roleRef"]["name"]);
            let binding = if kind == "RoleBinding" {
                format!(
                    "{kind} \"{}/{}\" of {} {name}",
                    record.name,
                    record.namespace,
                    role.as_str().unwrap_or("")
                )
            } else {
                format!("{kind} \"{}\" of {} {name}", record.name, role.as_str().unwrap_or(""))
            };
            grants.push(AccessGrant {
                binding,
                subjects: value["subjects"].as_array().cloned().unwrap_or_default(),
                namespace: (kind == "RoleBinding").then(|| record.namespace.to_string()),
                rules,
            });
        }
    }
    grants
}

fn rules(list: &Value) -> Vec<AccessRule> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let rule = |r: &Value| AccessRule {
        verbs: texts(&r["verbs"]),
        groups: texts(&r["apiGroups"]),
        resources: texts(&r["resources"]),
        names: texts(&r["resourceNames"]),
        paths: texts(&r["nonResourceURLs"]),
    };
    list.as_array().into_iter().flatten().map(rule).collect()
}

impl AccessGrant {
    fn reaches(&self, user: &ClusterUser, action: &AccessAction) -> bool {
        let here = match &self.namespace {
            None => true,
            Some(namespace) => action.path.is_none() && *namespace == action.namespace,
        };
        here && self.names(user)
    }

    fn names(&self, user: &ClusterUser) -> bool {
        self.subjects.iter().any(|subject| {
            let name = subject["name"].as_str().unwrap_or_default();
            match subject["kind"].as_str() {
                Some("User") => user.name == name,
                Some("Group") => user.is_in(name),
                Some("ServiceAccount") => {
                    let namespace =
                        subject["namespace"].as_str().or(self.namespace.as_deref()).unwrap_or_default();
                    user.name == format!("system:serviceaccount:{namespace}:{name}")
                }
                _ => false,
            }
        })
    }
}

impl AccessRule {
    fn covers(&self, action: &AccessAction) -> bool {
        let holds = |list: &[String], what: &str| list.iter().any(|entry| entry == "*" || entry == what);
        if !holds(&self.verbs, &action.verb) {
            return false;
        }
        if let Some(path) = &action.path {
            return self.paths.iter().any(|entry| match entry.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix),
                None => entry == path,
            });
        }
        let full = action.full_resource();
        let any_of_subresource = format!("*/{}", action.subresource);
        let resource = self.resources.iter().any(|entry| {
            entry == "*" || *entry == full || (!action.subresource.is_empty() && *entry == any_of_subresource)
        });
        let name = self.names.is_empty() || self.names.contains(&action.name);
        holds(&self.groups, &action.group) && resource && name
    }
}

/// The relevant roles among those with which every cluster begins.
pub fn bootstrap() -> Vec<Value> {
    let role = |name: &str, rules: Value| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}, "rules": rules,
        })
    };
    let binding = |name: &str, groups: &[&str]| {
        let subjects: Vec<Value> = groups.iter().map(|g| json!({"kind": "Group", "name": g})).collect();
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects,
        })
    };
    let public = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    let discovery = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    let everything = json!([
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]);
    let reviews = json!([
        {"apiGroups": ["authorization.k8s.io"], "verbs": ["create"],
         "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
        {"apiGroups": ["authentication.k8s.io"], "verbs": ["create"], "resources": ["selfsubjectreviews"]},
    ]);
    let delegator = json!([
        {"apiGroups": ["authentication.k8s.io"], "verbs": ["create"], "resources": ["tokenreviews"]},
        {"apiGroups": ["authorization.k8s.io"], "verbs": ["create"], "resources": ["subjectaccessreviews"]},
    ]);
    vec![
        role("cluster-admin", everything),
        role("system:auth-delegator", delegator),
        role("system:basic-user", reviews),
        role("system:discovery", json!([{"nonResourceURLs": discovery, "verbs": ["get"]}])),
        role("system:public-info-viewer", json!([{"nonResourceURLs": public, "verbs": ["get"]}])),
        binding("cluster-admin", &[MASTERS]),
        binding("system:basic-user", &["system:authenticated"]),
        binding("system:discovery", &["system:authenticated"]),
        binding("system:public-info-viewer", &["system:authenticated", "system:unauthenticated"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(value: &Value) -> AccessRule {
        rules(&json!([value])).remove(0)
    }

    fn action(verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> AccessAction {
        AccessAction {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            ..AccessAction::default()
        }
    }

    #[test]
    fn a_rule_covers_what_it_names_and_nothing_else() {
        let jobs = rule(
            &json!({"verbs": ["get", "patch"], "apiGroups": ["batch"], "resources": ["jobs", "*/status"]}),
        );
        assert!(jobs.covers(&action("get", "batch", "jobs", "", "x")));
        assert!(jobs.covers(&action("patch", "batch", "cronjobs", "status", "x")));
        assert!(!jobs.covers(&action("delete", "batch", "jobs", "", "x")));
        assert!(!jobs.covers(&action("get", "", "jobs", "", "x")));
        assert!(!jobs.covers(&action("get", "batch", "jobs", "log", "x")));
    }

    #[test]
    fn names_of_resources_narrow_a_rule() {
        let one = rule(&json!({
            "verbs": ["*"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"],
        }));
        assert!(one.covers(&action("get", "", "configmaps", "", "a")));
        assert!(!one.covers(&action("get", "", "configmaps", "", "b")));
        assert!(!one.covers(&action("list", "", "configmaps", "", "")));
    }

    #[test]
    fn a_refusal_reads_like_the_real_one() {
        let list = AccessAction { namespace: "rec4".into(), ..action("list", "", "configmaps", "", "") };
        assert_eq!(
            list.refusal(&ClusterUser::anonymous()),
            "User \"system:anonymous\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"rec4\""
        );
    }
}
