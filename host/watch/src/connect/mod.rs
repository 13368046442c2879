//! Connects to the API server: from a kubeconfig or a service account to requests that are answered, or fail
//! for a stated reason.
//!
//! Promises that no request waits forever, neither for a dead connection nor for a free stream. Every request
//! has a timeout, and a stream is opened only on a connection that has room. The module knows the addresses
//! of resources, but nothing about objects, sources or the journal.

pub(crate) mod backoff;
pub(crate) mod client;
mod exec;
mod kubeconfig;
mod liveness;
mod login;
mod pool;
mod provider;
pub(crate) mod request;
pub(crate) mod resource;
mod signed_in;

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kubewitness_core::clock::{Clock, SystemClock};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::BoxError;

use crate::connect::client::KeepAlive;
use crate::connect::exec::{ExecError, ExecLogin};
use crate::connect::kubeconfig::{KubeconfigChoice, choose_kubeconfig};
use crate::connect::login::LoginService;
use crate::connect::request::{ApiClient, error_chain};

pub use crate::connect::kubeconfig::context_namespace;
pub use crate::connect::signed_in::SignedIn;

/// A login command may ask a person, in a browser or for a second factor.
pub(crate) const LOGIN: Duration = Duration::from_secs(60);
/// After this time, the log says what startup waits for.
const TELL: Duration = Duration::from_secs(5);

/// How to find the API server. The default is kubectl's order: `KUBECONFIG`, then `~/.kube/config`, then the
/// service account of the pod.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
}

/// A client, and what people want to know about it. No request has been made yet.
#[derive(Clone)]
pub struct ApiConnection {
    pub client: kube::Client,
    /// The same server without any credentials, for requests in the name of somebody else.
    pub(crate) bare: kube::Client,
    /// The namespace of the context, or of the pod.
    pub namespace: String,
    pub server: String,
    /// Whether the pod's service account was used and not a kubeconfig.
    pub in_cluster: bool,
}

impl std::fmt::Debug for ApiConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server)
            .field("namespace", &self.namespace)
            .finish()
    }
}

impl ApiConnection {
    pub(crate) fn api_client(&self) -> ApiClient {
        ApiClient::new(self.client.clone())
    }

    /// The server's version, such as `v1.36.0`. It is a cheap proof that the server answers.
    pub async fn server_version(&self) -> Result<String, ConnectError> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct VersionAnswer {
            git_version: String,
        }
        let body = self.api_client().get("/version").await.map_err(|failure| ConnectError::Unreachable {
            server: self.server.clone(),
            why: failure.to_string(),
        })?;
        serde_json::from_slice::<VersionAnswer>(&body).map(|version| version.git_version).map_err(|error| {
            ConnectError::Unreachable {
                server: self.server.clone(),
                why: format!("its answer to /version can't be parsed: {error}"),
            }
        })
    }
}

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("the kubeconfig `{path}` can't be used: {why}")]
    Kubeconfig { path: String, why: String },
    #[error("no API server is configured: {0}; give --kubeconfig, set KUBECONFIG, or run in a cluster")]
    NotConfigured(String),
    #[error("no client can be made for {server}: {why}")]
    Client { server: String, why: String },
    #[error("{what} has not ended within {} s: {advice}", .within.as_secs())]
    Hangs { what: String, within: Duration, advice: &'static str },
    #[error("{server} doesn't answer: {why}")]
    Unreachable { server: String, why: String },
}

/// Must be called within a tokio runtime and used there: the client's connections live in it.
pub async fn connect_to_server(options: &ConnectOptions) -> Result<ApiConnection, ConnectError> {
    connect_with(options, &KeepAlive::default()).await
}

pub async fn connect_with(
    options: &ConnectOptions,
    keep_alive: &KeepAlive,
) -> Result<ApiConnection, ConnectError> {
    connect_within(options, keep_alive, LOGIN).await
}

async fn connect_within(
    options: &ConnectOptions,
    keep_alive: &KeepAlive,
    limit: Duration,
) -> Result<ApiConnection, ConnectError> {
    let keep_alive = keep_alive.clone();
    let KubeconfigChoice { config, in_cluster } = load_kubeconfig(options, limit).await?;
    let (server, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
    let mut without = config.clone();
    without.auth_info = kube::config::AuthInfo::default();
    let pings = keep_alive.clone();
    let client =
        signing_in(config, limit, move |config, login| client::make_client(config, login, &keep_alive))
            .await?;
    let bare =
        signing_in(without, limit, move |config, login| client::make_client(config, login, &pings)).await?;
    Ok(ApiConnection { client, bare, namespace, server, in_cluster })
}

async fn load_kubeconfig(
    options: &ConnectOptions,
    limit: Duration,
) -> Result<KubeconfigChoice, ConnectError> {
    let (options, runtime) = (options.clone(), Handle::current());
    let reading = move || runtime.block_on(choose_kubeconfig(&options));
    let advice = "a pipe or a network mount among the files that it names may hang; name others";
    let mut configured = run_on_own_thread("reading the kubeconfig", limit, advice, reading).await??;
    configured
        .config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(concat!("kubewitness/", env!("CARGO_PKG_VERSION")))));
    Ok(configured)
}

/// Makes a client. This may run a command, which may prompt a person.
async fn signing_in<T: Send + 'static>(
    mut config: kube::Config,
    limit: Duration,
    make: impl FnOnce(&kube::Config, Option<LoginService>) -> Result<T, BoxError> + Send + 'static,
) -> Result<T, ConnectError> {
    let server = config.cluster_url.to_string();
    let fault = |why: String| ConnectError::Client { server: server.clone(), why };
    provider::set_aside_beside_another(&mut config.auth_info);
    let now_ms = SystemClock::default().now_ms();
    let refused =
        config.auth_info.auth_provider.as_ref().and_then(|by| provider::refusal_of_provider(by, now_ms));
    if let Some(why) = refused {
        return Err(fault(why));
    }
    let login = match ExecLogin::take_from(&mut config.auth_info) {
        Some(exec) => Some(logged_in(exec, &mut config, &server, limit).await?),
        None => None,
    };
    let advice = "a pipe or a network mount among the files that the kubeconfig names may hang; name others";
    let making = move || make(&config, login).map_err(|error| error_chain(&*error));
    let what = "reading the credentials that the kubeconfig names";
    run_on_own_thread(what, limit, advice, making).await?.map_err(fault)
}

/// Runs the command for the first time.
async fn logged_in(
    exec: ExecLogin,
    config: &mut kube::Config,
    server: &str,
    limit: Duration,
) -> Result<LoginService, ConnectError> {
    let what = format!(
        "the command `{}`, which the kubeconfig names for logging in to {server},",
        exec.command_name()
    );
    let advice = "run it by hand to see what it waits for, and log in before you start";
    let logged_in = await_within(&what, limit, advice, exec.log_in(&mut config.auth_info)).await?;
    let failed = |error: ExecError| format!("the command `{}` for logging in: {error}", exec.command_name());
    logged_in.map_err(|error| ConnectError::Client { server: server.into(), why: failed(error) })?;
    Ok(LoginService::from_exec(exec, limit))
}

/// Runs `work` on its own thread. kube opens files that may never answer. On a runtime thread such a call
/// would block others, and a stop would wait for it.
async fn run_on_own_thread<T: Send + 'static>(
    what: &str,
    limit: Duration,
    advice: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConnectError> {
    let failed = |why: String| ConnectError::NotConfigured(format!("{what}: {why}"));
    let (sender, answer) = oneshot::channel();
    let runtime = Handle::current();
    let thread = std::thread::Builder::new().name("connect".into()).spawn(move || {
        let _entered = runtime.enter();
        // The caller may have given up already.
        drop(sender.send(work()));
    });
    thread.map_err(|error| failed(error.to_string()))?;
    await_within(what, limit, advice, answer).await?.map_err(|_| failed("it panicked".into()))
}

/// Gives up at the limit. Before that, it logs what the operator is waiting for.
async fn await_within<T>(
    what: &str,
    limit: Duration,
    advice: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, ConnectError> {
    let mut work = pin!(timeout(limit, work));
    let ended = match timeout(TELL, &mut work).await {
        Ok(ended) => ended,
        Err(_) => {
            tracing::warn!("{what} is still running; it is given up after {} s", limit.as_secs());
            work.await
        }
    };
    ended.map_err(|_| ConnectError::Hangs { what: what.to_owned(), within: limit, advice })
}

#[cfg(test)]
mod tests {
    use super::kubeconfig::NAMED_FILE_BYTES;
    use super::*;

    #[tokio::test]
    async fn a_pipe_in_the_place_of_a_kubeconfig_is_refused_by_name_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("kubeconfig");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let options = ConnectOptions { kubeconfig: Some(pipe), context: None };
        let error = connect_to_server(&options).await.err().unwrap().to_string();
        assert!(error.contains("kubeconfig` can't be used: it is a pipe"), "{error}");
    }

    fn options(folder: &tempfile::TempDir, user: &serde_json::Value) -> ConnectOptions {
        let config = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        ConnectOptions { kubeconfig: Some(path), context: None }
    }

    fn exec(script: &str) -> serde_json::Value {
        serde_json::json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
            "args": ["-c", script], "interactiveMode": "Never"}})
    }

    /// The runtime has one thread, and a blocked thread would prevent the limit from being noticed. The
    /// command ends with the test.
    #[tokio::test]
    async fn a_login_command_that_hangs_is_given_up_and_named_and_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let end = folder.path().join("end");
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done", end.display());
        let (options, limit) = (options(&folder, &exec(&script)), Duration::from_millis(200));
        let error = connect_within(&options, &KeepAlive::default(), limit).await.unwrap_err().to_string();
        std::fs::write(&end, "").unwrap();
        assert!(error.contains("the command `sh`") && error.contains("run it by hand"), "{error}");
    }

    #[tokio::test]
    async fn a_command_that_fails_and_one_that_only_the_client_library_would_run_are_refused_with_what_to_do()
    {
        let folder = tempfile::tempdir().unwrap();
        let failing = options(&folder, &exec("echo expired >&2; exit 1"));
        let error = connect_to_server(&failing).await.unwrap_err().to_string();
        assert!(
            error.contains("the command `sh` for logging in: it ended with exit status: 1: expired"),
            "{error}"
        );
        let provider = serde_json::json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "touch",
            "cmd-args": folder.path().join("ran")}}});
        let error = connect_to_server(&options(&folder, &provider)).await.unwrap_err().to_string();
        assert!(error.contains("`auth-provider`") && error.contains("name one in `exec`"), "{error}");
        assert!(!folder.path().join("ran").exists());
    }

    #[tokio::test]
    async fn what_a_kubeconfig_names_is_refused_with_its_field_where_it_is_no_file_of_a_fitting_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        std::fs::File::create(path("large")).unwrap().set_len(NAMED_FILE_BYTES + 1).unwrap();
        for (name, why) in [
            ("pipe", "it is a pipe"),
            ("", "it is a folder"),
            ("missing", "it is not there"),
            ("large", "it is larger than 1 MiB"),
        ] {
            for field in ["tokenFile", "client-certificate", "client-key"] {
                let options = options(&folder, &serde_json::json!({field: path(name)}));
                let error = connect_to_server(&options).await.unwrap_err().to_string();
                let named = format!("`{field}` names {}: {why}", path(name).display());
                assert!(error.contains("kubeconfig` can't be used") && error.contains(&named), "{error}");
            }
        }
        let config = serde_json::json!({"current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", "certificate-authority": "pipe"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}]});
        std::fs::write(path("kubeconfig"), config.to_string()).unwrap();
        let options = ConnectOptions { kubeconfig: Some(path("kubeconfig")), context: None };
        let error = connect_to_server(&options).await.unwrap_err().to_string();
        assert!(error.contains("`certificate-authority` names") && error.contains("it is a pipe"), "{error}");
    }

    #[tokio::test]
    async fn what_another_context_names_is_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let config = serde_json::json!({"current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "other", "user": {"tokenFile": "/missing"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}},
                {"name": "d", "context": {"cluster": "c", "user": "other"}}]});
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        let of = |context: Option<&str>| ConnectOptions {
            kubeconfig: Some(path.clone()),
            context: context.map(Into::into),
        };
        connect_to_server(&of(None)).await.unwrap();
        let error = connect_to_server(&of(Some("d"))).await.unwrap_err().to_string();
        assert!(error.contains("`tokenFile` names /missing: it is not there"), "{error}");
    }
}
