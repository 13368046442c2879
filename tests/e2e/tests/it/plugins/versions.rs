//! Versions of a plugin replace each other under load, also from the shadow: every state is handled once, in order.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Kubewitness, RunOptions, Simulator, command, in_scratch, plugins_folder, registry::ImageRegistry, until,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{AUDIT, BackgroundLoad, components, create_job, proofs, simulator};

const WITHIN: Duration = Duration::from_secs(180);
const CHANGES: usize = 100;
/// Versions that take over from the shadow.
const CUTS: usize = 6;
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

const HOST: &str = "apiVersion: kubewitness.dev/v1alpha1
kind: Host
metadata: {name: host}
spec:
  sources:
    - {name: jobs, apiVersion: batch/v1, kind: Job}
    - {name: pods, apiVersion: v1, kind: Pod}
  ledgers:
    - {name: trail, path: audit/trail.jsonl}
";

fn config_map(name: &str, kind: &str, text: &str) -> Value {
    let label = format!("kubewitness.dev/{kind}");
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {label: "true"}},
        "data": {format!("{kind}.yaml"): text},
    })
}

/// The audit plugin of one of two components that differ in a name alone.
fn audit(number: usize) -> Value {
    audit_with(number, "")
}

fn audit_with(number: usize, more: &str) -> Value {
    let spec = AUDIT.replace("audit.wasm", &format!("audit-{number}.wasm")) + more;
    let spec = spec.replace('\n', "\n  ");
    let head = "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\nmetadata: {name: audit}\nspec:\n  ";
    config_map("audit", "plugin", &format!("{head}{spec}\n"))
}

async fn put(simulator: &Simulator, method: Method, path: &str, object: &Value) -> Result<()> {
    let (status, answer) = simulator.request(method, path, Some(object)).await?;
    ensure!(status < 300, "{path} answered {status}: {answer}");
    Ok(())
}

fn digest(status: &StatusView) -> Option<&str> {
    let audit = status.plugins.iter().find(|plugin| plugin.name == "audit")?;
    (audit.state == "active").then_some(audit.digest.as_str())
}

#[tokio::test]
async fn a_hundred_changes_of_version_under_load_hand_over_every_state_once_and_in_order() {
    in_scratch("versions", async |scratch| {
        let simulator = simulator(scratch).await?;
        put(&simulator, Method::POST, CONFIGMAPS, &config_map("host", "host", HOST)).await?;
        put(&simulator, Method::POST, CONFIGMAPS, &audit(0)).await?;
        let options = RunOptions {
            plugins: Some(components(scratch, "audit")?),
            ..simulator.run_options(scratch, None)?
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let load = BackgroundLoad::start(&simulator, 11, 20.0);
        let started = run.status_when(WITHIN, "the first version", |it| digest(it).is_some()).await?;
        let mut before = started;
        for change in 1..=CHANGES {
            put(&simulator, Method::PUT, &format!("{CONFIGMAPS}/audit"), &audit(change % 2)).await?;
            let is_other = |it: &StatusView| digest(it).is_some() && digest(it) != digest(&before);
            before = run.status_when(WITHIN, "the other version", is_other).await?;
        }
        ends_well((load, &simulator), run, &options).await
    })
    .await;
}

/// Every state is on the trail, once and in order.
async fn ends_well(
    (load, simulator): (BackgroundLoad, &Simulator),
    mut run: Kubewitness,
    options: &RunOptions,
) -> Result<()> {
    // However quick the changes were.
    let many = |it: &StatusView| it.plugins.iter().any(|plugin| plugin.delivered > 100);
    run.status_when(WITHIN, "more than a hundred states", many).await?;
    load.stop().await?;
    // Each watch is in order: whoever has seen these has seen the load.
    create_job(simulator, "last").await?;
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "last", "namespace": "default"},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    });
    put(simulator, Method::POST, "/api/v1/namespaces/default/pods", &pod).await?;
    let are_there = async || {
        let (_, text) = run.get("/api/v1/objects?namespace=default&name=last").await?;
        let found: Vec<Value> = serde_json::from_str(&text)?;
        Ok((found.len() == 2).then_some(()))
    };
    until(WITHIN, "the last job and the last pod", are_there).await?;
    let all = |it: &StatusView| it.plugins.iter().all(|plugin| plugin.lag_seq == 0 && plugin.waiting == 0);
    let status = run.status_when(WITHIN, "the last states", all).await?;
    let audit = status.plugins.first().context("no plugin")?;
    ensure!(audit.dead == 0 && audit.delivered > 100, "{audit:?}");
    run.stop().await?;
    let trail = std::fs::read_to_string(options.data.join("audit/trail.jsonl"))?;
    let lines = trail.lines().count() as u64;
    ensure!(lines == audit.delivered, "{lines} lines for {} states", audit.delivered);
    proofs(&options.data).await
}

#[tokio::test]
async fn versions_in_the_shadow_take_over_under_load_and_every_state_is_handed_over_once_and_in_order() {
    in_scratch("cutover", async |scratch| {
        let simulator = simulator(scratch).await?;
        put(&simulator, Method::POST, CONFIGMAPS, &config_map("host", "host", HOST)).await?;
        put(&simulator, Method::POST, CONFIGMAPS, &audit(0)).await?;
        let options = RunOptions {
            plugins: Some(components(scratch, "audit")?),
            ..simulator.run_options(scratch, None)?
        };
        let kubeconfig = simulator.kubeconfig().to_string_lossy().into_owned();
        let cutover = ["plugin", "cutover", "audit", "-n", "default", "--kubeconfig", &kubeconfig];
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let server = format!("http://{}", run.address());
        let cutover = [&cutover[..], &["--server", &server]].concat();
        let load = BackgroundLoad::start(&simulator, 12, 20.0);
        for cut in 0..CUTS {
            let shadow = format!("\nshadow: {{module: {{file: audit-{}.wasm}}}}", (cut + 1) % 2);
            let beside = audit_with(cut % 2, &shadow);
            put(&simulator, Method::PUT, &format!("{CONFIGMAPS}/audit"), &beside).await?;
            let is_compared = |it: &StatusView| {
                let shadow = it.plugins.first().and_then(|plugin| plugin.shadow.as_ref());
                shadow.is_some_and(|shadow| shadow.same > 3 && shadow.different == 0)
            };
            let status = run.status_when(WITHIN, "states of both versions", is_compared).await?;
            let (code, stdout, stderr) = command(&cutover).await?;
            ensure!(code == Some(0) && stdout.contains("audit configured"), "{code:?}: {stdout}{stderr}");
            let is_other = |it: &StatusView| {
                digest(it).is_some() && digest(it) != digest(&status) && it.plugins[0].shadow.is_none()
            };
            run.status_when(WITHIN, "the other version", is_other).await?;
        }
        let (code, _, stderr) = command(&cutover).await?;
        ensure!(code == Some(1) && stderr.contains("no version in its shadow"), "{code:?}: {stderr}");
        ends_well((load, &simulator), run, &options).await
    })
    .await;
}

#[tokio::test]
async fn what_was_compared_takes_over_although_the_controller_is_killed_and_the_tag_has_moved() {
    in_scratch("cutover-killed", async |scratch| {
        let registry = ImageRegistry::start(None).await?;
        let built = std::fs::read(plugins_folder()?.join("audit.wasm")).context("the audit plugin")?;
        registry.push("audit", "next", &[&built[..], &[0, 2, 1, b'n']].concat());
        let simulator = simulator(scratch).await?;
        let host = format!("{HOST}  modules: {{addresses: [loopback]}}\n");
        put(&simulator, Method::POST, CONFIGMAPS, &config_map("host", "host", &host)).await?;
        let shadow = format!("\nshadow: {{module: {{oci: \"{}/audit:next\"}}}}", registry.name());
        put(&simulator, Method::POST, CONFIGMAPS, &audit_with(0, &shadow)).await?;
        let options = RunOptions {
            plugins: Some(components(scratch, "audit")?),
            ..simulator.run_options(scratch, None)?
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let in_shadow = |it: &StatusView| {
            it.plugins.first().and_then(|plugin| plugin.shadow.as_ref()).map(|shadow| shadow.digest.clone())
        };
        let status = run.status_when(WITHIN, "the shadow", |it| in_shadow(it).is_some()).await?;
        let compared = in_shadow(&status).context("the shadow")?;
        let (kubeconfig, server) =
            (simulator.kubeconfig().to_string_lossy().into_owned(), format!("http://{}", run.address()));
        let cutover =
            ["plugin", "cutover", "audit", "-n", "default", "--kubeconfig", &kubeconfig, "--server", &server];
        let (code, stdout, stderr) = command(&cutover).await?;
        ensure!(code == Some(0), "{code:?}: {stdout}{stderr}");
        run.kill().await?;
        registry.push("audit", "next", b"\0asm of another");
        let mut run = Kubewitness::start("again", &options, scratch.path())?;
        let took_over = |it: &StatusView| digest(it) == Some(compared.as_str()) && in_shadow(it).is_none();
        run.status_when(WITHIN, "the version that was compared", took_over).await?;
        run.stop().await
    })
    .await;
}
