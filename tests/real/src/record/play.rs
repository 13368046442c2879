//! The playground on real servers: the cases run one after another in a cluster of Kubernetes' own API server, controllers
//! and scheduler, while the controller watches and its portal is open.
//!
//! The cases are the workload because they bring about each kind of end, and say what they do. Each runs once, so that
//! nothing grows for as long as the page is open. At the end the journal is compared with etcd's history.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kubewitness_harness::{Dice, Kubewitness, RunOptions, Scratch, kubewitness_binary, project_root};
use kubewitness_playground::receiver::{self, ReceiverProgress};
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::case::Case;
use super::cases;
use super::controllers::ControlledCluster;
use super::lab::{RecordLab, job};
use crate::cluster::ServerPrograms;
use crate::promise::{EtcdHistory, SOURCE, gaps, verdict};

/// A folder with this file is a playground's, and is cleared at the start.
const MARKER: &str = "real-playground";
/// Cases that run at a time. Their Jobs wait for seconds, so more would only be harder to follow.
const AT_ONCE: usize = 6;
const BETWEEN_CASES: Duration = Duration::from_secs(4);
const SETTLES_WITHIN: Duration = Duration::from_secs(180);
/// The Job that is written last: once it is delivered, everything is.
const LAST: &str = "playground-ends";
const PLUGINS: usize = 3;
/// The address that the shipped settings have in the place of the receiver.
const RECEIVER: &str = "http://notifications.kubewitness.svc:8080";

pub struct PlayOptions {
    pub programs: ServerPrograms,
    pub data: PathBuf,
    pub listen: String,
    /// `None`: until it is stopped.
    pub lasts: Option<Duration>,
    pub seed: u64,
}

/// Plays until `stop`, and proves at the end that no version of a Job was lost.
pub async fn play(options: &PlayOptions, scratch: &Scratch, stop: &CancellationToken) -> Result<()> {
    clear(&options.data)?;
    eprintln!("real: starting etcd and Kubernetes {}", options.programs.minor);
    let cluster = ControlledCluster::start(&options.programs, scratch).await?;
    let history = EtcdHistory::of(cluster.api.etcd_url(), SOURCE).await?;
    let mut helpers = JoinSet::new();
    let received = Arc::new(ReceiverProgress::default());
    let address = receive(options, &received, &mut helpers).await?;
    let run_options = RunOptions {
        kubeconfig: cluster.api.kubeconfig().to_owned(),
        config: Some(configure(&options.data, &address)?),
        data: options.data.clone(),
        has_real_timers: true,
        is_bound: true,
        ..RunOptions::default()
    };
    let mut run = Kubewitness::start_at("kubewitness", &run_options, &options.listen, &options.data)?;
    run.answers().await?;
    greet(options, &cluster);
    let begun = run_cases(options, &cluster, stop).await;
    println!("Ending. The journal is compared with etcd's history.");
    let checkpoint = write_last(&cluster, &history).await?;
    let what = format!("version {checkpoint} of {LAST} to be delivered");
    run.status_when(SETTLES_WITHIN, &what, |status| {
        let source = status.sources.iter().find(|source| source.name == SOURCE);
        let is_read = source
            .is_some_and(|source| source.checkpoint.parse::<u64>().unwrap_or_default() + 1 >= checkpoint);
        let is_delivered = |it: &kubewitness_core::views::PluginView| it.lag_seq == 0 && it.waiting == 0;
        is_read && status.plugins.len() == PLUGINS && status.plugins.iter().all(is_delivered)
    })
    .await?;
    let gaps = gaps(&run).await?;
    run.stop().await?;
    let truth = history.truth()?;
    let written: usize = truth.histories.iter().map(|history| history.entries.len()).sum();
    let judged = verdict(&truth, &run_options, gaps).await?;
    helpers.shutdown().await;
    cluster.stop().await?;
    println!(
        "Complete: etcd had {written} versions of Jobs in {begun} cases (deletions counted), the journal has {} of them \
         and {} gaps. {} notifications were received.",
        judged.states.len(),
        judged.gaps.len(),
        received.received.load(std::sync::atomic::Ordering::Relaxed)
    );
    Ok(())
}

/// Makes the folder. One with other data is refused.
fn clear(data: &Path) -> Result<()> {
    let marker = data.join(MARKER);
    let is_other = data.exists() && !marker.is_file() && data.read_dir()?.next().is_some();
    ensure!(
        !is_other,
        "{} holds data that is not this playground's; name an empty or new folder with --data",
        data.display()
    );
    if data.exists() {
        fs::remove_dir_all(data).with_context(|| format!("clearing {}", data.display()))?;
    }
    fs::create_dir_all(data).with_context(|| format!("making {}", data.display()))?;
    fs::write(
        &marker,
        "This folder belongs to `cargo xtask playground --real`, which clears it at its start.\n",
    )
    .with_context(|| format!("writing {}", marker.display()))
}

/// Starts the receiver of notifications, which keeps them in a file. Returns its address.
async fn receive(
    options: &PlayOptions,
    progress: &Arc<ReceiverProgress>,
    helpers: &mut JoinSet<Result<()>>,
) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("starting the receiver")?;
    let address = listener.local_addr().context("the receiver's address")?;
    let (file, progress) = (options.data.join("notifications.jsonl"), progress.clone());
    helpers
        .spawn(async move { Ok(receiver::serve(listener, file, progress, CancellationToken::new()).await?) });
    Ok(format!("http://{address}"))
}

/// Writes the manifests that a cluster is given, with this receiver in them.
fn configure(data: &Path, receiver: &str) -> Result<PathBuf> {
    let (shipped, config) = (project_root().join("deploy/kustomize"), data.join("config"));
    fs::create_dir_all(&config).with_context(|| format!("making {}", config.display()))?;
    let edits = [(RECEIVER, receiver), ("start: now", "start: beginning")];
    for name in ["host.yaml", "plugins.yaml"] {
        let path = shipped.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = edits.iter().fold(text, |text, (from, to)| text.replace(from, to));
        fs::write(config.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    Ok(config)
}

fn greet(options: &PlayOptions, cluster: &ControlledCluster) {
    let (data, listen) = (options.data.display(), &options.listen);
    let program = program();
    println!(
        "\
Kubewitness playground on Kubernetes {}: its own API server, controllers and scheduler. The kubelets are simulated.

  open   http://{listen}
  try    {program} jobs --server http://{listen}
         {program} why job/train -n team-1 --server http://{listen}
         kubectl --kubeconfig {} get jobs -A -w
         sqlite3 {data}/platform.db 'select phase, count(*) from object_status group by phase'
         tail -f {data}/notifications.jsonl
  log    {data}/kubewitness.err

Each line below says what happens to the Job of a namespace. Ctrl-C ends it and proves that nothing was lost.
",
        cluster.kubernetes,
        cluster.api.kubeconfig().display()
    );
}

/// The controller, as a person in this folder types it.
fn program() -> String {
    let binary = kubewitness_binary().unwrap_or_else(|_| "kubewitness".into());
    let here = std::env::current_dir().unwrap_or_default();
    binary.strip_prefix(&here).unwrap_or(&binary).display().to_string()
}

/// Runs each case once, in an order of the seed. Returns how many have begun when it ends.
async fn run_cases(options: &PlayOptions, cluster: &ControlledCluster, stop: &CancellationToken) -> usize {
    let mut waiting = shuffled(cases::all(), options.seed);
    let mut begun = 0;
    let mut running = FuturesUnordered::new();
    let mut next = tokio::time::interval(BETWEEN_CASES);
    let end = async {
        match options.lasts {
            Some(lasts) => tokio::time::sleep(lasts).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = &mut end => break,
            _ = next.tick(), if running.len() < AT_ONCE && !waiting.is_empty() => {
                if let Some(case) = waiting.pop() {
                    begun += 1;
                    running.push(run_case(case, cluster));
                }
            }
            Some(()) = running.next(), if !running.is_empty() => {
                if running.is_empty() && waiting.is_empty() {
                    println!("All {begun} cases have run. What they left can be looked at until Ctrl-C.");
                }
            }
        }
    }
    begun
}

fn shuffled(mut cases: Vec<Case>, seed: u64) -> Vec<Case> {
    let mut dice = Dice::new(seed);
    for at in (1..cases.len()).rev() {
        cases.swap(at, dice.index(at + 1));
    }
    cases
}

/// A case that fails is told and ends nothing: a busy machine may be too slow for one.
async fn run_case(case: Case, cluster: &ControlledCluster) {
    let run = async {
        let lab = RecordLab::open(case.name, cluster).await?;
        println!("{:8} {}", lab.namespace, case.scenario);
        (case.run)(&lab).await.map(drop)
    };
    if let Err(error) = run.await {
        eprintln!("real: the case {} did not go as it should: {error:#}", case.name);
    }
}

/// Writes a Job that no controller starts, and returns its version.
async fn write_last(cluster: &ControlledCluster, history: &EtcdHistory) -> Result<u64> {
    let last = job(LAST, &json!({"suspend": true}), &json!({}));
    let path = "/apis/batch/v1/namespaces/default/jobs";
    let (code, answer) = cluster.api.request(Method::POST, path, Some(&last)).await?;
    if code != 201 {
        bail!("the last Job was answered with {code}: {answer}");
    }
    history.read_until(LAST).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_other_data_is_refused_and_that_of_an_earlier_playground_is_cleared() {
        let scratch = Scratch::new("play").expect("a folder");
        let data = scratch.path().join("data");
        clear(&data).expect("a new folder");
        fs::write(data.join("journal.db"), "old").expect("written");
        clear(&data).expect("its own");
        assert!(data.join(MARKER).is_file() && !data.join("journal.db").exists());
        fs::remove_file(data.join(MARKER)).expect("removed");
        fs::write(data.join("precious"), "kept").expect("written");
        clear(&data).expect_err("somebody's data");
        assert!(data.join("precious").is_file());
    }

    #[test]
    fn the_shipped_manifests_name_the_receiver_and_begin_at_the_beginning() {
        let scratch = Scratch::new("play").expect("a folder");
        let config = configure(scratch.path(), "http://127.0.0.1:1").expect("a configuration");
        let read = |name| fs::read_to_string(config.join(name)).expect("a manifest");
        assert!(read("host.yaml").contains("http://127.0.0.1:1") && !read("host.yaml").contains(RECEIVER));
        assert!(!read("plugins.yaml").contains("start: now"));
    }

    #[test]
    fn a_seed_gives_the_same_order_of_all_cases() {
        let names = |seed| shuffled(cases::all(), seed).into_iter().map(|case| case.name).collect::<Vec<_>>();
        assert_eq!(names(1), names(1));
        assert_ne!(names(1), names(2));
        let (mut one, mut two) = (names(1), names(2));
        one.sort_unstable();
        two.sort_unstable();
        assert_eq!(one, two);
    }
}
