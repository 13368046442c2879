//! The view that people have of holes: `gaps`, `get`, `status` and the pages, against an API server that
//! compacts and is restored from a backup.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, command_json, in_scratch, until_ok,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{create_job, example, simulator};

const WITHIN: Duration = Duration::from_secs(90);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// A controller over a simulated cluster, and the command line that asks it.
pub struct GapLab<'a> {
    pub simulator: Simulator,
    pub kubewitness: Kubewitness,
    options: RunOptions,
    scratch: &'a Scratch,
}

impl<'a> GapLab<'a> {
    pub async fn start(scratch: &'a Scratch) -> Result<Self> {
        Self::with(scratch, example()).await
    }

    pub async fn with(scratch: &'a Scratch, config: PathBuf) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let options = simulator.run_options(scratch, config)?;
        let mut kubewitness = start(&options, scratch.path()).await?;
        kubewitness.caught_up(WITHIN).await?;
        Ok(Self { simulator, kubewitness, options, scratch })
    }

    /// Stops the controller, does something behind its back, and starts it again.
    pub async fn behind_its_back(&mut self, deeds: impl AsyncFnOnce(&Simulator) -> Result<()>) -> Result<()> {
        self.kubewitness.caught_up(WITHIN).await?;
        self.restart_after(deeds).await?;
        self.kubewitness.caught_up(WITHIN).await.map(drop)
    }

    /// The same; the controller that starts again may still have to catch up.
    pub async fn restart_after(&mut self, deeds: impl AsyncFnOnce(&Simulator) -> Result<()>) -> Result<()> {
        self.kubewitness.stop().await?;
        deeds(&self.simulator).await?;
        self.kubewitness = start(&self.options, self.scratch.path()).await?;
        Ok(())
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.kubewitness.address())
    }

    /// Returns the output of a command, which must end with 0.
    pub async fn ask(&self, arguments: &[&str]) -> Result<String> {
        let url = self.url();
        let line: Vec<_> = arguments.iter().copied().chain(["--server", &url]).collect();
        let (code, stdout, stderr) = command(&line).await?;
        ensure!(code == Some(0), "{line:?} ended with {code:?}: {stdout}{stderr}");
        Ok(stdout)
    }

    async fn ask_json(&self, arguments: &[&str]) -> Result<Value> {
        let url = self.url();
        let line: Vec<_> = arguments.iter().copied().chain(["-o", "json", "--server", &url]).collect();
        command_json(&line).await
    }

    /// Returns the message of a command that must end with 1.
    async fn refused(&self, arguments: &[&str]) -> Result<String> {
        self.ended_with(1, arguments).await
    }

    /// Returns the message of one that makes no sense as it is written, which must end with 2.
    async fn misused(&self, arguments: &[&str]) -> Result<String> {
        self.ended_with(2, arguments).await
    }

    async fn ended_with(&self, wanted: i32, arguments: &[&str]) -> Result<String> {
        let url = self.url();
        let line: Vec<_> = arguments.iter().copied().chain(["--server", &url]).collect();
        let (code, stdout, stderr) = command(&line).await?;
        ensure!(code == Some(wanted) && stdout.is_empty(), "{line:?} ended with {code:?}: {stdout}{stderr}");
        Ok(stderr)
    }
}

pub async fn start(options: &RunOptions, logs: &Path) -> Result<Kubewitness> {
    let mut kubewitness = Kubewitness::start("kubewitness", options, logs)?;
    kubewitness.answers().await?;
    Ok(kubewitness)
}

pub async fn annotate(simulator: &Simulator, name: &str, value: &str) -> Result<String> {
    let path = format!("{JOBS}/{name}");
    let (_, mut job) = simulator.request(Method::GET, &path, None).await?;
    job["metadata"]["annotations"]["n"] = json!(value);
    let (status, job) = simulator.request(Method::PUT, &path, Some(&job)).await?;
    ensure!(status == 200, "changing {name} answered {status}: {job}");
    Ok(job["metadata"]["resourceVersion"].as_str().context("a version")?.to_owned())
}

/// Three versions that are compacted, then one that is not, while nobody looks: the versions
/// between which the hole must lie.
pub async fn a_hole(lab: &mut GapLab<'_>, name: &str) -> Result<(String, String)> {
    create_job(&lab.simulator, name).await?;
    let seen = annotate(&lab.simulator, name, "seen").await?;
    until_ok(WITHIN, "the job to be witnessed", async || {
        let found = lab.ask_json(&["get", "job", name]).await?;
        ensure!(found["metadata"]["resourceVersion"] == seen.as_str(), "{found}");
        Ok(())
    })
    .await?;
    let (mut last, mut after) = (String::new(), String::new());
    lab.behind_its_back(async |simulator| {
        for turn in ["1", "2", "3"] {
            last = annotate(simulator, name, turn).await?;
        }
        simulator.compact(None).await?;
        after = annotate(simulator, name, "after").await?;
        Ok(())
    })
    .await?;
    // What is missing of an object is recorded before its newer state, that of the source at the end.
    until_ok(WITHIN, "the newest version, and nothing that is still read back", async || {
        let found = lab.ask_json(&["get", "job", name]).await?;
        ensure!(found["metadata"]["resourceVersion"] == after.as_str(), "{found}");
        let gaps = lab.ask_json(&["gaps", "--source", "jobs"]).await?;
        let whole = |gap: &Value| gap["object"].is_null();
        ensure!(gaps.as_array().is_some_and(|gaps| gaps.iter().any(whole)), "{gaps}");
        Ok(())
    })
    .await?;
    Ok((seen, last))
}

#[tokio::test]
async fn a_hole_is_told_with_its_bounds_and_reason_and_what_is_whole_is_told_as_whole() {
    in_scratch("gaps", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        let empty = lab.ask(&["gaps"]).await?;
        ensure!(empty.starts_with("no gap: every version since the first list was witnessed"), "{empty}");
        let (seen, last) = a_hole(&mut lab, "train-1").await?;

        let gaps = lab.ask_json(&["gaps", "job/train-1", "-n", "default"]).await?;
        let gap = gaps.get(0).with_context(|| format!("no gap: {gaps}"))?;
        let number = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok());
        let (after, before) =
            (number(&gap["after"]).context("after")?, number(&gap["before"]).context("before")?);
        // The newest version at the moment of the compaction can still be read.
        let (first, newest) = (seen.parse::<u64>()?, last.parse::<u64>()?);
        ensure!(after >= first && before <= newest && after < before, "{gap}: {seen} to {last}");
        ensure!(gap["reason"] == "Compacted" && gap["source"] == "jobs", "{gap}");
        ensure!(gap["object"]["name"] == "train-1", "{gap}");

        let table = lab.ask(&["gaps"]).await?;
        for words in
            ["RECORDED", "Job/train-1 in default", &after.to_string(), "Compacted: ", "the whole source"]
        {
            ensure!(table.contains(words), "{words} is not in\n{table}");
        }
        let wide = lab.ask(&["gaps", "--source", "jobs", "-o", "wide"]).await?;
        let uid = gap["object"]["uid"].as_str().context("a uid")?;
        ensure!(wide.contains("MESSAGE") && wide.contains(uid), "{wide}");
        let by_uid = lab.ask_json(&["gaps", uid]).await?;
        ensure!(by_uid.as_array().map(Vec::len) == gaps.as_array().map(Vec::len), "{by_uid}");
        // A hole of the whole source is not kept from who asks for one object.
        create_job(&lab.simulator, "train-2").await?;
        let other =
            until_ok(WITHIN, "the second job", async || lab.ask(&["gaps", "job/train-2"]).await).await?;
        ensure!(
            other.contains("no gap of job/train-2, for itself") && other.contains("the whole source"),
            "{other}"
        );
        let nobody = lab.refused(&["gaps", "job/nobody"]).await?;
        ensure!(nobody.contains("nothing was witnessed of job/nobody"), "{nobody}");
        let poison = lab.ask(&["poison"]).await?;
        ensure!(poison.starts_with("no poison"), "{poison}");

        let cells = row(&lab, "jobs").await?;
        ensure!(cells[1] == "synced" && cells[4] != "0" && cells[6] == "1", "{cells:?}");
        let status = lab.ask(&["status"]).await?;
        // Where the journal is may be a long path, and has a line of its own.
        let mut lines = status.lines().filter(|line| !line.starts_with("kept in: "));
        ensure!(lines.all(|line| line.chars().count() <= 100), "{status}");
        metrics(&lab).await?;
        lab.kubewitness.stop().await
    })
    .await;
}

async fn metrics(lab: &GapLab<'_>) -> Result<()> {
    let (code, text) = lab.kubewitness.get("/metrics").await?;
    ensure!(code == 200, "{text}");
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|figure| figure.parse::<f64>().ok())
            .with_context(|| format!("{name} is not in\n{text}"))
    };
    for name in [
        "kubewitness_source_lists_total{source=\"jobs\",reason=\"expired\"}",
        "kubewitness_source_watches_expired_total{source=\"jobs\"}",
        "kubewitness_source_walk_back_requests_total{source=\"jobs\"}",
        "kubewitness_source_gaps{source=\"jobs\"}",
        "kubewitness_source_events_total{source=\"jobs\",kind=\"present\"}",
        "kubewitness_source_received_bytes_total{source=\"jobs\"}",
        "kubewitness_source_watches_total{source=\"jobs\"}",
        "kubewitness_source_last_event_timestamp_seconds{source=\"jobs\"}",
    ] {
        ensure!(figure(name)? > 0.0, "{name} is {}", figure(name)?);
    }
    // Whoever scrapes may see neither objects nor namespaces.
    for name in ["train-1", "namespace=", "default"] {
        ensure!(!text.contains(name), "{name} is in\n{text}");
    }
    Ok(())
}

/// The row of a source in the table of `status`.
async fn row(lab: &GapLab<'_>, source: &str) -> Result<Vec<String>> {
    let status = lab.ask(&["status"]).await?;
    let row = status.lines().find(|line| line.split_whitespace().next() == Some(source));
    Ok(row
        .with_context(|| format!("no {source} in\n{status}"))?
        .split_whitespace()
        .map(str::to_owned)
        .collect())
}

#[tokio::test]
async fn what_could_be_read_back_is_counted_and_leaves_no_hole_in_its_object() {
    in_scratch("read-back", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        create_job(&lab.simulator, "train-1").await?;
        until_ok(WITHIN, "the job", async || lab.ask(&["get", "job", "train-1"]).await).await?;
        lab.behind_its_back(async |simulator| {
            for turn in ["1", "2", "3"] {
                annotate(simulator, "train-1", turn).await?;
            }
            // The watch can't start from where it was; the history can still be read.
            simulator.make("forget-watch-window", &json!({})).await?;
            simulator.drop_watches().await
        })
        .await?;
        // One that has just started is as good as it was until its watch is refused.
        until_ok(WITHIN, "what was missed to be read back", async || {
            let cells = row(&lab, "jobs").await?;
            ensure!(cells[6] == "1" && cells[7].parse::<u64>()? >= 2, "RELISTS and WALKED: {cells:?}");
            let all = lab.ask(&["gaps"]).await?;
            ensure!(all.contains("missed versions were read back, in"), "{all}");
            Ok(())
        })
        .await?;
        let gaps = lab.ask(&["gaps", "job/train-1"]).await?;
        ensure!(gaps.starts_with("no gap of job/train-1"), "{gaps}");
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_server_restored_from_a_backup_is_told_as_a_new_epoch() {
    in_scratch("epochs", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        create_job(&lab.simulator, "train-1").await?;
        lab.simulator.make("backup", &json!({"name": "before"})).await?;
        for turn in ["1", "2", "3", "4"] {
            annotate(&lab.simulator, "train-1", turn).await?;
        }
        until_ok(WITHIN, "five states", async || {
            let story = lab.ask_json(&["timeline", "job/train-1"]).await?;
            ensure!(story["states"].as_array().map(Vec::len) == Some(5), "{story}");
            Ok(())
        })
        .await?;
        // The same name in another namespace is another object.
        let elsewhere = lab.refused(&["timeline", "job/train-1", "-n", "elsewhere"]).await?;
        ensure!(elsewhere.contains("nothing was witnessed"), "{elsewhere}");
        lab.behind_its_back(async |simulator| {
            simulator.make("restore", &json!({"name": "before"})).await.map(drop)
        })
        .await?;
        let status = until_ok(WITHIN, "the second epoch", async || {
            let status = lab.ask_json(&["status"]).await?;
            ensure!(status["sources"][0]["epoch"] == 1 && status["sources"][0]["synced"] == true, "{status}");
            Ok(status)
        })
        .await?;
        let epochs = status["sources"][0]["epochs"].as_array().context("epochs")?;
        ensure!(epochs.len() == 2 && epochs[1]["replaced_at"].is_string(), "{status}");
        let table = lab.ask(&["gaps", "--source", "jobs"]).await?;
        for words in ["the whole source", "HistoryReplaced", "jobs: the server's history was replaced at "] {
            ensure!(table.contains(words), "{words} is not in\n{table}");
        }
        ensure!(lab.ask(&["status"]).await?.contains("epoch 1 began"), "status tells it, too");
        let page = lab.kubewitness.get("/gaps").await?.1;
        ensure!(page.contains("Each restore from a backup begins an epoch"), "{page}");
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn what_was_no_object_can_be_fetched_as_it_came() {
    in_scratch("poison", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        let frame = "{\"type\":\"MODIFIED\",\"object\":{\"kind\": ?! \u{1b}[2J";
        let fault =
            json!({"fault": "insert", "at": 0, "frame": frame, "verb": "watch", "resource": "jobs.batch"});
        lab.simulator.make("faults", &fault).await?;
        lab.simulator.drop_watches().await?;
        let poison = until_ok(WITHIN, "the poison", async || {
            let poison = lab.ask_json(&["poison", "--source", "jobs"]).await?;
            ensure!(poison[0]["bytes"] == frame.len(), "{poison}");
            Ok(poison)
        })
        .await?;
        let number = poison[0]["number"].as_u64().context("a number")?.to_string();
        ensure!(lab.ask(&["poison", &number]).await? == frame, "the bytes as they came");
        let table = lab.ask(&["poison", "-o", "wide"]).await?;
        ensure!(table.contains("ERROR") && !table.contains('\u{1b}'), "{table:?}");
        ensure!(lab.refused(&["poison", "999"]).await?.contains("no poison message with the number 999"));
        ensure!(lab.misused(&["poison", "--source", "x"]).await?.contains("No source is called `x`"));
        let cells = row(&lab, "jobs").await?;
        ensure!(cells[5] == "1", "POISON: {cells:?}");
        ensure!(lab.ask(&["gaps"]).await?.contains("1 state was no object of its kind"), "gaps tells of it");
        let log = lab.kubewitness.process().stderr();
        let line = log.lines().find(|line| line.contains("poison message")).with_context(|| log.clone())?;
        ensure!(line.contains("jobs") && !line.contains('\u{1b}'), "{line:?}");
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn objects_are_asked_for_as_kubectl_is() {
    in_scratch("get", async |scratch| {
        let lab = GapLab::start(scratch).await?;
        for name in ["train-1", "train-2"] {
            create_job(&lab.simulator, name).await?;
        }
        until_ok(WITHIN, "both jobs", async || {
            let names = lab.ask(&["get", "jobs", "-o", "name"]).await?;
            ensure!(names == "job.batch/train-1\njob.batch/train-2\n", "{names}");
            Ok(())
        })
        .await?;
        for kind in ["job", "Job", "jobs.batch", "all"] {
            let table = lab.ask(&["get", kind, "-n", "default"]).await?;
            ensure!(table.contains("train-1") && table.contains("PHASE"), "{kind}: {table}");
        }
        // Byte for byte what the server gives for this version.
        let (_, served) = lab.simulator.request(Method::GET, &format!("{JOBS}/train-1"), None).await?;
        let witnessed = lab.ask_json(&["get", "job/train-1"]).await?;
        ensure!(witnessed == served, "{witnessed}\n{served}");
        let yaml = lab.ask(&["get", "job", "train-1", "-o", "yaml"]).await?;
        ensure!(yaml.contains("\nkind: Job\n") && yaml.contains("name: train-1"), "{yaml}");
        let wide = lab.ask(&["get", "jobs", "-o", "wide", "--phase", "pending"]).await?;
        ensure!(wide.contains("UID") && wide.contains("train-2"), "{wide}");
        ensure!(lab.ask(&["get", "po"]).await? == "nothing matches\n");

        let unlabelled = lab.ask(&["get", "jobs", "-l", "!old", "-o", "name"]).await?;
        ensure!(unlabelled.lines().count() == 2, "{unlabelled}");
        ensure!(lab.ask(&["get", "jobs", "-l", "team in (a, b)"]).await? == "nothing matches\n");
        ensure!(lab.misused(&["get", "jobs", "-l", "team=a b"]).await?.contains("is not a label selector"));
        ensure!(lab.ask(&["get", "po", "--index", "node=worker-1"]).await? == "nothing matches\n");
        let index = lab.misused(&["get", "jobs", "--index", "nothing"]).await?;
        ensure!(index.contains("write NAME=KEY"), "{index}");

        let unknown = lab.misused(&["get", "deployments"]).await?;
        for words in ["No source witnesses `deployments`", "Job (source `jobs`)", "Pod (source `pods`)"] {
            ensure!(unknown.contains(words), "{words} is not in {unknown}");
        }
        let nobody = lab.refused(&["get", "job", "nobody"]).await?;
        ensure!(nobody.contains("job/nobody is not there") && nobody.contains("timeline"), "{nobody}");
        let phase = lab.misused(&["get", "jobs", "--phase", "sleeping"]).await?;
        ensure!(phase.contains("`sleeping` is no phase"), "{phase}");
        for line in
            [&["get", "job/"][..], &["timeline", "job/"], &["gaps", "/x"], &["status", "--server", "ftp://x"]]
        {
            let (code, stdout, stderr) = command(line).await?;
            ensure!(code == Some(2) && stdout.is_empty(), "{line:?} ended with {code:?}: {stdout}{stderr}");
        }
        watching(&lab, scratch).await
    })
    .await;
}

/// `-w` shows what is there, then what comes, changes and goes.
async fn watching(lab: &GapLab<'_>, scratch: &Scratch) -> Result<()> {
    let url = lab.url();
    let mut command = tokio::process::Command::new(kubewitness_harness::kubewitness_binary()?);
    command.args(["get", "jobs", "-w", "--server", &url]);
    let mut watch = kubewitness_harness::ChildProcess::start("watch", &mut command, scratch.path())?;
    let row = |name: &'static str, phase: &'static str| {
        move |line: &str| (line.contains(name) && line.contains(phase)).then_some(())
    };
    watch.line(0, WITHIN, row("train-2", "Pending")).await?;
    create_job(&lab.simulator, "train-3").await?;
    watch.line(0, WITHIN, row("train-3", "Pending")).await?;
    let (status, answer) = lab.simulator.request(Method::DELETE, &format!("{JOBS}/train-3"), None).await?;
    ensure!(status == 200, "deleting answered {status}: {answer}");
    watch.line(0, WITHIN, row("train-3", "Deleted")).await?;
    watch.line(0, WITHIN, row("train-3", "was Pending")).await?;
    ensure!(watch.ended()?.is_none(), "it goes on: {}", watch.say());
    // Interrupted, as by Ctrl-C.
    watch.signal("INT").await?;
    match watch.wait(WITHIN).await? {
        kubewitness_harness::ProcessEnd::Signal => Ok(()),
        other => bail!("it ended with {other:?}; {}", watch.say()),
    }
}
