//! The controller: opens the journal, follows the configuration, and runs what it names.
//!
//! It wires the stages, one line for each, and so shows the whole flow in one place. What a stage does is in
//! its crate; this module knows neither the command line nor the inside of a stage. Shutdown is a parameter:
//! `stop` drains in order, first intake and then delivery, and `abort` bounds how long that may take. Every
//! task is supervised: its unexpected end stops the process instead of going unnoticed.

mod election;
mod mutes;
mod opening;
mod phases;
pub mod plugins;
mod reconcile;
mod shared;
mod sources;
mod submitter;
pub mod trial;
mod views;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use kubewitness_core::clock::SystemClock;
use kubewitness_core::files::{self, FileLock};
use kubewitness_core::ports::Backlog;
use kubewitness_core::views::Views;
use kubewitness_journal::{Journal, JournalLocation, PhaseIndex, ReplicaSharing};
use kubewitness_portal::{PortalAccess, PortalOptions};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine};
use kubewitness_watch::election::{ElectionOptions, LeaseElector};
use kubewitness_watch::{ApiConnection, JobClient, ReviewClient};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::access::{self, PortalDoors};
use crate::config::component::ComponentFolders;
use crate::config::last_good::LastGood;
use crate::config::{ConfigSnapshot, cluster, folder};
use crate::process::file_handles;
use crate::process::folder_lock::lock_folder;
use crate::process::timers::{ClientTimers, ControllerTimers};
use crate::tasks::{TaskFate, TaskSupervisor, or_overdue};
use election::{LeaderRole, ReplicaElection};
use kubewitness_capability::SharedValue;
use mutes::StoryMutes;
use opening::OpeningViews;
use reconcile::ReconcileLoop;
use reconcile::report::{ClusterReports, ConfigReporter};
#[cfg(test)]
pub use shared::PluginPhase;
use shared::SharedStatus;
use submitter::JobSubmissions;
pub use submitter::make_offer;

pub enum ConfigFrom {
    Folder(PathBuf),
    Namespace(String),
}

pub struct ControllerOptions {
    pub connection: ApiConnection,
    pub config: ConfigFrom,
    pub data: PathBuf,
    pub journal: JournalLocation,
    /// Bound by the caller, who may need to know in advance that the address is free.
    pub listener: TcpListener,
    pub doors: PortalDoors,
    pub health_listen: Option<SocketAddr>,
    pub plugin_folders: ComponentFolders,
    /// The Lease with which replicas that share the journal elect the leader; `None` if this process has the
    /// journal for itself.
    pub lease: Option<LeaseName>,
    pub timers: ControllerTimers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    pub namespace: String,
    pub name: String,
}

/// A running controller. `stop` drains it, `abort` ends its calls at once.
pub struct RunningController {
    tasks: TaskSupervisor,
    /// The portal ends last, so that people can watch the draining.
    after: CancellationToken,
    control: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
    abort: CancellationToken,
    journal: Journal,
    /// Held until the end, so that no other process works in the data folder.
    _folder_lock: Option<FileLock>,
    #[cfg(feature = "playground")]
    pub views: Arc<dyn Views>,
    pub address: SocketAddr,
    pub scheme: &'static str,
}

impl RunningController {
    /// Returns `None` if it was stopped before the journal was open, so that nothing must be drained.
    pub async fn start(
        options: ControllerOptions,
        stop: CancellationToken,
        abort: CancellationToken,
    ) -> Result<Option<Self>> {
        let (listener, doors, timers) = (options.listener, options.doors, options.timers);
        let (scheme, ended) = (doors.scheme(), doors.access.ended_sessions());
        // Without sign-in, people are not distinguished, and the role may lack the right to read namespaces.
        let reviews = matches!(doors.access, PortalAccess::Kubernetes(_))
            .then(|| ReviewClient::new(&options.connection));
        let address = listener.local_addr().context("asking for the address of the portal")?;
        let data = options.data.clone();
        files::run_within_limit(&options.data, files::ANSWER, move || std::fs::create_dir_all(data))
            .await
            .with_context(|| format!("making {}", options.data.display()))?;
        let (tasks, after) = (TaskSupervisor::new(stop.clone(), abort.clone()), CancellationToken::new());
        let opening = Arc::new(OpeningViews::new());
        let views: Arc<dyn Views> = opening.clone();
        let shared = Arc::new(SharedStatus::default());
        let submitter = JobSubmissions::new(shared.clone(), JobClient::new(&options.connection));
        let portal = PortalOptions { submitter: Some(Arc::new(submitter)), ..PortalOptions::default() };
        let doors = (listener, doors, portal, timers.client);
        start_serving(&tasks, doors, options.health_listen, &views, &after, &abort)?;
        let election =
            options.lease.map(|lease| start_election(&tasks, &options.connection, lease, &timers, &after));
        let Some(journal) = open(&opening, &options.journal, election.as_ref(), &stop).await? else {
            after.cancel();
            tasks.await_all().await?;
            return Ok(None);
        };
        let folder_lock = lock_folder(&options.data).await?;
        let data = options.data.clone();
        files::run_within_limit(&options.data, files::WORK, move || trial::clear(&data))
            .await
            .context("removing what trials of plugins have left")?;
        let engine = sandbox_engine(Some(options.data.join("cache")), true)?;
        let mutes_for_plugins = SharedValue::default();
        let mutes = StoryMutes::new(journal.clone(), &options.data, mutes_for_plugins.clone());
        let mutes = Arc::new(match reviews {
            Some(reviews) => mutes.of_live_namespaces(Arc::new(reviews)),
            None => mutes,
        });
        let (following, every, until) = (mutes.clone(), timers.replicas.shared_lists, stop.clone());
        tasks.spawn_task("following what people mute", TaskFate::Finite, async move {
            following.follow_changes(every, until).await
        });
        let index = PhaseIndex::new(options.data.join(phases::FILE));
        shared.set_outcomes(Arc::new(phases::JournalOutcomes {
            index: index.clone(),
            journal: journal.clone(),
        }));
        let indexing = phases::follow_journal(index.clone(), journal.clone(), stop.clone());
        tasks.spawn_task("index of phases", TaskFate::Finite, indexing);
        let opened = views::HostViews::new(shared.clone(), journal.clone(), election.clone(), mutes, index);
        opening.set_views(Arc::new(opened));
        if let Some(election) = election.clone() {
            let looking = follow_other_replicas(journal.clone(), election, stop.clone());
            tasks.spawn_task("looking at what other replicas wrote", TaskFate::Finite, looking);
            if let Some(ended) = ended {
                let sharing = access::share_ended_sessions(ended, journal.clone(), every, stop.clone());
                tasks.spawn_task("telling other replicas of log-outs", TaskFate::Finite, sharing);
            }
        }
        let (snapshots, cluster) =
            follow_configuration(&tasks, &options.config, &options.connection, &timers, &stop);
        let clock = Arc::new(SystemClock::default());
        let witness = Arc::new(journal.clone());
        let sources = sources::SourceParts::new(
            options.connection,
            witness,
            clock.clone(),
            shared.clone(),
            tasks.clone(),
            timers.watch.clone(),
        );
        let plugins = plugins::RunningPlugins::new(
            engine,
            journal.clone(),
            clock,
            shared,
            tasks.clone(),
            ComponentFolders { data: Some(options.data.clone()), ..options.plugin_folders },
            abort.clone(),
        )
        .elected_by(election.clone())
        .with_shared_mutes(mutes_for_plugins)
        .with_pauses(timers.breaker);
        let role = LeaderRole::new(election, journal.clone());
        let last_good = LastGood::open(&options.data).context("opening the last good configuration")?;
        warn_of_new_journal(&journal, &last_good);
        let control = ReconcileLoop::new(
            options.data,
            role,
            sources,
            plugins,
            ConfigReporter::new(cluster),
            last_good,
            &timers,
        )
        .await?;
        let control =
            tasks.spawn_task("controller", TaskFate::Essential, control.run(snapshots, stop.clone()));
        Ok(Some(Self {
            tasks,
            after,
            control,
            stop,
            abort,
            journal,
            _folder_lock: folder_lock,
            #[cfg(feature = "playground")]
            views,
            address,
            scheme,
        }))
    }

    /// Waits for `stop` and for everything to drain; after `abort`, at most for the grace period of each
    /// part.
    pub async fn finish_draining(self) -> Result<()> {
        // The supervisor below reports that it ended, or that it has not.
        tokio::select! {
            _ = or_overdue(&self.abort, self.control) => {}
            () = log_running_tasks(&self.tasks, &self.stop) => {}
        }
        self.after.cancel();
        let result = self.tasks.await_all().await;
        let closed = match or_overdue(&self.abort, self.journal.close()).await {
            Some(closed) => closed.context("closing the journal"),
            None => Err(anyhow!("told to stop at once, the journal was not closed in time")),
        };
        result.and(closed)
    }
}

/// The engine of production compiles components in another process of this program. An author can end a
/// command that takes too long. A controller in a pod has nobody to do that, and its container's memory limit
/// may kill it.
pub fn sandbox_engine(cache: Option<PathBuf>, is_controller: bool) -> Result<SandboxEngine> {
    let is_unattended = is_controller && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let compiler =
        ComponentCompiler::this_program().context("finding this program, which compiles components")?;
    Ok(SandboxEngine::new(EngineOptions { cache, compiler, is_unattended })?)
}

/// Once shutdown has begun, logs at intervals what it waits for.
async fn log_running_tasks(tasks: &TaskSupervisor, stop: &CancellationToken) {
    stop.cancelled().await;
    tasks.log_running_tasks().await;
}

/// The Lease is released once nothing is done any more that only its holder may do.
fn start_election(
    tasks: &TaskSupervisor,
    connection: &ApiConnection,
    lease: LeaseName,
    timers: &ControllerTimers,
    after: &CancellationToken,
) -> ReplicaElection {
    let LeaseName { namespace, name } = lease;
    let lease = format!("{namespace}/{name}");
    let identity = hostname();
    let options = ElectionOptions { namespace, name, identity, timing: timers.election };
    let (elector, leadership) = LeaseElector::new(connection, options);
    let (may_lead, may) = watch::channel(true);
    let after = after.clone();
    tasks.spawn_task("election", TaskFate::Essential, async move {
        elector.run(after, may).await;
        Ok(())
    });
    ReplicaElection { leadership, lease, may_lead, timers: timers.replicas }
}

/// In a pod, this is the pod's name.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "kubewitness".into() } else { name.trim().into() }
}

/// `None` if it was stopped before it was open.
async fn open(
    opening: &OpeningViews,
    place: &JournalLocation,
    election: Option<&ReplicaElection>,
    stop: &CancellationToken,
) -> Result<Option<Journal>> {
    let Some(election) = election else { return opening.open_journal(place, None, stop).await };
    let Some(lease) = opening.await_lease(election, stop).await else { return Ok(None) };
    let sharing = ReplicaSharing { name: election.leadership.identity().to_owned(), lease };
    let mut journal = pin!(opening.open_journal(place, Some(sharing), stop));
    if let Ok(opened) = timeout(election.timers.without_journal, &mut journal).await {
        return opened;
    }
    election.takes_part(false);
    let opened = journal.await;
    election.takes_part(true);
    opened
}

/// Delivers states that only another replica has witnessed as soon as they are visible here. If the journal
/// can't be reached, another replica may be able to reach it.
async fn follow_other_replicas(
    journal: Journal,
    election: ReplicaElection,
    stop: CancellationToken,
) -> Result<()> {
    let (mut known_lease, timers) = (election.lease_identity(), election.timers);
    let mut answered = Instant::now();
    while stop.run_until_cancelled(tokio::time::sleep(timers.other_states)).await.is_some() {
        let now = election.lease_identity();
        let looking = async {
            match now.clone().filter(|_| now != known_lease) {
                // It was deleted and created again.
                Some(lease) => journal.elect_by(lease).await.is_ok(),
                // An error is reported by the tasks that write to the journal.
                None => journal.await_earlier_writes().await.is_ok(),
            }
        };
        match stop.run_until_cancelled(timeout(timers.without_journal, looking)).await {
            Some(Ok(true)) => {
                known_lease = now.or(known_lease);
                answered = Instant::now();
                election.takes_part(true);
            }
            Some(_) if answered.elapsed() >= timers.without_journal => election.takes_part(false),
            _ => {}
        }
    }
    Ok(())
}

pub fn listen_on(address: SocketAddr) -> Result<TcpListener> {
    kubewitness_portal::listen_on(address)
        .with_context(|| format!("listening on {address}: name another address with --listen"))
}

fn start_serving(
    tasks: &TaskSupervisor,
    (listener, doors, options, timers): (TcpListener, PortalDoors, PortalOptions, ClientTimers),
    health: Option<SocketAddr>,
    views: &Arc<dyn Views>,
    after: &CancellationToken,
    abort: &CancellationToken,
) -> Result<()> {
    let (bounds, health_bounds) = file_handles::for_clients();
    let (bounds, health_bounds) = (timers.within(bounds), timers.within(health_bounds));
    let PortalDoors { access, tls, streams } = doors;
    let streams = streams.unwrap_or(options.streams);
    let options = PortalOptions { bounds, access, tls, streams, abort: abort.clone(), ..options };
    let figures_on = Some(Handle::current());
    let health_options = PortalOptions { bounds: health_bounds, figures_on, ..options.clone() };
    let portal = kubewitness_portal::serve_portal(listener, views.clone(), options, after.clone());
    tasks.spawn_task("portal", TaskFate::Finite, async move { Ok(portal.await?) });
    if let Some(address) = health {
        let (views, after) = (views.clone(), after.clone());
        // On a separate thread: a probe that is not answered in time ends the process.
        tasks.spawn_apart("health", TaskFate::Finite, move || {
            let listener = kubewitness_portal::listen_on(address)
                .with_context(|| format!("listening on {address} (--health-listen)"))?;
            Ok(async move {
                kubewitness_portal::serve_health(listener, views, health_options, after).await;
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// If the journal is lost, the next start creates another one, and only the restart shows it.
fn warn_of_new_journal(journal: &Journal, last_good: &LastGood) {
    if *journal.newest_position().borrow() == 0 && last_good.has_witnessed() {
        warn!(
            "the journal is a new one and empty, although this data folder has had a journal with states before. If \
             you did not mean to begin anew, stop, put the old journal or a copy of it back, and start again"
        );
    }
}

/// Starts to watch the configuration. It is `None` until the first read.
fn follow_configuration(
    tasks: &TaskSupervisor,
    from: &ConfigFrom,
    connection: &ApiConnection,
    timers: &ControllerTimers,
    stop: &CancellationToken,
) -> (watch::Receiver<Option<ConfigSnapshot>>, Option<ClusterReports>) {
    let (sender, receiver) = watch::channel(None);
    match from {
        ConfigFrom::Folder(path) => {
            let following =
                folder::follow_folder(path.clone(), timers.configuration.folder, sender, stop.clone());
            tasks.spawn_task("configuration", TaskFate::Essential, following);
            (receiver, None)
        }
        ConfigFrom::Namespace(namespace) => {
            let maps = cluster::WatchedMaps::default();
            let tuning = timers.watch.clone();
            let watching = cluster::follow_namespace(
                connection.clone(),
                tuning,
                namespace.clone(),
                maps.clone(),
                sender,
                stop.clone(),
            );
            tasks.spawn_task("configuration", TaskFate::Essential, watching);
            let cluster =
                ClusterReports { connection: connection.clone(), namespace: namespace.clone(), maps };
            (receiver, Some(cluster))
        }
    }
}
