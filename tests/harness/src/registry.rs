//! An OCI registry for tests: what was put there can be pulled, by strangers or by whoever has a name and a password.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;
use tokio::net::TcpListener;

const TOKEN: &str = "a-token-of-the-registry";

/// Runs until it is dropped.
pub struct ImageRegistry {
    address: SocketAddr,
    shelves: Arc<RegistryShelves>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct RegistryShelves {
    /// Manifests by `REPOSITORY/manifests/NAME`, and blobs by `REPOSITORY/blobs/DIGEST`.
    things: Mutex<BTreeMap<String, Vec<u8>>>,
    /// In base64, as HTTP has it.
    login: Option<String>,
    asked: Mutex<Vec<String>>,
}

impl Drop for ImageRegistry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Hex digits of the SHA-256.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(digest(&SHA256, bytes))
}

impl ImageRegistry {
    /// `login`: `NAME:PASSWORD` in base64. Without one, strangers may pull.
    pub async fn start(login: Option<&str>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("binding a registry")?;
        let address = listener.local_addr()?;
        let shelves =
            Arc::new(RegistryShelves { login: login.map(str::to_owned), ..RegistryShelves::default() });
        let app = Router::new().route("/token", get(token)).fallback(thing).with_state(shelves.clone());
        #[allow(clippy::disallowed_methods)]
        let server = tokio::spawn(async move {
            // It ends with the test, which sees what a dead registry answers.
            axum::serve(listener, app).await.ok();
        });
        Ok(Self { address, shelves, server })
    }

    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// As `wkg oci push` does. Answers the digest of the image.
    pub fn push(&self, repository: &str, tag: &str, component: &[u8]) -> String {
        let config = self.blob(repository, br#"{"architecture":"wasm","os":"wasip2"}"#);
        let layer = json!({"mediaType": "application/wasm", "digest": self.blob(repository, component),
            "size": component.len()});
        let config =
            json!({"mediaType": "application/vnd.wasm.config.v0+json", "digest": config, "size": 37});
        self.manifest(
            repository,
            tag,
            &json!({"schemaVersion": 2, "config": config, "layers": [layer],
            "mediaType": "application/vnd.oci.image.manifest.v1+json"}),
        )
    }

    /// As `cosign sign --key` does.
    pub fn sign(&self, repository: &str, image: &str, key: &SigningKey) {
        let payload = json!({"critical": {"identity": {"docker-reference": repository},
            "image": {"docker-manifest-digest": format!("sha256:{image}")},
            "type": "cosign container image signature"}, "optional": null});
        let payload = payload.to_string();
        let layer = json!({"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            "digest": self.blob(repository, payload.as_bytes()), "size": payload.len(),
            "annotations": {"dev.cosignproject.cosign/signature": key.sign(payload.as_bytes())}});
        self.manifest(
            repository,
            &format!("sha256-{image}.sig"),
            &json!({"schemaVersion": 2, "layers": [layer]}),
        );
    }

    pub fn manifest(&self, repository: &str, tag: &str, manifest: &serde_json::Value) -> String {
        let bytes = manifest.to_string().into_bytes();
        let digest = sha256(&bytes);
        self.put(format!("{repository}/manifests/sha256:{digest}"), bytes.clone());
        self.put(format!("{repository}/manifests/{tag}"), bytes);
        digest
    }

    fn blob(&self, repository: &str, bytes: &[u8]) -> String {
        let digest = format!("sha256:{}", sha256(bytes));
        self.put(format!("{repository}/blobs/{digest}"), bytes.to_vec());
        digest
    }

    /// Puts something else where a thing lies, as a registry that lies would.
    pub fn put(&self, place: String, bytes: Vec<u8>) {
        self.shelves.things.lock().unwrap_or_else(PoisonError::into_inner).insert(place, bytes);
    }

    /// The paths that were asked for.
    pub fn asked(&self) -> Vec<String> {
        self.shelves.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn token(State(shelves): State<Arc<RegistryShelves>>, headers: HeaderMap, uri: Uri) -> Response {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let wanted = shelves.login.as_ref().map(|login| format!("Basic {login}"));
    let asked =
        Query::<BTreeMap<String, String>>::try_from_uri(&uri).map(|query| query.0).unwrap_or_default();
    let is_pull = asked.get("scope").is_some_and(|scope| scope.ends_with(":pull"));
    match shown == wanted.as_deref() && is_pull {
        true => axum::Json(json!({"token": TOKEN})).into_response(),
        false => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn thing(State(shelves): State<Arc<RegistryShelves>>, headers: HeaderMap, uri: Uri) -> Response {
    let path = uri.path().strip_prefix("/v2/").unwrap_or(uri.path()).to_owned();
    shelves.asked.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if shelves.login.is_some() && shown != Some(&format!("Bearer {TOKEN}")) {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"test, registry\"");
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response();
    }
    let things = shelves.things.lock().unwrap_or_else(PoisonError::into_inner);
    things
        .get(&path)
        .map_or_else(|| StatusCode::NOT_FOUND.into_response(), |bytes| bytes.clone().into_response())
}

/// A key as `cosign generate-key-pair` makes it.
pub struct SigningKey(EcdsaKeyPair);

impl SigningKey {
    pub fn make() -> Result<Self> {
        let random = SystemRandom::new();
        let told = |error| anyhow::anyhow!("making a signing key: {error}");
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .map_err(|e| told(e.to_string()))?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random);
        pair.map(Self).map_err(|error| told(error.to_string()))
    }

    /// As PEM.
    pub fn public(&self) -> String {
        let mut der = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap_or_default();
        der.extend_from_slice(self.0.public_key().as_ref());
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", base64(&der))
    }

    fn sign(&self, payload: &[u8]) -> String {
        // Only a machine without random numbers fails here; no test runs there.
        self.0.sign(&SystemRandom::new(), payload).map(|signed| base64(signed.as_ref())).unwrap_or_default()
    }
}

pub fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
