//! The cause of a failed job as a field: what the list, the explanation, the portal and the metrics say of the same jobs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{command, http, in_scratch, until};
use serde_json::Value;

use crate::portal::browser::at_a_playground;

const WITHIN: Duration = Duration::from_secs(120);

async fn ask(portal: &str, line: &[&str]) -> Result<String> {
    let (code, stdout, stderr) = command(&[line, &["--server", portal]].concat()).await?;
    ensure!(code == Some(0), "{line:?}: {stdout}{stderr}");
    Ok(stdout)
}

async fn jobs(portal: &str, line: &[&str]) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&ask(portal, &[line, &["-o", "json"]].concat()).await?)?)
}

/// The first cause that some job has.
async fn some_cause(portal: &str) -> Result<Option<&'static str>> {
    for cause in ["out-of-memory", "exit-code", "deadline", "signal"] {
        if !jobs(portal, &["jobs", "--cause", cause]).await?.is_empty() {
            return Ok(Some(cause));
        }
    }
    Ok(None)
}

#[tokio::test]
async fn what_a_list_says_of_a_cause_is_what_the_story_the_portal_and_the_metrics_say() {
    in_scratch("causes", async |scratch| {
        at_a_playground(scratch, &["--rate", "30"], async |_, portal| {
            let ready = format!("{portal}/readyz");
            until(WITHIN, "the journal to be open", async || {
                // Nobody listens before the playground has begun.
                let Ok(answer) = http().get(&ready).send().await else { return Ok(None) };
                Ok(answer.status().is_success().then_some(()))
            })
            .await?;
            let cause = until(WITHIN, "a job that failed", async || some_cause(portal).await).await?;
            agrees(portal, cause).await
        })
        .await
    })
    .await;
}

async fn agrees(portal: &str, cause: &str) -> Result<()> {
    let found = jobs(portal, &["jobs", "--cause", cause, "--since", "1h", "--limit", "5"]).await?;
    ensure!(!found.is_empty() && found.iter().all(|job| job["cause"] == cause), "{found:?}");
    for job in &found {
        let uid = job["object"]["uid"].as_str().context("a uid")?;
        let why: Value = serde_json::from_str(&ask(portal, &["why", uid, "-o", "json"]).await?)?;
        ensure!(why["cause"]["kind"] == cause, "{cause} in the list: {why}");
    }
    let other = jobs(portal, &["jobs", "--cause", "configuration", "--since", "1h"]).await?;
    ensure!(other.iter().all(|job| job["cause"] == "configuration"), "{other:?}");
    let wide = ask(portal, &["jobs", "--cause", cause, "-o", "wide"]).await?;
    ensure!(wide.contains(" CAUSE ") && wide.contains(cause), "{wide}");
    let (code, _, stderr) = command(&["get", "pods", "--cause", cause, "--server", portal]).await?;
    let instead = format!("kubewitness get jobs --cause {cause}");
    ensure!(code != Some(0) && stderr.contains(&instead), "pods have no cause: {code:?}, {stderr}");
    let page = http().get(format!("{portal}/?cause={cause}&range=hour")).send().await?.text().await?;
    let words = cause.replace('-', " ");
    ensure!(page.contains(&format!(">{words}</a>")) && page.contains("class=\"chip\""), "{page}");
    let line = format!("kubewitness_source_outcomes_total{{source=\"jobs\",cause=\"{cause}\"}} ");
    // What was known first is counted. On a busy machine a pod may come later, and so one of the next jobs counts.
    let count = until(WITHIN, "the metric", async || {
        let metrics = http().get(format!("{portal}/metrics")).send().await?.text().await?;
        Ok(metrics.lines().find_map(|it| it.strip_prefix(&line)).map(str::to_owned))
    })
    .await?;
    ensure!(count.parse::<f64>()? >= 1.0, "{count}");
    Ok(())
}
