//! Writes Jobs as their users and their controller would: makes them, labels them, moves their status, deletes them.

use std::time::Duration;

use anyhow::{Result, ensure};
use kubewitness_harness::{Dice, until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::cluster::RealCluster;

const NAMESPACE: &str = "default";
/// A server that was killed comes back within seconds.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
/// Jobs at one time.
const ALIVE: usize = 12;

pub struct JobWorkload {
    dice: Dice,
    alive: Vec<LiveJob>,
    made: u64,
}

struct LiveJob {
    name: String,
    active: u64,
    is_started: bool,
}

impl JobWorkload {
    pub fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), alive: Vec::new(), made: 0 }
    }

    /// Makes one change.
    pub async fn step(&mut self, cluster: &RealCluster) -> Result<()> {
        if self.alive.len() < 2 || (self.alive.len() < ALIVE && self.dice.percent(15)) {
            return self.create(cluster).await;
        }
        let at = self.dice.index(self.alive.len());
        match self.dice.below(10) {
            0 => self.delete(cluster, at).await,
            1..=4 => self.label(cluster, at).await,
            _ => self.work(cluster, at).await,
        }
    }

    async fn create(&mut self, cluster: &RealCluster) -> Result<()> {
        self.made += 1;
        let name = format!("train-{}", self.made);
        create(cluster, &name).await?;
        self.alive.push(LiveJob { name, active: 0, is_started: false });
        Ok(())
    }

    /// Goes on with what there is, after a restore took Jobs away or gave them back.
    pub async fn look_again(&mut self, cluster: &RealCluster) -> Result<()> {
        let live = list(cluster).await?.into_iter().map(|job| LiveJob {
            name: job["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            active: job["status"]["active"].as_u64().unwrap_or_default(),
            is_started: job["status"]["startTime"].is_string(),
        });
        self.alive = live.filter(|job| job.name.starts_with("train-")).collect();
        Ok(())
    }

    /// Writes each Job again as it is, which a storage migrator does. The API server stores those that etcd has in another
    /// form.
    pub async fn rewrite(&mut self, cluster: &RealCluster) -> Result<()> {
        let mut stored = 0;
        for mut job in list(cluster).await? {
            job["apiVersion"] = "batch/v1".into();
            job["kind"] = "Job".into();
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            let (code, answer) = cluster.request(Method::PUT, &path_of(name), Some(&job)).await?;
            ensure!(code == 200, "a rewrite of {name} was answered with {code}: {answer}");
            let versions = [&job, &answer].map(|it| &it["metadata"]["resourceVersion"]);
            stored += usize::from(versions[0] != versions[1]);
        }
        ensure!(stored > 0, "no Job was in another form");
        Ok(())
    }

    /// Makes an object behind everything that was written, and returns its name.
    pub async fn mark(&mut self, cluster: &RealCluster) -> Result<String> {
        self.made += 1;
        let name = format!("mark-{}", self.made);
        create(cluster, &name).await?;
        Ok(name)
    }

    async fn label(&mut self, cluster: &RealCluster, at: usize) -> Result<()> {
        let label = json!({"metadata": {"labels": {"turn": self.dice.throw().to_string()}}});
        let path = path_of(&self.alive[at].name);
        write(cluster, Method::PATCH, &path, Some(&label), &[200]).await
    }

    async fn work(&mut self, cluster: &RealCluster, at: usize) -> Result<()> {
        let job = &mut self.alive[at];
        job.active = (job.active + 1 + self.dice.below(2)) % 4;
        let mut status = json!({"active": job.active});
        if !job.is_started {
            status["startTime"] = "2026-01-01T00:00:00Z".into();
            job.is_started = true;
        }
        let path = format!("{}/status", path_of(&job.name));
        write(cluster, Method::PATCH, &path, Some(&json!({"status": status})), &[200]).await
    }

    async fn delete(&mut self, cluster: &RealCluster, at: usize) -> Result<()> {
        let job = self.alive.swap_remove(at);
        let path = format!("{}?propagationPolicy=Background", path_of(&job.name));
        write(cluster, Method::DELETE, &path, None, &[200, 404]).await
    }
}

async fn list(cluster: &RealCluster) -> Result<Vec<Value>> {
    let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs");
    let (code, mut list) = cluster.request(Method::GET, &path, None).await?;
    ensure!(code == 200, "a list of Jobs was answered with {code}: {list}");
    Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

async fn create(cluster: &RealCluster, name: &str) -> Result<()> {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"parallelism": 3, "completions": 3, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "main", "image": "train"}],
        }}},
    });
    let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs");
    // A try whose answer was lost may have made it.
    write(cluster, Method::POST, &path, Some(&job), &[201, 409]).await
}

fn path_of(name: &str) -> String {
    format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}")
}

/// A server that is away or not ready is asked again.
async fn write(
    cluster: &RealCluster,
    method: Method,
    path: &str,
    body: Option<&Value>,
    wanted: &[u16],
) -> Result<()> {
    until(WRITTEN_WITHIN, &format!("{method} {path}"), async || {
        let Ok((code, answer)) = cluster.request(method.clone(), path, body).await else { return Ok(None) };
        let is_away = code == 429 || code >= 500;
        ensure!(is_away || wanted.contains(&code), "{method} {path} was answered with {code}: {answer}");
        Ok((!is_away).then_some(()))
    })
    .await
}
