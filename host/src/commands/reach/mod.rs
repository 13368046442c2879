//! Finds the controller and the person's credentials for it, for the commands that call one. This module
//! itself sends no request to the controller, and writes nothing.
//!
//! A named address takes precedence. Next is the default address on this machine, where a playground or a
//! `kubectl port-forward` may listen, unless a flag names a cluster. Last is the cluster of the kubeconfig,
//! through a port that this command forwards itself.
//!
//! A token, and the content of a change, go only to a server or a namespace that the person named, or to a
//! pod that proves its owner. A label or a port is no proof: others can listen on a port of this machine, and
//! can label a pod.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_core::config::is_name;
use kubewitness_watch::{ConnectError, ConnectOptions, PodTrust, PortForward, SignedIn};
use reqwest::Url;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::UsageError;
use crate::cli::{ReachArgs, SecretArg};
use crate::tasks::{TaskFate, TaskSupervisor};

/// The default address of a controller.
const DEFAULT: &str = "http://127.0.0.1:8787";
const DEFAULT_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 8787);
/// Whether something listens on this machine is known at once.
const LISTENS: Duration = Duration::from_millis(500);
/// The namespace of Kubewitness, as in `deploy/kustomize`.
pub const NAMESPACE: &str = "kubewitness";
/// How to get a token.
const MAKE_A_TOKEN: &str = "KUBEWITNESS_TOKEN=$(kubectl create token ACCOUNT --audience kubewitness.dev)";
pub const SHOW_A_TOKEN: &str = "kubectl create token ACCOUNT --audience kubewitness.dev";

/// A controller that can be called.
pub struct ReachedController {
    pub url: Url,
    pub token: Option<SecretArg>,
    /// Whether the API server forwards the connection; then its certificate names another host.
    pub is_forwarded: bool,
    /// Whether nobody named it, so that any program of this machine may listen there.
    pub is_unnamed: bool,
    /// The advice if it does not know the person.
    pub to_sign_in: String,
    _way: Option<ForwardGuard>,
}

/// Ends the forward when it is dropped.
struct ForwardGuard {
    stop: CancellationToken,
}

impl Drop for ForwardGuard {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl ReachedController {
    fn at_url(url: Url, token: Option<SecretArg>) -> Self {
        let to_sign_in = match token {
            Some(_) => format!("Give a token that is still good: {MAKE_A_TOKEN}"),
            None => format!("Give a token: {MAKE_A_TOKEN}"),
        };
        Self { url, token, is_forwarded: false, is_unnamed: false, to_sign_in, _way: None }
    }

    /// Any program of this machine may listen there and would receive everything that is sent. So neither the
    /// token nor anything from a kubeconfig is sent, nor the content of a change.
    fn reach_local(args: &ReachArgs) -> Result<Self> {
        let mut reached = Self { is_unnamed: true, ..Self::at_url(parse_server(DEFAULT)?, None) };
        if args.token.is_some() {
            reached.to_sign_in = format!(
                "Your token was not sent, since nobody has named this address: give --server {DEFAULT} if you trust what \
                 listens there"
            );
        }
        Ok(reached)
    }

    /// A change contains what somebody wants and why, and perhaps the parameters of a job.
    pub fn refuse_a_change_where_anybody_may_listen(&self) -> Result<()> {
        if !self.is_unnamed {
            return Ok(());
        }
        Err(UsageError::error(format!(
            "nothing was sent: a change is not sent to an address that nobody has named, where any program may listen. Give \
             --server {DEFAULT}, or set KUBEWITNESS_SERVER, if you trust what listens there"
        )))
    }
}

pub async fn reach_controller(args: &ReachArgs) -> Result<ReachedController> {
    if let Some(server) = &args.server {
        let url = parse_server(server)?;
        refuse_to_show_a_token_to_everybody(&url, args)?;
        return Ok(ReachedController::at_url(url, args.token.clone()));
    }
    let names_a_cluster =
        args.kubeconfig.is_some() || args.context.is_some() || args.kubewitness_namespace.is_some();
    if !names_a_cluster && is_default_listening().await {
        return ReachedController::reach_local(args);
    }
    let options = ConnectOptions { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    match SignedIn::sign_in(&options).await {
        Ok(signed_in) if names_a_cluster => forward_to_pod(&signed_in, args).await,
        Ok(signed_in) => forward_to_pod(&signed_in, args).await.with_context(|| {
            format!("nothing listens at {DEFAULT}, so the cluster of the kubeconfig is asked")
        }),
        // Without a cluster, this machine is the only possible meaning.
        Err(ConnectError::NotConfigured(_)) if !names_a_cluster => ReachedController::reach_local(args),
        Err(error) => Err(error.into()),
    }
}

fn parse_server(server: &str) -> Result<Url> {
    let parsed = Url::parse(server);
    let has_user = match &parsed {
        Ok(url) if url.has_host() => !url.username().is_empty() || url.password().is_some(),
        // An unreadable address may contain a password, too.
        _ => server.contains('@'),
    };
    if has_user {
        return Err(UsageError::error(format!(
            "the address in --server or KUBEWITNESS_SERVER holds a user or a password, which others on this machine can \
             see: write it without what stands before the `@`, such as {DEFAULT}, and say who you are with a token: \
             {MAKE_A_TOKEN}"
        )));
    }
    let Ok(mut url) = parsed else {
        return Err(UsageError::error(format!("`{server}` is not an address: write one such as {DEFAULT}")));
    };
    if !matches!(url.scheme(), "http" | "https") {
        return Err(UsageError::error(format!(
            "`{server}` is neither http nor https: write an address such as {DEFAULT}"
        )));
    }
    // Addresses of the API are joined to it. Without the slash they would replace its last part.
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok(url)
}

/// Everybody who carries a plain-text request can read the token in it, and use it as its owner does.
fn refuse_to_show_a_token_to_everybody(url: &Url, args: &ReachArgs) -> Result<()> {
    let host = url.host_str().unwrap_or_default();
    let is_local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    if args.token.is_some() && url.scheme() == "http" && !is_local {
        bail!(
            "a token is not sent to {host} as plain text, where others could read it: name an https address with \
             --server, or leave --server out and let this command find its way by the kubeconfig"
        );
    }
    Ok(())
}

async fn is_default_listening() -> bool {
    let connecting = TcpStream::connect(SocketAddr::from(DEFAULT_ADDRESS));
    timeout(LISTENS, connecting).await.is_ok_and(|connected| connected.is_ok())
}

/// Forwards a local port to the portal of a pod while the command runs.
async fn forward_to_pod(signed_in: &SignedIn, args: &ReachArgs) -> Result<ReachedController> {
    let (namespace, trust) = match &args.kubewitness_namespace {
        Some(default) if args.is_default_namespace => (default.as_str(), PodTrust::ProvenAccount),
        Some(named) => (named.as_str(), PodTrust::NamedNamespace),
        None => (NAMESPACE, PodTrust::ProvenAccount),
    };
    if !is_name(namespace) {
        return Err(UsageError::error(format!(
            "--kubewitness-namespace {namespace}: it is no name of a namespace"
        )));
    }
    let forward = PortForward::to_portal(signed_in, namespace, trust).await?;
    let token = match &args.token {
        Some(token) => Some(token.clone()),
        None => signed_in.request_token().await?.map(SecretArg),
    };
    let stop = CancellationToken::new();
    let mut reached = ReachedController::at_url(parse_server(&forward.url())?, token);
    reached.is_forwarded = true;
    if reached.token.is_none() {
        reached.to_sign_in = format!(
            "The kubeconfig signs you in by a certificate or a password, which only the API server can check. Give a \
             token: {MAKE_A_TOKEN}"
        );
    }
    let (tasks, until) = (TaskSupervisor::new(stop.clone(), stop.clone()), stop.clone());
    tasks.spawn_task("the way to the portal", TaskFate::Finite, async move {
        forward.serve_until(until).await;
        Ok(())
    });
    reached._way = Some(ForwardGuard { stop });
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(server: &str, token: Option<&str>) -> ReachArgs {
        let token = token.map(|token| SecretArg(token.into()));
        ReachArgs { server: Some(server.into()), token, ..ReachArgs::default() }
    }

    #[tokio::test]
    async fn an_address_that_is_named_goes_first() {
        let reached = reach_controller(&args("http://127.0.0.1:1/kw/", None)).await.unwrap();
        assert_eq!((reached.url.as_str(), reached.is_forwarded), ("http://127.0.0.1:1/kw/", false));
        let reached = reach_controller(&args("http://127.0.0.1:1/a/kw", None)).await.unwrap();
        let address = reached.url.join("api/v1/status").unwrap();
        assert_eq!(
            address.as_str(),
            "http://127.0.0.1:1/a/kw/api/v1/status",
            "another program may be beside it"
        );
        for wrong in ["ftp://x", "no address"] {
            assert!(reach_controller(&args(wrong, None)).await.err().unwrap().is::<UsageError>(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn an_address_with_a_password_is_refused_and_not_repeated() {
        for wrong in [
            "http://user:pw-secret@127.0.0.1:1",
            "http://pw-secret@127.0.0.1:1",
            "https://:pw-secret@h",
            "http://user:pw-secret@h:port",
            "ftp://user:pw-secret@h",
            "user:pw-secret@h",
            "user:pw-secret@127.0.0.1:8787",
        ] {
            let error = reach_controller(&args(wrong, Some("t"))).await.err().unwrap();
            let expected = format!("{error:#} {error:?}");
            assert!(
                error.is::<UsageError>() && expected.contains("--server") && !expected.contains("pw-secret"),
                "{expected}"
            );
        }
        assert!(reach_controller(&args("http://127.0.0.1:1/@kw", None)).await.is_ok());
    }

    #[tokio::test]
    async fn a_token_travels_by_https_or_not_at_all() {
        for address in ["https://kw.example.com", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost"]
        {
            let reached = reach_controller(&args(address, Some("t"))).await.unwrap();
            assert_eq!(reached.token.map(|token| token.0).as_deref(), Some("t"), "{address}");
        }
        let error =
            reach_controller(&args("http://kw.example.com", Some("t"))).await.err().unwrap().to_string();
        assert!(error.contains("kw.example.com") && error.contains("https"), "{error}");
        assert!(reach_controller(&args("http://kw.example.com", None)).await.is_ok());
    }

    #[test]
    fn a_token_is_not_sent_to_an_address_that_nobody_has_named() {
        let asked = ReachArgs { token: Some(SecretArg("t".into())), ..ReachArgs::default() };
        let reached = ReachedController::reach_local(&asked).unwrap();
        assert!(reached.token.is_none() && reached.url.as_str().starts_with(DEFAULT));
        assert!(reached.to_sign_in.contains("--server http://127.0.0.1:8787"), "{}", reached.to_sign_in);
        let reached = ReachedController::reach_local(&ReachArgs::default()).unwrap();
        assert!(reached.to_sign_in.contains("kubectl create token"), "{}", reached.to_sign_in);
    }

    #[test]
    fn a_change_is_not_sent_to_an_address_that_nobody_has_named() {
        let reached = ReachedController::reach_local(&ReachArgs::default()).unwrap();
        let error = reached.refuse_a_change_where_anybody_may_listen().unwrap_err();
        assert!(
            error.is::<UsageError>() && error.to_string().contains("--server http://127.0.0.1:8787"),
            "{error}"
        );
        let reached = ReachedController::at_url(parse_server(DEFAULT).unwrap(), None);
        assert!(reached.refuse_a_change_where_anybody_may_listen().is_ok());
    }

    #[tokio::test]
    async fn a_cluster_that_is_named_is_asked_whatever_listens_here() {
        let asked = ReachArgs { kubeconfig: Some("/nowhere/kubeconfig".into()), ..ReachArgs::default() };
        let error = format!("{:#}", reach_controller(&asked).await.err().unwrap());
        assert!(error.contains("/nowhere/kubeconfig"), "{error}");
    }
}
