//! Routes HTTP requests: determines the path, the verb, the user, and whether the user may.

use std::sync::Arc;

use axum::body::Body;
use http::request::Parts;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Limited};

use crate::apiserver::cluster::front::ServerFront;
use crate::apiserver::cluster::rights::{self, AccessAction};
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::cluster::{auth, request_counts};
use crate::apiserver::kinds::discovery;
use crate::apiserver::objects;
use crate::apiserver::server::hooks;
use crate::apiserver::values::user::ClusterUser;
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::incoming::{IncomingRequest, ObjectPath, parse};
use crate::apiserver::wire::query::{QueryParameters, percent_decode};
use crate::apiserver::wire::respond;

/// The prefix of a path that carries a token.
pub const TOKEN_PREFIX: &str = "/_token/";

#[derive(Debug, PartialEq, Eq)]
enum ApiRoute {
    Version,
    Health,
    ApiVersions,
    Groups,
    Group(String),
    Resources(String, String),
    OpenApi,
    OpenApiDocument(String, String),
    Object(ObjectPath),
    Hook(String),
    Unknown,
}

pub async fn handle(front: &Arc<ServerFront>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    match answer(front, &parts, body).await {
        Ok(response) => response,
        Err(error) => respond::failure(&error),
    }
}

async fn answer(front: &Arc<ServerFront>, parts: &Parts, body: Body) -> Result<Response<Body>, ApiError> {
    let shared: &SharedCluster = front;
    let query = QueryParameters::parse(parts.uri.query().unwrap_or_default());
    let (token, path) = token_of(parts.uri.path());
    let route = route(path);
    if let ApiRoute::Hook(path) = &route {
        if !shared.options.hooks {
            return Ok(respond::text(404, "404 page not found\n"));
        }
        let body = parse(&read(shared, body).await?, "the hook's options")?;
        return hooks::handle(front, &parts.method, path, &query, &body);
    }
    let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let user = auth::authenticate(shared, authorization, token)?;
    let user = auth::impersonate(shared, user, &parts.headers)?;
    if let ApiRoute::Object(path) = route {
        let headers = parts.headers.clone();
        let versions = shared.options.versions;
        let mut query = query;
        query.translate(versions);
        let mut incoming = IncomingRequest {
            path,
            method: parts.method.clone(),
            query,
            headers,
            user,
            versions,
            expired_as_status: false,
        };
        let key = request_counts::key(&incoming);
        shared.requests.count(&key);
        shared.protocols.count(&format!("{:?}", parts.version));
        let body = read(shared, body).await?;
        let drawn = front.faults.draw(&incoming);
        if let Some(answer) = drawn.before(front, &mut incoming).await? {
            return Ok(answer);
        }
        let answer = objects::handle(front, incoming, &body).await;
        if answer.as_ref().is_err_and(|error| error.code == 403) {
            shared.requests.count(&format!("forbidden {key}"));
        }
        return answer.map(|answer| drawn.after(front, answer));
    }
    authorize_read(shared, &user, parts.method.as_str(), path)?;
    Ok(fixed(front, &route, parts))
}

/// Splits a token off the path.
///
/// `kubectl` sends no token over plain HTTP, but it keeps the path of the server's address. So a kubeconfig
/// of this server puts the token there.
fn token_of(path: &str) -> (Option<&str>, &str) {
    let Some(rest) = path.strip_prefix(TOKEN_PREFIX) else { return (None, path) };
    let end = rest.find('/').unwrap_or(rest.len());
    (Some(&rest[..end]), &rest[end..])
}

fn authorize_read(
    shared: &SharedCluster,
    user: &ClusterUser,
    method: &str,
    path: &str,
) -> Result<(), ApiError> {
    let action =
        AccessAction { verb: method.to_lowercase(), path: Some(path.to_owned()), ..AccessAction::default() };
    if !shared.options.enforce_rbac || rights::allowed(shared, user, &action).is_some() {
        return Ok(());
    }
    Err(ApiError::forbidden_path(&action.refusal(user)))
}

/// Answers that need no objects.
fn fixed(shared: &ServerFront, route: &ApiRoute, parts: &Parts) -> Response<Body> {
    let registry = shared.registry();
    let accept = parts.headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    let aggregated = discovery::wants_aggregated(accept);
    let value = match route {
        ApiRoute::Health => return respond::text(200, "ok"),
        ApiRoute::ApiVersions | ApiRoute::Groups if aggregated => {
            let list = discovery::aggregated(&registry, *route == ApiRoute::ApiVersions);
            return respond::with_type(200, discovery::AGGREGATED, list.to_string());
        }
        ApiRoute::Version => Some(discovery::version()),
        ApiRoute::ApiVersions => Some(discovery::api_versions(&shared.address.to_string())),
        ApiRoute::Groups => Some(discovery::groups(&registry)),
        ApiRoute::Group(group) => discovery::one_group(&registry, group),
        ApiRoute::Resources(group, version) => discovery::resources(&registry, group, version),
        ApiRoute::OpenApi => Some(discovery::openapi_index(&registry)),
        ApiRoute::OpenApiDocument(group, version) => discovery::openapi_document(&registry, group, version),
        ApiRoute::Object(_) | ApiRoute::Hook(_) | ApiRoute::Unknown => None,
    };
    match value {
        Some(value) => respond::json(200, value.to_string()),
        None => respond::text(404, "404 page not found\n"),
    }
}

/// The whole body, up to a limit.
async fn read(shared: &SharedCluster, body: Body) -> Result<Vec<u8>, ApiError> {
    let limit = shared.options.max_body;
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::body_too_large(limit)),
        Err(error) => Err(ApiError::bad_request(format!("the body could not be read: {error}"))),
    }
}

fn route(path: &str) -> ApiRoute {
    let segments: Vec<String> = path.trim_matches('/').split('/').map(percent_decode).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let owned = |text: &str| text.to_owned();
    match segments.as_slice() {
        ["version"] => ApiRoute::Version,
        ["healthz" | "readyz" | "livez", ..] => ApiRoute::Health,
        ["openapi", "v3"] => ApiRoute::OpenApi,
        ["openapi", "v3", "api", version] => ApiRoute::OpenApiDocument(String::new(), owned(version)),
        ["openapi", "v3", "apis", group, version] => ApiRoute::OpenApiDocument(owned(group), owned(version)),
        ["_sim", rest @ ..] => ApiRoute::Hook(rest.join("/")),
        ["api"] => ApiRoute::ApiVersions,
        ["api", version] => ApiRoute::Resources(String::new(), owned(version)),
        ["api", version, rest @ ..] => object("", version, rest),
        ["apis"] => ApiRoute::Groups,
        ["apis", group] => ApiRoute::Group(owned(group)),
        ["apis", group, version] => ApiRoute::Resources(owned(group), owned(version)),
        ["apis", group, version, rest @ ..] => object(group, version, rest),
        _ => ApiRoute::Unknown,
    }
}

fn object(group: &str, version: &str, rest: &[&str]) -> ApiRoute {
    let mut path = ObjectPath { group: group.into(), version: version.into(), ..ObjectPath::default() };
    let rest = match rest {
        // A namespace is an object, and also a place for objects.
        ["namespaces", name, "status" | "finalize"] if group.is_empty() => {
            path.namespace = (*name).to_owned();
            rest
        }
        ["namespaces", namespace, inner @ ..] if !inner.is_empty() => {
            path.namespace = (*namespace).to_owned();
            inner
        }
        other => other,
    };
    match rest {
        [resource] => path.resource = (*resource).to_owned(),
        [resource, name] => (path.resource, path.name) = ((*resource).to_owned(), (*name).to_owned()),
        [resource, name, sub] => {
            path.resource = (*resource).to_owned();
            path.name = (*name).to_owned();
            path.subresource = (*sub).to_owned();
        }
        _ => return ApiRoute::Unknown,
    }
    ApiRoute::Object(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object_of(path: &str) -> [String; 6] {
        match route(path) {
            ApiRoute::Object(p) => [p.group, p.version, p.namespace, p.resource, p.name, p.subresource],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn paths_name_what_they_mean() {
        assert_eq!(object_of("/api/v1/pods"), ["", "v1", "", "pods", "", ""]);
        assert_eq!(object_of("/api/v1/namespaces/a"), ["", "v1", "", "namespaces", "a", ""]);
        assert_eq!(object_of("/api/v1/namespaces/a/status"), ["", "v1", "a", "namespaces", "a", "status"]);
        assert_eq!(object_of("/api/v1/namespaces/a/pods/b/log"), ["", "v1", "a", "pods", "b", "log"]);
        assert_eq!(
            object_of("/apis/batch/v1/namespaces/a/jobs/j%2Fx"),
            ["batch", "v1", "a", "jobs", "j/x", ""]
        );
        assert_eq!(route("/apis/batch/v1"), ApiRoute::Resources("batch".into(), "v1".into()));
        assert_eq!(route("/nothing"), ApiRoute::Unknown);
    }

    #[test]
    fn what_is_not_json_is_described() {
        let error = parse(b"{nope", "ConfigMap").unwrap_err();
        assert_eq!(
            error.message,
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json \
             parse error: invalid character 'n' looking for beginning of object key string ({nope)"
        );
    }
}
