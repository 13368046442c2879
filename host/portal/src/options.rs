//! The options of serving the portal, and the reasons to refuse a combination of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::ports::JobSubmitter;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::access::PortalAccess;
use crate::serve::{CertificateError, ListenerBounds, ListenerTraffic, TlsFiles};

#[derive(Clone)]
pub struct PortalOptions {
    /// The address that [`router`] assumes; [`serve`] uses that of its listener.
    pub listen: SocketAddr,
    /// Whether a remotely reachable address is accepted without [`PortalAccess::Kubernetes`]. Somebody who
    /// allows it puts an authenticating proxy in front of the portal.
    pub allow_remote: bool,
    pub access: PortalAccess,
    /// Creates the Jobs that people submit. `None` disables submission.
    pub submitter: Option<Arc<dyn JobSubmitter>>,
    /// Serves HTTPS only. `None`: HTTP.
    pub tls: Option<TlsFiles>,
    /// A request that takes longer is abandoned.
    pub request_timeout: Duration,
    /// Concurrent live streams. Each holds a connection and a batch of states. Half of the connections stay
    /// reserved for other requests, for any value.
    pub streams: usize,
    /// The limits for its clients.
    pub bounds: ListenerBounds,
    /// The runtime that reads the figures of `/metrics`. `None`: the one that serves.
    pub figures_on: Option<Handle>,
    /// Counts connections. The portal and the health port share it.
    pub traffic: ListenerTraffic,
    /// Ends connections at once, while `stop` gives them time.
    pub abort: CancellationToken,
}

impl Default for PortalOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            allow_remote: false,
            access: PortalAccess::None,
            submitter: None,
            tls: None,
            request_timeout: Duration::from_secs(15),
            streams: 64,
            bounds: ListenerBounds::PORTAL,
            figures_on: None,
            traffic: ListenerTraffic::default(),
            abort: CancellationToken::new(),
        }
    }
}

#[derive(Debug, Error)]
pub enum PortalError {
    #[error(
        "the portal would listen on {0}, which others can reach, and it does not know who asks: \
         listen on 127.0.0.1 and let people reach it with `kubectl port-forward`, or let people sign in"
    )]
    Remote(SocketAddr),
    #[error("the portal can't serve HTTPS: {0}")]
    Tls(CertificateError),
    #[error("the portal can't serve: {0}")]
    Serve(#[from] std::io::Error),
}
