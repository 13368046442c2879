//! Writes one ConfigMap, for a person at a command line.

use std::collections::BTreeMap;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kubewitness_core::BoxedError;
use thiserror::Error;
use tokio::time::timeout;

use super::{Duration, FRAME};
use crate::connect::SignedIn;
use crate::connect::request::{ApiClient, RequestAddress, RequestFailure};

/// The timeout of a request with up to 1 MiB. A person waits for it.
const WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallResult {
    Created,
    Configured,
    Unchanged,
}

#[derive(Debug, Error)]
pub enum InstallError {
    #[error("there is a ConfigMap of this name already, and it has no label `{0}`")]
    Foreign(String),
    #[error("somebody else has changed the ConfigMap at the same time; run the command again")]
    Overtaken,
    #[error("there is no ConfigMap of this name")]
    Missing,
    #[error(transparent)]
    Request(RequestFailure),
    #[error("the ConfigMap that is there can't be read: {0}")]
    Unreadable(serde_json::Error),
    #[error(transparent)]
    Unwritable(serde_json::Error),
    /// The caller can't change the existing ConfigMap.
    #[error(transparent)]
    Change(BoxedError),
}

impl From<RequestFailure> for InstallError {
    fn from(failure: RequestFailure) -> Self {
        match failure.status_code() {
            Some(409) => Self::Overtaken,
            _ => Self::Request(failure),
        }
    }
}

/// Creates the ConfigMap, or updates the data and labels of an existing one with this name; its other content
/// stays. A ConfigMap without `label` belongs to somebody else and is not changed.
pub async fn install_config_map(
    signed_in: &SignedIn,
    wanted: ConfigMap,
    label: &str,
    dry_run: bool,
) -> Result<InstallResult, InstallError> {
    let api = signed_in.api_client();
    let namespace = wanted.metadata.namespace.clone().unwrap_or_default();
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let maps = config_maps(&namespace);
    let Some(existing) = find(&api, &maps.clone().with_member(&name)).await? else {
        write(&api, Method::POST, &writing_address(maps, dry_run), &wanted).await?;
        return Ok(InstallResult::Created);
    };
    let take = |existing: &mut ConfigMap| {
        existing.data = wanted.data;
        existing.binary_data = wanted.binary_data;
        existing.metadata.labels.get_or_insert_default().extend(wanted.metadata.labels.unwrap_or_default());
        Ok(())
    };
    replace_existing(&api, &maps.with_member(&name), existing, label, dry_run, take).await
}

/// Changes the data of an existing ConfigMap with this label.
pub async fn change_config_map(
    signed_in: &SignedIn,
    (namespace, name): (&str, &str),
    label: &str,
    dry_run: bool,
    change: impl FnOnce(&mut BTreeMap<String, String>) -> Result<(), BoxedError>,
) -> Result<InstallResult, InstallError> {
    let api = signed_in.api_client();
    let address = config_maps(namespace).with_member(name);
    let existing = find(&api, &address).await?.ok_or(InstallError::Missing)?;
    let of_data = |existing: &mut ConfigMap| {
        change(existing.data.get_or_insert_default()).map_err(InstallError::Change)
    };
    replace_existing(&api, &address, existing, label, dry_run, of_data).await
}

fn config_maps(namespace: &str) -> RequestAddress {
    let namespace = RequestAddress::new("/api/v1/namespaces").with_member(namespace);
    RequestAddress::new(&(namespace.as_str().to_owned() + "/configmaps"))
}

fn writing_address(address: RequestAddress, dry_run: bool) -> RequestAddress {
    let address = address.with_parameter("fieldManager", "kubewitness-install");
    if dry_run { address.with_parameter("dryRun", "All") } else { address }
}

async fn replace_existing(
    api: &ApiClient,
    address: &RequestAddress,
    mut existing: ConfigMap,
    label: &str,
    dry_run: bool,
    change: impl FnOnce(&mut ConfigMap) -> Result<(), InstallError>,
) -> Result<InstallResult, InstallError> {
    if !existing.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label)) {
        return Err(InstallError::Foreign(label.to_owned()));
    }
    let before = existing.clone();
    change(&mut existing)?;
    if existing == before {
        return Ok(InstallResult::Unchanged);
    }
    // Sent with the version that was read, so that a concurrent change is not overwritten.
    write(api, Method::PUT, &writing_address(address.clone(), dry_run), &existing).await?;
    Ok(InstallResult::Configured)
}

async fn find(api: &ApiClient, address: &RequestAddress) -> Result<Option<ConfigMap>, InstallError> {
    match send_request(api, Method::GET, address, None).await {
        Ok(body) => serde_json::from_slice(&body).map(Some).map_err(InstallError::Unreadable),
        Err(failure) if failure.status_code() == Some(404) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

async fn write(
    api: &ApiClient,
    method: Method,
    address: &RequestAddress,
    map: &ConfigMap,
) -> Result<(), InstallError> {
    let body = serde_json::to_vec(map).map_err(InstallError::Unwritable)?;
    Ok(send_request(api, method, address, Some(("application/json", body))).await.map(drop)?)
}

async fn send_request(
    api: &ApiClient,
    method: Method,
    address: &RequestAddress,
    body: Option<(&'static str, Vec<u8>)>,
) -> Result<bytes::Bytes, RequestFailure> {
    let asked = timeout(WITHIN, api.ask_for(method, address.as_str(), body, FRAME)).await;
    asked.unwrap_or(Err(RequestFailure::TimedOut(WITHIN)))
}
