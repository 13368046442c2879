//! The public side of a server: a handle for tests and the playground, and the serving loop.
//!
//! Tests must be able to do more than a client can: stop a server, restore an old store, compact the history,
//! cause faults, and read the whole history afterwards. The handle has these, and `hooks` offers them over
//! HTTP to a test in another process.
//!
//! It does not know what a request for objects means: `objects` does.

mod connections;
mod failing;
mod hooks;
mod routes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::faults::InjectedFault;
use super::store::WindowPolicy;
use crate::apiserver::cluster::auth;
use crate::apiserver::cluster::front::{ServerFront, ServerPower, WatchDrop};
use crate::apiserver::cluster::options::ApiServerOptions;
use crate::apiserver::cluster::rights::{self, MASTERS};
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::cluster::tls::ServerTls;
use crate::apiserver::cluster::truth::ResourceTruth;
use crate::apiserver::objects::{delete, write};
use crate::apiserver::wire::error::ApiError;

/// The pause between checks of the history's age and of namespaces to empty.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// How long a stop waits for connections that do not end.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// The token of a kubeconfig outlives any test and any playground.
const KUBECONFIG_LIFE_SECONDS: i64 = 365 * 86_400;

/// The namespaces of a new cluster.
const NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("serving failed")]
    Serve(#[source] std::io::Error),
    #[error("the state in {path} cannot be used")]
    State { path: PathBuf, source: std::io::Error },
    #[error("the certificate in {path} or its key cannot be used")]
    Tls { path: PathBuf, source: std::io::Error },
    #[error("the state can be written no longer: {0}")]
    StateLost(String),
    #[error("the first objects of the cluster were refused: {0}")]
    Bootstrap(String),
}

/// A handle of a server. Clones are handles of the same server.
#[derive(Clone)]
pub struct ApiServer {
    pub(super) front: Arc<ServerFront>,
}

/// The part that has to run.
#[must_use = "nothing is served until this is run"]
pub struct ServerTask {
    front: Arc<ServerFront>,
    listener: TcpListener,
}

/// One write of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// ADDED, MODIFIED or DELETED.
    pub event: &'static str,
    /// How often the history was replaced before.
    pub epoch: u32,
    pub version: u64,
    /// `jobs.batch`
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl ApiServer {
    /// Binds the port, and fills the store with the objects of a new cluster.
    pub async fn bind(options: ApiServerOptions) -> Result<(ApiServer, ServerTask), ApiServerError> {
        let listen = options.listen;
        let listener = listen_on(listen).await?;
        if let Some(tls) = &options.tls {
            ServerTls::open(tls)
                .map_err(|source| ApiServerError::Tls { path: tls.certificate.clone(), source })?;
        }
        let state = options.state.clone().unwrap_or_default();
        let opened =
            SharedCluster::open(options).map_err(|source| ApiServerError::State { path: state, source });
        let cluster = Arc::new(opened?);
        if cluster.store.version() == 0 {
            bootstrap(&cluster).map_err(|error| ApiServerError::Bootstrap(error.message))?;
        }
        ApiServer::over(&cluster, listener, listen)
    }

    /// Adds a server over the same store, like a second kube-apiserver over one etcd. Its cache starts now.
    pub async fn beside(&self, listen: SocketAddr) -> Result<(ApiServer, ServerTask), ApiServerError> {
        ApiServer::over(self.front.cluster(), listen_on(listen).await?, listen)
    }

    fn over(
        cluster: &Arc<SharedCluster>,
        listener: TcpListener,
        asked: SocketAddr,
    ) -> Result<(ApiServer, ServerTask), ApiServerError> {
        let failed = |source| ApiServerError::Listen { address: asked, source };
        let front = ServerFront::new(cluster, listener.local_addr().map_err(failed)?);
        Ok((ApiServer { front: Arc::clone(&front) }, ServerTask { front, listener }))
    }

    pub fn address(&self) -> SocketAddr {
        self.front.address
    }

    pub fn url(&self) -> String {
        let scheme = if self.front.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.front.address)
    }

    /// An address with a token, for clients that send none over plain HTTP (`kubectl`).
    pub fn url_for(&self, token: &str) -> String {
        format!("{}{}{token}", self.url(), routes::TOKEN_PREFIX)
    }

    /// The token of the first administrator; empty if there is none.
    pub fn admin_token(&self) -> &str {
        let tokens = &self.front.options.tokens;
        tokens.iter().find(|t| t.groups.iter().any(|g| g == MASTERS)).map_or("", |t| &t.token)
    }

    /// A kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_of("admin", "default", self.admin_token())
    }

    /// A kubeconfig of a service account, whether the account exists or not.
    pub fn kubeconfig_for(&self, namespace: &str, service_account: &str) -> String {
        let life = Some(KUBECONFIG_LIFE_SECONDS);
        let (token, _) = auth::issue(&self.front, namespace, service_account, None, Vec::new(), life);
        self.kubeconfig_of(service_account, namespace, &token)
    }

    fn kubeconfig_of(&self, user: &str, namespace: &str, token: &str) -> String {
        // Over TLS every client sends its token.
        let server = match &self.front.options.tls {
            None => self.url_for(token),
            Some(tls) => {
                let authority = tls.authority.as_ref().unwrap_or(&tls.certificate);
                format!("{}\n    certificate-authority: {}", self.url(), authority.display())
            }
        };
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: simulator\n\
             clusters:\n- name: simulator\n  cluster:\n    server: {server}\n\
             contexts:\n- name: simulator\n  context:\n    cluster: simulator\n    user: {user}\n    \
             namespace: {namespace}\n\
             users:\n- name: {user}\n  user:\n    token: {token}\n"
        )
    }

    /// The newest version of the store.
    pub fn version(&self) -> u64 {
        self.front.store.version()
    }

    /// Compacts the history before a version (`None`: now). Returns the oldest version that remains readable.
    pub fn compact(&self, version: Option<u64>) -> u64 {
        self.front.store.compact(version, WindowPolicy::Forget)
    }

    /// Does the same in the store only. The servers keep their watch windows.
    pub fn compact_history(&self, version: Option<u64>) -> u64 {
        self.front.store.compact(version, WindowPolicy::Keep)
    }

    /// Lets watches of this server from earlier versions expire, as a restart does. Lists at old versions
    /// still work.
    pub fn forget_watch_window(&self) {
        self.front.forget_watch_window();
    }

    /// Deletes several objects of a resource at one version, as an expired lease does. Returns their number.
    pub fn delete_together(&self, group: &str, resource: &str, namespace: &str, names: &[&str]) -> usize {
        let Ok(place) = self.front.place(group, resource, namespace) else { return 0 };
        let keys: Vec<String> = names.iter().map(|name| place.key(name)).collect();
        self.front.store.remove_together(place.table, &keys)
    }

    /// Holds this server's cache at a version (`None`: now), older than the store's. Its watches see nothing
    /// new, and lists with `resourceVersion=0` show that version. Returns the version, which is newer than
    /// the requested one if that no longer exists.
    pub fn hold_cache(&self, version: Option<u64>) -> u64 {
        self.front.hold(version)
    }

    /// Lets the cache catch up with the store.
    pub fn release_cache(&self) {
        self.front.release();
    }

    /// The newest version in this server's cache.
    pub fn cached_version(&self) -> u64 {
        self.front.cached_version()
    }

    /// Arms a fault on this server. Returns `false` if too many are armed.
    pub fn inject(&self, fault: InjectedFault) -> bool {
        self.front.faults.arm(fault)
    }

    /// Disarms all faults. Faults in progress continue. Returns how many were armed.
    pub fn disarm(&self) -> usize {
        self.front.faults.disarm()
    }

    /// The number of faults that have not hit all their requests.
    pub fn armed(&self) -> usize {
        self.front.faults.armed()
    }

    /// Ends all watches of this server. Returns how many were open.
    pub fn drop_watches(&self, how: WatchDrop) -> usize {
        self.front.drop_watches(how)
    }

    /// Takes this server down: its connections break, and its port refuses. The store stays.
    ///
    /// Like [`ApiServer::power_on`], it returns when that is done, and needs a running [`ServerTask::serve`].
    pub async fn power_off(&self) {
        self.front.power.send_replace(ServerPower::Off { after: Duration::ZERO, back: None });
        self.reach(false).await;
    }

    /// Brings it back on its port, with an empty watch window.
    pub async fn power_on(&self) {
        self.front.power.send_replace(ServerPower::On);
        self.reach(true).await;
    }

    async fn reach(&self, up: bool) {
        if self.front.up.subscribe().wait_for(|now| *now == up).await.is_err() {
            tracing::debug!("the simulated API server is gone");
        }
    }

    /// Copies everything under a name, like a backup of etcd. Returns its version.
    pub fn back_up(&self, name: &str) -> u64 {
        self.front.store.back_up(name)
    }

    /// Restores a backup, and its counter, unless `bump` raises the counter above it (and compacts everything
    /// before). The servers of the cluster begin with empty caches, and their watches break. Returns the
    /// version from which the new history continues; `None` if the backup does not exist.
    pub fn restore(&self, name: &str, bump: u64) -> Option<u64> {
        self.front.restore(name, bump)
    }

    /// The record of a resource (`"batch"`, `"jobs"`) over all histories, and when each version could be
    /// read. It is empty unless the options keep it.
    pub fn truth(&self, group: &str, resource: &str) -> ResourceTruth {
        ResourceTruth::of(&self.front, group, resource)
    }

    /// Every write of a resource (`"batch"`, `"jobs"`), compacted ones included. It is empty unless the
    /// options keep it.
    pub fn history(&self, group: &str, resource: &str) -> Vec<HistoryEntry> {
        let Ok(place) = self.front.place(group, resource, "") else { return Vec::new() };
        let entries = self.front.store.account(Some(place.table)).entries;
        let name = place.kind.group_resource();
        entries
            .iter()
            .map(|entry| HistoryEntry {
                event: entry.event.as_str(),
                epoch: entry.epoch,
                version: entry.version,
                resource: name.clone(),
                namespace: entry.namespace.to_string(),
                name: entry.name.to_string(),
                uid: entry.uid.to_string(),
            })
            .collect()
    }
}

impl ServerTask {
    /// Serves until it is told to stop. Then watches end, and requests in progress are answered.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), ApiServerError> {
        let ServerTask { front, listener } = self;
        let serving = connections::run(&front, listener);
        tokio::pin!(serving);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            tokio::select! {
                ended = &mut serving => return ended.map_err(ApiServerError::Serve),
                () = stop.cancelled() => break,
                _ = sweep.tick() => {
                    if let Some(failure) = front.store.failure() {
                        return Err(ApiServerError::StateLost(failure));
                    }
                    front.store.compact_by_age();
                    delete::empty_namespaces(&front);
                }
            }
        }
        front.stop.cancel();
        match tokio::time::timeout(STOP_WITHIN, serving).await {
            Ok(ended) => ended.map_err(ApiServerError::Serve),
            Err(_) => {
                tracing::debug!("connections were still open when the simulated API server stopped");
                Ok(())
            }
        }
    }
}

async fn listen_on(address: SocketAddr) -> Result<TcpListener, ApiServerError> {
    TcpListener::bind(address).await.map_err(|source| ApiServerError::Listen { address, source })
}

fn bootstrap(shared: &SharedCluster) -> Result<(), ApiError> {
    let create = |object: Value| {
        let plural = match object["kind"].as_str() {
            Some("Namespace") => ("", "namespaces"),
            Some("ClusterRole") => ("rbac.authorization.k8s.io", "clusterroles"),
            _ => ("rbac.authorization.k8s.io", "clusterrolebindings"),
        };
        let place = shared.place(plural.0, plural.1, "")?;
        write::create(shared, &place, object, "", false).map(|_| ())
    };
    for name in NAMESPACES {
        create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))?;
    }
    rights::bootstrap().into_iter().try_for_each(create)
}
