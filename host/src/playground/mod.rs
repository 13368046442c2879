//! `kubewitness playground`: a simulated cluster with training jobs, the real controller, three plugins,
//! SQLite and the portal, in one process.
//!
//! A newcomer should see the whole system within a minute, with nothing else installed. A recorded demo was
//! rejected: it would prove nothing. So the controller is the real one, and only the cluster is simulated. At
//! the end the playground compares what the cluster had with what was witnessed and delivered, and its exit
//! code says whether anything is missing. It touches no cluster, and only its own data folder.

mod completeness;
mod folder;
mod people;
mod summary;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kubewitness_core::views::Views;
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions};
use kubewitness_playground::receiver::{self, ReceiverProgress};
use kubewitness_playground::workload::{self, WorkloadOptions, WorkloadProgress};
use kubewitness_watch::{ConnectOptions, connect_to_server};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::access::{self, AccessArgs, Auth, PortalDoors};
use crate::cli::{LogArgs, PlaygroundArgs};
use crate::commands::print::{self, note};
use crate::commands::{CommandEnd, CommandResult};
use crate::config::component;
use crate::controller::{self, ConfigFrom, ControllerOptions, RunningController};
use crate::process::logs;
use crate::process::signals::{self, EndRequests};
use crate::process::timers::ControllerTimers;
use crate::tasks::{TaskFate, TaskSupervisor, or_overdue};
use people::PlaygroundPerson;

/// Everything around the controller: a cluster and its people.
pub struct PlaygroundWorld {
    pub api: ApiServer,
    pub workload: Arc<WorkloadProgress>,
    pub receiver: Arc<ReceiverProgress>,
    /// People who can sign in; empty if nobody has to.
    pub people: Vec<PlaygroundPerson>,
    tasks: TaskSupervisor,
    /// Ends the submission and the driving of jobs.
    quiet: CancellationToken,
    /// Ends the cluster and the receiver.
    end: CancellationToken,
    driving: Option<tokio::task::JoinHandle<()>>,
}

/// The first lists of an empty cluster take a moment; a longer wait is a fault.
const FIRST_LISTS: Duration = Duration::from_secs(30);

pub async fn playground(args: PlaygroundArgs) -> CommandResult {
    let ends = EndRequests::new();
    signals::listen(&ends).await?;
    // Folder and address are claimed before the folder is cleared: another playground may run there.
    let claim = folder::FolderClaim::new(&args.data)?;
    let listener = controller::listen_on(args.listen)?;
    claim.clear()?;
    log_to(&args.log, &args.data.join("kubewitness.log"))?;
    play_world(&args, listener, &ends.begun, &ends.abort).await
}

/// The terminal shows something else.
fn log_to(args: &LogArgs, path: &Path) -> Result<()> {
    let file =
        std::fs::File::create(path).with_context(|| format!("making the log file {}", path.display()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(logs::filter(args, false)?)
        .with_writer(Mutex::new(file))
        .with_ansi(false);
    builder.try_init().map_err(|error| anyhow::anyhow!("setting up the log: {error}"))
}

async fn play_world(
    args: &PlaygroundArgs,
    listener: TcpListener,
    stop: &CancellationToken,
    abort: &CancellationToken,
) -> CommandResult {
    let mut world = PlaygroundWorld::start(args, stop, abort).await?;
    // The controller outlives the workload, because it has to deliver the workload's last writes.
    let draining = CancellationToken::new();
    let controller = tokio::select! {
        controller = start(args, listener, &draining, abort) => controller?,
        () = stop.cancelled() => None,
    };
    let Some(controller) = controller else { return before_the_first_job(world).await };
    summary::print_greeting(args, controller.address, &world.people);
    // The controller could not witness versions that come and go before its first list.
    tokio::select! {
        ready = tokio::time::timeout(FIRST_LISTS, await_ready(&*controller.views)) => ready.with_context(|| {
            format!("the controller is not ready: {}/kubewitness.log says why", args.data.display())
        })?,
        () = stop.cancelled() => {}
        () = draining.cancelled() => {}
    }
    if stop.is_cancelled() || draining.is_cancelled() {
        stop.cancel();
        draining.cancel();
        controller.finish_draining().await?;
        return before_the_first_job(world).await;
    }
    world.start_submitting(args);
    tokio::select! {
        result = summary::show_figures(&world, &*controller.views) => result?,
        () = stop.cancelled() => {}
        () = draining.cancelled() => {}
        () = sleep_until_end(args) => {}
        () = world.finished_jobs(args) => {}
    }
    // From here on, the whole end has a time limit.
    stop.cancel();
    world.quiet.cancel();
    note!("Comparing every version of the cluster with the journal. After a long run this takes longer.");
    let completeness =
        or_overdue(abort, completeness::await_delivered(&world, &*controller.views, abort)).await;
    draining.cancel();
    controller.finish_draining().await?;
    world.finish().await?;
    let completeness =
        completeness.ok_or_else(|| anyhow!("stopped before the deliveries were counted"))??;
    summary::print_farewell(&completeness, &args.data);
    Ok(if completeness.is_complete() { CommandEnd::Fine } else { CommandEnd::Failed })
}

async fn start(
    args: &PlaygroundArgs,
    listener: TcpListener,
    draining: &CancellationToken,
    abort: &CancellationToken,
) -> Result<Option<RunningController>> {
    let kubeconfig = args.data.join("kubeconfig");
    let connection =
        connect_to_server(&ConnectOptions { kubeconfig: Some(kubeconfig), context: None }).await?;
    let timers = ControllerTimers::of_process()?;
    let doors = match args.auth {
        Auth::None => PortalDoors::open(),
        Auth::Kubernetes => {
            let asked = AccessArgs { auth: Some(args.auth), ..AccessArgs::default() };
            access::open_portal_doors(asked, args.listen, &connection, &args.data, false, timers.answers)
                .await?
        }
    };
    let options = ControllerOptions {
        connection,
        config: ConfigFrom::Folder(args.data.join("config")),
        data: args.data.clone(),
        journal: kubewitness_journal::JournalLocation::file(&args.data.join("journal.db")),
        listener,
        doors,
        health_listen: None,
        plugin_folders: component::default_folders(args.plugins.plugins.clone()),
        lease: None,
        timers,
    };
    RunningController::start(options, draining.clone(), abort.clone()).await
}

/// Asked to end during startup: nothing was submitted, so there is nothing to compare.
async fn before_the_first_job(world: PlaygroundWorld) -> CommandResult {
    world.finish().await?;
    print::text("Ended before the first job was submitted.\n")?;
    Ok(CommandEnd::Fine)
}

async fn await_ready(views: &dyn Views) {
    while views.why_not_ready().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn sleep_until_end(args: &PlaygroundArgs) {
    match args.duration {
        Some(duration) => tokio::time::sleep(duration.0).await,
        None => std::future::pending().await,
    }
}

impl PlaygroundWorld {
    async fn start(
        args: &PlaygroundArgs,
        stop: &CancellationToken,
        abort: &CancellationToken,
    ) -> Result<Self> {
        let tasks = TaskSupervisor::new(stop.clone(), abort.clone());
        let end = CancellationToken::new();
        let people = if args.auth == Auth::Kubernetes { people::make_people()? } else { Vec::new() };
        let mut options = ApiServerOptions { keep_truth: true, ..ApiServerOptions::default() };
        if !people.is_empty() {
            options = people::known_to(options, &people);
        }
        let (api, serving) = ApiServer::bind(options).await.context("starting the simulated cluster")?;
        let ending = end.clone();
        tasks.spawn_task("cluster", TaskFate::Finite, async move { Ok(serving.serve(ending).await?) });
        write(&args.data.join("kubeconfig"), &api.kubeconfig())?;
        if !people.is_empty() {
            people::create_bindings(&api).await?;
        }

        let listener =
            TcpListener::bind("127.0.0.1:0").await.context("starting the receiver of notifications")?;
        let address = listener.local_addr().context("asking for the receiver's address")?;
        folder::write_manifests(&args.data, &format!("http://{address}"), !people.is_empty())?;
        let receiver = Arc::new(ReceiverProgress::default());
        let file = args.data.join("notifications.jsonl");
        let receiving = receiver::serve(listener, file, receiver.clone(), end.clone());
        tasks.spawn_task("receiver", TaskFate::Finite, async move { Ok(receiving.await?) });

        let workload = Arc::default();
        Ok(Self {
            api,
            workload,
            receiver,
            people,
            tasks,
            quiet: CancellationToken::new(),
            end,
            driving: None,
        })
    }

    /// Begins to submit jobs and to drive them through their lives.
    fn start_submitting(&mut self, args: &PlaygroundArgs) {
        let options = WorkloadOptions {
            url: self.api.url(),
            token: Some(self.api.admin_token().to_string()),
            jobs: args.jobs,
            rate: args.rate,
            seed: args.seed,
            adopt: Some(folder::QUEUE.to_owned()),
            events: true,
            ..WorkloadOptions::default()
        };
        let working = workload::run(options, self.workload.clone(), self.quiet.clone());
        self.driving = Some(self.tasks.spawn_task("workload", TaskFate::Finite, async move {
            working.await.context("driving the training jobs")?;
            Ok(())
        }));
    }

    /// With a number of jobs, the playground ends when the last one is gone; with a time limit it stays for
    /// people to look at until then.
    async fn finished_jobs(&self, args: &PlaygroundArgs) {
        if args.jobs == 0 || args.duration.is_some() {
            return std::future::pending().await;
        }
        self.await_quiet().await;
    }

    /// Waits until the workload has made its last write.
    pub async fn await_quiet(&self) {
        while self.driving.as_ref().is_some_and(|driving| !driving.is_finished()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn finish(self) -> Result<()> {
        self.end.cancel();
        self.tasks.await_all().await
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
