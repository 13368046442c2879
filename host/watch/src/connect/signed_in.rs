//! A person at a command line: the credentials of their kubeconfig, for the API server and for the portal.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use kube::config::AuthInfo;
use kubewitness_core::files;
use tokio::time::timeout;

use crate::connect::login::LoginService;
use crate::connect::request::{ApiClient, error_chain};
use crate::connect::{ConnectError, ConnectOptions, LOGIN, client, load_kubeconfig, signing_in};

/// A person's connection to an API server. No request has been made yet.
pub struct SignedIn {
    pub(crate) client: kube::Client,
    login: Option<LoginService>,
    config: kube::Config,
    /// Without path and user: either may be a secret.
    pub server: String,
    /// The client certificate of the kubeconfig, in PEM.
    pub certificate: Option<Vec<u8>>,
}

/// A person waits for it.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A certificate has a few KiB, and a file may hold the chain.
const CERTIFICATE_BYTES: u64 = 256 * 1024;

impl SignedIn {
    pub async fn sign_in(options: &ConnectOptions) -> Result<Self, ConnectError> {
        let config = load_kubeconfig(options, LOGIN).await?.config;
        let server = origin_of(&config.cluster_url);
        let certificate = client_certificate(&config.auth_info);
        let (client, login) = signing_in(config.clone(), LOGIN, client::make_upgradable_client).await?;
        Ok(Self { client, login, config, server, certificate })
    }

    /// The certificate that the API server shows, in DER; `None` without TLS, and through a proxy.
    pub async fn server_certificate(&self) -> Result<Option<Vec<u8>>, ConnectError> {
        let shown = timeout(HANDSHAKE, client::shown_certificate(&self.config)).await;
        let why = match shown {
            Ok(Ok(shown)) => return Ok(shown),
            Ok(Err(error)) => error_chain(&*error),
            Err(_) => format!("no certificate within {} s", HANDSHAKE.as_secs()),
        };
        Err(ConnectError::Unreachable { server: self.server.clone(), why })
    }

    pub(crate) fn api_client(&self) -> ApiClient {
        ApiClient::new(self.client.clone())
    }

    /// The token of a request. `None` if the person signs in with a certificate or a password, which only the
    /// API server can verify.
    pub async fn request_token(&self) -> Result<Option<String>, ConnectError> {
        let Some(login) = &self.login else { return Ok(None) };
        let header = login
            .authorization_header()
            .await
            .map_err(|error| ConnectError::Client { server: self.server.clone(), why: error.to_string() })?;
        Ok(header.as_ref().and_then(bearer_token))
    }
}

/// An unusable certificate is reported when it is used.
fn client_certificate(by: &AuthInfo) -> Option<Vec<u8>> {
    match (&by.client_certificate_data, &by.client_certificate) {
        (Some(data), _) => STANDARD.decode(data.trim()).ok(),
        (None, Some(file)) => files::text(Path::new(file), CERTIFICATE_BYTES).ok().map(String::into_bytes),
        (None, None) => None,
    }
}

fn origin_of(url: &Uri) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme_str().unwrap_or("https"), url.host().unwrap_or_default())
}

fn bearer_token(header: &HeaderValue) -> Option<String> {
    header.to_str().ok()?.strip_prefix("Bearer ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_may_be_a_secret_in_an_address_is_not_told() {
        let of = |url: &str| super::origin_of(&url.parse().unwrap());
        assert_eq!(of("https://user:word@host:6443/_token/abc"), "https://host:6443");
        assert_eq!(of("https://[::1]/clusters/c"), "https://[::1]");
    }
}
