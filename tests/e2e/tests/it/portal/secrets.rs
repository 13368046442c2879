//! Secrets in documents: people and plugins read digests, the journal keeps the bytes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::ports::DocumentReader;
use kubewitness_core::views::PluginView;
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, in_scratch, until, until_ok,
};
use kubewitness_journal::{Journal, JournalOptions};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{AUDIT, example, example_copy, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);
const SECRET: &str = "hush-4711";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job(secret: &str) -> Value {
    let env = json!([{"name": "HF_TOKEN", "value": secret}, {"name": "EPOCHS", "value": "3"}]);
    let headers = json!([{"name": "X-Auth-Token", "value": secret}]);
    let container = json!({
        "name": "main", "image": "train", "env": env,
        "args": [format!("--password={secret}"), "--epochs=3", "--token", secret],
        "livenessProbe": {"httpGet": {"port": 80, "httpHeaders": headers}},
    });
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"value\":\"{secret}\"}}"),
        }},
        "spec": {"template": {"metadata": {"annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"value\":\"{secret}\"}}"),
        }}, "spec": {"restartPolicy": "Never", "containers": [container]}}},
    })
}

fn hides(text: &str) -> Result<()> {
    ensure!(!text.contains(SECRET), "the secret is told: {text}");
    ensure!(text.contains("redacted:"), "no digest is told: {text}");
    Ok(())
}

/// As a controller does that tells what it was given.
async fn quote_in_status(simulator: &Simulator) -> Result<()> {
    let path = format!("{JOBS}/train");
    let (_, mut job) = simulator.request(Method::GET, &path, None).await?;
    let at = "2026-11-21T12:00:00Z";
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "LoginFailed", "lastProbeTime": at, "lastTransitionTime": at,
               "message": format!("can't log in with '{SECRET}'")})
    };
    job["status"] = json!({"startTime": at, "failed": 1, "conditions": [condition("FailureTarget"), condition("Failed")]});
    let (code, answer) = simulator.request(Method::PUT, &format!("{path}/status"), Some(&job)).await?;
    ensure!(code == 200, "the status answered {code}: {answer}");
    Ok(())
}

#[tokio::test]
async fn people_and_tables_get_digests_and_the_journal_keeps_the_bytes() {
    in_scratch("secrets", async |scratch| {
        let simulator = simulator(scratch).await?;
        let data = scratch.folder("data")?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_owned(),
            config: Some(example()),
            data: data.clone(),
            ..RunOptions::default()
        };
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.listed(2, WITHIN).await?;
        let (code, answer) = simulator.request(Method::POST, JOBS, Some(&job(SECRET))).await?;
        ensure!(code == 201, "{answer}");
        quote_in_status(&simulator).await?;
        kubewitness.status_when(WITHIN, "the job", |status| status.journal.states > 1).await?;
        kubewitness.caught_up(WITHIN).await?;
        let url = format!("http://{}", kubewitness.address());
        for path in ["objects?kind=Job", "timeline?kind=Job&namespace=default&name=train"] {
            // A list shows a status without its texts while a document takes long to look at.
            until(WITHIN, "a readable message", async || {
                let told = reqwest::get(format!("{url}/api/v1/{path}")).await?.text().await?;
                hides(&told)?;
                Ok(told.contains("can't log in with 'redacted:").then_some(()))
            })
            .await?;
        }
        for arguments in [["get", "job", "train", "-o", "yaml"], ["get", "job", "train", "-o", "json"]] {
            let line = [&arguments[..], &["-n", "default", "--server", &url]].concat();
            let (code, out, errors) = command(&line).await?;
            ensure!(code == Some(0), "{line:?}: {errors}");
            hides(&out)?;
            ensure!(out.contains("EPOCHS"), "what is no secret stays: {out}");
        }
        let api = reqwest::get(format!("{url}/api/v1/states/1/document")).await?.text().await?;
        hides(&api)?;
        kubewitness.stop().await?;

        let folder = data.to_string_lossy();
        let (_, exported, _) = command(&["journal", "export", "--documents", "--data", &folder]).await?;
        ensure!(exported.contains(SECRET), "the journal has what the server sent");
        let table = std::fs::read(data.join("platform.db")).context("the plugin's database")?;
        let table = String::from_utf8_lossy(&table);
        ensure!(!table.contains(SECRET), "the plugin's database has the secret");
        Ok(())
    })
    .await;
}

/// The example with more settings, beside a simulated cluster with one job.
async fn with_settings(scratch: &Scratch, settings: &str) -> Result<(Simulator, RunOptions)> {
    let config = example_copy(scratch)?;
    let host = std::fs::read_to_string(config.join("host.yaml"))?;
    write(&config, "host.yaml", &format!("{}\n{settings}", host.trim_end()))?;
    let simulator = simulator(scratch).await?;
    let (code, answer) = simulator.request(Method::POST, JOBS, Some(&job(SECRET))).await?;
    ensure!(code == 201, "{answer}");
    let options = simulator.run_options(scratch, config)?;
    Ok((simulator, options))
}

/// Starts where the key can't be read, and repairs that. `told`: in the problem of which people are told.
async fn goes_on_without_its_key(
    scratch: &Scratch,
    options: &RunOptions,
    told: &[&str],
    repair: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut kubewitness = Kubewitness::start("run", options, scratch.path())?;
    let is_told = |problem: &String| told.iter().all(|part| problem.contains(part));
    let waits = kubewitness
        .status_when(WITHIN, "the job in the journal, and the problem", |status| {
            status.journal.states > 0 && status.problems.iter().any(is_told)
        })
        .await?;
    ensure!(waits.plugins.iter().all(|plugin| plugin.delivered == 0), "{:?}", waits.plugins);
    let document = format!("http://{}/api/v1/states/1/document", kubewitness.address());
    let answer = reqwest::get(&document).await?;
    ensure!(answer.status() == 503, "{answer:?}");
    let text = answer.text().await?;
    ensure!(text.contains("the redaction key can't be read") && !text.contains(SECRET), "{text}");

    repair()?;
    kubewitness.caught_up(WITHIN).await?;
    until_ok(WITHIN, "the document", async || hides(&reqwest::get(&document).await?.text().await?)).await?;
    kubewitness.status_when(WITHIN, "no problem", |status| status.problems.is_empty()).await?;
    kubewitness.stop().await
}

#[tokio::test]
async fn without_a_redaction_key_states_are_journaled_and_people_and_plugins_wait_for_the_key() {
    in_scratch("secrets_key", async |scratch| {
        let (_simulator, options) = with_settings(scratch, "").await?;
        let key = options.data.join("redaction.key");
        std::fs::create_dir(&key).context("a folder in the place of the key")?;
        let told = ["the redaction key can't be read", "redaction.key: it is a folder"];
        let repair = || std::fs::remove_dir(&key).context("the folder away");
        goes_on_without_its_key(scratch, &options, &told, repair).await
    })
    .await;
}

#[tokio::test]
async fn without_the_key_of_the_settings_states_are_journaled_at_every_start() {
    in_scratch("secrets_key_from", async |scratch| {
        let key = scratch.path().join("named.key");
        let settings = format!("      redaction:\n        keyFrom: {{file: {}}}\n", key.display());
        let (simulator, options) = with_settings(scratch, &settings).await?;
        let told = ["the redaction key can't be read", "spec.redaction.keyFrom"];
        let repair = || std::fs::write(&key, "k".repeat(64)).context("the key");
        goes_on_without_its_key(scratch, &options, &told, repair).await?;

        std::fs::remove_file(&key).context("the key away")?;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        let mut second = job(SECRET);
        second["metadata"]["name"] = "second".into();
        let (code, answer) = simulator.request(Method::POST, JOBS, Some(&second)).await?;
        ensure!(code == 201, "{answer}");
        let is_told = |problem: &String| told.iter().all(|part| problem.contains(part));
        kubewitness
            .status_when(WITHIN, "the second job, and the problem", |status| {
                status.journal.states > 1 && status.problems.iter().any(is_told)
            })
            .await?;
        repair()?;
        kubewitness.caught_up(WITHIN).await?;
        kubewitness.stop().await
    })
    .await;
}

fn event(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"apiVersion": "batch/v1", "kind": "Job", "namespace": "default", "name": "train", "uid": uid},
        "type": "Warning", "reason": "LoginFailed", "message": format!("can't log in with '{SECRET}'"),
    })
}

/// Beside jobs, Events are witnessed. The audit plugin reads their documents as a person does.
async fn with_events(scratch: &Scratch) -> Result<(Simulator, RunOptions)> {
    let (config, jobs) = (example_copy(scratch)?, "- {name: jobs, apiVersion: batch/v1, kind: Job}");
    let host = std::fs::read_to_string(config.join("host.yaml"))?;
    let events = "- {name: events, apiVersion: v1, kind: Event}";
    write(&config, "host.yaml", &host.replace(jobs, &format!("{jobs}\n        {events}")))?;
    write(
        &config,
        "audit.yaml",
        &plugin_manifest("audit", &AUDIT.replace("source: pods", "source: events")),
    )?;
    let simulator = simulator(scratch).await?;
    let options = simulator.run_options(scratch, config)?;
    Ok((simulator, options))
}

#[tokio::test]
async fn people_and_plugins_read_no_secret_of_a_job_in_the_events_about_it() {
    in_scratch("secrets_event", async |scratch| {
        let (simulator, options) = with_events(scratch).await?;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.status_when(WITHIN, "the sources", |status| status.sources.len() == 3).await?;
        let (code, made) = simulator.request(Method::POST, JOBS, Some(&job(SECRET))).await?;
        ensure!(code == 201, "{made}");
        kubewitness.status_when(WITHIN, "the job", |status| status.journal.states > 0).await?;
        let uid = made["metadata"]["uid"].as_str().context("the uid")?;
        for (name, uid) in [("known", uid), ("unseen", "nobody-has-seen-it")] {
            let path = "/api/v1/namespaces/default/events";
            let (code, answer) = simulator.request(Method::POST, path, Some(&event(name, uid))).await?;
            ensure!(code == 201, "{answer}");
        }
        let told = |plugin: &PluginView| plugin.name == "audit" && plugin.delivered > 2;
        kubewitness.status_when(WITHIN, "the trail", |status| status.plugins.iter().any(told)).await?;

        let url = format!("http://{}", kubewitness.address());
        let trail = std::fs::read_to_string(options.data.join("audit/trail.jsonl")).context("the trail")?;
        let lines = trail.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let listed =
            reqwest::get(format!("{url}/api/v1/objects?kind=Event")).await?.json::<Vec<Value>>().await?;
        ensure!(listed.len() == 2, "{listed:?}");
        for one in listed {
            let document = format!("{url}/api/v1/states/{}/document", one["seq"]);
            let document = reqwest::get(document).await?.text().await?;
            hides(&document)?;
            let is_readable = document.contains("can't log in with 'redacted:");
            ensure!(is_readable == (one["object"]["name"] == "known"), "{document}");
            let file = scratch.path().join("event.json");
            std::fs::write(&file, &document)?;
            let sum = std::process::Command::new("sha256sum").arg(&file).output().context("sha256sum")?;
            let line = lines.iter().find(|line| line["seq"] == one["seq"]).context("a line")?;
            ensure!(line["document_sha256"] == String::from_utf8(sum.stdout)?[..64], "a plugin reads {line}");
        }
        let story = reqwest::get(format!("{url}/api/v1/timeline?uid={uid}&limit=1")).await?.text().await?;
        ensure!(story.contains("can't log in with 'redacted:") && !story.contains(SECRET), "{story}");
        let line = ["get", "event", "known", "-o", "yaml", "-n", "default", "--server", &url];
        let (code, out, errors) = command(&line).await?;
        ensure!(code == Some(0), "{errors}");
        hides(&out)?;
        kubewitness.stop().await
    })
    .await;
}

const SOURCES: &str = "apiVersion: v1
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
      sources:
        - {name: events, apiVersion: v1, kind: Event}
";

#[tokio::test]
async fn of_a_kind_whose_source_was_added_while_running_no_event_tells_a_secret() {
    in_scratch("secrets_added", async |scratch| {
        let (config, simulator) = (scratch.folder("config")?, simulator(scratch).await?);
        write(&config, "host.yaml", SOURCES)?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.listed(1, WITHIN).await?;
        let jobs = "        - {name: jobs, apiVersion: batch/v1, kind: Job}\n";
        write(&config, "host.yaml", &format!("{SOURCES}{jobs}"))?;
        kubewitness.listed(2, WITHIN).await?;
        let path = "/api/v1/namespaces/default/events";
        let unseen = event("unseen", "nobody-has-seen-it");
        let (code, answer) = simulator.request(Method::POST, path, Some(&unseen)).await?;
        ensure!(code == 201, "{answer}");
        let document = format!("http://{}/api/v1/states/1/document", kubewitness.address());
        until_ok(WITHIN, "the event", async || hides(&reqwest::get(&document).await?.text().await?)).await?;
        kubewitness.stop().await
    })
    .await;
}

const HIDDEN_LABEL: &str = "      redaction:
        fields:
          - {pointer: /metadata/labels/code}
";

#[tokio::test]
async fn a_hidden_label_can_be_asked_for_in_no_way() {
    in_scratch("secrets_label", async |scratch| {
        let (simulator, options) = with_settings(scratch, HIDDEN_LABEL).await?;
        let mut labeled = job(SECRET);
        labeled["metadata"]["name"] = "labeled".into();
        labeled["metadata"]["labels"] = json!({"code": SECRET, "team": "vision"});
        let (code, answer) = simulator.request(Method::POST, JOBS, Some(&labeled)).await?;
        ensure!(code == 201, "{answer}");
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.status_when(WITHIN, "both jobs", |status| status.journal.states > 1).await?;
        kubewitness.caught_up(WITHIN).await?;
        let url = format!("http://{}/api/v1/objects", kubewitness.address());
        let ask = async |query: &str| {
            let answer = reqwest::get(format!("{url}?kind=Job&{query}")).await?;
            anyhow::Ok((answer.status().as_u16(), answer.text().await?))
        };
        for query in [
            format!("labelSelector=code%3D{SECRET}"),
            format!("labelSelector=code!%3D{SECRET}"),
            format!("index=label%3Dcode%3D{SECRET}"),
            format!("gone=true&labelSelector=code%3D{SECRET}"),
        ] {
            let (code, text) = ask(&query).await?;
            ensure!(code == 400 && text.contains("spec.redaction"), "{query}: {code} {text}");
        }
        let (_, found) = ask(&format!("search={SECRET}")).await?;
        ensure!(!found.contains("labeled"), "{found}");
        for query in ["search=vision", "labelSelector=team%3Dvision", "index=label%3Dteam%3Dvision"] {
            let (code, text) = ask(query).await?;
            ensure!(code == 200 && text.contains("labeled"), "{query}: {code} {text}");
        }
        kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_filter_asks_for_a_hidden_value_and_the_plugin_gets_what_fits_without_it() {
    in_scratch("secrets_filter", async |scratch| {
        let (simulator, options) = with_settings(scratch, "").await?;
        let mut other = job("another-0815");
        other["metadata"]["name"] = "other".into();
        let (code, answer) = simulator.request(Method::POST, JOBS, Some(&other)).await?;
        ensure!(code == 201, "{answer}");
        let hidden = "object.spec.template.spec.containers[0].env[0].value";
        let filter = format!("filter: '{hidden} == \"{SECRET}\"'");
        let audit = AUDIT.replace("{source: jobs,", &format!("{{source: jobs, {filter},"));
        let audit = format!("{audit}\nconfig: {{change: patch}}");
        let config = options.config.as_deref().context("the configuration")?;
        write(config, "audit.yaml", &plugin_manifest("audit", &audit))?;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        let told = |plugin: &PluginView| plugin.name == "audit" && plugin.delivered + plugin.filtered == 2;
        let status =
            kubewitness.status_when(WITHIN, "both jobs", |status| status.plugins.iter().any(told)).await?;
        let audit = status.plugins.iter().find(|plugin| plugin.name == "audit").context("the plugin")?;
        ensure!((audit.delivered, audit.filtered) == (1, 1), "{audit:?}");
        kubewitness.stop().await?;

        let trail = std::fs::read_to_string(options.data.join("audit/trail.jsonl")).context("the trail")?;
        let lines = trail.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let names: Vec<_> = lines.iter().map(|line| &line["name"]).collect();
        ensure!(names == ["train"], "exactly what fits is handed over: {names:?}");
        hides(&trail)
    })
    .await;
}

#[tokio::test]
async fn the_audit_trail_holds_the_hash_of_raw_bytes_without_a_right_to_secrets() {
    in_scratch("secrets_digest", async |scratch| {
        let (_simulator, options) = with_settings(scratch, "").await?;
        let audit = AUDIT.replace("grants:", "grants:\n  documents: digest");
        let audit = format!("{audit}\nconfig: {{change: patch}}");
        let config = options.config.as_deref().context("the configuration")?;
        write(config, "audit.yaml", &plugin_manifest("audit", &audit))?;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        let told = |plugin: &PluginView| plugin.name == "audit" && plugin.delivered > 0;
        kubewitness.status_when(WITHIN, "the trail", |status| status.plugins.iter().any(told)).await?;
        kubewitness.caught_up(WITHIN).await?;
        kubewitness.stop().await?;

        let trail = options.data.join("audit/trail.jsonl");
        let lines = std::fs::read_to_string(&trail).context("the trail")?;
        let line: Value = serde_json::from_str(lines.lines().next().context("a line")?)?;
        let patch = line["patch"].to_string();
        ensure!(patch.contains("redacted:") && !lines.contains(SECRET), "a patch has no secret: {patch}");
        let seq = line["seq"].as_u64().context("the position")?;
        let journal = Journal::open(&options.data.join("journal.db"), JournalOptions::default()).await?;
        let raw = journal.document_at(seq).await?.context("the document")?;
        ensure!(String::from_utf8_lossy(&raw).contains(SECRET), "the journal has what the server sent");
        let file = scratch.path().join("raw.json");
        std::fs::write(&file, &raw)?;
        let sum = std::process::Command::new("sha256sum").arg(&file).output().context("sha256sum")?;
        let sum = String::from_utf8(sum.stdout)?;
        ensure!(line["document_sha256"] == sum[..64], "{line} and {sum}");
        let (code, out, errors) = command(&["audit", "verify", &trail.to_string_lossy()]).await?;
        ensure!(code == Some(0), "{out}{errors}");
        Ok(())
    })
    .await;
}
