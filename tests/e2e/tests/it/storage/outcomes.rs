//! Why jobs failed, as the plugin `persistence` writes it into SQLite, PostgreSQL, MariaDB and MySQL: also after a kill.

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{DatabaseServer, Kubewitness, RunOptions, Simulator, SqlService, in_scratch, skip};
use reqwest::Method;
use serde_json::{Value, json};

use crate::storage::databases::PERSISTENCE;
use crate::storage::place::{DatabasePlace, WITHIN, again};
use crate::support::{job, plugin_manifest, simulator, write};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const PODS: &str = "/api/v1/namespaces/default/pods";
const ROWS: &str =
    "SELECT concat_ws('|', name, cause, pod, container, exit_code) FROM object_outcomes ORDER BY name";

async fn put(simulator: &Simulator, method: Method, path: &str, body: &Value) -> Result<Value> {
    let (code, answer) = simulator.request(method, path, Some(body)).await?;
    ensure!((200..300).contains(&code), "{path} answered {code}: {answer}");
    Ok(answer)
}

/// A Job whose pod is killed for memory. The Job's end is written before that of its pod.
async fn runs_out_of_memory(simulator: &Simulator, name: &str) -> Result<()> {
    let mut job = put(simulator, Method::POST, JOBS, &job(name)).await?;
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"],
                       "controller": true});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{name}-0"),
        "namespace": "default", "ownerReferences": [owner]}, "spec": {"containers": [{"name": "main", "image": "a"}]}});
    pod = put(simulator, Method::POST, PODS, &pod).await?;
    let at = "2026-01-01T00:00:00Z";
    let failed = json!({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "x",
                        "lastProbeTime": at, "lastTransitionTime": at});
    job["status"] = json!({"startTime": at, "failed": 1, "conditions": [failed]});
    put(simulator, Method::PUT, &format!("{JOBS}/{name}/status"), &job).await?;
    pod["status"] = json!({"phase": "Failed", "containerStatuses": [{"name": "main", "ready": false,
        "restartCount": 0, "image": "a", "imageID": "", "state":
        {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": at}}}]});
    put(simulator, Method::PUT, &format!("{PODS}/{name}-0/status"), &pod).await.map(drop)
}

/// The host with a plugin that writes causes.
fn options(place: &DatabasePlace<'_>, simulator: &Simulator) -> Result<RunOptions> {
    let options = place.options(simulator, "{}", None)?;
    let folder = options.config.clone().context("a folder")?;
    let granted = PERSISTENCE.replace("grants:\n", "grants:\n  outcomes: [jobs]\n");
    let manifest = format!("{granted}\ntick: {{every: 1s}}\nconfig: {{causes: true, views: true}}");
    write(&folder, "persistence.yaml", &plugin_manifest("persistence", &manifest))?;
    Ok(options)
}

async fn why_a_job_failed_is_a_row_and_a_kill_loses_and_repeats_none(place: DatabasePlace<'_>) -> Result<()> {
    let simulator = simulator(place.scratch).await?;
    let options = options(&place, &simulator)?;
    let mut kubewitness = Kubewitness::start("run", &options, place.scratch.path())?;
    kubewitness.answers().await?;
    runs_out_of_memory(&simulator, "a").await?;
    place.comes(ROWS, &["a|out-of-memory|a-0|main|137"]).await?;
    let joined = "SELECT o.headline FROM object_status s JOIN object_outcomes o ON o.uid = s.uid \
                  WHERE s.kind = 'Job' AND s.phase = 'Failed'";
    place.comes(joined, &["Failed: container main of pod a-0 ran out of memory (exit 137)"]).await?;
    place.comes("SELECT cause FROM object_causes WHERE outcomes = 1", &["out-of-memory"]).await?;
    kubewitness.kill().await?;
    runs_out_of_memory(&simulator, "b").await?;
    // An index that is made anew has another order, in which everything comes once more.
    std::fs::remove_dir_all(place.data()?.join("index")).context("removing the index")?;
    let mut kubewitness = Kubewitness::start("again", &options, place.scratch.path())?;
    kubewitness.answers().await?;
    place.comes(ROWS, &["a|out-of-memory|a-0|main|137", "b|out-of-memory|b-0|main|137"]).await?;
    let status = kubewitness.caught_up(WITHIN).await?;
    ensure!(status.plugins.iter().all(|plugin| plugin.dead == 0), "states were parked: {:?}", status.plugins);
    let tick = status.plugins[0].tick.clone().context("a tick")?;
    ensure!(tick.failed == 0, "{tick:?}");
    kubewitness.stop().await
}

macro_rules! outcomes_on {
    ($($name:ident $service:expr),*) => {
        $(mod $name {
            use super::*;

            #[tokio::test]
            async fn why_a_job_failed_is_a_row_and_a_kill_loses_and_repeats_none() {
                let service: Option<SqlService> = $service;
                let test = concat!("outcomes::", stringify!($name));
                let server = match service.map(DatabaseServer::shared) {
                    None => None,
                    Some(started) => match started.expect("the server starts") {
                        None => return skip(test, &format!("{service:?} is not installed")),
                        server => server,
                    },
                };
                in_scratch("outcomes", async |scratch| {
                    let place = DatabasePlace::new(scratch, server)?;
                    super::why_a_job_failed_is_a_row_and_a_kill_loses_and_repeats_none(place)
                        .await
                        .with_context(|| again(test))
                })
                .await;
            }
        })*
    };
}

outcomes_on!(
    sqlite None,
    postgres Some(SqlService::Postgres),
    mariadb Some(SqlService::MariaDb),
    mysql Some(SqlService::MySql)
);
