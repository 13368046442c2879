//! The playground's workload: it submits training Jobs to an API server and drives them and their Pods
//! through their lives, as a queue, the Job controller, a scheduler and kubelets would.
//!
//! It knows the Kubernetes API and nothing of Kubewitness. The seed decides what happens, and the rate
//! decides how fast. [`life`] decides the writes, [`document`] makes their JSON, [`drive`] sends them,
//! [`events`] writes Events about them, and [`schedule`] decides whose turn it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use thiserror::Error;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

mod api;
mod document;
mod drive;
mod events;
mod life;
mod plan;
mod rng;
mod schedule;
mod time;

use api::{WorkloadApi, WriteEnd};
use drive::DrivenLife;
use life::{JobPhase, LifeStep};
use schedule::{LifeReturn, LifeSchedule};

/// Writes in progress. They keep a local API server busy, and each belongs to another job.
const IN_FLIGHT: usize = 32;

/// After a longer pause, the workload does not catch up, so that no burst follows an outage.
const CATCH_UP: Duration = Duration::from_millis(200);

/// How long a stop waits for writes in progress.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// How often Jobs of others are looked up.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The most active jobs. It bounds memory and what a person can look through.
const MOST_ACTIVE: usize = 400;

#[derive(Clone, Debug)]
pub struct WorkloadOptions {
    /// For example `http://127.0.0.1:6443`.
    pub url: String,
    pub token: Option<String>,
    /// The client for an HTTPS server with its own authority. Without it a plain client is made.
    pub client: Option<reqwest::Client>,
    /// Missing namespaces are created.
    pub namespaces: Vec<String>,
    /// The number of jobs; 0 means no end.
    pub jobs: u64,
    /// Writes per second; infinity means as fast as the server answers.
    pub rate: f64,
    pub seed: u64,
    /// The number of active jobs. By default it follows from the rate.
    pub active: Option<usize>,
    /// How long a finished job is kept before it is deleted.
    pub keep_finished: Duration,
    /// A label selector for Jobs that others create, and that are driven as well; `None` for none.
    pub adopt: Option<String>,
    /// Whether Events are written as well. They don't count towards the rate.
    pub events: bool,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            token: None,
            client: None,
            namespaces: ["team-vision", "team-speech", "team-search"].map(str::to_owned).to_vec(),
            jobs: 0,
            rate: 50.0,
            seed: 1,
            active: None,
            keep_finished: Duration::from_secs(30),
            adopt: None,
            events: false,
        }
    }
}

impl WorkloadOptions {
    /// With this many jobs a life takes about half a minute at the given rate.
    fn most_active(&self) -> usize {
        let by_rate = if self.rate.is_finite() { (self.rate * 1.5) as usize } else { MOST_ACTIVE };
        self.active.unwrap_or(by_rate.clamp(6, MOST_ACTIVE)).max(1)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        if self.namespaces.is_empty() {
            return Err(WorkloadError::NoNamespace);
        }
        if self.rate.is_nan() || self.rate <= 0.0 {
            return Err(WorkloadError::BadRate(self.rate));
        }
        Ok(())
    }
}

/// The progress so far. Displays read it.
#[derive(Debug, Default)]
pub struct WorkloadProgress {
    pub submitted: AtomicU64,
    /// Jobs that run now.
    pub running: AtomicU64,
    /// Jobs that succeeded or failed.
    pub finished: AtomicU64,
    /// Jobs that are gone, whoever deleted them.
    pub deleted: AtomicU64,
    /// Writes that the API server accepted.
    pub writes: AtomicU64,
    /// Single tries that failed and were retried.
    pub errors: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadReport {
    pub submitted: u64,
    pub finished: u64,
    pub deleted: u64,
    pub writes: u64,
    pub errors: u64,
    /// Whether every job was submitted and is gone. Otherwise the workload was stopped.
    pub complete: bool,
}

/// Why the workload ended early.
#[derive(Debug, Error)]
pub enum WorkloadError {
    #[error("no namespace to submit jobs to")]
    NoNamespace,
    #[error("{0} writes a second: give a number above 0")]
    BadRate(f64),
    #[error("no HTTP client: {0}")]
    Client(#[source] reqwest::Error),
    /// The server accepted no write for half a minute.
    #[error("{request} failed {tries} times, last with: {last}")]
    Unreachable { request: String, tries: u32, last: String },
    /// The server refused a request: a right is missing, or a document is wrong.
    #[error("{request} was refused with {status}: {message}")]
    Refused { request: String, status: u16, message: String },
    #[error("{path} was changed by somebody else each of {tries} times")]
    Contended { path: String, tries: u32 },
    #[error("{tries} names for a job in namespace {namespace} are all taken")]
    NoName { namespace: String, tries: u32 },
    /// It was stopped while it waited to retry. [`run`] never returns this.
    #[error("stopped")]
    Stopped,
}

/// Runs until every job is gone, or until `stop`.
pub async fn run(
    options: WorkloadOptions,
    progress: Arc<WorkloadProgress>,
    stop: CancellationToken,
) -> Result<WorkloadReport, WorkloadError> {
    options.check()?;
    let client = match options.client.clone() {
        Some(client) => client,
        None => plain_client()?,
    };
    let api = WorkloadApi::new(client, &options.url, options.token.clone(), progress.clone(), stop.clone());
    let complete = match work(&options, &api, &progress, &stop).await {
        Err(WorkloadError::Stopped) => false,
        other => other?,
    };
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(WorkloadReport {
        submitted: read(&progress.submitted),
        finished: read(&progress.finished),
        deleted: read(&progress.deleted),
        writes: read(&progress.writes),
        errors: read(&progress.errors),
        complete,
    })
}

fn plain_client() -> Result<reqwest::Client, WorkloadError> {
    // A process has one TLS provider. If the controller has chosen one, it stays.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        rustls::crypto::ring::default_provider().install_default().ok();
    }
    reqwest::Client::builder().no_proxy().build().map_err(WorkloadError::Client)
}

async fn work(
    options: &WorkloadOptions,
    api: &WorkloadApi,
    progress: &WorkloadProgress,
    stop: &CancellationToken,
) -> Result<bool, WorkloadError> {
    create_namespaces(options, api).await?;
    let mut schedule = LifeSchedule::new(options);
    let mut pace = WritePace::new(options.rate);
    let mut under_way = FuturesUnordered::new();
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        if schedule.is_over() {
            return Ok(true);
        }
        let expiry = schedule.next_expiry();
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(done) = under_way.next() => {
                let (driven, before, step) = done?;
                settle(&mut schedule, progress, driven, before, &step);
            }
            _ = looks.tick(), if options.adopt.is_some() => adopt(options, api, &mut schedule).await?,
            () = sleep_until(expiry) => schedule.expire(Instant::now()),
            () = pace.ready(), if under_way.len() < IN_FLIGHT && schedule.has_next() => {
                if let Some((driven, step)) = schedule.next() {
                    pace.take();
                    under_way.push(write(api, driven, step));
                }
            }
        }
    }
    let rest = async { while under_way.next().await.is_some() {} };
    // After the deadline the connections are dropped, and the server decides what happens to the writes.
    tokio::time::timeout(STOP_WITHIN, rest).await.ok();
    Ok(false)
}

/// Looks for Jobs that others have created for this queue.
async fn adopt(
    options: &WorkloadOptions,
    api: &WorkloadApi,
    schedule: &mut LifeSchedule,
) -> Result<(), WorkloadError> {
    let Some(selector) = &options.adopt else { return Ok(()) };
    let found = api.get(&format!("/apis/batch/v1/jobs?labelSelector={selector}")).await?;
    if let WriteEnd::Done(mut list) = found
        && let Some(jobs) = list["items"].as_array_mut()
    {
        schedule.adopt(std::mem::take(jobs));
    }
    Ok(())
}

async fn create_namespaces(options: &WorkloadOptions, api: &WorkloadApi) -> Result<(), WorkloadError> {
    for name in &options.namespaces {
        if let WriteEnd::Missing = api.create("/api/v1/namespaces", &document::namespace(name)).await? {
            return Err(WorkloadError::Refused {
                request: "POST /api/v1/namespaces".to_owned(),
                status: 404,
                message: format!("{} is not a Kubernetes API server", options.url),
            });
        }
    }
    Ok(())
}

type WrittenCount = Result<(Box<DrivenLife>, JobPhase, LifeStep), WorkloadError>;

/// `before` is the phase of the job before this step. The life itself may be some steps ahead.
async fn write(api: &WorkloadApi, mut driven: Box<DrivenLife>, step: LifeStep) -> WrittenCount {
    let before = driven.shown;
    driven.carry_out(api, &step).await?;
    driven.shown = if driven.life.phase() == JobPhase::Deleted { JobPhase::Deleted } else { step.phase };
    Ok((driven, before, step))
}

fn settle(
    schedule: &mut LifeSchedule,
    progress: &WorkloadProgress,
    driven: Box<DrivenLife>,
    before: JobPhase,
    step: &LifeStep,
) {
    let after = driven.shown;
    let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    if step.action == life::LifeAction::CreateJob {
        add(&progress.submitted);
    }
    match (before == JobPhase::Running, after == JobPhase::Running) {
        (false, true) => drop(add(&progress.running)),
        (true, false) => drop(progress.running.fetch_sub(1, Ordering::Relaxed)),
        _ => {}
    }
    match schedule.put_back(driven) {
        LifeReturn::Finished => drop(add(&progress.finished)),
        LifeReturn::Gone => drop(add(&progress.deleted)),
        LifeReturn::Goes => {}
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Spreads writes evenly over time.
struct WritePace {
    interval: Duration,
    next: Instant,
}

impl WritePace {
    fn new(rate: f64) -> Self {
        let interval = if rate.is_finite() { Duration::from_secs_f64(1.0 / rate) } else { Duration::ZERO };
        Self { interval, next: Instant::now() }
    }

    async fn ready(&self) {
        tokio::time::sleep_until(self.next).await;
    }

    fn take(&mut self) {
        let earliest = Instant::now().checked_sub(CATCH_UP).unwrap_or(self.next);
        self.next = self.next.max(earliest) + self.interval;
    }
}

#[cfg(test)]
mod tests;
