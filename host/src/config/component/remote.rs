//! Components that are elsewhere: in a registry, or at an address. A component that was fetched for the same
//! document is not fetched again. So a tag is resolved once, and a restart needs no registry.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use kubewitness_capability::secrets::{self, SecretError};
use kubewitness_core::config::{HostSpec, ModuleSpec, OciReference, SecretRef};
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::COMPONENT_BYTES;
use super::cosign::{CosignSignature, SignatureError, find_signer};
use super::docker_config::{self, LoginError};
use super::download::{self, DownloadError, DownloadNetwork, DownloadedFile, RequestError};
use super::fetch_queue::FetchTurn;
use super::on_disk::KeptComponents;
use super::registry::{OciRegistry, RegistryError};

/// The time limit for one component, counted from the start of its turn.
const ALL: Duration = Duration::from_secs(120);

/// Why a component was not fetched, under the name that its manifest gives it.
#[derive(Debug, Error)]
#[error("{name}: {problem}")]
pub struct FetchError {
    name: String,
    #[source]
    problem: FetchProblem,
}

#[derive(Debug, Error)]
pub enum FetchProblem {
    #[error("was not there within {} s", ALL.as_secs())]
    TooLate,
    #[error("the host's settings: spec.modules.credentials: {0}")]
    NoSecret(#[from] SecretError),
    #[error("the host's settings: spec.modules.credentials: {0}")]
    NoLogin(#[from] LoginError),
    #[error("is no address: {0}")]
    NoAddress(#[source] <Url as FromStr>::Err),
    #[error(transparent)]
    NoAnswer(#[from] RequestError),
    #[error("the server answers {0}")]
    Refused(StatusCode),
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

/// A component that must be fetched.
pub struct RemoteComponent {
    place: RemoteAddress,
    credentials: Option<SecretRef>,
    signed_by: Vec<String>,
    network: DownloadNetwork,
    kept: Option<(KeptComponents, PulledFrom)>,
}

enum RemoteAddress {
    Oci(OciReference),
    Url(String),
}

/// The origin of a fetched component. It is stored beside the component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PulledFrom {
    /// As named in the manifest.
    pub from: String,
    /// The digest of the component.
    pub component: String,
    /// The digest of its image, if it came from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<CosignSignature>,
}

impl PulledFrom {
    /// For people.
    pub fn source_label(&self) -> String {
        match &self.image {
            Some(image) if !self.from.contains('@') => format!("{}@sha256:{image}", self.from),
            _ => self.from.clone(),
        }
    }
}

impl RemoteComponent {
    /// `None` if the module is local. `folder` holds the download until it is complete.
    pub fn of(module: &ModuleSpec, host: &HostSpec, folder: &Path) -> Option<Self> {
        let place = match (&module.oci, &module.url) {
            // It was checked together with the document.
            (Some(oci), _) => RemoteAddress::Oci(OciReference::parse(oci).ok()?),
            (None, Some(url)) => RemoteAddress::Url(url.clone()),
            (None, None) => return None,
        };
        let modules = &host.modules;
        let (credentials, signed_by) = (modules.credentials.clone(), modules.signed_by.clone());
        let network = DownloadNetwork::new(modules.reachable_addresses(), folder);
        Some(Self { place, credentials, signed_by, network, kept: None })
    }

    pub fn field(&self) -> &'static str {
        match self.place {
            RemoteAddress::Oci(_) => "spec.module.oci",
            RemoteAddress::Url(_) => "spec.module.url",
        }
    }

    pub fn name(&self) -> String {
        match &self.place {
            RemoteAddress::Oci(reference) => reference.to_string(),
            RemoteAddress::Url(url) => url.clone(),
        }
    }

    /// The folder for downloads.
    pub fn folder(&self) -> &Path {
        self.network.folder()
    }

    fn server(&self) -> &str {
        match &self.place {
            RemoteAddress::Oci(reference) => &reference.registry,
            // It was checked together with the document.
            RemoteAddress::Url(url) => url.split('/').nth(2).unwrap_or_default(),
        }
    }

    /// Keeps what was fetched for the same document before. If it no longer matches, it is fetched again.
    pub fn reuse_kept(&mut self, component: KeptComponents, pulled: &PulledFrom) {
        let name = self.name();
        // A name with the image's digest is that image, whatever its tag means now.
        let is_it = pulled.from == name || pulled.source_label() == name;
        if is_it && pulled.component == component.digest() && self.judge_signature(pulled).is_ok() {
            self.kept = Some((component, PulledFrom { from: name, ..pulled.clone() }));
        }
    }

    pub async fn fetch_component(mut self) -> Result<(Bytes, PulledFrom), FetchError> {
        if let Some((kept, pulled)) = self.kept.take() {
            match kept.read().await {
                Ok(bytes) => return Ok((bytes, pulled)),
                Err(error) => tracing::warn!("{}: {error}: it is fetched again", self.name()),
            }
        }
        let _turn = FetchTurn::await_turn(self.server(), self.name()).await;
        let fetching = async {
            match &self.place {
                RemoteAddress::Oci(reference) => self.pull_image(reference).await,
                RemoteAddress::Url(url) => self.download_file(url).await,
            }
        };
        let fetched = tokio::time::timeout(ALL, fetching).await;
        let fetched = fetched.unwrap_or(Err(FetchProblem::TooLate));
        let named = |problem| FetchError { name: self.name(), problem };
        let (arrived, pulled) = fetched.map_err(named)?;
        // It keeps its turn meanwhile, so at most as many downloads are on disk as turns exist.
        Ok((arrived.read().await.map_err(|error| named(error.into()))?, pulled))
    }

    async fn pull_image(
        &self,
        reference: &OciReference,
    ) -> Result<(DownloadedFile, PulledFrom), FetchProblem> {
        let OciReference { registry, repository, .. } = reference;
        let login = match &self.credentials {
            None => None,
            Some(credentials) => {
                let text = secrets::resolve_secret(credentials).await?;
                docker_config::registry_login(text.expose_secret(), registry, repository)?
            }
        };
        let mut registry = OciRegistry::new(reference, login, self.network.clone())?;
        let (image, component) = registry.fetch_component(COMPONENT_BYTES).await?;
        let signatures = match self.signed_by.is_empty() {
            true => Vec::new(),
            false => registry.fetch_signatures(&image).await?,
        };
        let digest = component.digest.clone();
        let pulled = PulledFrom { from: self.name(), component: digest, image: Some(image), signatures };
        self.judge_signature(&pulled)?;
        Ok((component, pulled))
    }

    async fn download_file(&self, url: &str) -> Result<(DownloadedFile, PulledFrom), FetchProblem> {
        let url: Url = url.parse().map_err(FetchProblem::NoAddress)?;
        let answer = self.network.client(&url)?.get(url).send().await.map_err(RequestError::from)?;
        if !answer.status().is_success() {
            return Err(FetchProblem::Refused(answer.status()));
        }
        let component = download::to_disk(answer, COMPONENT_BYTES, self.network.folder()).await?;
        let digest = component.digest.clone();
        let pulled = PulledFrom { from: self.name(), component: digest, image: None, signatures: Vec::new() };
        Ok((component, pulled))
    }

    fn judge_signature(&self, pulled: &PulledFrom) -> Result<(), SignatureError> {
        judge_signature(&self.signed_by, pulled)
    }
}

/// Whether a running component may continue under settings that require these signatures.
pub fn is_signed(module: &ModuleSpec, pulled: Option<&PulledFrom>, signed_by: &[String]) -> bool {
    let has_signature = || pulled.is_some_and(|pulled| judge_signature(signed_by, pulled).is_ok());
    signed_by.is_empty() || module.can_be_signed() && (module.oci.is_none() || has_signature())
}

/// Whether it is signed, if that is required.
fn judge_signature(signed_by: &[String], pulled: &PulledFrom) -> Result<(), SignatureError> {
    if signed_by.is_empty() {
        return Ok(());
    }
    let image = pulled.image.as_deref().unwrap_or_default();
    let mut refused = Err(SignatureError::Unsigned);
    for found in &pulled.signatures {
        match find_signer(signed_by, image, found) {
            Ok(_) => return Ok(()),
            Err(error) => refused = Err(error),
        }
    }
    refused
}

#[cfg(test)]
mod tests;
