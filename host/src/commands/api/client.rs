//! The HTTP client of the commands: it calls a running controller with limited times, and turns a refusal
//! into an error with advice.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kubewitness_core::shorten_text;
use kubewitness_core::views::{GoneFilter, ObjectQuery};
use reqwest::header::{AUTHORIZATION, DATE, HeaderMap, HeaderValue, LINK, LOCATION};
use reqwest::redirect::Policy;
use reqwest::tls::TlsInfo;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::ReachArgs;
use crate::commands::UsageError;
use crate::commands::print::{clean_line, note};
use crate::commands::reach::{self, ReachedController};

/// Longer than a controller takes to report that it can't answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A live stream sends something at least every 15 seconds; after three missed messages it counts as broken.
const SILENCE: Duration = Duration::from_secs(50);

/// How often a change that is safe to repeat is tried. A restart of the controller takes seconds.
const TRIES: u32 = 8;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
const KEY: &str = "idempotency-key";
/// The most faults of single fields that a refusal shows.
const FIELDS: usize = 100;

/// An answer has at most 10,000 rows of some KiB, or one document.
const ANSWER: usize = 256 << 20;
/// A refusal is a sentence and a hint.
const REFUSAL: usize = 1 << 20;
/// The rows of one page: the maximum of the API.
pub const PAGE: usize = 10_000;
/// The rows of one page with details, which are computed from the states of their objects.
const DETAILED: usize = 200;
/// The most pages of one list. A page may have few rows if the controller had to search through many objects.
const PAGES: usize = 1000;
/// The header with which the controller reports that an answer is incomplete.
const NOTICE: &str = "kubewitness-notice";
/// How many different notices a command shows.
const NOTICES: usize = 100;
/// The header of an empty answer with which the controller names the verb and the resources that the person
/// has no right for.
const FORBIDDEN: &str = "kubewitness-forbidden";
/// How many bytes of an unexpected answer are shown.
const WHY: usize = 300;
const TOO_LONG: &str = "what you ask for is longer than a request may be: give shorter values";

pub struct ApiClient {
    args: ReachArgs,
    /// Replaced when the connection's pod was replaced.
    to: RwLock<Arc<ControllerClient>>,
    /// The notices that were already shown, each once.
    shown_notices: Mutex<BTreeSet<String>>,
}

/// Facts about the controller that an answer has outside of its body.
pub struct ControllerFacts {
    pub server: String,
    /// Its clock, from the header `Date`.
    pub date: Option<String>,
    /// The portal's certificate, in DER; `None` without TLS.
    pub certificate: Option<Vec<u8>>,
}

/// The controller answered and did nothing.
#[derive(Debug)]
pub struct RefusedRequest {
    why: String,
    kind: RefusalKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalKind {
    /// A retry would get the same answer.
    Final,
    /// Too many requests were in progress.
    Passing,
    /// The person may see none of the requested data, whether any exists or not.
    Forbidden,
}

/// The parameters of the API, named as in kubectl and Kubernetes.
pub(in crate::commands::api) fn query_parameters(query: &ObjectQuery) -> Vec<(&'static str, String)> {
    let limit = query.limit.map(|limit| limit.to_string());
    let gone = match query.gone {
        GoneFilter::No => None,
        GoneFilter::Too => Some("true".to_owned()),
        GoneFilter::Only => Some("only".to_owned()),
    };
    let cause = query.cause.map(|cause| cause.as_str().to_owned());
    let all = [
        ("source", &query.source),
        ("kind", &query.kind),
        ("namespace", &query.namespace),
        ("name", &query.name),
        ("labelSelector", &query.label_selector),
        ("index", &query.index),
        ("phase", &query.phase),
        ("was", &query.was),
        ("cause", &cause),
        ("search", &query.search),
        ("gone", &gone),
        ("since", &query.since),
        ("until", &query.until),
        ("at", &query.at),
        ("sort", &query.sort),
        ("limit", &limit),
        ("details", &query.details.then(|| "true".to_owned())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
}

#[cfg(test)]
impl RefusedRequest {
    pub fn final_refusal(why: &str) -> Self {
        Self { why: why.to_owned(), kind: RefusalKind::Final }
    }
}

impl fmt::Display for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for RefusedRequest {}

/// The controller answered that it can't do it now, for example before its journal is open.
#[derive(Debug)]
struct NotNow(String);

impl fmt::Display for NotNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotNow {}

#[cfg(test)]
pub(in crate::commands::api) fn not_now(why: &str) -> anyhow::Error {
    NotNow(why.to_owned()).into()
}

/// Whether the controller answered that it can't do it now.
pub(in crate::commands::api) fn is_not_now(error: &anyhow::Error) -> bool {
    error.is::<NotNow>()
}

/// Whether a retry would get the same refusal. A command that repeats its request ends here.
pub(in crate::commands::api) fn is_final(error: &anyhow::Error) -> bool {
    error.is::<UsageError>()
        || error.downcast_ref::<RefusedRequest>().is_some_and(|refused| refused.kind != RefusalKind::Passing)
}

/// Whether the person may see none of the requested data.
pub(in crate::commands::api) fn is_forbidden(error: &anyhow::Error) -> bool {
    error.downcast_ref::<RefusedRequest>().is_some_and(|refused| refused.kind == RefusalKind::Forbidden)
}

/// Whether no controller answered, or one that can't do it now.
pub(in crate::commands::api) fn is_away(error: &anyhow::Error) -> bool {
    is_not_now(error) || error.chain().any(|cause| cause.is::<reqwest::Error>())
}

/// The items of a list, and whether it has more.
pub struct ListedItems<T> {
    pub rows: Vec<T>,
    pub more: bool,
}

/// A controller, and the client for it.
struct ControllerClient {
    reached: ReachedController,
    http: reqwest::Client,
}

impl ControllerClient {
    async fn find(args: &ReachArgs) -> Result<Arc<Self>> {
        let reached = reach::reach_controller(args).await?;
        let http = client_builder(&reached)?.timeout(TIMEOUT).build().context("making an HTTP client")?;
        Ok(Arc::new(Self { reached, http }))
    }

    fn url(&self, path: &str) -> Result<Url> {
        let url = &self.reached.url;
        url.join(path).with_context(|| format!("joining {url} and {path}"))
    }
}

impl ApiClient {
    pub async fn reach_controller(args: &ReachArgs) -> Result<Self> {
        let to = RwLock::new(ControllerClient::find(args).await?);
        Ok(Self { args: args.clone(), to, shown_notices: Mutex::default() })
    }

    /// Finds the pod again if the connection leads to one: a replaced pod has another name.
    pub async fn find_again(&self) -> Result<()> {
        if self.current_client().reached.is_forwarded {
            let found = ControllerClient::find(&self.args).await?;
            *self.to.write().unwrap_or_else(PoisonError::into_inner) = found;
        }
        Ok(())
    }

    fn current_client(&self) -> Arc<ControllerClient> {
        self.to.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The address of the controller, and the identity by which it knows the person.
    pub fn with_reached<T>(&self, of: impl FnOnce(&ReachedController) -> T) -> T {
        of(&self.current_client().reached)
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        self.send(Method::GET, path, |request| request.query(query)).await
    }

    pub async fn post_json<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.send(Method::POST, path, |request| request.json(body)).await
    }

    /// A change with an idempotency key, which makes it safe to repeat: a broken connection is opened again a
    /// few times.
    pub async fn post_with_key<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let mut tries = 1;
        loop {
            let sent = self.send(Method::POST, path, |request| request.header(KEY, key).json(body)).await;
            match sent {
                Err(error) if tries < TRIES && error.chain().any(|cause| cause.is::<reqwest::Error>()) => {
                    tries += 1;
                    tokio::time::sleep(BETWEEN_TRIES).await;
                    // If the pod can't be found yet, the next try reports that.
                    self.find_again().await.ok();
                }
                sent => return sent,
            }
        }
    }

    /// A whole list up to so many rows, page by page.
    pub async fn fetch_list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
        most: usize,
    ) -> Result<ListedItems<T>> {
        self.fetch_pages(path, query, most, PAGE).await
    }

    /// [`Self::fetch_list`] in smaller pages, for rows with details.
    pub async fn list_detailed<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
        most: usize,
    ) -> Result<ListedItems<T>> {
        self.fetch_pages(path, query, most, DETAILED).await
    }

    async fn fetch_pages<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
        most: usize,
        page: usize,
    ) -> Result<ListedItems<T>> {
        let mut rows: Vec<T> = Vec::new();
        let take = |mut part: Vec<T>| {
            rows.append(&mut part);
            rows.len() < most
        };
        let more = self.fetch_parts(path, query, most.min(page), take).await?;
        let more = more || rows.len() > most;
        rows.truncate(most);
        Ok(ListedItems { rows, more })
    }

    /// Reads the parts of a list until the last one, or until `take` wants no more. Returns whether more
    /// exist.
    pub async fn fetch_parts<A: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
        limit: usize,
        mut take: impl FnMut(A) -> bool,
    ) -> Result<bool> {
        let to = self.current_client();
        let url = to.url(path)?;
        let mut request = to.http.get(url.clone()).query(query).query(&[("limit", limit)]);
        for _ in 0..PAGES {
            let answer = to.send_request(request).await?;
            self.show_notices(answer.headers());
            let next = next_page(answer.headers());
            refuse_what_is_forbidden(&answer)?;
            let wants_more = take(to.read(answer).await?);
            let Some(next) = next else { return Ok(false) };
            if !wants_more {
                return Ok(true);
            }
            // The request goes to the same controller; only the query is taken from its answer.
            let mut url = url.clone();
            url.set_query(Some(&next));
            request = to.http.get(url);
        }
        Ok(true)
    }

    /// An answer, and the facts outside of its body.
    pub async fn get_with_facts<T: DeserializeOwned>(&self, path: &str) -> Result<(T, ControllerFacts)> {
        let to = self.current_client();
        let http = client_builder(&to.reached)?.timeout(TIMEOUT).tls_info(true);
        let http = http.build().context("making an HTTP client")?;
        let answer = to.send_request(http.get(to.url(path)?)).await?;
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        let tls = answer.extensions().get::<TlsInfo>();
        let seen = ControllerFacts {
            server: to.reached.url.to_string(),
            date: date.map(str::to_owned),
            certificate: tls.and_then(TlsInfo::peer_certificate).map(<[u8]>::to_vec),
        };
        Ok((to.read(answer).await?, seen))
    }

    /// Shows people the controller's notices about its answer.
    fn show_notices(&self, headers: &HeaderMap) {
        for notice in headers.get_all(NOTICE).iter().filter_map(|notice| notice.to_str().ok()) {
            let mut shown_before = self.shown_notices.lock().unwrap_or_else(PoisonError::into_inner);
            if shown_before.len() < NOTICES && shown_before.insert(notice.to_owned()) {
                note!("kubewitness: {}", clean_line(notice));
            }
        }
    }

    /// The bytes of an answer, unchanged.
    pub async fn fetch_bytes(&self, path: &str) -> Result<Vec<u8>> {
        let to = self.current_client();
        let answer = to.send_request(to.http.get(to.url(path)?)).await?;
        self.show_notices(answer.headers());
        read_body(answer, ANSWER).await
    }

    /// An answer that continues until the connection ends.
    pub async fn open_stream(&self, path: &str, query: &impl Serialize) -> Result<Response> {
        let to = self.current_client();
        let http = client_builder(&to.reached)?.read_timeout(SILENCE).connect_timeout(TIMEOUT);
        let http = http.build().context("making an HTTP client")?;
        let answer = to.send_request(http.get(to.url(path)?).query(query)).await?;
        self.show_notices(answer.headers());
        Ok(answer)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<T> {
        let to = self.current_client();
        if method != Method::GET {
            to.reached.refuse_a_change_where_anybody_may_listen()?;
        }
        let answer = to.send_request(with(to.http.request(method, to.url(path)?))).await?;
        self.show_notices(answer.headers());
        refuse_what_is_forbidden(&answer)?;
        to.read(answer).await
    }
}

impl ControllerClient {
    async fn read<T: DeserializeOwned>(&self, answer: Response) -> Result<T> {
        let body = read_body(answer, ANSWER).await?;
        serde_json::from_slice(&body).map_err(|error| {
            let (url, why) = (&self.reached.url, error.to_string());
            anyhow!(
                "{url} does not answer as a Kubewitness controller does: {}",
                clean_line(&shorten_text(&why, WHY))
            )
        })
    }

    /// Sends the request. A refusal is an error in the controller's words.
    async fn send_request(&self, request: RequestBuilder) -> Result<Response> {
        let answer = request.send().await.map_err(|error| {
            if error.is_builder() {
                return UsageError::error(TOO_LONG);
            }
            let what = match error.is_timeout() && !error.is_connect() {
                true => format!(
                    "the controller at {} has not answered in time: its log says what it waits for",
                    self.reached.url
                ),
                false if self.reached.is_forwarded => {
                    "the pod of Kubewitness does not answer: its log says what it waits for".into()
                }
                false => format!(
                    "no controller answers at {}: start one with `kubewitness run` or `kubewitness playground`, \
                     or name another with --server",
                    self.reached.url
                ),
            };
            anyhow!(error).context(what)
        })?;
        let status = answer.status();
        if !status.is_success() {
            let elsewhere = answer.headers().get(LOCATION).filter(|_| status.is_redirection());
            if let Some(elsewhere) = elsewhere {
                return Err(anyhow!(
                    "{} sends this command on to {}. It does not go there by itself, since what it sends is for the server \
                     that was named: name the other with --server if you trust it",
                    self.reached.url,
                    clean_line(&shorten_text(&String::from_utf8_lossy(elsewhere.as_bytes()), WHY))
                ));
            }
            let body = read_body(answer, REFUSAL).await?;
            // The controller knows requests, but only this command knows how a person passes a token to it.
            let own_hint = (status == StatusCode::UNAUTHORIZED).then_some(self.reached.to_sign_in.as_str());
            let refusal = refusal_text(status, &body, own_hint);
            // The controller also checks what was typed, such as a selector.
            return Err(if status == StatusCode::BAD_REQUEST {
                UsageError::error(refusal)
            } else if status == StatusCode::SERVICE_UNAVAILABLE {
                NotNow(refusal).into()
            } else if status.is_client_error() {
                let passes = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
                let kind = if passes { RefusalKind::Passing } else { RefusalKind::Final };
                RefusedRequest { why: refusal, kind }.into()
            } else {
                anyhow!(refusal)
            });
        }
        Ok(answer)
    }
}

/// Reports an empty list that the person may not list as kubectl does. The controller marks it so whether any
/// objects exist or not.
fn refuse_what_is_forbidden(answer: &Response) -> Result<()> {
    let Some(resources) = answer.headers().get(FORBIDDEN) else { return Ok(()) };
    let resources = String::from_utf8_lossy(resources.as_bytes());
    let namespace = answer.url().query_pairs().find(|(name, _)| name == "namespace");
    let place = match namespace {
        Some((_, namespace)) => format!("in namespace {}", clean_line(&namespace)),
        None => "in the whole cluster, nor in a namespace where some are: name yours with -n".to_owned(),
    };
    let why = format!("forbidden: you may not {} {place}", clean_line(&shorten_text(&resources, WHY)));
    Err(RefusedRequest { why, kind: RefusalKind::Forbidden }.into())
}

/// The query of the next page, from `Link: </api/v1/objects?…>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let links = headers.get_all(LINK).iter().filter_map(|link| link.to_str().ok());
    let mut next = links.filter_map(|link| {
        let (address, relation) = link.strip_prefix('<')?.split_once('>')?;
        let (_, query) = address.split_once('?')?;
        relation.contains("rel=\"next\"").then(|| query.to_owned())
    });
    next.next()
}

/// The whole answer, up to a limit.
async fn read_body(mut answer: Response, most: usize) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.context("reading the controller's answer")? {
        anyhow::ensure!(
            body.len() + chunk.len() <= most,
            "the answer of {} is larger than {} MiB: ask for less, such as one namespace",
            answer.url().host_str().unwrap_or("the controller"),
            most >> 20
        );
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn client_builder(reached: &ReachedController) -> Result<reqwest::ClientBuilder> {
    // The body of a change is sent only to the named server, and not to a redirect.
    let mut builder = reqwest::Client::builder().no_proxy().redirect(Policy::none());
    if let Some(token) = &reached.token {
        let mut header = HeaderValue::try_from(format!("Bearer {}", token.0.trim()))
            .map_err(|_| UsageError::error("the token has characters that no token has: copy it again"))?;
        header.set_sensitive(true);
        builder = builder.default_headers([(AUTHORIZATION, header)].into_iter().collect());
    }
    Ok(match reached.url.scheme() {
        // No redirect is followed, so no certificate is ever judged: the machine's authorities, some hundred files, stay
        // unread.
        "http" => builder.tls_certs_only([]),
        // The API server forwards the connection, and says which pod is at its end. No certificate names
        // 127.0.0.1.
        _ if reached.is_forwarded => builder.tls_danger_accept_invalid_certs(true),
        _ => builder,
    })
}

fn refusal_text(status: StatusCode, body: &[u8], own_hint: Option<&str>) -> String {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let fields = json["error"]["fields"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |fault: &Value, name: &str| clean_line(fault[name].as_str().unwrap_or_default()).into_owned();
    let fields = fields.iter().take(FIELDS);
    let fields: String =
        fields.map(|fault| format!("\n  {}: {}", text(fault, "field"), text(fault, "message"))).collect();
    match (json["error"]["message"].as_str(), own_hint.or(json["error"]["hint"].as_str())) {
        (Some(message), Some(hint)) => format!("{}{fields}\n{}", clean_line(message), clean_line(hint)),
        (Some(message), None) => clean_line(message).into_owned(),
        _ if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => TOO_LONG.to_owned(),
        _ => format!("the controller answered {status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::commands::api::testing;
    use crate::tasks::{TaskFate, TaskSupervisor};

    #[tokio::test]
    async fn what_is_longer_than_a_request_is_no_fault_of_the_controller() {
        let client = testing::client(|_| serde_json::json!([])).await;
        let long = "a".repeat(70_000);
        let error = client.get::<Value>("api/v1/objects", &[("search", &long)]).await.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string() == TOO_LONG, "{error}");
        assert_eq!(refusal_text(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, b"", None), TOO_LONG);
    }

    #[tokio::test]
    async fn a_redirect_is_told_and_not_followed() {
        let client =
            testing::client_that_answers("307 Temporary Redirect", "Location: http://x\u{9b}.example/\r\n");
        let client = client.await;
        for told in [
            client.post_json::<Value>("api/v1/jobs", &["a"]).await.unwrap_err().to_string(),
            client.get::<Value>("api/v1/objects", &[("a", "b")]).await.unwrap_err().to_string(),
        ] {
            assert!(told.contains("on to http://x·.example/") && told.contains("--server"), "{told}");
        }
    }

    #[tokio::test]
    async fn a_refusal_that_passes_is_not_final() {
        for (status, expected) in [
            ("401 Unauthorized", true),
            ("403 Forbidden", true),
            ("400 Bad Request", true),
            ("429 Too Many Requests", false),
            ("503 Service Unavailable", false),
            ("500 Internal Server Error", false),
        ] {
            let client = testing::client_that_answers(status, "").await;
            let error = client.get::<Value>("api/v1/events", &[("a", "b")]).await.unwrap_err();
            assert_eq!(is_final(&error), expected, "{status}");
        }
    }

    #[tokio::test]
    async fn a_list_that_is_not_theirs_is_forbidden_and_not_empty() {
        let client =
            testing::client_that_answers("200 OK", "Kubewitness-Forbidden: list jobs.batch\r\n").await;
        let error =
            client.fetch_list::<Value>("api/v1/objects", &[("namespace", "a")], 1).await.err().unwrap();
        assert!(is_forbidden(&error) && is_final(&error));
        assert_eq!(error.to_string(), "forbidden: you may not list jobs.batch in namespace a");
        let error = client.get::<Value>("api/v1/objects", &[("kind", "job")]).await.unwrap_err().to_string();
        assert!(error.contains("in the whole cluster") && error.contains("-n"), "{error}");
    }

    #[test]
    fn a_refusal_is_told_in_the_controllers_words() {
        let body = br#"{"error":{"message":"no such plugin","hint":"`kubewitness plugins` lists them"}}"#;
        assert_eq!(
            refusal_text(StatusCode::NOT_FOUND, body, None),
            "no such plugin\n`kubewitness plugins` lists them"
        );
        let hostile = br#"{"error":{"message":"a\u001b[2Jb","hint":"c\u202ed"}}"#;
        assert_eq!(refusal_text(StatusCode::NOT_FOUND, hostile, None), "a\u{b7}[2Jb\nc\u{b7}d");
        let stranger = br#"{"error":{"message":"it is not known who asks","hint":"send a token"}}"#;
        let error = refusal_text(StatusCode::UNAUTHORIZED, stranger, Some("give a token"));
        assert_eq!(error, "it is not known who asks\ngive a token");
        assert_eq!(
            refusal_text(StatusCode::BAD_GATEWAY, b"<html>", None),
            "the controller answered 502 Bad Gateway"
        );
    }

    #[test]
    fn the_next_page_is_found_in_its_header() {
        let next =
            |link: &'static str| next_page(&HeaderMap::from_iter([(LINK, HeaderValue::from_static(link))]));
        let link = "</api/v1/objects?kind=Job&cursor=a.7&limit=2>; rel=\"next\"";
        assert_eq!(next(link).as_deref(), Some("kind=Job&cursor=a.7&limit=2"));
        for other in ["</api/v1/objects?kind=Job>; rel=\"prev\"", "</api/v1/objects>; rel=\"next\"", "x", "<"]
        {
            assert_eq!(next(other), None, "{other}");
        }
        assert_eq!(next_page(&HeaderMap::new()), None);
    }

    /// A controller that answers each request with one row and a link to more, and counts the requests.
    async fn endless() -> (ReachArgs, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Some(format!("http://{}", listener.local_addr().unwrap()));
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        TaskSupervisor::new(CancellationToken::new(), CancellationToken::new()).spawn_task(
            "a controller without an end",
            TaskFate::Finite,
            async move {
                let (mut stream, _) = listener.accept().await?;
                let mut bytes = vec![0; 4096];
                while stream.read(&mut bytes).await? > 0 {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\
                                  Link: </x?a=b>; rel=\"next\"\r\nKubewitness-Notice: It is less.\r\n\r\n[1]";
                    stream.write_all(answer.as_bytes()).await?;
                }
                Ok(())
            },
        );
        (ReachArgs { server, ..ReachArgs::default() }, asked)
    }

    #[tokio::test]
    async fn a_list_that_never_ends_is_given_up() {
        rustls::crypto::ring::default_provider().install_default().ok();
        let (args, asked) = endless().await;
        let client = ApiClient::reach_controller(&args).await.unwrap();
        let query: [(&str, &str); 0] = [];
        let three = client.fetch_list::<u8>("x", &query, 3).await.unwrap();
        assert_eq!((three.rows, three.more, asked.load(Ordering::Relaxed)), (vec![1, 1, 1], true, 3));
        let all = client.fetch_list::<u8>("x", &query, usize::MAX).await.unwrap();
        assert_eq!((all.rows.len(), all.more), (PAGES, true));
        assert_eq!(client.shown_notices.lock().unwrap().len(), 1, "a notice is shown once");
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_bound() {
        let of = |bytes: usize| Response::from(http::Response::new(vec![b'a'; bytes]));
        assert_eq!(read_body(of(1 << 20), 1 << 20).await.unwrap().len(), 1 << 20);
        let error = read_body(of((1 << 20) + 1), 1 << 20).await.unwrap_err().to_string();
        assert!(error.contains("larger than 1 MiB: ask for less"), "{error}");
    }
}
