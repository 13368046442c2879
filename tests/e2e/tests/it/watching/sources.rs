//! Sources at run time: one list-watch each however many plugins, added and removed by
//! configuration, of any kind, also one that is defined later.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{SourceView, StatusView};
use kubewitness_harness::{
    Kubewitness, Platform, RunOptions, Scratch, Simulator, command, in_scratch, until,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    AUDIT, create_job, example_copy, journal_proof, plugin_manifest, proofs, simulator, write,
};

const WITHIN: Duration = Duration::from_secs(90);

const SECOND: &str = "module: {file: persistence.wasm}
subscribe:
  - {source: jobs}
grants:
  sql: [{name: main, database: second}]";

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

struct SourceLab {
    simulator: Simulator,
    options: RunOptions,
    config: PathBuf,
    /// The host document as the example has it.
    host: String,
    kubewitness: Kubewitness,
}

impl SourceLab {
    async fn new(scratch: &Scratch) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.answers().await?;
        Ok(Self { simulator, options, config, host, kubewitness })
    }

    /// The example's sources and these.
    fn sources(&self, more: &[&str]) -> Result<()> {
        let after = "{name: pods, apiVersion: v1, kind: Pod}";
        let more: String = more.iter().map(|source| format!("\n        - {source}")).collect();
        write(&self.config, "host.yaml", &self.host.replace(after, &format!("{after}{more}")))
    }

    async fn create(&self, path: &str, object: Value) -> Result<()> {
        let (code, answer) = self.simulator.request(Method::POST, path, Some(&object)).await?;
        ensure!(code == 201, "creating in {path} answered {code}: {answer}");
        Ok(())
    }

    async fn source_when(
        &mut self,
        name: &str,
        what: &str,
        holds: impl Fn(&SourceView) -> bool,
    ) -> Result<SourceView> {
        let of = |status: &StatusView| status.sources.iter().find(|source| source.name == name).cloned();
        let status =
            self.kubewitness.status_when(WITHIN, what, |status| of(status).is_some_and(|s| holds(&s)));
        of(&status.await?).context("the source that was just there")
    }

    /// How often a resource was listed and watched; a streaming list is both.
    async fn asked(&self, resource: &str) -> Result<(u64, u64)> {
        let requests = self.simulator.requests().await?;
        let of = |verb: &str| requests.get(&format!("{verb} {resource}")).copied().unwrap_or_default();
        Ok((of("list") + of("list-stream"), of("watch") + of("list-stream")))
    }

    /// The same once it is watched: what was listed is shown before.
    async fn watched(&self, resource: &str) -> Result<(u64, u64)> {
        until(WITHIN, &format!("a watch of {resource}"), async || {
            let asked = self.asked(resource).await?;
            Ok((asked.1 > 0).then_some(asked))
        })
        .await
    }

    /// Until the persistence plugin's table has this job.
    async fn reaches(&self, database: &str, job: &str) -> Result<()> {
        let path = self.options.data.join(database);
        until(WITHIN, &format!("{job} in {database}"), async || {
            let Ok(mut platform) = Platform::open(&path).await else { return Ok(None) };
            let rows = platform.history("jobs").await.unwrap_or_default();
            Ok(rows.iter().any(|row| row.name == job).then_some(()))
        })
        .await
    }

    async fn story(&self, kind: &str, name: &str) -> Result<usize> {
        let path = format!("/api/v1/timeline?kind={kind}&namespace=default&name={name}");
        let (code, text) = self.kubewitness.get(&path).await?;
        ensure!(code == 200, "{path} answered {code}: {text}");
        let timeline: Value = serde_json::from_str(&text)?;
        Ok(timeline["states"].as_array().context("a timeline without states")?.len())
    }
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1}})
}

#[tokio::test]
async fn any_number_of_plugins_share_one_list_and_one_watch_of_a_source() {
    in_scratch("sources", async |scratch| {
        let mut lab = SourceLab::new(scratch).await?;
        create_job(&lab.simulator, "one").await?;
        lab.reaches("platform.db", "one").await?;
        lab.kubewitness.caught_up(WITHIN).await?;
        let alone = lab.watched("jobs.batch").await?;
        ensure!(alone.0 <= 1 && alone.1 == 1, "one list at most and one watch, but {alone:?}");
        for (name, spec) in [("second", SECOND), ("third", AUDIT)] {
            write(&lab.config, &format!("{name}.yaml"), &plugin_manifest(name, spec))?;
        }
        lab.reaches("second.db", "one").await?;
        create_job(&lab.simulator, "two").await?;
        for database in ["platform.db", "second.db"] {
            lab.reaches(database, "two").await?;
        }
        let three = |status: &StatusView| {
            status.plugins.len() == 3 && status.plugins.iter().all(|p| p.waiting == 0 && p.delivered >= 2)
        };
        lab.kubewitness.status_when(WITHIN, "three plugins that have it all", three).await?;
        let shared = lab.asked("jobs.batch").await?;
        ensure!(shared == alone, "{shared:?} requests for three plugins, {alone:?} for one");
        lab.kubewitness.stop().await?;
        proofs(&lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn sources_come_and_go_by_configuration_also_of_kinds_that_are_defined_later() {
    in_scratch("sources", async |scratch| {
        let mut lab = SourceLab::new(scratch).await?;
        let widgets = "{name: widgets, apiVersion: example.com/v1, kind: Widget}";
        let nodes = "{name: nodes, apiVersion: v1, kind: Node}";
        lab.sources(&[widgets, nodes])?;
        lab.source_when("widgets", "a condition that the kind is not there", |s| s.condition.is_some())
            .await?;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
        lab.create("/api/v1/nodes", node).await?;
        lab.source_when("nodes", "the node of a kind without namespaces", |s| s.objects == 1).await?;
        let url = format!("http://{}", lab.kubewitness.address());
        for place in [&[][..], &["-n", "default"]] {
            let line = [&["timeline", "node/node-a", "--server", &url][..], place].concat();
            let (code, story, said) = command(&line).await?;
            ensure!(code == Some(0) && story.contains("Node/node-a"), "{code:?}: {story}{said}");
        }
        // The one whose kind is not there is said to be, and nobody takes its emptiness for the truth.
        let (code, _, said) = command(&["get", "widgets", "--server", &url]).await?;
        ensure!(code == Some(0) && said.contains("source widgets is held up"), "{code:?}: {said}");
        let (_, _, said) = command(&["get", "nodes", "--server", &url]).await?;
        ensure!(said.is_empty(), "nothing holds it up: {said}");

        // The kind comes, and is taken without a restart.
        let names = json!({"plural": "widgets", "kind": "Widget"});
        let versions = json!([{"name": "v1", "served": true, "storage": true}]);
        let spec =
            json!({"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions});
        lab.create(DEFINITIONS, json!({"metadata": {"name": "widgets.example.com"}, "spec": spec})).await?;
        lab.create(WIDGETS, widget("seen")).await?;
        let there = |source: &SourceView| source.objects == 1 && source.condition.is_none() && source.synced;
        lab.source_when("widgets", "the object of the new kind", there).await?;
        let before = lab.watched("widgets.example.com").await?;

        // It is taken out: its history stays, and everything else goes on.
        lab.sources(&[nodes])?;
        let gone = |status: &StatusView| status.sources.iter().all(|source| source.name != "widgets");
        lab.kubewitness.status_when(WITHIN, "the source to be gone", gone).await?;
        lab.create(WIDGETS, widget("unseen")).await?;
        create_job(&lab.simulator, "one").await?;
        lab.reaches("platform.db", "one").await?;
        ensure!(lab.story("Widget", "seen").await? == 1, "what was witnessed stays readable");
        ensure!(lab.story("Widget", "unseen").await? == 0, "nobody watches it any more");
        ensure!(lab.asked("widgets.example.com").await? == before, "nobody asks for it any more");

        // It comes back under its name, and goes on from where it was.
        lab.sources(&[nodes, widgets])?;
        lab.source_when("widgets", "both objects", |source| source.objects == 2 && source.gaps == 0).await?;
        let after = lab.asked("widgets.example.com").await?;
        ensure!(after == (before.0, before.1 + 1), "resumed without a list: {after:?} after {before:?}");
        lab.kubewitness.stop().await?;
        proofs(&lab.options.data).await
    })
    .await;
}

/// Writes to the log what an index has. It imports every capability, so it has to be granted each.
const PROBE: &str = "module: {file: probe.wasm}
subscribe:
  - {source: jobs}
grants:
  kv: true
  sql: [{name: main, database: second}]
  http: [{name: sink, destination: nowhere}]
  ledger: [{name: trail, ledger: trail}]
  lister: [jobs]
config: {command: lister.list jobs byImage trainer}";

fn job(name: &str, image: &str) -> Value {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": image}]}});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}})
}

#[tokio::test]
async fn an_index_that_is_given_or_taken_at_run_time_holds_for_people_and_plugins_without_a_list() {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    const POINTER: &str = "/spec/template/spec/containers/0/image";
    in_scratch("sources", async |scratch| {
        let mut lab = SourceLab::new(scratch).await?;
        let destination = "\n      destinations:\n        - {name: nowhere, url: \"http://127.0.0.1:9\"}\n";
        lab.host = format!("{}{destination}", lab.host.trim_end());
        lab.sources(&[])?;
        write(&lab.config, "probe.yaml", &plugin_manifest("probe", PROBE))?;
        lab.create(JOBS, job("one", "trainer")).await?;
        lab.create(JOBS, job("two", "other")).await?;
        // Without the index, people and plugins are told which there are.
        lab.kubewitness.caught_up(WITHIN).await?;
        let path = "/api/v1/objects?source=jobs&index=byImage%3Dtrainer";
        let (code, text) = lab.kubewitness.get(path).await?;
        ensure!(code == 400 && text.contains("byImage"), "{code}: {text}");
        until(WITHIN, "the plugin is refused", async || {
            let log = lab.kubewitness.process().stderr();
            ensure!(!log.contains("ok: ["), "{log}");
            Ok(log.contains("lister.list jobs byImage trainer").then_some(()))
        })
        .await?;

        let index = format!("kind: Job, indexes: [{{name: byImage, pointer: {POINTER}}}]}}");
        let plain = lab.host.clone();
        lab.host = plain.replace("kind: Job}", &index);
        ensure!(lab.host != plain, "the example's host has a source of jobs");
        lab.sources(&[])?;
        let found = until(WITHIN, "the index", async || {
            let (code, text) = lab.kubewitness.get(path).await?;
            // The source starts anew with it. What it had is told until then, and never nothing.
            Ok((code == 200).then_some(text))
        });
        let found: Vec<Value> = serde_json::from_str(&found.await?)?;
        ensure!(found.len() == 1 && found[0]["object"]["name"] == "one", "{found:?}");
        lab.create(JOBS, job("three", "trainer")).await?;
        // What the plugin is handed it finds.
        until(WITHIN, "the plugin finds them by it", async || {
            let log = lab.kubewitness.process().stderr();
            let Some(found) = log.lines().find(|line| line.contains("ok: [")) else { return Ok(None) };
            ensure!(found.contains("one") && found.contains("three"), "{found}");
            Ok(Some(()))
        })
        .await?;
        // What the journal has is not listed again.
        let warm = |source: &SourceView| {
            source.synced && source.counts.watches > 0 && source.counts.lists_first == 0
        };
        lab.source_when("jobs", "a watch without a list", warm).await?;

        lab.host = plain;
        lab.sources(&[])?;
        until(WITHIN, "the index to be gone", async || {
            let (code, _) = lab.kubewitness.get(path).await?;
            Ok((code == 400).then_some(()))
        })
        .await?;
        lab.kubewitness.caught_up(WITHIN).await?;
        lab.kubewitness.stop().await?;
        // The probe has the ledger, and writes nothing into it.
        journal_proof(&lab.options.data, &[]).await
    })
    .await;
}
