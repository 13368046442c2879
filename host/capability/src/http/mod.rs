//! `http`: sends requests to destinations that an operator configured.
//!
//! A plugin that could choose a host could send data anywhere. So the address, its secrets and its rate stay
//! here: a plugin names only a path below the address, and no answer contains the address or a secret.
//!
//! The client is reqwest, beside kube's hyper. Using hyper directly was rejected: it would save 2 of 400
//! crates (`cargo tree`), but pools, timeouts and their errors would have to be written here.

pub mod resolver;
mod schemes;
mod target;
mod tls;

use std::error::Error;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use kubewitness_core::StateId;
use kubewitness_core::bucket::TokenBucket;
use kubewitness_core::config::{
    DestinationSpec, HttpMethod, REQUEST_MOST, RateSpec, SecretRef, SigningScheme, UnnamedAddress,
    is_plugin_header,
};
use kubewitness_core::ports::{GrantError, HttpRequest, HttpResponse};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Url};
use thiserror::Error;
use tokio::time::Instant;

use crate::secrets::{self, ResolvedSecret};
use resolver::{AddressGuard, ForbiddenName, ResolveFailure};
use schemes::OutgoingRequest;
use target::join_path;
use tls::DestinationClient;
pub(crate) use tls::plain_client;

const HEADERS: usize = 64;
const HEADER_BYTES: usize = 8 * 1024;
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The response headers that a plugin may see.
const SEEN: [&str; 6] = ["content-type", "retry-after", "etag", "last-modified", "date", "x-request-id"];
const SEEN_PREFIX: &str = "x-ratelimit-";
/// The most bytes of response headers. They are kept with the notes of requests, and the server chooses names
/// and values.
const SEEN_BYTES: usize = 8 * 1024;

/// A request that the destination accepts.
pub struct PreparedRequest {
    client: Client,
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// A request that got no answer.
pub struct UnansweredRequest {
    pub error: GrantError,
    /// No byte of it was sent.
    pub is_unsent: bool,
}

pub struct HttpDestination {
    pub spec: DestinationSpec,
    /// The address as of opening. A secret address is read again for each request.
    base: Url,
    /// The names of the headers that the controller sets: those with secrets, whose values are read for each
    /// request, and the scheme's.
    own_headers: Vec<HeaderName>,
    clients: DestinationClient,
    rates: Mutex<Vec<TokenBucket>>,
    opened: Instant,
}

/// A field of the specification, relative to the destination, and its fault.
pub type SpecFault = (String, String);

impl HttpDestination {
    pub async fn open(spec: &DestinationSpec) -> Result<Self, SpecFault> {
        let (field, text) = match &spec.url_from {
            None => ("url", spec.url.clone()),
            Some(reference) => {
                let secret = secrets::resolve_secret(reference).await;
                let secret = secret.map_err(|error| ("urlFrom".to_owned(), error.to_string()))?;
                ("urlFrom", secret.expose_secret().to_owned())
            }
        };
        let base = parse_address(spec, &text).map_err(|error| (field.to_owned(), error.to_string()))?;
        let guard = AddressGuard::new(&spec.name, spec.reachable_addresses(base.as_str()));
        Self::with_guard(spec, base, guard).await
    }

    async fn with_guard(spec: &DestinationSpec, base: Url, guard: AddressGuard) -> Result<Self, SpecFault> {
        let wrong = |field: &str, message: String| (field.to_owned(), message);
        let mut own_headers = Vec::new();
        for (index, header) in spec.headers.iter().enumerate() {
            let name = HeaderName::try_from(&header.name);
            let name =
                name.map_err(|_| wrong(&format!("headers[{index}].name"), "is not a header's name".into()))?;
            let field = format!("headers[{index}].valueFrom");
            let secret = secrets::resolve_secret(&header.value_from)
                .await
                .map_err(|error| wrong(&field, error.to_string()))?;
            let value = HeaderValue::try_from(secret.expose_secret());
            value.map_err(|_| wrong(&field, "the secret can't be sent as a header's value".into()))?;
            own_headers.push(name);
        }
        if let Some(SigningScheme::Hmac(signature)) = spec.signing_scheme() {
            let name = HeaderName::try_from(&signature.header);
            own_headers.push(name.map_err(|_| wrong("scheme.hmac.header", "is not a header's name".into()))?);
        }
        if let Some(secret) = spec.signing_scheme().and_then(SigningScheme::secret_ref) {
            let resolved = secrets::resolve_secret(secret).await;
            resolved.map_err(|error| wrong("scheme", error.to_string()))?;
        }
        let clients = DestinationClient::open(spec.tls.as_ref(), spec.timeout.0, guard).await?;
        let rates = Mutex::new(rate_buckets(spec));
        Ok(Self { spec: spec.clone(), base, own_headers, clients, rates, opened: Instant::now() })
    }

    /// `id` is sent as the idempotency key if the plugin sends none.
    pub async fn prepare_request(
        &self,
        request: HttpRequest,
        id: Option<&StateId>,
        now_ms: u64,
    ) -> Result<PreparedRequest, GrantError> {
        let method = method_of(&request, self.spec.request_size.0)?;
        let mut url = join_path(&self.current_base().await?, &request.path)?;
        self.check_allowed(method, &request.path)?;
        let mut headers = self.request_headers(&request.headers, id).await?;
        let mut body = request.body;
        let mut outgoing = OutgoingRequest { url: &mut url, headers: &mut headers, body: &mut body };
        self.sign_request(&mut outgoing, now_ms).await?;
        let method =
            Method::try_from(method.as_str()).map_err(|_| GrantError::Invalid("the method".into()))?;
        let client = self.clients.current_client().await.map_err(|(field, message)| {
            tracing::warn!(
                destination = self.spec.name,
                field,
                message,
                "the certificates of the destination can't be used"
            );
            GrantError::Unavailable("the destination's certificates can't be used".into())
        })?;
        Ok(PreparedRequest { client, method, url, headers, body })
    }

    pub async fn send(
        &self,
        PreparedRequest { client, method, url, headers, body }: PreparedRequest,
    ) -> Result<HttpResponse, UnansweredRequest> {
        let sent = client.request(method, url).headers(headers).body(body).send().await;
        let sent = sent.map_err(|error| UnansweredRequest {
            is_unsent: error.is_connect(),
            error: refusal_of(&error),
        })?;
        let received = receive_response(sent, self.spec.response_size.0).await;
        received.map_err(|error| UnansweredRequest { is_unsent: false, error })
    }

    /// The present address. A secret address may be rotated, but it must lead to the same server as when the
    /// destination was opened, because only that server was checked.
    async fn current_base(&self) -> Result<Url, GrantError> {
        let Some(reference) = &self.spec.url_from else { return Ok(self.base.clone()) };
        let secret = self.resolve_secret(reference, "its address").await?;
        let now = parse_address(&self.spec, secret.expose_secret())
            .ok()
            .filter(|now| now.origin() == self.base.origin());
        now.ok_or_else(|| {
            tracing::warn!(
                destination = self.spec.name,
                "its address now leads to another server than when it was opened: change the settings, so that the \
                 address is checked again"
            );
            GrantError::Unavailable("the destination's address has changed to another server".into())
        })
    }

    async fn sign_request(&self, request: &mut OutgoingRequest<'_>, now_ms: u64) -> Result<(), GrantError> {
        let Some(scheme) = self.spec.signing_scheme() else { return Ok(()) };
        let Some(reference) = scheme.secret_ref() else { return Ok(()) };
        let secret = self.resolve_secret(reference, "the scheme's secret").await?;
        schemes::sign_request(scheme, &secret, now_ms, request)
    }

    async fn resolve_secret(&self, reference: &SecretRef, what: &str) -> Result<ResolvedSecret, GrantError> {
        secrets::resolve_secret(reference).await.map_err(|error| {
            tracing::warn!(destination = self.spec.name, what, message = %error, "a secret can't be read");
            GrantError::Unavailable("a secret of the destination can't be read".into())
        })
    }

    /// Allows only what the operator lets plugins send.
    fn check_allowed(&self, method: HttpMethod, path: &str) -> Result<(), GrantError> {
        if !self.spec.methods.contains(&method) {
            let allowed: Vec<_> = self.spec.methods.iter().map(|method| method.as_str()).collect();
            let (method, allowed) = (method.as_str(), allowed.join(", "));
            return Err(GrantError::Denied(format!("the destination allows {allowed}, and not {method}")));
        }
        if !self.spec.allows_path(path) {
            let allowed = self.spec.paths.join(", ");
            return Err(GrantError::Denied(format!("the destination allows paths below {allowed} alone")));
        }
        // A server that decodes twice would find dots and slashes that are invisible here.
        if !self.spec.paths.is_empty() && path.split('?').next().is_some_and(|path| path.contains("%25")) {
            let why = "the path has an encoded `%`, which a destination with `paths` does not take";
            return Err(GrantError::Denied(why.into()));
        }
        Ok(())
    }

    /// Takes a token from the rate before a request is sent.
    pub fn take(&self) -> Result<(), GrantError> {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = TokenBucket::take_all(&mut rates, self.opened.elapsed());
        // Rounded up, so that a plugin that waits this long finds a token.
        taken.map_err(|wait| GrantError::RateLimited { after_ms: wait.as_millis() as u64 + 1 })
    }

    async fn request_headers(
        &self,
        sent: &[(String, String)],
        id: Option<&StateId>,
    ) -> Result<HeaderMap, GrantError> {
        // The controller's own secrets can't be replaced.
        let is_own = |name: &str| self.own_headers.iter().any(|own| own.as_str() == name);
        let mut headers = headers_of(sent, |name| self.spec.takes_header(name) && !is_own(name))?;
        if let Some(id) = id.filter(|_| !headers.contains_key(IDEMPOTENCY_KEY))
            && let Ok(value) = HeaderValue::try_from(id.as_str())
        {
            headers.insert(IDEMPOTENCY_KEY, value);
        }
        for (name, header) in self.own_headers.iter().zip(&self.spec.headers) {
            let secret = self.resolve_secret(&header.value_from, name.as_str()).await?;
            let mut value = HeaderValue::try_from(secret.expose_secret()).map_err(|_| {
                tracing::warn!(destination = self.spec.name, header = %name, "a secret is no header's value");
                GrantError::Unavailable("a secret of the destination can't be read".into())
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

/// Why nothing is sent to an address. No text quotes it.
#[derive(Debug, Error)]
enum DestinationAddressError {
    #[error("is not an address: {0}")]
    Unreadable(#[source] <Url as FromStr>::Err),
    #[error("holds a name or password: give it as a header with valueFrom")]
    HasLogin,
    #[error("has no host, or has a fragment")]
    NoHost,
    #[error(
        "would be sent over plain http: use https, or write `allowPlain: true` for a network that you trust"
    )]
    Unencrypted,
    #[error("is not an http or https address")]
    OtherScheme,
    #[error(transparent)]
    Unnamed(#[from] UnnamedAddress),
    #[error("leads to an address that `addresses` does not name")]
    SecretUnnamed,
}

fn parse_address(spec: &DestinationSpec, text: &str) -> Result<Url, DestinationAddressError> {
    let base = Url::parse(text).map_err(DestinationAddressError::Unreadable)?;
    if !base.username().is_empty() || base.password().is_some() {
        return Err(DestinationAddressError::HasLogin);
    }
    if base.fragment().is_some() || base.host_str().is_none() {
        return Err(DestinationAddressError::NoHost);
    }
    match base.scheme() {
        "https" => {}
        "http" if spec.url_from.is_none() || spec.allow_plain => {}
        "http" => return Err(DestinationAddressError::Unencrypted),
        _ => return Err(DestinationAddressError::OtherScheme),
    }
    match spec.wrong_address(text) {
        Some(unnamed) if spec.url_from.is_none() => Err(unnamed.into()),
        Some(_) => Err(DestinationAddressError::SecretUnnamed),
        None => Ok(base),
    }
}

fn rate_buckets(spec: &DestinationSpec) -> Vec<TokenBucket> {
    match (spec.rate, spec.signing_scheme()) {
        (Some(per_second), _) => vec![TokenBucket::new(RateSpec { per_second, burst: None })],
        (None, Some(scheme)) => {
            scheme.quotas().iter().map(|quota| TokenBucket::within_quota(*quota)).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// Refuses requests that are valid for no destination.
pub fn check(request: &HttpRequest) -> Result<(), GrantError> {
    method_of(request, REQUEST_MOST)?;
    headers_of(&request.headers, is_plugin_header)?;
    let base =
        Url::parse("http://destination.invalid").map_err(|error| GrantError::Other(error.to_string()))?;
    join_path(&base, &request.path).map(drop)
}

fn method_of(request: &HttpRequest, most: u64) -> Result<HttpMethod, GrantError> {
    let Some(method) = HttpMethod::parse(&request.method) else {
        let known: Vec<_> = HttpMethod::all_methods().into_iter().map(HttpMethod::as_str).collect();
        return Err(GrantError::Invalid(format!("a method is one of {}", known.join(", "))));
    };
    if request.body.len() as u64 > most {
        return Err(GrantError::TooLarge(format!("a request has at most {most} bytes")));
    }
    Ok(method)
}

/// The headers that a plugin sends.
fn headers_of(sent: &[(String, String)], takes: impl Fn(&str) -> bool) -> Result<HeaderMap, GrantError> {
    if sent.len() > HEADERS {
        return Err(GrantError::TooLarge(format!("a request has at most {HEADERS} headers")));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in sent {
        let name = HeaderName::try_from(name).map_err(|_| GrantError::Invalid("a header's name".into()))?;
        if !takes(name.as_str()) {
            let why = format!(
                "a plugin can't send the header {name}: an operator may name further headers in `pluginHeaders` of the \
                 destination"
            );
            return Err(GrantError::Denied(why));
        }
        let value = HeaderValue::try_from(value).ok().filter(|value| value.len() <= HEADER_BYTES);
        headers.append(&name, value.ok_or_else(|| GrantError::Invalid(format!("the value of {name}")))?);
    }
    Ok(headers)
}

async fn receive_response(mut response: reqwest::Response, most: u64) -> Result<HttpResponse, GrantError> {
    let too_large = || GrantError::TooLarge(format!("the response has more than {most} bytes"));
    if response.content_length().is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let seen = |name: &HeaderName| SEEN.contains(&name.as_str()) || name.as_str().starts_with(SEEN_PREFIX);
    let mut room = SEEN_BYTES;
    let mut fits = |name: &str, value: &str| {
        let left = room.checked_sub(name.len() + value.len());
        left.map(|left| room = left).is_some()
    };
    let headers = response.headers().iter().filter(|(name, _)| seen(name)).take(HEADERS);
    let headers = headers.filter_map(|(name, value)| {
        let value = value.to_str().ok().filter(|value| fits(name.as_str(), value))?;
        Some((name.to_string(), value.to_owned()))
    });
    let headers = headers.collect();
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| refusal_of(&error))? {
        if (body.len() + chunk.len()) as u64 > most {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(HttpResponse { status, headers, body })
}

/// The client's own messages name the address; these do not.
pub(crate) fn refusal_of(error: &reqwest::Error) -> GrantError {
    if error.is_timeout() {
        return GrantError::Timeout("the destination did not answer in time".into());
    }
    if let Some(ForbiddenName(kind)) = forbidden_name(error) {
        return GrantError::Unavailable(format!(
            "the destination's name resolves to {kind}, which the destination's `addresses` do not allow"
        ));
    }
    if let Some(why) = tls_refusal(error) {
        return GrantError::Unavailable(why);
    }
    GrantError::Unavailable(match error.is_connect() {
        true => "the destination can't be reached".into(),
        false => "the connection to the destination broke".into(),
    })
}

/// The reason for a failed TLS handshake, without a name.
fn tls_refusal(error: &reqwest::Error) -> Option<String> {
    let mut sources = std::iter::successors(error.source(), |error| (*error).source());
    let found = sources.find_map(|error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()).or_else(|| error.downcast_ref())
    })?;
    Some(match found {
        rustls::Error::AlertReceived(alert) => {
            format!("the destination refuses the controller over TLS: {alert:?}")
        }
        rustls::Error::InvalidCertificate(_) => "the destination's certificate is not trusted".into(),
        _ => "the destination and the controller do not agree on TLS".into(),
    })
}

fn forbidden_name(error: &reqwest::Error) -> Option<&ForbiddenName> {
    let mut sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.find_map(|error| match error.downcast_ref()? {
        ResolveFailure::Forbidden(forbidden) => Some(forbidden),
        ResolveFailure::Lookup(_) => None,
    })
}

#[cfg(test)]
mod tests;
