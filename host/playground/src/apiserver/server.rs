//! The server as others hold it: options, a handle for tests and the playground, and the loop that serves.

use std::future::IntoFuture;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::auth::{self, TokenUser};
use super::deleting;
use super::error::ApiError;
use super::rights::{self, MASTERS};
use super::routes;
use super::shared::Shared;
use super::store::HistoryLimits;
use super::watching::Drop;
use super::writing;

/// The token of the user `admin` when none is given.
const ADMIN_TOKEN: &str = "admin";

/// Between looks at the age of the history and at namespaces to be emptied.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// Connections that do not end by themselves are left behind after this long.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A token of a kubeconfig outlives any test and any playground.
const KUBECONFIG_LIFE_SECONDS: i64 = 365 * 86_400;

/// The namespaces of a new cluster.
const NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

#[derive(Debug, Clone)]
pub struct ApiServerOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Who may come with which token. The first of the group `system:masters` is the admin.
    pub tokens: Vec<TokenUser>,
    /// Roles decide; otherwise everybody may do everything.
    pub enforce_rbac: bool,
    /// Serve `/_sim/`.
    pub hooks: bool,
    /// Keep what happened to every object for [`ApiServer::history`]; implied by `hooks`.
    pub keep_truth: bool,
    pub bookmark_every: Duration,
    /// The longest a watch lasts, and what it lasts if it does not say.
    pub watch_timeout: Duration,
    /// How long a list waits for a version that does not exist yet.
    pub future_wait: Duration,
    pub history: HistoryLimits,
    /// The largest body of a request.
    pub max_body: usize,
    /// Makes uids, names and tokens repeatable.
    pub seed: Option<u64>,
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
            // More than the 3 MiB of a real server, so that its largest objects fit whatever their spelling.
            max_body: 8 << 20,
            seed: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("serving failed")]
    Serve(#[source] std::io::Error),
    #[error("the first objects of the cluster were refused: {0}")]
    Bootstrap(String),
}

/// A handle of a server; clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    pub(super) shared: Arc<Shared>,
}

/// The part that has to be run.
#[must_use = "nothing is served until this is run"]
pub struct Serving {
    shared: Arc<Shared>,
    listener: TcpListener,
}

/// One thing that happened to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// ADDED, MODIFIED or DELETED.
    pub event: &'static str,
    pub version: u64,
    /// `jobs.batch`
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl ApiServer {
    /// Takes the port and fills the store with what a new cluster has.
    pub async fn bind(options: ApiServerOptions) -> Result<(ApiServer, Serving), ApiServerError> {
        let asked = options.listen;
        let failed = |source| ApiServerError::Listen { address: asked, source };
        let listener = TcpListener::bind(asked).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared::new(options, address));
        bootstrap(&shared).map_err(|error| ApiServerError::Bootstrap(error.message))?;
        Ok((ApiServer { shared: Arc::clone(&shared) }, Serving { shared, listener }))
    }

    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// An address that says who comes, for clients that send no token over plain http (`kubectl`).
    pub fn url_for(&self, token: &str) -> String {
        format!("{}{}{token}", self.url(), routes::TOKEN_PREFIX)
    }

    /// The token of the first administrator; empty if there is none.
    pub fn admin_token(&self) -> &str {
        let tokens = &self.shared.options.tokens;
        tokens.iter().find(|t| t.groups.iter().any(|g| g == MASTERS)).map_or("", |t| &t.token)
    }

    /// A kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_of("admin", "default", self.admin_token())
    }

    /// A kubeconfig of a service account, whether it is there yet or not.
    pub fn kubeconfig_for(&self, namespace: &str, service_account: &str) -> String {
        let life = Some(KUBECONFIG_LIFE_SECONDS);
        let (token, _) = auth::issue(&self.shared, namespace, service_account, None, Vec::new(), life);
        self.kubeconfig_of(service_account, namespace, &token)
    }

    fn kubeconfig_of(&self, user: &str, namespace: &str, token: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: simulator\n\
             clusters:\n- name: simulator\n  cluster:\n    server: {}\n\
             contexts:\n- name: simulator\n  context:\n    cluster: simulator\n    user: {user}\n    \
             namespace: {namespace}\n\
             users:\n- name: {user}\n  user:\n    token: {token}\n",
            self.url_for(token)
        )
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.shared.store.version()
    }

    /// Forgets what was before a version; None is now. Returns the oldest version that can still be read.
    pub fn compact(&self, version: Option<u64>) -> u64 {
        self.shared.store.compact(version)
    }

    /// Watches from before now expire, while lists at old versions still work: what a restart of a server does.
    pub fn forget_watch_window(&self) {
        self.shared.store.forget_watch_window();
    }

    /// Ends all watches. Returns how many were open.
    pub fn drop_watches(&self, how: Drop) -> usize {
        self.shared.drop_watches(how)
    }

    /// Everything that happened to a resource (`"batch"`, `"jobs"`), also what was compacted. Empty unless
    /// the options say that it is kept.
    pub fn history(&self, group: &str, resource: &str) -> Vec<HistoryEntry> {
        let Ok(place) = self.shared.place(group, resource, "") else { return Vec::new() };
        let (entries, _) = self.shared.store.truth(Some(place.table));
        let name = place.kind.group_resource();
        entries
            .iter()
            .map(|entry| HistoryEntry {
                event: entry.event.as_str(),
                version: entry.version,
                resource: name.clone(),
                namespace: entry.namespace.to_string(),
                name: entry.name.to_string(),
                uid: entry.uid.to_string(),
            })
            .collect()
    }
}

impl Serving {
    /// Serves until told to stop; then watches end, and requests under way are answered.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), ApiServerError> {
        let Serving { shared, listener } = self;
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "small frames may be delayed");
            }
        });
        let router = Router::new().fallback(routes::handle).with_state(Arc::clone(&shared));
        let serving = axum::serve(listener, router)
            .with_graceful_shutdown(shared.stop.clone().cancelled_owned())
            .into_future();
        tokio::pin!(serving);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            tokio::select! {
                ended = &mut serving => return ended.map_err(ApiServerError::Serve),
                () = stop.cancelled() => break,
                _ = sweep.tick() => {
                    shared.store.compact_by_age();
                    deleting::empty_namespaces(&shared);
                }
            }
        }
        shared.stop.cancel();
        match tokio::time::timeout(STOP_WITHIN, serving).await {
            Ok(ended) => ended.map_err(ApiServerError::Serve),
            Err(_) => {
                tracing::debug!("connections were still open when the simulated API server stopped");
                Ok(())
            }
        }
    }
}

fn bootstrap(shared: &Shared) -> Result<(), ApiError> {
    let create = |object: Value| {
        let plural = match object["kind"].as_str() {
            Some("Namespace") => ("", "namespaces"),
            Some("ClusterRole") => ("rbac.authorization.k8s.io", "clusterroles"),
            _ => ("rbac.authorization.k8s.io", "clusterrolebindings"),
        };
        let place = shared.place(plural.0, plural.1, "")?;
        writing::create(shared, &place, object, false).map(|_| ())
    };
    for name in NAMESPACES {
        create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))?;
    }
    rights::bootstrap().into_iter().try_for_each(create)
}
