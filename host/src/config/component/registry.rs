//! Fetches a component from an OCI registry, in the form of `wkg oci push`: a manifest with one layer, the
//! component. Digests are verified, so it does not matter who answers.
//!
//! A registry client crate was rejected: every connection has to go through `DownloadNetwork`, which checks
//! the address and limits time and size. Of the protocol, only a manifest, a layer and a token are needed.

use std::collections::BTreeMap;

use kubewitness_core::config::{OciReference, is_local};
use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;

use super::cosign::{self, CosignSignature};
use super::digest;
use super::docker_config::RegistryLogin;
use super::download::{self, DownloadNetwork, DownloadedFile};

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
    fn sha256(&self) -> Result<&str, String> {
        let hex = self.digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64);
        hex.ok_or_else(|| format!("the digest {} is no SHA-256", shortened(&self.digest)))
    }
}

fn is_what_it_says(found: &str, layer: &ImageLayer) -> Result<(), String> {
    match layer.sha256()? == found {
        true => Ok(()),
        false => Err("the registry answered with other bytes than the image names".into()),
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
    ) -> Result<Self, String> {
        let scheme = if is_local(&reference.registry) { "http" } else { "https" };
        let base = format!("{scheme}://{}/v2/{}/", reference.registry, reference.repository);
        let base = base.parse().map_err(|error| format!("makes no address: {error}"))?;
        Ok(Self { reference, network, base, login, shown: None })
    }

    /// The digest of the manifest, and the component.
    pub async fn component(&mut self, most: u64) -> Result<(String, DownloadedFile), String> {
        let name = match (&self.reference.digest, &self.reference.tag) {
            (Some(digest), _) => format!("sha256:{digest}"),
            (None, tag) => tag.clone().unwrap_or_default(),
        };
        let bytes = self.manifest(&name).await?.ok_or_else(|| format!("the registry has no {name} of it"))?;
        let found = digest(&bytes);
        if self.reference.digest.as_ref().is_some_and(|wanted| *wanted != found) {
            return Err(format!("the registry answered with another image, sha256:{found}"));
        }
        let manifest = parse(&bytes)?;
        let [layer] = &manifest.layers[..] else {
            return Err(format!("the image has {} layers, and a component is one", manifest.layers.len()));
        };
        if layer.media_type != WASM {
            return Err(format!("its layer is {}, and a component is {WASM}", shortened(&layer.media_type)));
        }
        let folder = self.network.folder().to_owned();
        let arrived =
            self.blob(layer, most, async |answer| download::to_disk(answer, layer.size, &folder).await);
        let arrived = arrived.await?;
        is_what_it_says(&arrived.digest, layer)?;
        Ok((found, arrived))
    }

    /// The signatures of the image with this digest.
    pub async fn signatures(&mut self, image: &str) -> Result<Vec<CosignSignature>, String> {
        let Some(bytes) = self.manifest(&cosign::tag(image)).await? else { return Ok(Vec::new()) };
        let manifest = parse(&bytes)?;
        let mut found = Vec::new();
        for layer in manifest.layers.iter().filter(|layer| layer.media_type == cosign::LAYER).take(SIGNATURES)
        {
            let Some(text) = layer.annotations.get(cosign::ANNOTATION) else { continue };
            let payload =
                self.blob(layer, PAYLOAD_BYTES, async |answer| download::body(answer, layer.size).await);
            let payload = payload.await?;
            is_what_it_says(&digest(&payload), layer)?;
            let payload = String::from_utf8(payload).map_err(|_| "a signed text is no UTF-8")?;
            found.push(CosignSignature { payload, signature: text.clone() });
        }
        Ok(found)
    }

    async fn manifest(&mut self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let answer = self.get(&format!("manifests/{name}"), &format!("{MANIFEST}, {INDEX}")).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => {
                let body = download::body(answer, MANIFEST_BYTES).await;
                body.map(Some).map_err(|error| format!("the manifest {error}"))
            }
            status => Err(format!("the registry answers {status}{}", self.hint(status))),
        }
    }

    async fn blob<T>(
        &mut self,
        layer: &ImageLayer,
        most: u64,
        take: impl AsyncFnOnce(Response) -> Result<T, String>,
    ) -> Result<T, String> {
        if layer.size > most {
            return Err(format!("has {} bytes, and {most} are allowed", layer.size));
        }
        layer.sha256()?;
        let answer = self.get(&format!("blobs/{}", layer.digest), "*/*").await?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("the registry answers {status}{}", self.hint(status)));
        }
        take(answer).await.map_err(|error| format!("the layer {error}"))
    }

    fn hint(&self, status: StatusCode) -> &'static str {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.login.is_none() => {
                ": give a name and a password with `spec.modules.credentials` of the host's settings"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ": the name and the password in `spec.modules.credentials` may not pull it"
            }
            _ => "",
        }
    }

    /// Requests anonymously first, then with the credentials that the registry demands.
    async fn get(&mut self, path: &str, accept: &str) -> Result<Response, String> {
        let url = self.base.join(path).map_err(|error| format!("makes no address: {error}"))?;
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
            send(request, "the registry").await
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

    async fn to_show(&self, challenge: &str) -> Result<Option<ShownCredentials>, String> {
        let (scheme, rest) = challenge.split_once(' ').unwrap_or((challenge, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Ok(self.login.clone().map(ShownCredentials::Login));
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Ok(None);
        }
        let fields = fields(rest);
        let realm: Url = match fields.get("realm").and_then(|realm| realm.parse().ok()) {
            Some(realm) => realm,
            None => return Err("the registry names no place that gives a token".into()),
        };
        if realm.scheme() != "https" && !(is_local(realm.authority()) && is_local(&self.reference.registry)) {
            return Err("the registry wants a token from an address without https".into());
        }
        let scope = format!("repository:{}:pull", self.reference.repository);
        let mut request = self.network.client(&realm)?.get(realm).query(&[("scope", &scope)]);
        if let Some(service) = fields.get("service") {
            request = request.query(&[("service", service)]);
        }
        if let Some(login) = &self.login {
            request = request.basic_auth(&login.user, Some(&login.password));
        }
        let answer = send(request, "the place that gives the registry's tokens").await?;
        let status = answer.status();
        if !status.is_success() {
            let hint = self.hint(status);
            return Err(format!("the place that gives the registry's tokens answers {status}{hint}"));
        }
        let body = download::body(answer, TOKEN_BYTES).await;
        let body = body.map_err(|error| format!("the token {error}"))?;
        #[derive(Deserialize)]
        struct RegistryToken {
            token: Option<String>,
            access_token: Option<String>,
        }
        let token: Option<RegistryToken> = serde_json::from_slice(&body).ok();
        let token = token.and_then(|token| token.token.or(token.access_token));
        token
            .map(ShownCredentials::Token)
            .map(Some)
            .ok_or_else(|| "the registry's token can't be read".into())
    }
}

async fn send(request: RequestBuilder, who: &str) -> Result<Response, String> {
    request.send().await.map_err(|error| format!("{who} can't be asked: {}", download::cause(error)))
}

fn parse(bytes: &[u8]) -> Result<ImageManifest, String> {
    let manifest: ImageManifest = serde_json::from_slice(bytes)
        .map_err(|error| format!("the image's manifest can't be read: {}", shortened(&error.to_string())))?;
    match manifest.media_type.as_deref() {
        None | Some(MANIFEST) => Ok(manifest),
        Some(INDEX) => {
            Err("it is an index of several images: name the one of the component by its digest".into())
        }
        Some(other) => Err(format!("its manifest is {}, and {MANIFEST} is read", shortened(other))),
    }
}

/// The `name="value"` pairs of a challenge. A comma within quotes belongs to the value.
fn fields(text: &str) -> BTreeMap<String, String> {
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
        let found = fields(r#"realm="https://a.example/token",service="a,b",scope="repository:a:pull""#);
        assert_eq!(found["realm"], "https://a.example/token");
        assert_eq!((found["service"].as_str(), found["scope"].as_str()), ("a,b", "repository:a:pull"));
        assert_eq!(fields("error=invalid, realm=x")["realm"], "x");
        assert!(fields("").is_empty() && fields("realm").is_empty());
    }

    #[test]
    fn a_manifest_of_another_kind_says_what_is_read() {
        assert!(parse(br#"{"layers":[]}"#).is_ok());
        let told = |text: &str| parse(text.as_bytes()).err().unwrap();
        assert!(told(r#"{"mediaType":"application/vnd.oci.image.index.v1+json"}"#).contains("by its digest"));
        assert!(told(r#"{"mediaType":"x"}"#).contains("is x"));
        assert!(told("[").contains("can't be read"));
        let long = format!(r#"{{"layers":"{}"}}"#, "a".repeat(4096));
        assert!(told(&long).len() < 200, "{}", told(&long));
    }
}
