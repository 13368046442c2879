//! The API server's audit log: who asked for what, and whether it was allowed.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Kubectl, Scratch};
use serde_json::{Value, json};

use super::controller::NAMESPACE;

/// The roles of `deploy/kustomize/rbac.yaml`.
const CLUSTER_ROLES: [&str; 2] = ["kubewitness-witness", "kubewitness-reviews"];
const ROLE: &str = "kubewitness-host";
const SHOWN: usize = 12;

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ApiRight {
    group: String,
    resource: String,
    verb: String,
}

impl fmt::Display for ApiRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} {}{group}{}", self.verb, self.resource, self.group)
    }
}

pub(super) struct AuditLog {
    policy: PathBuf,
    log: PathBuf,
}

/// The rights that an account asked for.
#[derive(Default)]
pub(super) struct UsedRights {
    pub requests: usize,
    used: BTreeSet<ApiRight>,
    refused: Vec<String>,
}

impl AuditLog {
    /// Every request is logged once it has its answer, without its body.
    pub(super) fn prepare(scratch: &Scratch) -> Result<Self> {
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}],
        });
        let folder = scratch.folder("audit")?;
        let log = Self { policy: folder.join("policy.json"), log: folder.join("log.jsonl") };
        fs::write(&log.policy, policy.to_string()).context("writing the audit policy")?;
        Ok(log)
    }

    /// For the API server.
    pub(super) fn flags(&self) -> [String; 3] {
        [
            format!("--audit-policy-file={}", self.policy.display()),
            format!("--audit-log-path={}", self.log.display()),
            "--audit-log-mode=blocking".into(),
        ]
    }

    pub(super) fn of(&self, account: &str) -> Result<UsedRights> {
        let text = fs::read_to_string(&self.log).context("reading the audit log")?;
        UsedRights::read(&text, account)
    }
}

impl UsedRights {
    fn read(text: &str, account: &str) -> Result<Self> {
        let mut read = Self::default();
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).with_context(|| format!("the line {line}"))?;
            if event["user"]["username"] != account {
                continue;
            }
            read.requests += 1;
            let is_refused = event["annotations"]["authorization.k8s.io/decision"] == "forbid"
                || event["responseStatus"]["code"] == 403;
            if is_refused {
                read.refused.push(format!("{} {}", event["verb"], event["requestURI"]));
            }
            let object = &event["objectRef"];
            let Some(resource) = object["resource"].as_str() else { continue };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let resource = match object["subresource"].as_str() {
                Some(part) => format!("{resource}/{part}"),
                None => resource.to_owned(),
            };
            read.used.insert(ApiRight {
                group: text(&object["apiGroup"]),
                resource,
                verb: text(&event["verb"]),
            });
        }
        Ok(read)
    }

    /// Nothing was refused, and no right of these was never used. Returns how many there are.
    pub(super) fn require_exact_rights(&self, shipped: &BTreeSet<ApiRight>) -> Result<usize> {
        ensure!(
            self.refused.is_empty(),
            "the API server refused {} requests of the controller, such as {}",
            self.refused.len(),
            self.refused[..self.refused.len().min(SHOWN)].join("; ")
        );
        let unused: Vec<String> = shipped.difference(&self.used).map(ToString::to_string).collect();
        ensure!(
            unused.is_empty(),
            "the shipped roles give what the controller never used: {}",
            unused.join(", ")
        );
        Ok(shipped.len())
    }
}

/// Reads the rights that the applied roles give, as the API server has them.
pub(super) async fn shipped_rights(kubectl: &Kubectl) -> Result<BTreeSet<ApiRight>> {
    let mut rights = BTreeSet::new();
    let role = kubectl.ok(&["-n", NAMESPACE, "get", "role", ROLE, "-o", "json"]).await?;
    read_rules(&role, &mut rights)?;
    for role in CLUSTER_ROLES {
        read_rules(&kubectl.ok(&["get", "clusterrole", role, "-o", "json"]).await?, &mut rights)?;
    }
    Ok(rights)
}

fn read_rules(role: &str, rights: &mut BTreeSet<ApiRight>) -> Result<()> {
    let role: Value = serde_json::from_str(role).context("a role")?;
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for rule in role["rules"].as_array().context("rules")? {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    let (group, resource) = (group.clone(), resource.clone());
                    rights.insert(ApiRight { group, resource, verb });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str, verb: &str, code: u16) -> String {
        json!({"user": {"username": user}, "verb": verb, "requestURI": "/x", "responseStatus": {"code": code},
            "objectRef": {"resource": "jobs", "apiGroup": "batch"}})
        .to_string()
    }

    fn right(verb: &str) -> ApiRight {
        ApiRight { group: "batch".into(), resource: "jobs".into(), verb: verb.into() }
    }

    #[test]
    fn a_refused_request_and_a_right_that_is_never_used_are_found_and_others_do_not_count() {
        let log =
            [line("we", "list", 200), line("other", "delete", 403), line("we", "watch", 200)].join("\n");
        let used = UsedRights::read(&log, "we").expect("a log");
        assert_eq!(used.requests, 2);
        used.require_exact_rights(&BTreeSet::from([right("list"), right("watch")])).expect("exactly these");
        let unused =
            used.require_exact_rights(&BTreeSet::from([right("list"), right("delete")])).expect_err("unused");
        assert!(unused.to_string().contains("delete jobs.batch"), "{unused}");
        let refused = UsedRights::read(&line("we", "get", 403), "we").expect("a log");
        refused.require_exact_rights(&BTreeSet::new()).expect_err("refused");
    }

    #[test]
    fn the_rights_of_a_role_are_each_verb_on_each_resource() {
        let role =
            json!({"rules": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "watch"]}]});
        let mut rights = BTreeSet::new();
        read_rules(&role.to_string(), &mut rights).expect("rules");
        assert_eq!(rights, BTreeSet::from([right("list"), right("watch")]));
    }
}
