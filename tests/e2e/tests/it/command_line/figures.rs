//! Commands that show figures: `-w` shows them again when something has changed, and choices narrow them.

use std::time::Duration;

use anyhow::{Context, ensure};
use kubewitness_harness::{ChildProcess, Kubewitness, command, in_scratch, kubewitness_binary, until};
use tokio::process::Command;

use crate::support::{AUDIT, create_job, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(60);
const HOST: &str = "apiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {name: host}\nspec:\n  sources: [{name: jobs, \
    apiVersion: batch/v1, kind: Job}, {name: pods, apiVersion: v1, kind: Pod}]\n  ledgers: [{name: trail, path: trail.jsonl}]\n";

#[tokio::test]
async fn figures_are_shown_again_when_they_have_changed_and_plugins_by_name() {
    in_scratch("figures", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = scratch.folder("config")?;
        write(&config, "host.yaml", HOST)?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        let options = simulator.run_options(scratch, config)?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.listed(2, WITHIN).await?;
        let server = format!("http://{}", run.address());
        let mut watching = Command::new(kubewitness_binary()?);
        watching.args(["status", "-w", "--server", &server]);
        let mut watching = ChildProcess::start("watching", &mut watching, scratch.path())?;
        let tables = |process: &ChildProcess| process.stdout().matches("SOURCE ").count();
        until(WITHIN, "the first table", async || Ok((tables(&watching) > 0).then_some(()))).await?;
        create_job(&simulator, "train-1").await?;
        let again = async || Ok((tables(&watching) > 1).then_some(()));
        until(WITHIN, "the table with the job", again).await.with_context(|| watching.say())?;
        watching.kill().await?;

        let ask = async |line: &[&str]| command(&[line, &["--server", &server]].concat()).await;
        let (code, stdout, stderr) = ask(&["plugins", "-o", "name"]).await?;
        ensure!(code == Some(0) && stdout == "audit\n", "{stdout}{stderr}");
        let (code, _, stderr) = ask(&["plugins", "nothing"]).await?;
        ensure!(code == Some(1) && stderr.contains("there is no plugin `nothing`"), "{stderr}");
        let (code, stdout, stderr) = ask(&["deadletters", "list", "-l", "team=a"]).await?;
        ensure!(code == Some(0) && stdout == "there are no dead letters\n", "{stdout}{stderr}");
        let (code, _, stderr) = ask(&["deadletters", "list", "-l", "team=(a"]).await?;
        ensure!(code == Some(2), "a selector with a fault: {stderr}");
        let told =
            async || Ok(ask(&["jobs", "-o", "wide"]).await?.1.contains("audit:delivered").then_some(()));
        until(WITHIN, "the plugin to be told of the job", told).await.with_context(|| run.process().say())?;
        let (code, _, stderr) = ask(&["jobs", "--at", "99999999999h"]).await?;
        ensure!(code == Some(2) && stderr.contains("before 1970"), "{stderr}");
        run.stop().await
    })
    .await;
}
