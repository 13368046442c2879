//! Status rules of the operator's own, taken while it runs, and objects of one chain of owners.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, Simulator, in_scratch, until_ok};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{job, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

const SOURCES: &str = "sources:
  - {name: cronjobs, apiVersion: batch/v1, kind: CronJob}
  - {name: jobs, apiVersion: batch/v1, kind: Job}
  - {name: pods, apiVersion: v1, kind: Pod}
";

/// A Job with the label `stage` is told by it.
const RULES: &str = "statusRules:
  - group: batch
    kind: Job
    cases:
      - when: [{at: metadata.labels.stage, exists: true}]
        phase: Starting
        reason: ['@metadata.labels.stage']
      - {when: [], phase: Pending, reason: [Ours]}
";

fn host(spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("      {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: host, labels: {{kubewitness.dev/host: \"true\"}}}}\n\
         data:\n  host.yaml: |\n    apiVersion: kubewitness.dev/v1alpha1\n    kind: Host\n    metadata: {{name: host}}\n    spec:\n{spec}"
    )
}

struct RuleLab<'a> {
    simulator: Simulator,
    options: RunOptions,
    scratch: &'a Scratch,
}

impl<'a> RuleLab<'a> {
    async fn new(scratch: &'a Scratch) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let config = scratch.folder("config")?;
        write(&config, "host.yaml", &host(SOURCES))?;
        let options = simulator.run_options(scratch, config)?;
        Ok(Self { simulator, options, scratch })
    }

    async fn start(&self, name: &str) -> Result<Kubewitness> {
        let mut kubewitness = Kubewitness::start(name, &self.options, self.scratch.path())?;
        kubewitness.answers().await?;
        let synced =
            |status: &StatusView| status.sources.len() == 3 && status.sources.iter().all(|s| s.synced);
        kubewitness.status_when(WITHIN, "its sources", synced).await?;
        Ok(kubewitness)
    }

    fn config(&self) -> &Path {
        self.options.config.as_deref().expect("it has a folder")
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let (code, answer) = self.simulator.request(method.clone(), path, body).await?;
        ensure!((200..300).contains(&code), "{method} {path} answered {code}: {answer}");
        Ok(answer)
    }

    async fn label(&self, name: &str, stage: &str) -> Result<()> {
        let path = format!("{JOBS}/{name}");
        let mut object = self.ask(Method::GET, &path, None).await?;
        object["metadata"]["labels"]["stage"] = stage.into();
        self.ask(Method::PUT, &path, Some(&object)).await.map(drop)
    }
}

/// Phase and reason of every state of an object and of what belongs to it, oldest first.
async fn story(kubewitness: &Kubewitness, object: &str) -> Result<Vec<(String, String, String)>> {
    let server = format!("http://{}", kubewitness.address());
    let told =
        kubewitness_harness::command_json(&["timeline", object, "-o", "json", "--server", &server]).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let states = ["states", "related"].iter().filter_map(|part| told[part].as_array()).flatten();
    Ok(states
        .map(|state| {
            let name = format!("{}/{}", text(&state["object"]["kind"]), text(&state["object"]["name"]));
            (name, text(&state["status"]["phase"]), text(&state["status"]["reason"]))
        })
        .collect())
}

async fn becomes(kubewitness: &Kubewitness, object: &str, wanted: &[(&str, &str)]) -> Result<()> {
    until_ok(WITHIN, object, async || {
        let told = story(kubewitness, object).await?;
        let told: Vec<_> = told.iter().map(|(_, phase, reason)| (phase.as_str(), reason.as_str())).collect();
        ensure!(told == wanted, "{object} is told as {told:?} and not {wanted:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn rules_are_taken_while_it_runs_and_what_was_journaled_keeps_its_status() {
    in_scratch("rules", async |scratch| {
        let lab = RuleLab::new(scratch).await?;
        let mut kubewitness = lab.start("run").await?;
        lab.ask(Method::POST, JOBS, Some(&job("one"))).await?;
        becomes(&kubewitness, "job/one", &[("Pending", "")]).await?;

        write(lab.config(), "host.yaml", &host(&format!("{SOURCES}{RULES}")))?;
        // The source starts a moment after they are taken.
        until_ok(WITHIN, "the rules to be taken", async || {
            let log = kubewitness.process().stderr();
            let taken = log.matches("the host's settings are taken").count();
            ensure!(taken == 2, "taken {taken} times");
            let starts = |source: &str| {
                log.lines()
                    .filter(|l| {
                        l.contains("the source starts") && l.contains(&format!("source=\"{source}\""))
                    })
                    .count()
            };
            ensure!((starts("jobs"), starts("pods")) == (2, 1), "only the Jobs' source starts again: {log}");
            Ok(())
        })
        .await?;
        becomes(&kubewitness, "job/one", &[("Pending", "")]).await.context("nothing is told twice")?;
        lab.label("one", "fetch").await?;
        becomes(&kubewitness, "job/one", &[("Pending", ""), ("Starting", "fetch")]).await?;
        let status = kubewitness.status().await?;
        let jobs = status.sources.iter().find(|source| source.name == "jobs").context("jobs")?;
        ensure!(jobs.counts.lists_first == 0 && status.journal.states == 2, "it is warm: {status:?}");

        // A bad rule takes nothing down, nor does a restart with it.
        write(
            lab.config(),
            "host.yaml",
            &host(&format!("{SOURCES}{}", RULES.replace("phase: Starting", "phase: Great"))),
        )?;
        let refused = |status: &StatusView| {
            let fault = "spec.statusRules[0].cases[0].phase: `Great` is no phase";
            status.problems.iter().any(|problem| problem.contains("host.yaml:") && problem.contains(fault))
        };
        kubewitness.status_when(WITHIN, "the fault of the rule", refused).await?;
        lab.label("one", "load").await?;
        becomes(&kubewitness, "job/one", &[("Pending", ""), ("Starting", "fetch"), ("Starting", "load")])
            .await?;
        kubewitness.stop().await?;
        let mut again = lab.start("again").await?;
        again.status_when(WITHIN, "the fault again", refused).await?;
        lab.ask(Method::POST, JOBS, Some(&job("two"))).await?;
        becomes(&again, "job/two", &[("Pending", "Ours")]).await.context("by the last good rules")?;
        let folder = lab.config().to_string_lossy();
        let (code, stdout, _) = kubewitness_harness::command(&["check", &folder]).await?;
        ensure!(code == Some(3) && stdout.contains("`Great` is no phase"), "{code:?} {stdout}");
        again.stop().await
    })
    .await;
}

fn owned(mut object: Value, name: &str, owner: &Value) -> Value {
    object["metadata"] = json!({"name": name, "namespace": "default", "ownerReferences": [{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true}]});
    object
}

#[tokio::test]
async fn a_chain_of_three_is_one_story() {
    in_scratch("rules", async |scratch| {
        let lab = RuleLab::new(scratch).await?;
        let mut kubewitness = lab.start("run").await?;
        let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "namespace": "default"},
            "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": job("x")["spec"]}}});
        let cron = lab.ask(Method::POST, "/apis/batch/v1/namespaces/default/cronjobs", Some(&cron)).await?;
        becomes(&kubewitness, "cronjob/nightly", &[("Pending", "WaitsForFirstRun")]).await?;
        let run = lab.ask(Method::POST, JOBS, Some(&owned(job("x"), "nightly-1", &cron))).await?;
        becomes(&kubewitness, "job/nightly-1", &[("Pending", "")]).await?;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": job("x")["spec"]["template"]["spec"]});
        let pod = owned(pod, "nightly-1-a", &run);
        lab.ask(Method::POST, "/api/v1/namespaces/default/pods", Some(&pod)).await?;
        until_ok(WITHIN, "the whole chain", async || {
            let mut names: Vec<_> =
                story(&kubewitness, "cronjob/nightly").await?.into_iter().map(|(name, ..)| name).collect();
            names.sort();
            names.dedup();
            ensure!(names == ["CronJob/nightly", "Job/nightly-1", "Pod/nightly-1-a"], "{names:?}");
            Ok(())
        })
        .await?;
        kubewitness.stop().await
    })
    .await;
}
