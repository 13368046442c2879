//! Fetches a component from an OCI registry, in the form of `wkg oci push`: a manifest with one layer, the
//! component. Digests are verified, so it does not matter who answers.
//!
//! A registry client crate was rejected: every connection has to go through `DownloadNetwork`, which checks
//! the address and limits time and size. Of the protocol, only a manifest, a layer and a token are needed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use kubewitness_core::config::{OciReference, is_local};
use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use thiserror::Error;

use super::component_digest;
use super::cosign::{self, CosignSignature};
use super::docker_config::RegistryLogin;
use super::download::{self, DownloadError, DownloadNetwork, DownloadedFile, RequestError};

/// A manifest lists a few layers.
const MANIFEST_BYTES: u64 = 1 << 20;
const TOKEN_BYTES: u64 = 64 << 10;
/// A signed text of cosign has some hundred bytes.
const PAYLOAD_BYTES: u64 = 64 << 10;
/// The most signatures of one image. Each is fetched and verified.
const SIGNATURES: usize = 16;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const WASM: &str = "application/wasm";

/// Why a registry gave no component. Each text goes on after the name of the image.
#[derive(Debug, Error)]
pub enum RegistryError {
    #[error("makes no address: {0}")]
    NoAddress(#[source] <Url as FromStr>::Err),
    #[error(transparent)]
    Network(#[from] DownloadError),
    #[error("{server} can't be asked: {source}")]
    NoAnswer { server: AskedServer, source: RequestError },
    #[error("{server} answers {status}{hint}")]
    Refused { server: AskedServer, status: StatusCode, hint: &'static str },
    #[error("the {part} {source}")]
    Broken { part: &'static str, source: DownloadError },
    #[error("the registry has no {0} of it")]
    Missing(String),
    #[error("the registry answered with another image, sha256:{0}")]
    OtherImage(String),
    #[error("the registry answered with other bytes than the image names")]
    OtherBytes,
    #[error("the image has {0} layers, and a component is one")]
    Layers(usize),
    #[error("its layer is {}, and a component is {WASM}", shortened(.0))]
    OtherLayer(String),
    #[error("has {length} bytes, and {most} are allowed")]
    TooLong { length: u64, most: u64 },
    #[error("the digest {} is no SHA-256", shortened(.0))]
    OtherDigest(String),
    #[error("a signed text is no UTF-8")]
    NoText,
    #[error("the image's manifest can't be read: {}", shortened(&.0.to_string()))]
    NoManifest(#[source] serde_json::Error),
    #[error("it is an index of several images: name the one of the component by its digest")]
    ImageIndex,
    #[error("its manifest is {}, and {MANIFEST} is read", shortened(.0))]
    OtherManifest(String),
    #[error("the registry names no place that gives a token")]
    NoTokenServer,
    #[error("the registry wants a token from an address without https")]
    PlainTokenServer,
    #[error("the registry's token can't be read")]
    NoToken,
}

#[derive(Clone, Copy, Debug)]
pub enum AskedServer {
    Registry,
    TokenServer,
}

impl fmt::Display for AskedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registry => "the registry",
            Self::TokenServer => "the place that gives the registry's tokens",
        })
    }
}

#[derive(Deserialize)]
struct ImageManifest {
    #[serde(rename = "mediaType")]
    media_type: Option<String>,
    #[serde(default)]
    layers: Vec<ImageLayer>,
}

#[derive(Deserialize)]
struct ImageLayer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl ImageLayer {
    fn sha256(&self) -> Result<&str, RegistryError> {
        let hex = self.digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64);
        hex.ok_or_else(|| RegistryError::OtherDigest(self.digest.clone()))
    }
}

fn check_digest(found: &str, layer: &ImageLayer) -> Result<(), RegistryError> {
    match layer.sha256()? == found {
        true => Ok(()),
        false => Err(RegistryError::OtherBytes),
    }
}

pub struct OciRegistry<'a> {
    reference: &'a OciReference,
    network: DownloadNetwork,
    base: Url,
    login: Option<RegistryLogin>,
    /// The most signatures of one image. Each is fetched and verified.
    shown: Option<ShownCredentials>,
}

#[derive(Clone)]
enum ShownCredentials {
    Token(String),
    Login(RegistryLogin),
}

impl<'a> OciRegistry<'a> {
    pub fn new(
        reference: &'a OciReference,
        login: Option<RegistryLogin>,
        network: DownloadNetwork,
    ) -> Result<Self, RegistryError> {
        let scheme = if is_local(&reference.registry) { "http" } else { "https" };
        let base = format!("{scheme}://{}/v2/{}/", reference.registry, reference.repository);
        let base = base.parse().map_err(RegistryError::NoAddress)?;
        Ok(Self { reference, network, base, login, shown: None })
    }

    /// The digest of the manifest, and the component.
    pub async fn fetch_component(&mut self, most: u64) -> Result<(String, DownloadedFile), RegistryError> {
        let name = match (&self.reference.digest, &self.reference.tag) {
            (Some(digest), _) => format!("sha256:{digest}"),
            (None, tag) => tag.clone().unwrap_or_default(),
        };
        let bytes = self.fetch_manifest(&name).await?.ok_or(RegistryError::Missing(name))?;
        let found = component_digest(&bytes);
        if self.reference.digest.as_ref().is_some_and(|wanted| *wanted != found) {
            return Err(RegistryError::OtherImage(found));
        }
        let manifest = parse(&bytes)?;
        let [layer] = &manifest.layers[..] else {
            return Err(RegistryError::Layers(manifest.layers.len()));
        };
        if layer.media_type != WASM {
            return Err(RegistryError::OtherLayer(layer.media_type.clone()));
        }
        let folder = self.network.folder().to_owned();
        let arrived =
            self.fetch_blob(layer, most, async |answer| download::to_disk(answer, layer.size, &folder).await);
        let arrived = arrived.await?;
        check_digest(&arrived.digest, layer)?;
        Ok((found, arrived))
    }

    /// The signatures of the image with this digest.
    pub async fn fetch_signatures(&mut self, image: &str) -> Result<Vec<CosignSignature>, RegistryError> {
        let Some(bytes) = self.fetch_manifest(&cosign::signature_tag(image)).await? else {
            return Ok(Vec::new());
        };
        let manifest = parse(&bytes)?;
        let mut found = Vec::new();
        for layer in manifest.layers.iter().filter(|layer| layer.media_type == cosign::LAYER).take(SIGNATURES)
        {
            let Some(text) = layer.annotations.get(cosign::ANNOTATION) else { continue };
            let payload = self
                .fetch_blob(layer, PAYLOAD_BYTES, async |answer| download::body(answer, layer.size).await);
            let payload = payload.await?;
            check_digest(&component_digest(&payload), layer)?;
            let payload = String::from_utf8(payload).map_err(|_| RegistryError::NoText)?;
            found.push(CosignSignature { payload, signature: text.clone() });
        }
        Ok(found)
    }

    async fn fetch_manifest(&mut self, name: &str) -> Result<Option<Vec<u8>>, RegistryError> {
        let answer = self.get(&format!("manifests/{name}"), &format!("{MANIFEST}, {INDEX}")).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => {
                let body = download::body(answer, MANIFEST_BYTES).await;
                body.map(Some).map_err(|source| RegistryError::Broken { part: "manifest", source })
            }
            status => Err(self.refusal_of(AskedServer::Registry, status)),
        }
    }

    async fn fetch_blob<T>(
        &mut self,
        layer: &ImageLayer,
        most: u64,
        take: impl AsyncFnOnce(Response) -> Result<T, DownloadError>,
    ) -> Result<T, RegistryError> {
        if layer.size > most {
            return Err(RegistryError::TooLong { length: layer.size, most });
        }
        layer.sha256()?;
        let answer = self.get(&format!("blobs/{}", layer.digest), "*/*").await?;
        let status = answer.status();
        if !status.is_success() {
            return Err(self.refusal_of(AskedServer::Registry, status));
        }
        take(answer).await.map_err(|source| RegistryError::Broken { part: "layer", source })
    }

    fn refusal_of(&self, server: AskedServer, status: StatusCode) -> RegistryError {
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.login.is_none() => {
                ": give a name and a password with `spec.modules.credentials` of the host's settings"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ": the name and the password in `spec.modules.credentials` may not pull it"
            }
            _ => "",
        };
        RegistryError::Refused { server, status, hint }
    }

    /// Requests anonymously first, then with the credentials that the registry demands.
    async fn get(&mut self, path: &str, accept: &str) -> Result<Response, RegistryError> {
        let url = self.base.join(path).map_err(RegistryError::NoAddress)?;
        let client = self.network.client(&url)?;
        let ask = async |shown: &Option<ShownCredentials>| {
            let request = client.get(url.clone()).header(ACCEPT, accept);
            let request = match shown {
                None => request,
                Some(ShownCredentials::Token(token)) => request.bearer_auth(token),
                Some(ShownCredentials::Login(login)) => {
                    request.basic_auth(&login.user, Some(&login.password))
                }
            };
            send(request, AskedServer::Registry).await
        };
        let answer = ask(&self.shown).await?;
        // A redirect may lead anywhere. Only the registry itself may ask for the login, or name the server of
        // tokens.
        let is_registry = answer.url().origin() == url.origin();
        if answer.status() != StatusCode::UNAUTHORIZED || self.shown.is_some() || !is_registry {
            return Ok(answer);
        }
        let challenge = answer.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let Some(shown) = self.to_show(challenge.unwrap_or_default()).await? else { return Ok(answer) };
        self.shown = Some(shown);
        ask(&self.shown).await
    }

    async fn to_show(&self, challenge: &str) -> Result<Option<ShownCredentials>, RegistryError> {
        let (scheme, rest) = challenge.split_once(' ').unwrap_or((challenge, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Ok(self.login.clone().map(ShownCredentials::Login));
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Ok(None);
        }
        let fields = challenge_fields(rest);
        let realm: Url = match fields.get("realm").and_then(|realm| realm.parse().ok()) {
            Some(realm) => realm,
            None => return Err(RegistryError::NoTokenServer),
        };
        if realm.scheme() != "https" && !(is_local(realm.authority()) && is_local(&self.reference.registry)) {
            return Err(RegistryError::PlainTokenServer);
        }
        let scope = format!("repository:{}:pull", self.reference.repository);
        let mut request = self.network.client(&realm)?.get(realm).query(&[("scope", &scope)]);
        if let Some(service) = fields.get("service") {
            request = request.query(&[("service", service)]);
        }
        if let Some(login) = &self.login {
            request = request.basic_auth(&login.user, Some(&login.password));
        }
        let answer = send(request, AskedServer::TokenServer).await?;
        let status = answer.status();
        if !status.is_success() {
            return Err(self.refusal_of(AskedServer::TokenServer, status));
        }
        let body = download::body(answer, TOKEN_BYTES).await;
        let body = body.map_err(|source| RegistryError::Broken { part: "token", source })?;
        #[derive(Deserialize)]
        struct RegistryToken {
            token: Option<String>,
            access_token: Option<String>,
        }
        let token: Option<RegistryToken> = serde_json::from_slice(&body).ok();
        let token = token.and_then(|token| token.token.or(token.access_token));
        token.map(ShownCredentials::Token).map(Some).ok_or(RegistryError::NoToken)
    }
}

async fn send(request: RequestBuilder, server: AskedServer) -> Result<Response, RegistryError> {
    let answer = request.send().await;
    answer.map_err(|error| RegistryError::NoAnswer { server, source: error.into() })
}

fn parse(bytes: &[u8]) -> Result<ImageManifest, RegistryError> {
    let manifest: ImageManifest = serde_json::from_slice(bytes).map_err(RegistryError::NoManifest)?;
    match manifest.media_type.as_deref() {
        None | Some(MANIFEST) => Ok(manifest),
        Some(INDEX) => Err(RegistryError::ImageIndex),
        Some(other) => Err(RegistryError::OtherManifest(other.to_owned())),
    }
}

/// The `name="value"` pairs of a challenge. A comma within quotes belongs to the value.
fn challenge_fields(text: &str) -> BTreeMap<String, String> {
    let (mut found, mut rest) = (BTreeMap::new(), text);
    while let Some((name, after)) = rest.split_once('=') {
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        found.insert(name, value.to_owned());
        rest = next;
    }
    found
}

/// A registry's text, shortened for people.
fn shortened(text: &str) -> String {
    text.chars().take(100).map(|c| if c.is_control() { '·' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_with_commas_in_its_values() {
        let found =
            challenge_fields(r#"realm="https://a.example/token",service="a,b",scope="repository:a:pull""#);
        assert_eq!(found["realm"], "https://a.example/token");
        assert_eq!((found["service"].as_str(), found["scope"].as_str()), ("a,b", "repository:a:pull"));
        assert_eq!(challenge_fields("error=invalid, realm=x")["realm"], "x");
        assert!(challenge_fields("").is_empty() && challenge_fields("realm").is_empty());
    }

    #[test]
    fn a_manifest_of_another_kind_says_what_is_read() {
        assert!(parse(br#"{"layers":[]}"#).is_ok());
        let error_of = |text: &str| parse(text.as_bytes()).err().unwrap().to_string();
        assert!(
            error_of(r#"{"mediaType":"application/vnd.oci.image.index.v1+json"}"#).contains("by its digest")
        );
        assert!(error_of(r#"{"mediaType":"x"}"#).contains("is x"));
        assert!(error_of("[").contains("can't be read"));
        let long = format!(r#"{{"layers":"{}"}}"#, "a".repeat(4096));
        assert!(error_of(&long).len() < 200, "{}", error_of(&long));
    }
}
