//! A bucket of S3-compatible storage: puts a file under a name, and reports whether it is stored as sent.
//! Nothing in the bucket is removed.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::ShipSpec;
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Client, Method, Response, StatusCode, Url};
use ring::digest::{Context, SHA256};

use super::ShipTrouble;
use super::aws_signature::{AccessKey, NO_BODY, SignedHeaders, encode_path, sign_headers};
use crate::http;
use crate::http::resolver::AddressGuard;
use crate::secrets::{self, ResolvedSecret, SecretError};

/// How long a request may take, in addition to the time for its bytes.
const PATIENCE: Duration = Duration::from_secs(60);
/// In bytes per second. A slower connection could not keep up with a ledger.
const SLOWEST: u64 = 128 << 10;
/// A storage explains a refusal in some hundred bytes.
const ANSWER: usize = 16 * 1024;
/// SHA-256 of the stored object, in base64.
const CHECKSUM: &str = "x-amz-checksum-sha256";

const CONDITION: &str = "if-none-match";

/// The digests and the size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileContent {
    pub bytes: u64,
    pub sha256: [u8; 32],
}

/// The state of a name in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFile {
    Nothing,
    Same,
    Other,
    /// Fewer bytes than the file has.
    Shorter(u64),
}

/// Whether a put may replace an existing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// It may not.
    New,
    /// It may.
    Any,
}

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The name is in use, by this file or by another.
    Done,
    /// Nothing was stored: this storage has no conditional writes.
    KnowsNoCondition,
}

/// The body of a request.
enum RequestPayload {
    Nothing,
    /// An answer with this many bytes.
    Answer(u64),
    File(File, FileContent),
}

pub struct ShipBucket {
    spec: ShipSpec,
    address: Url,
    client: Client,
    clock: Arc<dyn Clock>,
}

impl ShipBucket {
    pub fn open(ledger: &str, spec: &ShipSpec, clock: Arc<dyn Clock>) -> Result<Self, ShipTrouble> {
        let address =
            spec.bucket_address().ok_or_else(|| ShipTrouble::Settings("`endpoint` is no address".into()))?;
        let client = http::plain_client(PATIENCE, &AddressGuard::new(ledger, spec.reachable_addresses()))
            .map_err(|error| ShipTrouble::Settings(error.into()))?;
        Ok(Self { spec: spec.clone(), address, client, clock })
    }

    /// Compares by the digest that the storage returns. If it returns none, the bytes are read back.
    pub async fn look_up_file(&self, name: &str, content: &FileContent) -> Result<StoredFile, ShipTrouble> {
        let asked = SignedHeaders::from([("x-amz-checksum-mode", "ENABLED".to_owned())]);
        let head = self.send_request(Method::HEAD, name, asked, RequestPayload::Nothing).await?;
        if head.status() == StatusCode::NOT_FOUND {
            return Ok(StoredFile::Nothing);
        }
        let head = check_accepted("asking for", name, head).await?;
        let is_same = |is_same: bool| if is_same { StoredFile::Same } else { StoredFile::Other };
        let length = head.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        match length {
            Some(shorter) if shorter < content.bytes => return Ok(StoredFile::Shorter(shorter)),
            Some(length) if length == content.bytes => {}
            _ => return Ok(StoredFile::Other),
        }
        match sha256_header(head.headers()) {
            Some(stored) => Ok(is_same(stored == content.sha256)),
            None => Ok(is_same(self.read_back(name, content.bytes).await? == Some(content.sha256))),
        }
    }

    /// The digest of the stored bytes, as the storage returns them. `None` if there are more than `bytes`.
    pub async fn read_back(&self, name: &str, bytes: u64) -> Result<Option<[u8; 32]>, ShipTrouble> {
        let answer =
            self.send_request(Method::GET, name, SignedHeaders::new(), RequestPayload::Answer(bytes)).await?;
        let mut answer = check_accepted("reading", name, answer).await?;
        let (mut context, mut left) = (Context::new(&SHA256), bytes);
        while let Some(chunk) = answer.chunk().await.map_err(|error| ShipTrouble::server_away(&error))? {
            let Some(rest) = left.checked_sub(chunk.len() as u64) else { return Ok(None) };
            left = rest;
            context.update(&chunk);
        }
        Ok(context.finish().as_ref().try_into().ok())
    }

    /// Streams the file. The storage refuses it if the received bytes don't match the digest. A new file
    /// replaces nothing: if somebody wrote the name since it was looked up, that object stays, and the next
    /// lookup finds it.
    pub async fn put_file(
        &self,
        name: &str,
        file: File,
        content: &FileContent,
        put: PutMode,
    ) -> Result<PutOutcome, ShipTrouble> {
        let mut headers = SignedHeaders::from([(CHECKSUM, STANDARD.encode(content.sha256))]);
        if put == PutMode::New {
            headers.insert(CONDITION, "*".to_owned());
        }
        let sent =
            self.send_request(Method::PUT, name, headers, RequestPayload::File(file, *content)).await?;
        match sent.status() {
            StatusCode::PRECONDITION_FAILED if put == PutMode::New => Ok(PutOutcome::Done),
            StatusCode::NOT_IMPLEMENTED if put == PutMode::New => Ok(PutOutcome::KnowsNoCondition),
            _ => check_accepted("storing", name, sent).await.map(|_| PutOutcome::Done),
        }
    }

    async fn send_request(
        &self,
        method: Method,
        name: &str,
        mut headers: SignedHeaders,
        load: RequestPayload,
    ) -> Result<Response, ShipTrouble> {
        let url = self.address_of(name);
        let (bytes, sha256) = match &load {
            RequestPayload::Nothing => (0, NO_BODY.to_owned()),
            RequestPayload::Answer(bytes) => (*bytes, NO_BODY.to_owned()),
            RequestPayload::File(_, content) => (content.bytes, hex::encode(content.sha256)),
        };
        let key = AccessKey {
            name: secret_or_fault(
                "accessKeyFrom",
                secrets::resolve_secret(&self.spec.access_key_from).await,
            )?,
            secret: secret_or_fault(
                "secretKeyFrom",
                secrets::resolve_secret(&self.spec.secret_key_from).await,
            )?,
        };
        sign_headers(
            method.as_str(),
            &url,
            &mut headers,
            &sha256,
            &key,
            &self.spec.region,
            self.clock.now_ms(),
        );
        let mut all_headers = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::try_from(value).map_err(|_| {
                ShipTrouble::Settings("the access key can't be sent: it is no plain text".into())
            })?;
            all_headers.insert(HeaderName::from_static(name), value);
        }
        let limit = PATIENCE + Duration::from_secs(bytes / SLOWEST);
        let mut request = self.client.request(method, url).timeout(limit);
        if let RequestPayload::File(file, _) = load {
            all_headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
            request = request.body(Body::from(tokio::fs::File::from_std(file)));
        }
        request.headers(all_headers).send().await.map_err(|error| ShipTrouble::server_away(&error))
    }

    fn address_of(&self, name: &str) -> Url {
        let mut url = self.address.clone();
        let folder = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{folder}/{}", encode_path(&self.key(name))));
        url
    }

    /// The name of the file in the bucket.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.spec.prefix)
    }
}

fn secret_or_fault(
    field: &str,
    read: Result<ResolvedSecret, SecretError>,
) -> Result<ResolvedSecret, ShipTrouble> {
    read.map_err(|error| ShipTrouble::Settings(format!("`{field}`: {error}").into()))
}

/// For a multipart upload the checksum is a digest of digests, which proves nothing here.
fn sha256_header(headers: &HeaderMap) -> Option<[u8; 32]> {
    STANDARD.decode(headers.get(CHECKSUM)?).ok()?.try_into().ok()
}

async fn check_accepted(
    doing: &'static str,
    name: &str,
    mut answer: Response,
) -> Result<Response, ShipTrouble> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let mut body = Vec::new();
    while let (true, Ok(Some(chunk))) = (body.len() < ANSWER, answer.chunk().await) {
        body.extend_from_slice(&chunk);
    }
    body.truncate(ANSWER);
    let body = String::from_utf8_lossy(&body);
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let word = |code: &str| code.chars().filter(char::is_ascii_alphanumeric).take(64).collect::<String>();
    let code = code.map(|(code, _)| format!(" {}", word(code))).unwrap_or_default();
    Err(ShipTrouble::Refused { doing, name: name.to_owned(), status: status.as_u16(), code })
}
