//! The built program and kubectl speak TLS and HTTP/2 with the API server, and trust the authority that the
//! kubeconfig names.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Kubectl, Kubewitness, RunOptions, Scratch, Simulator, SimulatorOptions, command_in, in_scratch, skip,
    tls, until_ok,
};
use serde_json::json;

use crate::support::{example, job, proofs, same_story, witness_job, write};

const WITHIN: Duration = Duration::from_secs(60);
const HTTP_2: &str = "HTTP/2.0";

/// A simulated API server with a certificate; `None` where none can be made.
async fn encrypted(scratch: &Scratch, test: &str) -> Result<Option<Simulator>> {
    if !tls::is_installed() {
        skip(test, "openssl is not installed");
        return Ok(None);
    }
    let tls = Some(tls::make(&scratch.folder("certificates")?)?);
    let bookmark_every = Some("1s".to_owned());
    let options = SimulatorOptions { tls, bookmark_every, ..SimulatorOptions::default() };
    Simulator::start(scratch.path(), &options).await.map(Some)
}

/// The kubeconfig of the simulator, with an authority that did not sign its certificate.
fn distrusting(scratch: &Scratch, simulator: &Simulator) -> Result<PathBuf> {
    let trusted = scratch.path().join("certificates").join("ca.pem").display().to_string();
    let other = tls::make(&scratch.folder("other")?)?.authority.display().to_string();
    let kubeconfig = std::fs::read_to_string(simulator.kubeconfig())?;
    ensure!(kubeconfig.contains(&trusted), "{kubeconfig}");
    write(scratch.path(), "distrusting.kubeconfig", &kubeconfig.replace(&trusted, &other))?;
    Ok(scratch.path().join("distrusting.kubeconfig"))
}

async fn requests(simulator: &Simulator, protocol: &str) -> Result<u64> {
    Ok(simulator.ask("protocols").await?[protocol].as_u64().unwrap_or(0))
}

/// A watch that lists first is one of them.
async fn watches_begun(simulator: &Simulator) -> Result<u64> {
    let requests = simulator.requests().await?;
    let begun = ["watch jobs.batch", "list-stream jobs.batch"].map(|key| requests.get(key).unwrap_or(&0));
    Ok(begun.into_iter().sum())
}

#[tokio::test]
async fn every_state_is_witnessed_over_http_2_when_connections_end() {
    in_scratch("encrypted", async |scratch| {
        let test = "every_state_is_witnessed_over_http_2_when_connections_end";
        let Some(simulator) = encrypted(scratch, test).await? else { return Ok(()) };
        ensure!(simulator.url().starts_with("https://"), "{}", simulator.url());
        let data = scratch.folder("data")?;
        let kubeconfig = simulator.kubeconfig().to_owned();
        let options =
            RunOptions { kubeconfig, config: Some(example()), data: data.clone(), ..RunOptions::default() };
        let mut run = Kubewitness::start("encrypted", &options, scratch.path())?;
        run.listed(2, WITHIN).await?;
        witness_job(&simulator, &mut run, "first").await?;
        let (begun, before) = (watches_begun(&simulator).await?, requests(&simulator, HTTP_2).await?);
        ensure!(begun > 0, "no watch of jobs has begun");
        ensure!(before > 0, "no request came over HTTP/2: {}", simulator.ask("protocols").await?);

        // The server asks for another connection: the open watch goes on.
        simulator.make("goaway", &json!({})).await?;
        witness_job(&simulator, &mut run, "after-goaway").await?;
        ensure!(watches_begun(&simulator).await? == begun, "the watch began again");

        // All connections break: the watch begins again where it was.
        simulator.make("power", &json!({"on": false, "backAfterMs": 500})).await?;
        until_ok(WITHIN, "the watch to begin again", async || {
            ensure!(watches_begun(&simulator).await? > begun, "it has not begun again");
            Ok(())
        })
        .await?;
        witness_job(&simulator, &mut run, "after-the-cut").await?;
        ensure!(requests(&simulator, HTTP_2).await? > before, "the new connection speaks HTTP/2 as well");
        until_ok(WITHIN, "all states in the tables", async || same_story(&simulator, &data).await).await?;
        run.stop().await?;
        proofs(&data).await
    })
    .await;
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused_with_the_reason() {
    in_scratch("distrusting", async |scratch| {
        let test = "a_server_of_another_authority_is_refused_with_the_reason";
        let Some(simulator) = encrypted(scratch, test).await? else { return Ok(()) };
        let kubeconfig = distrusting(scratch, &simulator)?.display().to_string();
        let doctor = ["doctor", "--pre", "--kubeconfig", &kubeconfig];
        let (code, printed, _) = command_in(&doctor, &[]).await?;
        ensure!(code == Some(3) && printed.contains("certificate"), "{code:?}: {printed}");
        ensure!(simulator.requests().await?.is_empty(), "nothing was asked of it");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn kubectl_works_over_tls_and_http_2() {
    in_scratch("kubectl-encrypted", async |scratch| {
        let test = "kubectl_works_over_tls_and_http_2";
        let Some(simulator) = encrypted(scratch, test).await? else { return Ok(()) };
        let Some(kubectl) = Kubectl::find(simulator.kubeconfig(), scratch.path()) else {
            skip(test, "kubectl is not installed");
            return Ok(());
        };
        let created = kubectl.ok_with(&["create", "-f", "-"], &job("train").to_string()).await?;
        ensure!(created.contains("job.batch/train created"), "{created}");
        let shown = kubectl.ok(&["get", "jobs", "-o", "name"]).await?;
        ensure!(shown.trim() == "job.batch/train", "{shown}");
        ensure!(requests(&simulator, HTTP_2).await? > 0, "{}", simulator.ask("protocols").await?);
        let kubectl = Kubectl::find(&distrusting(scratch, &simulator)?, scratch.path()).context("kubectl")?;
        let refused = kubectl.fails(&["get", "jobs"], "").await?;
        ensure!(refused.contains("certificate signed by unknown authority"), "{refused}");
        Ok(())
    })
    .await;
}
