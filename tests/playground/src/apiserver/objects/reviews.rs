//! Requests that are answered instead of stored: reviews of tokens and of rights, and tokens for accounts.

use serde_json::{Value, json};

use crate::apiserver::cluster::auth;
use crate::apiserver::cluster::place::ResourcePlace;
use crate::apiserver::cluster::rights::{self, AccessAction};
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::values::ident;
use crate::apiserver::values::user::ClusterUser;
use crate::apiserver::wire::error::{ApiError, FieldCause};

/// The shortest and the longest lifetime of a token that a client may request, as in a real cluster.
const MIN_LIFE_SECONDS: i64 = 600;
const MAX_LIFE_SECONDS: i64 = 1 << 32;

/// Answers a review; `None` if the kind is not a review.
pub fn review(
    shared: &SharedCluster,
    place: &ResourcePlace,
    user: &ClusterUser,
    body: &Value,
) -> Result<Option<Value>, ApiError> {
    let status = match place.kind.kind.as_ref() {
        "TokenReview" => token(shared, &body["spec"])?,
        "SelfSubjectReview" => json!({"userInfo": user.to_value()}),
        "SelfSubjectAccessReview" => access(shared, user, &body["spec"]),
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let spec = &body["spec"];
            access(shared, &subject(place, spec)?, spec)
        }
        "SelfSubjectRulesReview" => {
            let namespace = body["spec"]["namespace"].as_str().unwrap_or_default();
            let (resource, path) = rights::rules_of(shared, user, namespace);
            json!({"resourceRules": resource, "nonResourceRules": path, "incomplete": false})
        }
        _ => return Ok(None),
    };
    let mut metadata = body["metadata"].clone();
    if !metadata.is_object() {
        metadata = json!({});
    }
    let mut answer = json!({
        "kind": place.kind.kind, "apiVersion": place.kind.api_version(), "metadata": metadata, "status": status,
    });
    if !body["spec"].is_null() {
        answer["spec"] = body["spec"].clone();
    }
    Ok(Some(answer))
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn token(shared: &SharedCluster, spec: &Value) -> Result<Value, ApiError> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    Ok(match auth::review(shared, token, &texts(&spec["audiences"])) {
        Ok((user, audiences)) => {
            json!({"authenticated": true, "user": user.to_value(), "audiences": audiences})
        }
        Err(error) => json!({"user": {}, "error": error}),
    })
}

fn subject(place: &ResourcePlace, spec: &Value) -> Result<ClusterUser, ApiError> {
    let text = |name: &str| spec[name].as_str().unwrap_or_default().to_owned();
    let extra = spec["extra"].as_object().into_iter().flatten();
    let user = ClusterUser {
        name: text("user"),
        uid: text("uid"),
        groups: texts(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), texts(values))).collect(),
    };
    let mut causes = Vec::new();
    if !spec["resourceAttributes"].is_object() && !spec["nonResourceAttributes"].is_object() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        causes.push(FieldCause::invalid_raw("spec.resourceAttributes", "null", why));
    }
    if user.name.is_empty() && user.groups.is_empty() {
        causes.push(FieldCause::invalid("spec.user", "", "at least one of user or group must be specified"));
    }
    if causes.is_empty() { Ok(user) } else { Err(ApiError::invalid(&place.kind, "", &causes)) }
}

fn access(shared: &SharedCluster, user: &ClusterUser, spec: &Value) -> Value {
    let action = if spec["nonResourceAttributes"].is_object() {
        let text = |name: &str| spec["nonResourceAttributes"][name].as_str().unwrap_or_default().to_owned();
        AccessAction { verb: text("verb"), path: Some(text("path")), ..AccessAction::default() }
    } else {
        let text = |name: &str| spec["resourceAttributes"][name].as_str().unwrap_or_default().to_owned();
        AccessAction {
            verb: text("verb"),
            path: None,
            group: text("group"),
            resource: text("resource"),
            subresource: text("subresource"),
            name: text("name"),
            namespace: text("namespace"),
        }
    };
    if !shared.options.enforce_rbac {
        return json!({"allowed": true});
    }
    match rights::allowed(shared, user, &action) {
        Some(reason) if reason.is_empty() => json!({"allowed": true}),
        Some(reason) => json!({"allowed": true, "reason": reason}),
        None => json!({"allowed": false}),
    }
}

/// Issues a token to the account that the path names.
pub fn token_request(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    body: &Value,
) -> Result<Value, ApiError> {
    let account = place.get(shared, name)?;
    let spec = &body["spec"];
    let seconds = spec["expirationSeconds"].as_i64();
    if let Some(asked) = seconds.filter(|s| !(MIN_LIFE_SECONDS..=MAX_LIFE_SECONDS).contains(s)) {
        let why = "may not specify a duration less than 10 minutes";
        let cause = FieldCause::invalid_raw("spec.expirationSeconds", &asked.to_string(), why);
        return Err(ApiError::invalid_kind("authentication.k8s.io", "TokenRequest", name, &[cause]));
    }
    let audiences = texts(&spec["audiences"]);
    let (token, expires) =
        auth::issue(shared, &place.namespace, name, Some(account.uid.to_string()), audiences, seconds);
    Ok(json!({
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": place.namespace, "creationTimestamp": ident::now()},
        "spec": spec,
        "status": {"token": token, "expirationTimestamp": ident::rfc3339(expires)},
    }))
}
