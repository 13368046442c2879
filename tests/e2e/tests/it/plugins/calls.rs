//! The acts of plugins are seen: in the API, on the command line, as metrics, on the portal's page and in the
//! log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{CallsView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, command, in_scratch, is_signed_by};
use serde_json::Value;

use crate::limits::hostile::{FOR_PROBE, hostile, program, unhurried};
use crate::plugins::probing::{ProbeLab, manifest};
use crate::support::{SEAL_KEY, SEAL_PUBLIC, create_job, example_copy, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);

fn calls(status: &StatusView, name: &str) -> CallsView {
    let plugin = status.plugins.iter().find(|plugin| plugin.name == name);
    plugin.map(|plugin| plugin.calls.clone()).unwrap_or_default()
}

/// The value of a sample of the page of metrics.
fn metric(page: &str, sample: &str) -> Result<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.with_context(|| format!("no {sample} in {page}"))?.trim().parse().context(sample.to_owned())
}

/// The record that the plugin wrote, as the log has it.
fn record(log: &str, plugin: &str) -> Result<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut records = lines.filter(|line| line["target"] == "plugin" && line["fields"]["plugin"] == plugin);
    records.next().with_context(|| format!("nothing of {plugin} in {log}"))
}

async fn seen(run: &mut Kubewitness) -> Result<()> {
    let both = |status: &StatusView| {
        let (trapping, sleeping) = (calls(status, "trapping").ended, calls(status, "sleeping").ended);
        let good = [calls(status, "persistence").ended.answered, calls(status, "talking").ended.answered];
        trapping.trapped > 0 && sleeping.timed_out > 0 && good.iter().all(|answered| *answered > 0)
    };
    let status = run.status_when(WITHIN, "a trap and a time-out", both).await?;
    let (trapping, sleeping) = (calls(&status, "trapping"), calls(&status, "sleeping"));
    ensure!(trapping.ended.timed_out == 0 && trapping.ended.answered == 0, "{trapping:?}");
    ensure!(sleeping.ended.trapped == 0 && sleeping.guest_seconds >= 0.2, "{sleeping:?}");
    let end = |calls: &CallsView| calls.last_failure.as_ref().map(|failure| failure.end.clone());
    ensure!(end(&trapping).as_deref() == Some("trapped"), "{trapping:?}");
    ensure!(end(&sleeping).as_deref() == Some("timed-out"), "{sleeping:?}");
    let good = calls(&status, "persistence");
    ensure!(good.last_answered_at.is_some() && good.last_failure.is_none(), "{good:?}");
    ensure!(good.host_calls["sql"] > 0 && good.host_seconds > 0.0 && good.peak_memory > 0, "{good:?}");
    ensure!(good.compile_seconds > 0.0 && good.bytes_in > 0 && good.bytes_out > 0, "{good:?}");

    let (_, page) = run.get("/metrics").await?;
    for (plugin, end, none) in [("trapping", "trapped", "timed-out"), ("sleeping", "timed-out", "trapped")] {
        let of = |end: &str| format!("kubewitness_plugin_calls_total{{plugin=\"{plugin}\",end=\"{end}\"}}");
        ensure!(metric(&page, &of(end))? > 0.0 && metric(&page, &of(none))? == 0.0, "{plugin}: {page}");
        let at = format!("kubewitness_plugin_last_failure_timestamp_seconds{{plugin=\"{plugin}\"}}");
        ensure!(metric(&page, &at)? > 1.7e9, "{page}");
    }
    for line in page.lines().filter(|line| line.starts_with("kubewitness_plugin_")) {
        let labels: Vec<_> =
            line.split(['{', ',']).skip(1).filter_map(|label| label.split_once('=')).collect();
        let known =
            |(label, _): &(&str, &str)| ["plugin", "end", "verdict", "capability", "result"].contains(label);
        ensure!(labels.iter().all(known), "a label of {line}");
    }

    let (_, page) = run.get("/plugins").await?;
    for told in ["Last good call", "a trap", "a timeout", "Peak memory", " of 32 MiB"] {
        ensure!(page.contains(told), "{told} is not in {page}");
    }

    let server = format!("http://{}", run.address());
    let (code, stdout, stderr) = command(&["plugins", "-o", "wide", "--server", &server]).await?;
    for told in
        ["TRAPS", "TIMEOUTS", "PEAK MEMORY", "(trapped): the plugin trapped", "(timed-out): the plugin ran"]
    {
        ensure!(code == Some(0) && stdout.contains(told), "{told} is not in {code:?} {stdout}{stderr}");
    }
    Ok(())
}

#[tokio::test]
async fn a_trap_and_a_time_out_are_told_apart_by_metrics_api_command_and_page_and_a_guests_log_is_a_record() {
    in_scratch("plugin-calls", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &format!("{host}{FOR_PROBE}"))?;
        for (name, file, does) in [
            ("trapping", program("exits"), "{}"),
            ("sleeping", program("sleeps"), "{millis: 600000}"),
            ("talking", "probe.wasm".to_owned(), "{command: clock}"),
        ] {
            let manifest = hostile(name, &file, does);
            let manifest = if name == "sleeping" { manifest } else { unhurried(&manifest) };
            write(&config, &format!("{name}.yaml"), &manifest)?;
        }
        create_job(&simulator, "one").await?;
        let options = RunOptions {
            args: vec!["--log-json".into()],
            compiles_anew: true,
            ..simulator.run_options(scratch, config)?
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        seen(&mut run).await?;
        let log = run.process().stderr();
        let record = record(&log, "talking")?;
        ensure!(record["level"] == "INFO" && record["fields"]["message"] == "probe", "{record}");
        let data = &record["fields"]["data"];
        ensure!(data["command"] == "clock" && data["answer"].is_string(), "{record}");
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn what_a_plugin_signs_with_a_granted_key_is_signed_by_that_key_and_by_no_other() {
    in_scratch("plugin-keys", async |scratch| {
        let mut lab = ProbeLab::new(scratch, "").await?;
        lab.options.args = vec!["--log-json".into()];
        let key = scratch.path().join("sign.key");
        std::fs::write(&key, SEAL_KEY)?;
        let host = std::fs::read_to_string(lab.config.join("host.yaml"))?;
        let keys = format!("      keys:\n        - {{name: sign, valueFrom: {{file: {key:?}}}}}\n");
        write(&lab.config, "host.yaml", &(host + &keys))?;
        let probe = manifest("{command: ledger.signature sign}", "");
        let granted = probe.replace("  kv: true\n", "  kv: true\n        keys: [{name: sign, key: sign}]\n");
        ensure!(granted != probe, "the key is not granted: {probe}");
        write(&lab.config, "probe.yaml", &granted)?;
        create_job(&lab.simulator, "one").await?;
        let mut run = Kubewitness::start("run", &lab.options, scratch.path())?;
        let is_called = |status: &StatusView| calls(status, "probe").ended.answered > 0;
        let status = run.status_when(WITHIN, "a signature", is_called).await?;
        let plugin = status.plugins.iter().find(|plugin| plugin.name == "probe").context("no probe")?;
        let grant = plugin.grants.iter().find(|grant| grant.name == "key:sign").context("no key")?;
        ensure!(grant.calls > 0 && grant.declared, "{grant:?}");
        let record = record(&run.process().stderr(), "probe")?;
        let answer = record["fields"]["data"]["answer"].as_str().context("no answer")?;
        let signature = answer.strip_prefix("ok: ").with_context(|| record.to_string())?;
        let signature = hex(signature.trim_matches('"'))?;
        ensure!(signature.len() == 64, "{record}");
        ensure!(is_signed_by(SEAL_PUBLIC, b"message", &signature), "{record}");
        ensure!(!is_signed_by(SEAL_PUBLIC, b"massage", &signature), "any text is signed by it");
        run.stop().await
    })
    .await;
}

fn hex(text: &str) -> Result<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2).map(|at| text.get(at..at + 2).context("half a byte"));
    pairs.map(|pair| Ok(u8::from_str_radix(pair?, 16)?)).collect()
}
