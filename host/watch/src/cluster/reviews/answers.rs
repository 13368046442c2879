//! Builds the bodies of reviews, and interprets their answers. Anything that an answer leaves out counts as
//! no.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use k8s_openapi::api::core::v1::Namespace;
use kubewitness_core::ports::{AccessAttempt, LiveNamespace, Person};

use crate::connect::request::RequestFailure;

pub fn token_review(token: &str, audience: Option<&str>) -> TokenReview {
    let audiences = audience.map(|audience| vec![audience.to_owned()]);
    let spec = TokenReviewSpec { audiences, token: token.to_owned() };
    TokenReview { spec, ..TokenReview::default() }
}

/// The person of a token that is valid for the requested audience; without one, for the API server's own.
pub fn person_of_review(review: TokenReview, audience: Option<&str>) -> Option<Person> {
    let status = review.status?;
    let error = status.error.unwrap_or_default();
    if status.authenticated != Some(true) || !error.is_empty() {
        tracing::debug!(error, "the API server does not know a token");
        return None;
    }
    // An authenticator without support for audiences returns none: then the token is valid for the API server
    // only.
    let audiences = status.audiences.unwrap_or_default();
    if audience.is_some_and(|audience| !audiences.iter().any(|named| named == audience)) {
        return None;
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    (!name.is_empty()).then(|| Person {
        user: name,
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    })
}

fn resource_attributes(attempt: &AccessAttempt) -> ResourceAttributes {
    // In the form of RBAC rules, such as `pods/log`.
    let (resource, part) = attempt.resource.split_once('/').unwrap_or((&attempt.resource, ""));
    ResourceAttributes {
        verb: non_empty(&attempt.verb),
        group: non_empty(&attempt.group),
        version: non_empty("*"),
        resource: non_empty(resource),
        subresource: non_empty(part),
        namespace: non_empty(&attempt.namespace),
        name: non_empty(&attempt.name),
        ..ResourceAttributes::default()
    }
}

/// Asks whether the caller itself has a right.
pub fn self_review(attempt: &AccessAttempt) -> SelfSubjectAccessReview {
    let resource_attributes = Some(resource_attributes(attempt));
    let spec = SelfSubjectAccessReviewSpec { resource_attributes, non_resource_attributes: None };
    SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
}

pub fn access_review(person: &Person, attempt: &AccessAttempt) -> SubjectAccessReview {
    let spec = SubjectAccessReviewSpec {
        user: non_empty(&person.user),
        uid: non_empty(&person.uid),
        groups: Some(person.groups.clone()),
        extra: Some(person.extra.clone()),
        resource_attributes: Some(resource_attributes(attempt)),
        non_resource_attributes: None,
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// An evaluation error alone is not a refusal: an authoriser may have allowed the request all the same.
pub fn is_allowed(status: Option<SubjectAccessReviewStatus>) -> bool {
    let status = status.unwrap_or_default();
    let SubjectAccessReviewStatus { allowed, denied, evaluation_error, .. } = status;
    if let Some(error) = evaluation_error.filter(|_| !allowed) {
        tracing::warn!("the API server could not look at all rights, and refused: {error}");
    }
    allowed && denied != Some(true)
}

pub fn live_namespace(namespace: Namespace) -> Result<LiveNamespace, RequestFailure> {
    let metadata = namespace.metadata;
    let made = metadata.creation_timestamp.and_then(|made| u64::try_from(made.0.as_millisecond()).ok());
    let uid = metadata.uid.filter(|uid| !uid.is_empty());
    match (uid, made) {
        (Some(uid), Some(created_ms)) => Ok(LiveNamespace { uid, created_ms }),
        _ => Err(RequestFailure::Answer(
            "a namespace without a uid or without the time of its creation".into(),
        )),
    }
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
