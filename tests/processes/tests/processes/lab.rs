//! One simulated API server, one folder, and a program that is started on it again and again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Kubewitness, Platform, RunOptions, Scratch, Simulator, SimulatorOptions, command, command_json, compare,
    compare_newest, project_root,
};
use serde_json::json;

pub const WITHIN: Duration = Duration::from_secs(120);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

pub struct Lab<'a> {
    pub scratch: &'a Scratch,
    pub simulator: Simulator,
    pub options: RunOptions,
    made: u32,
}

impl<'a> Lab<'a> {
    pub async fn new(scratch: &'a Scratch, data: PathBuf) -> Result<Self> {
        let options = SimulatorOptions {
            bookmark_every: Some("1s".to_owned()),
            // Nothing is forgotten, however long something stood still.
            args: vec!["--history-age".to_owned(), "0s".to_owned()],
            ..SimulatorOptions::default()
        };
        let simulator = Simulator::start(scratch.path(), &options).await?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(project_root().join("deploy").join("examples").join("jobs-to-sqlite")),
            data,
            ..RunOptions::default()
        };
        Ok(Self { scratch, simulator, options, made: 0 })
    }

    pub fn data(&self) -> &Path {
        &self.options.data
    }

    pub fn start(&self, name: &str) -> Result<Kubewitness> {
        Kubewitness::start(name, &self.options, self.scratch.path())
    }

    /// So many more objects, each with some text.
    pub async fn make(&mut self, objects: u32) -> Result<()> {
        for _ in 0..objects {
            self.made += 1;
            let name = format!("job-{}", self.made);
            let job = json!({"apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"name": name, "namespace": "default", "annotations": {"text": "x".repeat(1500)}},
                "spec": {"template": {"spec": {"restartPolicy": "Never",
                    "containers": [{"name": "trainer", "image": "registry.example.com/train:1"}]}}}});
            let (status, answer) = self.simulator.request(reqwest::Method::POST, JOBS, Some(&job)).await?;
            ensure!(status == 201, "creating {name} answered {status}: {answer}");
        }
        Ok(())
    }

    /// Waits until all that was made is delivered.
    pub async fn levels(&self, run: &mut Kubewitness) -> Result<()> {
        let many = u64::from(self.made);
        let level = run.status_when(WITHIN, "everything to be delivered", |status| {
            let jobs = status.sources.iter().find(|source| source.name == "jobs");
            jobs.is_some_and(|jobs| jobs.synced && jobs.objects == many)
                && status.plugins.iter().all(|plugin| plugin.waiting == 0 && plugin.delivered >= many)
                && !status.plugins.is_empty()
        });
        level.await.map(drop)
    }

    /// Nothing is lost, doubled or out of order, and the journal is whole.
    pub async fn proves(&self) -> Result<()> {
        let truth = self.simulator.truth("batch", "jobs").await?;
        let mut platform = Platform::open(&self.data().join("platform.db")).await?;
        let history = platform.history("jobs").await?;
        compare(&truth, &history).context("object_history of jobs")?;
        compare_newest(&history, &platform.status("jobs").await?).context("object_status of jobs")?;
        let folder = self.data().to_string_lossy().into_owned();
        let report = command_json(&["journal", "verify", "--data", &folder, "-o", "json"]).await?;
        ensure!(report["ok"] == true, "journal verify said {report}");
        Ok(())
    }

    /// What `journal verify` ends with, and what it says.
    pub async fn verify(&self) -> Result<(Option<i32>, String)> {
        let folder = self.data().to_string_lossy().into_owned();
        let (code, stdout, stderr) = command(&["journal", "verify", "--data", &folder]).await?;
        Ok((code, stdout + &stderr))
    }
}
