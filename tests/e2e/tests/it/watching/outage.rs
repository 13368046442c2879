//! Either side is killed at random moments under load, with compaction in between, and everything
//! that the API server had is in the journal once and in order, or lies in exactly one gap.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::State;
use kubewitness_core::ports::{Backlog, StateWitness};
use kubewitness_core::views::StatusView;
use kubewitness_faults::{
    JournalRecord, ResourceHistory, ServerTruth, TruthEvent, TruthFloor, WrittenEntry, judge,
};
use kubewitness_harness::{Dice, Kubewitness, Scratch, Simulator, SimulatorOptions, in_scratch, kills, seed};
use kubewitness_journal::{Journal, JournalOptions};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{job, proofs, version, write};

const ROUNDS: u64 = 5;
const CATCH_UP: Duration = Duration::from_secs(180);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// Names that are used again and again.
const NAMES: u64 = 24;
/// Between two changes: a hundred and fifty a second, as far as the machine goes.
const PACE: Duration = Duration::from_millis(6);
/// How many changes the server takes at least, however slow the machine is.
const ENOUGH: u32 = 50;

const HOST: &str = "apiVersion: v1
kind: ConfigMap
metadata:
  name: host
  labels: {kubewitness.dev/host: \"true\"}
data:
  host.yaml: |
    apiVersion: kubewitness.dev/v1alpha1
    kind: Host
    metadata: {name: host}
    spec:
      sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]
";

/// Changes objects for as long as it is let, whether the server is there or not.
struct OutageWriter {
    stop: CancellationToken,
    work: JoinHandle<()>,
}

impl OutageWriter {
    #[allow(clippy::disallowed_methods)]
    fn start(simulator: &Simulator, seed: u64) -> Self {
        let stop = CancellationToken::new();
        let (url, token) = (simulator.url().to_owned(), simulator.token().to_owned());
        Self { work: tokio::spawn(change(url, token, Dice::new(seed), stop.clone())), stop }
    }

    /// Ends when the server has taken enough changes.
    async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.work.await.context("the writer panicked")
    }
}

async fn change(url: String, token: String, mut dice: Dice, stop: CancellationToken) {
    let client = kubewitness_harness::http();
    let mut taken = 0;
    while !stop.is_cancelled() || taken < ENOUGH {
        let name = format!("job-{}", dice.below(NAMES));
        let path = format!("{url}{JOBS}/{name}");
        let request = match dice.below(10) {
            0 => client.delete(format!("{path}?propagationPolicy=Background")),
            1..=3 => client.post(format!("{url}{JOBS}")).json(&job(&name)),
            _ => {
                let patch = json!({"metadata": {"annotations": {"change": dice.below(1 << 40).to_string()}}});
                let request = client.patch(path).header("Content-Type", "application/merge-patch+json");
                request.body(patch.to_string())
            }
        };
        // One that is away, or has no object of this name, is asked again in a moment.
        if request.bearer_auth(&token).send().await.is_ok_and(|answer| answer.status().is_success()) {
            taken += 1;
        }
        tokio::time::sleep(PACE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn either_side_killed_under_load_leaves_every_version_once_or_in_one_gap() {
    in_scratch("outage", async |scratch| {
        let options = SimulatorOptions {
            durable: true,
            bookmark_every: Some("500ms".to_owned()),
            ..SimulatorOptions::keeping_history()
        };
        let simulator = Simulator::start(scratch.path(), &options).await?;
        outages(scratch, simulator).await
    })
    .await;
}

async fn outages(scratch: &Scratch, mut simulator: Simulator) -> Result<()> {
    let config = scratch.folder("config")?;
    write(&config, "host.yaml", HOST)?;
    let options = simulator.run_options(scratch, config)?;
    let listed = version(&simulator).await?;
    let mut kubewitness = Kubewitness::start("run-first", &options, scratch.path())?;
    kubewitness.answers().await?;
    kubewitness.listed(1, CATCH_UP).await?;
    let writer = OutageWriter::start(&simulator, seed());
    let mut dice = Dice::new(seed() ^ 0xFA17);
    for round in 0..kills(ROUNDS) {
        dice.pause(1500).await;
        let name = format!("run-{round}");
        let again = |name: &str| Kubewitness::start(name, &options, scratch.path());
        match dice.below(3) {
            0 => {
                kubewitness.kill().await?;
                dice.pause(700).await;
                if dice.below(2) == 0 {
                    simulator.compact(None).await?;
                    dice.pause(300).await;
                    simulator.make("forget-watch-window", &json!({})).await?;
                }
                kubewitness = again(&name)?;
            }
            1 => {
                simulator.kill().await?;
                dice.pause(700).await;
                simulator.start_again().await?;
            }
            _ => {
                simulator.kill().await?;
                dice.pause(300).await;
                kubewitness.kill().await?;
                simulator.start_again().await?;
                dice.pause(700).await;
                if dice.below(2) == 0 {
                    simulator.compact(None).await?;
                }
                kubewitness = again(&name)?;
            }
        }
    }
    writer.stop().await?;
    levels(&mut kubewitness, &simulator).await?;
    kubewitness.stop().await?;
    let truth = truth(&simulator, listed).await?;
    judged(&truth, &options.data).await?;
    proofs(&options.data).await
}

/// Waits until the checkpoint has come to what was written last: nothing is looked for any more.
async fn levels(kubewitness: &mut Kubewitness, simulator: &Simulator) -> Result<()> {
    let (status, answer) = simulator.request(Method::POST, JOBS, Some(&job("last"))).await?;
    ensure!(status == 201, "creating the last job answered {status}: {answer}");
    let last = version(simulator).await?;
    let reached = |status: &StatusView| {
        status.sources.first().is_some_and(|source| {
            source.walking == 0 && source.checkpoint.parse::<u64>().is_ok_and(|checkpoint| checkpoint >= last)
        })
    };
    kubewitness.answers().await?;
    kubewitness.status_when(CATCH_UP, "everything to be witnessed", reached).await?;
    Ok(())
}

async fn truth(simulator: &Simulator, listed: u64) -> Result<ServerTruth> {
    let truth = simulator.ask("truth?group=batch&resource=jobs").await?;
    let list = |key: &str| truth[key].as_array().cloned().unwrap_or_default();
    let entries: Option<Vec<WrittenEntry>> = list("entries").iter().map(entry).collect();
    let floor = |floor: &Value| {
        Some(TruthFloor { since_ms: floor["at"].as_u64()?, version: floor["floor"].as_u64()? })
    };
    let floors: Option<Vec<TruthFloor>> = list("floors").iter().map(floor).collect();
    let (entries, floors) = (entries.context("the entries")?, floors.context("the floors")?);
    ensure!(truth["dropped"] == 0, "the truth is not whole");
    Ok(ServerTruth { histories: vec![ResourceHistory { floors, ..ResourceHistory::new(entries, listed) }] })
}

fn entry(entry: &Value) -> Option<WrittenEntry> {
    Some(WrittenEntry {
        version: entry["resourceVersion"].as_str()?.parse().ok()?,
        event: if entry["type"] == "DELETED" { TruthEvent::Deleted } else { TruthEvent::Written },
        namespace: entry["namespace"].as_str()?.into(),
        name: entry["name"].as_str()?.into(),
        uid: entry["uid"].as_str()?.into(),
        in_scope: true,
        document: None,
    })
}

async fn judged(truth: &ServerTruth, data: &Path) -> Result<()> {
    let journal = Journal::open(&data.join("journal.db"), JournalOptions::default()).await?;
    let mut states: Vec<Arc<State>> = Vec::new();
    loop {
        let more = journal.read(states.last().map_or(0, |last| last.seq), 1000).await?;
        if more.is_empty() {
            break;
        }
        states.extend(more);
    }
    let warm = journal.load_warm_start("jobs").await?;
    let current = warm.objects.iter();
    let current = current.map(|held| (held.object.uid.clone(), held.resource_version.to_string())).collect();
    let gaps = journal.all_gaps().await?;
    journal.close().await?;
    let told = JournalRecord {
        states,
        gaps,
        current: Some(current),
        late_allowed: true,
        ..JournalRecord::default()
    };
    let faults = judge(truth, &told);
    if faults.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> = faults.iter().take(20).map(|fault| format!("  {fault}")).collect();
    bail!("{} faults:\n{}", faults.len(), shown.join("\n"))
}
