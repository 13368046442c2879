//! Failures as the API reports them: a `Status` object with a code, a reason and details.
//!
//! It knows the real server's wording for the cases that clients check, and nothing of HTTP connections or
//! the store.

use serde_json::{Map, Value, json};

use crate::apiserver::kinds::ServedKind;

/// The answer to a failed request.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Value>,
    /// A token with which a list may continue although its snapshot is gone.
    pub continue_token: Option<String>,
    pub retry_after: Option<u32>,
}

/// One invalid field.
#[derive(Debug, Clone)]
pub struct FieldCause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

impl FieldCause {
    pub fn invalid(field: &str, value: &str, why: &str) -> Self {
        FieldCause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {}: {why}", Value::from(value)),
            field: field.to_owned(),
        }
    }

    /// Like [`FieldCause::invalid`], but without quotes around the value.
    pub fn invalid_raw(field: &str, value: &str, why: &str) -> Self {
        FieldCause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {why}"),
            field: field.to_owned(),
        }
    }

    pub fn required(field: &str, why: &str) -> Self {
        let message =
            if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        FieldCause { reason: "FieldValueRequired", message, field: field.to_owned() }
    }

    pub fn forbidden(field: &str, why: &str) -> Self {
        FieldCause {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {why}"),
            field: field.to_owned(),
        }
    }

    pub fn not_supported(field: &str, value: &str, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|k| Value::from(*k).to_string()).collect();
        FieldCause {
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {}: supported values: {}",
                Value::from(value),
                known.join(", ")
            ),
            field: field.to_owned(),
        }
    }
}

/// Why a list or a watch can't use its version or token.
const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. \
    You can start a new list without the continue parameter, or use the continue token in this response to \
    retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - \
    objects that were created, modified, or deleted between the time the first chunk was returned and now may \
    show up in the list.";

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
            retry_after: None,
        }
    }

    fn with(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// A failure without a reason, as the real server returns it for a malformed version of a watch.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    pub fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with(json!({}))
    }

    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with(json!({}))
    }

    pub fn unsupported_patch() -> Self {
        Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").with(json!({}))
    }

    /// A body of an unknown type, or a protobuf body with unknown fields.
    pub fn unsupported_body(why: &str) -> Self {
        let mut message = "the body of the request was in an unknown format - accepted media types include: \
             application/json, application/yaml"
            .to_owned();
        if !why.is_empty() {
            message = format!("{message} ({why})");
        }
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable() -> Self {
        Self::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, \
             application/json;as=Table, application/json;as=PartialObjectMetadata",
        )
    }

    pub fn too_many_requests(message: &str) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message);
        error.retry_after = Some(1);
        error.with(json!({"retryAfterSeconds": 1}))
    }

    pub fn body_too_large(limit: usize) -> Self {
        let limit = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", limit).with(json!({}))
    }

    pub fn not_found(kind: &ServedKind, name: &str) -> Self {
        let message = format!("{} {} not found", kind.group_resource(), quoted(name));
        Self::new(404, "NotFound", message).with(resource_details(kind, name))
    }

    pub fn already_exists(kind: &ServedKind, name: &str) -> Self {
        let message = format!("{} {} already exists", kind.group_resource(), quoted(name));
        Self::new(409, "AlreadyExists", message).with(resource_details(kind, name))
    }

    pub fn conflict(kind: &ServedKind, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {}: {why}", kind.group_resource(), quoted(name));
        Self::new(409, "Conflict", message).with(resource_details(kind, name))
    }

    pub fn stale(kind: &ServedKind, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// The failure of a deletion's precondition names the kind, not the resource.
    pub fn failed_precondition(kind: &ServedKind, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {}: {why}", kind.qualified(), quoted(name));
        let mut details = resource_details(kind, name);
        details["kind"] = Value::from(kind.kind.as_ref());
        Self::new(409, "Conflict", message).with(details)
    }

    pub fn invalid(kind: &ServedKind, name: &str, causes: &[FieldCause]) -> Self {
        Self::invalid_kind(&kind.group, &kind.kind, name, causes)
    }

    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[FieldCause]) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let texts: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let joined = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut details = Map::new();
        if !name.is_empty() {
            details.insert("name".into(), name.into());
        }
        if !group.is_empty() {
            details.insert("group".into(), group.into());
        }
        if !kind.is_empty() {
            details.insert("kind".into(), kind.into());
        }
        let causes: Vec<Value> = causes
            .iter()
            .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
            .collect();
        details.insert("causes".into(), causes.into());
        Self::new(422, "Invalid", format!("{qualified} {} is invalid: {joined}", quoted(name)))
            .with(Value::Object(details))
    }

    /// A patch that parses but can't be applied.
    pub fn patch_rejected(why: &str) -> Self {
        let message = format!("the server rejected our request due to an error in our request: {why}");
        Self::new(422, "Invalid", message).with(json!({}))
    }

    pub fn forbidden(kind: &ServedKind, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() {
            kind.group_resource()
        } else {
            format!("{} {}", kind.group_resource(), quoted(name))
        };
        Self::new(403, "Forbidden", format!("{subject} is forbidden: {why}"))
            .with(resource_details(kind, name))
    }

    pub fn forbidden_path(why: &str) -> Self {
        Self::new(403, "Forbidden", format!("forbidden: {why}")).with(json!({}))
    }

    pub fn list_expired() -> Self {
        Self::new(410, "Expired", LIST_EXPIRED)
    }

    pub fn continue_expired(inconsistent: String) -> Self {
        let mut error = Self::new(410, "Expired", CONTINUE_EXPIRED);
        error.continue_token = Some(inconsistent);
        error
    }

    pub fn watch_expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    pub fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut error = Self::new(504, "Timeout", message);
        error.retry_after = Some(1);
        error.with(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }))
    }

    /// The body of the answer, and also the object of an ERROR event.
    pub fn to_status(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), token.as_str().into());
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}

/// The answer to a successful deletion that does not return the object.
pub fn deleted_status(kind: &ServedKind, name: &str, uid: &str) -> Value {
    let mut details = resource_details(kind, name);
    if !uid.is_empty() {
        details["uid"] = uid.into();
    }
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    })
}

fn resource_details(kind: &ServedKind, name: &str) -> Value {
    let mut details = Map::new();
    if !name.is_empty() {
        details.insert("name".into(), name.into());
    }
    if !kind.group.is_empty() {
        details.insert("group".into(), kind.group.as_ref().into());
    }
    details.insert("kind".into(), kind.plural.as_ref().into());
    Value::Object(details)
}

pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
