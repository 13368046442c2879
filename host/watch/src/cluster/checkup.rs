//! Asks the API server for what a checkup reports: its version and clock, the settings in the cluster, and
//! whether somebody has a right.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use k8s_openapi::List;
use k8s_openapi::api::authorization::v1::{SelfSubjectAccessReview, SubjectAccessReview};
use k8s_openapi::api::core::v1::ConfigMap;
use kubewitness_core::config::{HOST_LABEL, SourceSpec};
use kubewitness_core::ports::{AccessAttempt, Person};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::timeout;

use crate::cluster::reviews::{RIGHTS, answers};
use crate::connect::SignedIn;
use crate::connect::request::{ApiClient, RequestAddress, RequestFailure};
use crate::connect::resource::{group_version, resolve_resource};

const OWN_RIGHTS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// The time limit of a request. A person waits for the answer.
const WITHIN: Duration = Duration::from_secs(10);
/// The most ConfigMaps with settings. One is expected, and each holds 1 MiB at most.
const MAPS: &str = "10";
const BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug, Error)]
pub enum CheckupError {
    #[error(transparent)]
    Forbidden(RequestFailure),
    #[error(transparent)]
    Missing(RequestFailure),
    #[error(transparent)]
    Failed(RequestFailure),
}

impl From<RequestFailure> for CheckupError {
    fn from(failure: RequestFailure) -> Self {
        match failure.status_code() {
            Some(401 | 403) => Self::Forbidden(failure),
            Some(404) => Self::Missing(failure),
            _ => Self::Failed(failure),
        }
    }
}

/// An API server that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// For example `v1.36.0`.
    pub version: String,
    /// Its clock, from the header `Date`.
    pub date: Option<String>,
}

/// Whose rights are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RightsOwner {
    /// The caller's own rights.
    Own,
    Account {
        namespace: String,
        name: String,
    },
}

pub struct RightsCheckup {
    api: ApiClient,
}

impl RightsCheckup {
    pub fn new(signed_in: &SignedIn) -> Self {
        Self { api: signed_in.api_client() }
    }

    pub async fn describe_server(&self) -> Result<ApiServer, CheckupError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ServerVersion {
            git_version: String,
        }
        let (body, date) = within_limit(self.api.body_and_date("/version", BYTES)).await?;
        let version: ServerVersion = read(&body)?;
        Ok(ApiServer { version: version.git_version, date })
    }

    /// The API group of a source's kind, and its plural as used in RBAC rules.
    pub async fn resource_of(&self, source: &SourceSpec) -> Result<(String, String), CheckupError> {
        let resource = within_limit(resolve_resource(&self.api, source)).await?;
        let (group, _) = group_version(&source.api_version);
        Ok((group.to_owned(), resource.plural_name().to_owned()))
    }

    pub async fn has_right(
        &self,
        whose: &RightsOwner,
        attempt: &AccessAttempt,
    ) -> Result<bool, CheckupError> {
        let status = match whose {
            RightsOwner::Own => {
                let review = answers::self_review(attempt);
                self.post_review::<SelfSubjectAccessReview>(OWN_RIGHTS, encode_review(&review)?).await?.status
            }
            RightsOwner::Account { namespace, name } => {
                let review = answers::access_review(&service_account_person(namespace, name), attempt);
                self.post_review::<SubjectAccessReview>(RIGHTS, encode_review(&review)?).await?.status
            }
        };
        Ok(answers::is_allowed(status))
    }

    async fn post_review<T: DeserializeOwned>(
        &self,
        address: &str,
        body: Vec<u8>,
    ) -> Result<T, CheckupError> {
        let asked = self.api.ask_for(Method::POST, address, Some(("application/json", body)), BYTES);
        Ok(read(&within_limit(asked).await?)?)
    }

    /// The ConfigMaps of a namespace that hold the host's settings, by name.
    pub async fn settings_maps(
        &self,
        namespace: &str,
    ) -> Result<Vec<(String, BTreeMap<String, String>)>, CheckupError> {
        let address = RequestAddress::new("/api/v1/namespaces").with_member(namespace).as_str().to_owned()
            + "/configmaps";
        let address =
            RequestAddress::new(&address).with_parameter("labelSelector", &format!("{HOST_LABEL}=true"));
        let address = address.with_parameter("limit", MAPS);
        let body = within_limit(self.api.ask_for(Method::GET, address.as_str(), None, BYTES)).await?;
        let maps: List<ConfigMap> = read(&body)?;
        let maps = maps.items.into_iter();
        Ok(maps.map(|map| (map.metadata.name.unwrap_or_default(), map.data.unwrap_or_default())).collect())
    }
}

async fn within_limit<T>(
    asked: impl Future<Output = Result<T, RequestFailure>>,
) -> Result<T, RequestFailure> {
    timeout(WITHIN, asked).await.unwrap_or(Err(RequestFailure::TimedOut(WITHIN)))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, RequestFailure> {
    serde_json::from_slice(body).map_err(|error| RequestFailure::Answer(error.to_string()))
}

fn encode_review(review: &impl serde::Serialize) -> Result<Vec<u8>, RequestFailure> {
    serde_json::to_vec(review).map_err(|error| RequestFailure::Answer(error.to_string()))
}

/// A service account, as the API server knows it when it signs in.
fn service_account_person(namespace: &str, name: &str) -> Person {
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let user = format!("system:serviceaccount:{namespace}:{name}");
    Person { user, groups: groups.into(), ..Person::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_the_groups_by_which_rules_name_it() {
        let person = service_account_person("kubewitness", "host");
        assert_eq!(person.user, "system:serviceaccount:kubewitness:host");
        assert!(person.groups.contains(&"system:serviceaccounts:kubewitness".to_owned()), "{person:?}");
    }

    #[test]
    fn a_refusal_is_told_from_what_is_not_there() {
        let status = |code| {
            let (reason, message) = (String::new(), String::new());
            CheckupError::from(RequestFailure::Status {
                code,
                reason,
                message,
                retry_after: None,
                token: None,
            })
        };
        assert!(matches!(status(403), CheckupError::Forbidden(_)));
        assert!(matches!(status(404), CheckupError::Missing(_)));
        assert!(matches!(status(500), CheckupError::Failed(_)));
    }
}
