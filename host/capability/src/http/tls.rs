//! Makes the client of a destination, with the certificates that the controller trusts and presents. A client
//! is made once, and again after a file was rotated.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::config::{SecretRef, TlsSpec};
use reqwest::{Certificate, Client, Identity, redirect};
use ring::digest::{Context, SHA256};
use thiserror::Error;

use super::SpecFault;
use super::resolver::AddressGuard;
use crate::secrets::{self, ResolvedSecret};

const CONNECT: Duration = Duration::from_secs(5);

/// The client of one destination, with the files that it was made from.
pub struct DestinationClient {
    spec: TlsSpec,
    timeout: Duration,
    guard: AddressGuard,
    /// With the digest of the files.
    made: Mutex<(Vec<u8>, Client)>,
}

/// Why there is no client with some files.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("has no certificate as PEM")]
    NoAuthority,
    #[error("and `keyFrom` are no certificate and no private key as PEM")]
    NoIdentity,
    #[error("has no usable client: {0}")]
    Unusable(#[source] reqwest::Error),
}

/// The files as of now.
#[derive(Default)]
struct TlsFiles {
    ca: Option<ResolvedSecret>,
    certificate: Option<ResolvedSecret>,
    key: Option<ResolvedSecret>,
}

impl TlsFiles {
    async fn read(spec: &TlsSpec) -> Result<Self, SpecFault> {
        let file = async |field: &str, path: &Option<String>| match path {
            Some(path) => resolve_secret(field, &SecretRef::File(path.clone())).await.map(Some),
            None => Ok(None),
        };
        let key = match &spec.key_from {
            Some(reference) => Some(resolve_secret("tls.keyFrom", reference).await?),
            None => None,
        };
        let (ca, certificate) =
            (file("tls.ca", &spec.ca).await?, file("tls.certificate", &spec.certificate).await?);
        Ok(Self { ca, certificate, key })
    }

    fn files_digest(&self) -> Vec<u8> {
        let mut context = Context::new(&SHA256);
        for file in [&self.ca, &self.certificate, &self.key] {
            let text = file.as_ref().map_or("", |file| file.expose_secret());
            context.update(&(text.len() as u64).to_le_bytes());
            context.update(text.as_bytes());
        }
        context.finish().as_ref().to_vec()
    }

    /// Builds the client. Its error omits the client's own messages, because they may quote a file.
    fn build_client(&self, timeout: Duration, guard: &AddressGuard) -> Result<Client, ClientError> {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may have installed it first; either way it is installed now.
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let mut builder = Client::builder()
            .user_agent(concat!("kubewitness/", env!("CARGO_PKG_VERSION")))
            // A redirect could leak the secrets to another server, so the plugin gets the redirect itself as
            // its answer.
            .redirect(redirect::Policy::none())
            // A proxy would resolve the name itself.
            .no_proxy()
            .dns_resolver(Arc::new(guard.clone()))
            .referer(false)
            .timeout(timeout)
            .connect_timeout(CONNECT.min(timeout));
        if let Some(ca) = &self.ca {
            let certificates = Certificate::from_pem_bundle(ca.expose_secret().as_bytes()).ok();
            let certificates = certificates.filter(|certificates| !certificates.is_empty());
            let certificates = certificates.ok_or(ClientError::NoAuthority)?;
            builder = builder.tls_certs_merge(certificates);
        }
        if let (Some(certificate), Some(key)) = (&self.certificate, &self.key) {
            let pem = format!("{}\n{}\n", certificate.expose_secret(), key.expose_secret());
            builder =
                builder.identity(Identity::from_pem(pem.as_bytes()).map_err(|_| ClientError::NoIdentity)?);
        }
        builder.build().map_err(ClientError::Unusable)
    }

    /// The fault of the field that has no client.
    fn fault_of(&self, error: &ClientError) -> SpecFault {
        let field = match error {
            ClientError::NoAuthority => "tls.ca",
            ClientError::Unusable(_) if self.certificate.is_none() => "url",
            ClientError::NoIdentity | ClientError::Unusable(_) => "tls.certificate",
        };
        (field.to_owned(), error.to_string())
    }
}

/// A client that trusts the system's certificates, and presents none.
pub fn plain_client(timeout: Duration, guard: &AddressGuard) -> Result<Client, ClientError> {
    TlsFiles::default().build_client(timeout, guard)
}

async fn resolve_secret(field: &str, reference: &SecretRef) -> Result<ResolvedSecret, SpecFault> {
    secrets::resolve_secret(reference).await.map_err(|error| (field.to_owned(), error.to_string()))
}

impl DestinationClient {
    pub async fn open(
        spec: Option<&TlsSpec>,
        timeout: Duration,
        guard: AddressGuard,
    ) -> Result<Self, SpecFault> {
        let spec = spec.cloned().unwrap_or_default();
        let files = TlsFiles::read(&spec).await?;
        let client = files.build_client(timeout, &guard).map_err(|error| files.fault_of(&error))?;
        let made = Mutex::new((files.files_digest(), client));
        Ok(Self { spec, timeout, guard, made })
    }

    /// The client for the files as of now.
    pub async fn current_client(&self) -> Result<Client, SpecFault> {
        let files = TlsFiles::read(&self.spec).await?;
        let digest = files.files_digest();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.0 != digest {
            let client = files.build_client(self.timeout, &self.guard);
            *made = (digest, client.map_err(|error| files.fault_of(&error))?);
        }
        Ok(made.1.clone())
    }
}
