//! A parsed request: its path, its parameters, and its user.

use http::{HeaderMap, Method, header};
use serde_json::Value;

use crate::apiserver::values::user::ClusterUser;
use crate::apiserver::values::versions::VersionStyle;
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::QueryParameters;

/// The path of a request for objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectPath {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
}

/// A parsed request whose user is known.
pub struct IncomingRequest {
    pub path: ObjectPath,
    pub method: Method,
    pub query: QueryParameters,
    pub headers: HeaderMap,
    pub user: ClusterUser,
    /// How versions look to the client.
    pub versions: VersionStyle,
    /// Whether a watch that can't start answers with its HTTP status.
    pub expired_as_status: bool,
}

impl IncomingRequest {
    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    /// The verb as roles name it.
    pub fn verb(&self) -> &'static str {
        let one = !self.path.name.is_empty();
        match self.method.as_str() {
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if one => "delete",
            "DELETE" => "deletecollection",
            _ if one => "get",
            _ if self.query.flag("watch") => "watch",
            _ => "list",
        }
    }
}

/// Parses a JSON body. An empty body is null.
pub fn parse(body: &[u8], expected: &str) -> Result<Value, ApiError> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| {
        let text = String::from_utf8_lossy(&body[..body.len().min(1024)]);
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {expected}): couldn't get version/kind; json \
             parse error: {} ({text})",
            complaint(body, &error)
        ))
    })
}

/// The parser's error in the words of the real server.
fn complaint(body: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let line_start =
        body.split(|b| *b == b'\n').take(error.line().saturating_sub(1)).map(|l| l.len() + 1).sum::<usize>();
    let at = line_start + error.column().saturating_sub(1);
    let Some(byte) = body.get(at) else { return error.to_string() };
    let place = if error.to_string().starts_with("key must be a string") {
        "looking for beginning of object key string"
    } else if error.to_string().starts_with("expected value") {
        "looking for beginning of value"
    } else {
        return error.to_string();
    };
    format!("invalid character '{}' {place}", char::from(*byte).escape_default())
}
