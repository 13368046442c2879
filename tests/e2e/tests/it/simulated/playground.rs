//! `kubewitness playground`: one command, no network, and what it leaves behind agrees.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    ChildProcess, Platform, ProcessEnd, Scratch, command_json, free_port, in_scratch, kubewitness_binary,
    plugins_folder,
};
use serde_json::Value;
use tokio::process::Command;

use crate::support::proofs;

const WITHIN: Duration = Duration::from_secs(120);
/// A number of jobs, and no time: how much happens in a time, the machine decides. Some of these fail by a pod.
const JOBS: &str = "24";

#[tokio::test]
async fn it_ends_by_itself_with_0_and_journal_tables_trail_and_notifications_agree() {
    in_scratch("playground", async |scratch| {
        let data = scratch.path().join("data");
        let process = play(scratch, &data, &["--jobs", JOBS, "--rate", "60", "--seed", "5"]).await?;
        ensure!(
            !process.stdout().contains('\u{1b}'),
            "no colours where there is no terminal: {}",
            process.say()
        );
        agree(&data).await.with_context(|| process.say())
    })
    .await;
}

#[tokio::test]
async fn after_its_time_it_ends_by_itself_with_0_and_all_is_complete() {
    in_scratch("playground-for", async |scratch| {
        play(scratch, &scratch.path().join("data"), &["--for", "3s", "--rate", "20"]).await.map(drop)
    })
    .await;
}

/// Plays until it ends, which it does with 0 and with all states delivered.
async fn play(scratch: &Scratch, data: &Path, flags: &[&str]) -> Result<ChildProcess> {
    let mut command = Command::new(kubewitness_binary()?);
    command.arg("playground").args(flags).args(["--listen", &format!("127.0.0.1:{}", free_port()?)]);
    command.arg("--data").arg(data);
    command.env("KUBEWITNESS_PLUGINS", plugins_folder()?).env("HOME", scratch.path());
    let mut process = ChildProcess::start("playground", &mut command, scratch.path())?;
    let ended = process.wait(WITHIN).await?;
    ensure!(ended == ProcessEnd::Code(0), "it ended with {ended:?}; {}", process.say());
    ensure!(process.stdout().contains("Complete"), "{}", process.say());
    Ok(process)
}

async fn agree(data: &Path) -> Result<()> {
    for file in ["journal.db", "platform.db", "notifications.jsonl", "audit/trail.jsonl"] {
        ensure!(data.join(file).is_file(), "{file} is missing");
    }
    proofs(data).await?;
    let journal =
        command_json(&["journal", "verify", "--data", &data.to_string_lossy(), "-o", "json"]).await?;
    let states = journal["states_checked"]
        .as_i64()
        .or(journal["statesChecked"].as_i64())
        .context("how many states")?;
    // No plugin subscribes to Events.
    let args = ["journal", "export", "--kind", "Event", "--data", &data.to_string_lossy()];
    let (code, exported, errors) = kubewitness_harness::command(&args).await?;
    ensure!(code == Some(0), "the export ended with {code:?}: {errors}");
    let events = exported.lines().filter(|line| line.contains("\"Event\"")).count() as i64;
    ensure!(events > 10, "only {events} states of Events");
    let states = states - events;
    let mut platform = Platform::open(&data.join("platform.db")).await?;
    ensure!(states > 50, "only {states} states of {JOBS} jobs");
    ensure!(platform.count().await? == states, "{} rows, {states} states", platform.count().await?);
    let lines = |file: &str| -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(data.join(file))?;
        text.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("{file}: {line}")))
            .collect()
    };
    let mut trail = lines("audit/trail.jsonl")?;
    let whole = trail.len();
    trail.retain(|line| line.get("kubewitness.dev/ledger").is_none());
    ensure!(whole > trail.len(), "the trail has signed roots");
    ensure!(trail.len() as i64 == states, "{} lines in the trail, {states} states", trail.len());
    let notifications = lines("notifications.jsonl")?;
    let keys: HashSet<_> = notifications.iter().filter_map(|line| line["key"].as_str()).collect();
    ensure!(!keys.is_empty(), "nobody was told of an outcome of {JOBS} jobs");
    ensure!(keys.len() == notifications.len(), "every notification has a key of its own");
    // A story names the node, so the pods of the simulated cluster need one.
    let failed = "SELECT sentence FROM object_outcomes WHERE pod IS NOT NULL";
    ensure!(!platform.texts(failed).await?.is_empty(), "no pod of {JOBS} jobs failed");
    let nowhere = platform.texts(&format!("{failed} AND node IS NULL")).await?;
    ensure!(nowhere.is_empty(), "pods that failed on no node: {nowhere:?}");
    // By default people hear of outcomes, and of each once.
    let mut outcomes = HashSet::new();
    for body in notifications.iter().map(|line| &line["body"]) {
        let phase = body["phase"].as_str().unwrap_or_default();
        let is_outcome = ["Succeeded", "Failed", "Cancelled", "Preempted", "Deleted"].contains(&phase);
        ensure!(is_outcome, "somebody was told that a job is {phase}: {body}");
        ensure!(outcomes.insert((body["uid"].to_string(), phase)), "somebody was told twice: {body}");
    }
    Ok(())
}
