//! The options with which a simulated API server starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::apiserver::cluster::auth::TokenUser;
use crate::apiserver::cluster::rights::MASTERS;
use crate::apiserver::cluster::tls::TlsOptions;
use crate::apiserver::faults::InjectedFault;
use crate::apiserver::store::HistoryLimits;
use crate::apiserver::values::versions::VersionStyle;

/// The token of the user `admin` if none is given.
const ADMIN_TOKEN: &str = "admin";

#[derive(Debug, Clone)]
pub struct ApiServerOptions {
    /// The address to listen on; port 0 takes a free port.
    pub listen: SocketAddr,
    /// The users and their tokens. The first of the group `system:masters` is the admin.
    pub tokens: Vec<TokenUser>,
    /// Whether RBAC decides. Otherwise everybody may do everything.
    pub enforce_rbac: bool,
    /// Whether to serve `/_sim/`.
    pub hooks: bool,
    /// Whether to keep the record of every object for [`ApiServer::history`]; implied by `hooks`.
    pub keep_truth: bool,
    pub bookmark_every: Duration,
    /// The longest duration of a watch, and its default.
    pub watch_timeout: Duration,
    /// How long a list waits for a version that does not exist yet.
    pub future_wait: Duration,
    pub history: HistoryLimits,
    /// The largest body of a request.
    pub max_body: usize,
    /// Makes uids, names and tokens repeatable.
    pub seed: Option<u64>,
    /// A file that keeps the store after the end of the process, even after a kill.
    pub state: Option<PathBuf>,
    /// How versions look to clients.
    pub versions: VersionStyle,
    /// Serves TLS; otherwise plain text.
    pub tls: Option<TlsOptions>,
    /// Faults that are armed on every server from the start.
    pub faults: Vec<InjectedFault>,
}

impl Default for ApiServerOptions {
    fn default() -> Self {
        ApiServerOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            tokens: vec![TokenUser {
                token: ADMIN_TOKEN.into(),
                user: "admin".into(),
                groups: vec![MASTERS.into()],
            }],
            enforce_rbac: false,
            hooks: false,
            keep_truth: false,
            bookmark_every: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(30 * 60),
            future_wait: Duration::from_secs(1),
            history: HistoryLimits::default(),
            // More than the 3 MiB of a real server, so that its largest objects fit in any notation.
            max_body: 8 << 20,
            seed: None,
            state: None,
            versions: VersionStyle::Decimal,
            tls: None,
            faults: Vec::new(),
        }
    }
}
