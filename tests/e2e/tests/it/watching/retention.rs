//! A source that keeps little, with the real binary: what goes, what stays, and that every answer
//! about it agrees.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    ChildProcess, Kubewitness, Platform, command, command_json, in_scratch, kubewitness_binary, until,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{
    BackgroundLoad, SOURCES, create_job, example_copy, plugin_manifest, proofs, same_story, simulator, write,
};
use crate::watching::gaps::{annotate, start};

const WITHIN: Duration = Duration::from_secs(120);
/// States of Jobs that are kept.
const KEPT: u64 = 40;

/// The figures of the source of Jobs.
async fn jobs(data: &Path) -> Result<Value> {
    let stats = command_json(&["journal", "stats", "--data", &data.to_string_lossy(), "-o", "json"]).await?;
    let sources = stats["sources"].as_array().context("sources")?;
    Ok(sources.iter().find(|source| source["source"] == "jobs").context("the source of Jobs")?.clone())
}

/// Versions of each uid as the plugin wrote them, in order.
async fn written(data: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let mut written: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in Platform::open(&data.join("platform.db")).await?.history("jobs").await? {
        written.entry(row.uid).or_default().push(row.id);
    }
    Ok(written)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_keeps_little_keeps_the_end_of_each_story_and_says_what_it_took() {
    in_scratch("retention", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let source = "{name: jobs, apiVersion: batch/v1, kind: Job";
        let host = host.replace(source, &format!("{source}, retention: {{count: {KEPT}}}"));
        write(&config, "host.yaml", &host)?;
        let options = simulator.run_options(scratch, config)?;
        let data = &options.data;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.answers().await?;
        kubewitness.listed(SOURCES.len(), WITHIN).await?;
        // Passes of retention come before the plugin's first start: its component is compiled meanwhile.
        let load = BackgroundLoad::start(&simulator, 42, 100.0);
        until(WITHIN, "a history that is long enough", async || {
            let platform = Platform::open(&data.join("platform.db")).await;
            let Ok(mut platform) = platform else { return Ok(None) };
            Ok((platform.count().await.unwrap_or(0) > 1500).then_some(()))
        })
        .await?;
        load.stop().await?;
        kubewitness.caught_up(WITHIN).await?;
        kubewitness.stop().await?;
        // Whether the first pass came before or behind all this: the next comes soon after a start.
        let mut kubewitness = Kubewitness::start("again", &options, scratch.path())?;
        kubewitness.answers().await?;
        let figures = until(WITHIN, "retention to take what it may", async || {
            let figures = jobs(data).await?;
            let done = figures["retention"]["may_go"] == 0 && figures["taken"].as_u64() > Some(0);
            Ok(done.then_some(figures))
        })
        .await?;
        let (states, taken) = (figures["states"].as_u64(), figures["taken"].as_u64());
        let written = written(data).await?;
        let all: u64 = written.values().map(|ids| ids.len() as u64).sum();
        ensure!(states.zip(taken).map(|(states, taken)| states + taken) == Some(all), "{figures}, of {all}");
        people_read(data, &figures).await?;
        agrees(&kubewitness, data, &written).await?;
        // What was there before may be gone with its states.
        let server = format!("http://{}", kubewitness.address());
        let (code, _, told) = command(&["get", "jobs", "--at", "1s", "--server", &server]).await?;
        ensure!(
            code == Some(0) && told.contains("Retention has removed old states of jobs"),
            "{code:?}: {told}"
        );
        let mut tap = Command::new(kubewitness_binary()?);
        let tap = tap.args(["tap", "jobs", "--after", "0", "--server", &server]);
        let mut tap = ChildProcess::start("tap", tap, scratch.path())?;
        until(WITHIN, "tap to tell what retention took", async || {
            let told = tap.stderr().contains("Retention has removed states after position 0");
            Ok((told && tap.stdout().contains("\"jobs\"")).then_some(()))
        })
        .await?;
        tap.kill().await?;
        kubewitness.stop().await?;
        same_story(&simulator, data).await?;
        proofs(data).await
    })
    .await;
}

/// The same figures as a table.
async fn people_read(data: &Path, figures: &Value) -> Result<()> {
    let (code, text, errors) = command(&["journal", "stats", "--data", &data.to_string_lossy()]).await?;
    ensure!(code == Some(0), "the figures ended with {code:?}: {errors}");
    let row = text.lines().find(|line| line.starts_with("jobs ")).context("a row of Jobs")?;
    let cells: Vec<_> = row.split_whitespace().collect();
    for figure in ["states", "objects", "live_objects", "taken"] {
        ensure!(cells.contains(&&*figures[figure].to_string()), "{figure} of {figures} is not in {row}");
    }
    let rest = "states are beyond its bounds: 0 may go (0 KiB)";
    ensure!(text.contains(&format!("jobs: {} {rest}", figures["retention"]["beyond"])), "{text}");
    ensure!(text.contains("pods: everything is kept"), "{text}");
    Ok(())
}

/// Export, timeline and gaps tell the same end of each story.
async fn agrees(
    kubewitness: &Kubewitness,
    data: &Path,
    written: &BTreeMap<String, Vec<String>>,
) -> Result<()> {
    let folder = data.to_string_lossy();
    let (code, lines, errors) =
        command(&["journal", "export", "--data", &folder, "--source", "jobs"]).await?;
    ensure!(code == Some(0), "the export ended with {code:?}: {errors}");
    let mut kept: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut named: BTreeMap<String, (String, String)> = BTreeMap::new();
    for line in lines.lines() {
        let state = &serde_json::from_str::<Value>(line)?["state"];
        let Some(uid) = state["object"]["uid"].as_str() else { continue };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        kept.entry(uid.to_owned()).or_default().push(text(&state["id"]));
        let object = &state["object"];
        named.insert(uid.to_owned(), (text(&object["namespace"]), text(&object["name"])));
    }
    ensure!(!kept.is_empty(), "nothing was kept");
    let mut cut = 0;
    for (uid, ids) in &kept {
        let story = written.get(uid).with_context(|| format!("{uid} was never written"))?;
        ensure!(story.ends_with(ids), "{uid} has {ids:?} of {story:?}");
        cut += usize::from(ids.len() < story.len());
    }
    ensure!(cut > 0, "no story was cut: the test shows nothing");
    let server = format!("http://{}", kubewitness.address());
    // A few: each is a process.
    for (uid, (namespace, name)) in named.iter().take(5) {
        let object = format!("job/{name}");
        let asked = ["timeline", &object, "-n", namespace, "-o", "json", "--server", &server];
        let told = command_json(&asked).await?;
        let states = told["states"].as_array().context("states")?.iter();
        let of_it = states.filter(|state| state["object"]["uid"] == json!(uid));
        let ids: Vec<_> = of_it.filter_map(|state| state["id"].as_str()).collect();
        ensure!(ids == kept[uid], "the timeline of {name} has {ids:?} of {:?}", kept[uid]);
    }
    let gaps = command_json(&["gaps", "-o", "json", "--server", &server]).await?;
    ensure!(!gaps.to_string().contains("Retention"), "what every plugin had finished is no gap: {gaps}");
    Ok(())
}

const SECOND: &str = "module: {file: persistence.wasm}
subscribe:
  - {source: jobs, mode: every, start: beginning}
grants:
  sql: [{name: main, database: second}]";

#[tokio::test]
async fn a_plugin_that_failed_for_good_is_named_on_the_first_screen_with_what_it_holds() {
    in_scratch("retention-held", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let source = "{name: jobs, apiVersion: batch/v1, kind: Job";
        let host = host.replace(source, &format!("{source}, retention: {{count: 5}}"));
        write(&config, "host.yaml", &host)?;
        write(&config, "second.yaml", &plugin_manifest("second", SECOND))?;
        let options = simulator.run_options(scratch, config.clone())?;
        create_job(&simulator, "one").await?;
        let mut kubewitness = start(&options, scratch.path()).await?;
        let has_it =
            |status: &StatusView| status.plugins.iter().any(|it| it.name == "second" && it.delivered > 0);
        kubewitness.status_when(WITHIN, "the plugin to have the job", has_it).await?;
        kubewitness.stop().await?;
        // Nothing of the last good version can be started, either.
        write(&config, "host.yaml", &host.replace("name: second, sqlite", "name: other, sqlite"))?;
        for turn in 0..20 {
            annotate(&simulator, "one", &turn.to_string()).await?;
        }
        let mut kubewitness = start(&options, scratch.path()).await?;
        let is_held = |status: &StatusView| {
            status.held.iter().any(|held| held.source == "jobs" && held.holder == "plugin second")
        };
        let status = kubewitness.status_when(WITHIN, "what holds retention", is_held).await?;
        let held = status.held.iter().find(|held| held.holder == "plugin second").context("held")?;
        ensure!(held.states > 0 && held.remedy.starts_with("it failed ("), "{held:?}");
        ensure!(
            held.remedy.contains("repair it, remove it, or let `retention.pastCursors: true`"),
            "{held:?}"
        );

        let server = format!("http://{}", kubewitness.address());
        let (_, text, _) = command(&["status", "--server", &server]).await?;
        ensure!(text.contains("beyond its bounds held by plugin second since"), "{text}");
        for page in ["/", "/plugins", "/health"] {
            let (code, text) = kubewitness.get(page).await?;
            ensure!(code == 200 && text.contains("Retention of jobs"), "{page}: {code} {text}");
            ensure!(text.contains("held by plugin second since"), "{page}: {text}");
        }
        kubewitness.stop().await
    })
    .await;
}
