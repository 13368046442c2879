//! Forwards connections to the portal in a pod through the API server, as `kubectl port-forward` does.
//!
//! A person without the right to forward ports of the pod gets no connection. This module never reads what it
//! carries.
//!
//! Choosing the pod by its label alone was rejected: a tenant who may create pods could label one and receive
//! the tokens of administrators. So either the person named the namespace, or the pod's service account may
//! create token reviews. Only somebody who grants cluster-wide rights can give an account that right.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::Method;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Portforwarder;
use kubewitness_core::ports::AccessAttempt;
use thiserror::Error;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::cluster::checkup::{CheckupError, RightsCheckup, RightsOwner};
use crate::connect::SignedIn;
use crate::connect::request::{RequestAddress, RequestFailure, error_chain};

/// The label of Kubewitness' pods.
const LABEL: &str = "app.kubernetes.io/name=kubewitness";
/// The names of the portal's port in a pod, with TLS and without.
const SECURE: &str = "portal-tls";
const PLAIN: &str = "portal";
/// The portal's default port, for a pod that does not name one.
const PORT: u16 = 8787;
/// The timeout for finding the pod, and for each connection to it. A person waits for it.
const WITHIN: Duration = Duration::from_secs(10);
/// The most pods, which suffices for the pods of some replicas, with a few KiB each.
const PODS: &str = "50";
const BYTES: usize = 4 * 1024 * 1024;
/// The portal closes idle connections, so a connection that was idle for longer is not used.
const FRESH: Duration = Duration::from_secs(2);
/// How many service accounts are checked. The pods of one installation share an account.
const ACCOUNTS: usize = 4;
/// The most concurrent connections: a command has one or two, a browser six.
const AT_ONCE: usize = 32;

#[derive(Debug, Error)]
pub enum ForwardError {
    #[error(
        "no pod with the label {LABEL} is ready in the namespace {namespace} of {server}: name the namespace of \
         Kubewitness with --kubewitness-namespace, or an address with --server"
    )]
    NoPod { namespace: String, server: String },
    #[error(
        "you may not {right} in the namespace {namespace}: ask for that right, or for an address that \
         --server can name ({why})"
    )]
    Forbidden { right: &'static str, namespace: String, why: String },
    #[error(
        "a pod in the namespace {namespace} of {server} is labelled as Kubewitness, but nothing proves that it is: {why}. \
         Nothing was sent to it. If you trust everybody who may create pods in that namespace, name it with \
         --kubewitness-namespace {namespace}"
    )]
    Unproven { namespace: String, server: String, why: String },
    #[error("the way to Kubewitness through {server} is not there: {why}")]
    Broken { server: String, why: String },
}

/// Why a pod may receive a person's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodTrust {
    /// The person named its namespace.
    NamedNamespace,
    /// Nobody named it, so its service account must be allowed to create token reviews.
    ProvenAccount,
}

/// Listens on loopback, and carries each connection into the pod.
pub struct PortForward {
    pods: kube::Api<Pod>,
    portal: PortalPod,
    listener: TcpListener,
    address: SocketAddr,
    /// The connection that proved that forwarding works. The first client uses it.
    first: Option<(Instant, Portforwarder)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PortalPod {
    pod: String,
    port: u16,
    is_secure: bool,
    account: String,
}

impl PortForward {
    pub async fn to_portal(
        signed_in: &SignedIn,
        namespace: &str,
        trust: PodTrust,
    ) -> Result<Self, ForwardError> {
        let broken = |why: String| ForwardError::Broken { server: signed_in.server.clone(), why };
        let portals = find(signed_in, namespace).await?;
        let found = match trust {
            PodTrust::NamedNamespace => portals.into_iter().next(),
            PodTrust::ProvenAccount => find_proven_portal(signed_in, namespace, portals).await?,
        };
        let server = signed_in.server.clone();
        let portal = found.ok_or_else(|| ForwardError::NoPod { namespace: namespace.to_owned(), server })?;
        let pods = kube::Api::<Pod>::namespaced(signed_in.client.clone(), namespace);
        let first = open(&pods, &portal).await.map_err(|failure| match failure {
            RequestFailure::Status { code: 403, message, .. } => ForwardError::Forbidden {
                right: "get and create pods/portforward",
                namespace: namespace.to_owned(),
                why: message,
            },
            failure => broken(failure.to_string()),
        })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(|error| broken(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| broken(error.to_string()))?;
        Ok(Self { pods, portal, listener, address, first: Some((Instant::now(), first)) })
    }

    /// The local address.
    pub fn url(&self) -> String {
        let scheme = if self.portal.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Runs until the stop. A connection that fails is closed, and the others continue.
    pub async fn serve_until(mut self, stop: CancellationToken) {
        let mut carried = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = carried.next(), if !carried.is_empty() => {}
                accepted = self.listener.accept(), if carried.len() < AT_ONCE => match accepted {
                    Ok((socket, _)) => {
                        let first = self.first.take().filter(|(opened, _)| opened.elapsed() < FRESH);
                        let first = first.map(|(_, way)| way);
                        carried.push(carry_connection(self.pods.clone(), self.portal.clone(), first, socket));
                    }
                    Err(error) => {
                        tracing::warn!("a connection to the forwarded port failed: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
}

async fn carry_connection(
    pods: kube::Api<Pod>,
    portal: PortalPod,
    first: Option<Portforwarder>,
    mut socket: TcpStream,
) {
    let opened = match first {
        Some(first) => Ok(first),
        None => open(&pods, &portal).await,
    };
    let carried = async {
        let mut way = opened.map_err(|failure| failure.to_string())?;
        let mut stream = way.take_stream(portal.port).ok_or("it has no stream")?;
        copy_bidirectional(&mut socket, &mut stream).await.map_err(|error| error.to_string())
    };
    if let Err(why) = carried.await {
        tracing::warn!("forwarding a port of the pod {} broke off: {why}", portal.pod);
    }
}

async fn open(pods: &kube::Api<Pod>, portal: &PortalPod) -> Result<Portforwarder, RequestFailure> {
    let ports = [portal.port];
    let opened = timeout(WITHIN, pods.portforward(&portal.pod, &ports));
    opened.await.map_err(|_| RequestFailure::TimedOut(WITHIN))?.map_err(|error| match error {
        kube::Error::Api(status) => RequestFailure::Status {
            code: status.code,
            reason: status.reason.clone(),
            message: status.message.clone(),
            retry_after: None,
            token: None,
        },
        error => RequestFailure::Transport(error_chain(&error)),
    })
}

/// The first pod whose service account may create token reviews. The check uses the person's own rights.
async fn find_proven_portal(
    signed_in: &SignedIn,
    namespace: &str,
    mut portals: Vec<PortalPod>,
) -> Result<Option<PortalPod>, ForwardError> {
    let checkup = RightsCheckup::new(signed_in);
    let attempt = AccessAttempt {
        verb: "create".into(),
        group: "authentication.k8s.io".into(),
        resource: "tokenreviews".into(),
        namespace: String::new(),
        name: String::new(),
    };
    let mut accounts: Vec<String> = Vec::new();
    for portal in &portals {
        if !accounts.contains(&portal.account) {
            accounts.push(portal.account.clone());
        }
    }
    let unproven = |why| ForwardError::Unproven {
        namespace: namespace.to_owned(),
        server: signed_in.server.clone(),
        why,
    };
    for name in accounts.iter().take(ACCOUNTS) {
        let whose = RightsOwner::Account { namespace: namespace.to_owned(), name: name.clone() };
        match checkup.has_right(&whose, &attempt).await {
            Ok(true) => {
                portals.retain(|portal| portal.account == *name);
                return Ok(portals.into_iter().next());
            }
            Ok(false) => {}
            Err(CheckupError::Forbidden(why)) => {
                return Err(unproven(format!("you may not ask what its service account may do ({why})")));
            }
            Err(error) => {
                return Err(ForwardError::Broken {
                    server: signed_in.server.clone(),
                    why: error.to_string(),
                });
            }
        }
    }
    match accounts.first() {
        Some(name) => Err(unproven(format!("its service account {name} may not create token reviews"))),
        None => Ok(None),
    }
}

/// The portals of all pods that are ready.
async fn find(signed_in: &SignedIn, namespace: &str) -> Result<Vec<PortalPod>, ForwardError> {
    let address =
        RequestAddress::new("/api/v1/namespaces").with_member(namespace).as_str().to_owned() + "/pods";
    let address =
        RequestAddress::new(&address).with_parameter("labelSelector", LABEL).with_parameter("limit", PODS);
    let api = signed_in.api_client();
    let asked = timeout(WITHIN, api.ask_for(Method::GET, address.as_str(), None, BYTES));
    let answer = asked.await.unwrap_or(Err(RequestFailure::TimedOut(WITHIN)));
    let pods = answer.and_then(|body| {
        serde_json::from_slice::<List<Pod>>(&body).map_err(|error| RequestFailure::Answer(error.to_string()))
    });
    let server = signed_in.server.clone();
    match pods {
        Ok(pods) => Ok(pods.items.iter().filter_map(portal_of).collect()),
        Err(RequestFailure::Status { code: 403, message, .. }) => {
            Err(ForwardError::Forbidden { right: "list pods", namespace: namespace.to_owned(), why: message })
        }
        Err(failure) => Err(ForwardError::Broken { server, why: failure.to_string() }),
    }
}

/// The portal of a pod that is ready.
fn portal_of(pod: &Pod) -> Option<PortalPod> {
    let ready =
        pod.status.as_ref()?.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    if !ready || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let ports = pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|c| c.ports.iter().flatten());
    let named = |name: &str| {
        let port = ports.clone().find(|port| port.name.as_deref() == Some(name))?;
        u16::try_from(port.container_port).ok()
    };
    let (port, is_secure) = match (named(SECURE), named(PLAIN)) {
        (Some(port), _) => (port, true),
        (None, port) => (port.unwrap_or(PORT), false),
    };
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let account = account.unwrap_or_else(|| "default".into());
    Some(PortalPod { pod: pod.metadata.name.clone()?, port, is_secure, account })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(ready: &str, ports: &Value) -> Pod {
        serde_json::from_value(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kubewitness-0"},
            "spec": {"containers": [{"name": "kubewitness", "ports": ports}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
        )
        .unwrap()
    }

    #[test]
    fn the_portal_is_the_named_port_of_a_ready_pod() {
        let of = |ports: Value| portal_of(&pod("True", &ports)).map(|portal| (portal.port, portal.is_secure));
        assert_eq!(of(json!([{"name": "health", "containerPort": 8788}])), Some((8787, false)));
        assert_eq!(of(json!([{"name": "portal", "containerPort": 9000}])), Some((9000, false)));
        assert_eq!(of(json!([{"name": "portal-tls", "containerPort": 9443}])), Some((9443, true)));
        assert_eq!(portal_of(&pod("False", &json!([]))), None);
    }

    #[test]
    fn a_pod_that_ends_is_not_asked() {
        let mut ending = pod("True", &json!([]));
        ending.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-20T13:45:11Z")).unwrap();
        assert_eq!(portal_of(&ending), None);
    }
}
