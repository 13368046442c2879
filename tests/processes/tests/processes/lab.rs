//! One simulated API server, one folder, and a program that is started on it again and again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    DatabaseServer, Kubewitness, Platform, RunOptions, Scratch, Simulator, SimulatorOptions, command,
    command_json, compare, compare_newest, project_root,
};
use serde_json::json;

pub const WITHIN: Duration = Duration::from_secs(120);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

pub struct ProcessLab<'a> {
    pub scratch: &'a Scratch,
    pub simulator: Simulator,
    pub options: RunOptions,
    /// The granted database, where it is not a file in the data folder.
    platform: Option<String>,
    /// How many are configured, at least.
    pub plugins: usize,
    made: u32,
}

/// The variable with the granted database's address.
const ADDRESS: &str = "KUBEWITNESS_TEST_DATABASE";

impl<'a> ProcessLab<'a> {
    pub async fn new(scratch: &'a Scratch, data: PathBuf) -> Result<Self> {
        let options = SimulatorOptions::keeping_history();
        let simulator = Simulator::start(scratch.path(), &options).await?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(project_root().join("deploy").join("examples").join("jobs-to-sqlite")),
            data,
            ..RunOptions::default()
        };
        Ok(Self { scratch, simulator, options, platform: None, plugins: 1, made: 0 })
    }

    /// With the journal in one database of a server and the granted one in another: what several
    /// processes share. Gives the address of the journal.
    pub async fn on(scratch: &'a Scratch, server: &DatabaseServer) -> Result<(Self, String)> {
        let mut lab = Self::new(scratch, scratch.folder("data")?).await?;
        let (platform, journal) = (server.create_database()?, server.create_database()?);
        let engine = server.service().scheme();
        let config = scratch.folder("config")?;
        let example = lab.options.config.take().context("the lab has a configuration")?;
        for file in ["host.yaml", "persistence.yaml"] {
            let text = std::fs::read_to_string(example.join(file)).with_context(|| file.to_owned())?;
            let granted = format!("{engine}: {{urlFrom: {{env: {ADDRESS}}}}}");
            std::fs::write(config.join(file), text.replace("sqlite: {path: platform.db}", &granted))?;
        }
        let address = scratch.path().join("journal-address");
        std::fs::write(&address, &journal)?;
        lab.options.config = Some(config);
        lab.options.args = vec!["--journal-file".to_owned(), address.to_string_lossy().into_owned()];
        lab.options.env = vec![(ADDRESS.to_owned(), platform.clone())];
        lab.platform = Some(platform);
        Ok((lab, journal))
    }

    pub fn data(&self) -> &Path {
        &self.options.data
    }

    pub fn start(&self, name: &str) -> Result<Kubewitness> {
        Kubewitness::start(name, &self.options, self.scratch.path())
    }

    /// Another process with a data folder of its own.
    pub fn start_beside(&self, name: &str) -> Result<Kubewitness> {
        let data = self.scratch.folder(&format!("data-of-{name}"))?;
        Kubewitness::start(name, &RunOptions { data, ..self.options.clone() }, self.scratch.path())
    }

    pub async fn platform(&self) -> Result<Platform> {
        match &self.platform {
            Some(url) => Platform::connect(url).await,
            None => Platform::open(&self.data().join("platform.db")).await,
        }
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
                && status.plugins.len() >= self.plugins
        });
        level.await.map(drop)
    }

    /// Nothing is lost, doubled or out of order, and the journal is whole.
    pub async fn proves(&self) -> Result<()> {
        let truth = self.simulator.truth("batch", "jobs").await?;
        let mut platform = self.platform().await?;
        let history = platform.history("jobs").await?;
        compare(&truth, &history).context("object_history of jobs")?;
        compare_newest(&history, &platform.status("jobs").await?).context("object_status of jobs")?;
        let folder = self.data().to_string_lossy().into_owned();
        let place: Vec<&str> = self.options.args.iter().map(String::as_str).collect();
        let verify = [&["journal", "verify", "--data", &folder, "-o", "json"], &place[..]].concat();
        let report = command_json(&verify).await?;
        ensure!(report["ok"] == true, "journal verify said {report}");
        Ok(())
    }

    /// Returns the code that `journal verify` ends with, and what it says.
    pub async fn verify(&self) -> Result<(Option<i32>, String)> {
        let folder = self.data().to_string_lossy().into_owned();
        let (code, stdout, stderr) = command(&["journal", "verify", "--data", &folder]).await?;
        Ok((code, stdout + &stderr))
    }
}
