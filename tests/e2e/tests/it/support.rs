//! The code that the end-to-end tests of `kubewitness` itself share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{
    Kubewitness, Platform, PlatformAddress, RequestCounts, Scratch, Simulator, SimulatorOptions,
    command_json_in, compare, compare_newest, plugins_folder, project_root, seed,
};
use kubewitness_playground::workload::{self, WorkloadError, WorkloadOptions, WorkloadReport};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The folder that the documentation shows first; tests use it as it stands.
pub fn example() -> PathBuf {
    project_root().join("deploy").join("examples").join("jobs-to-sqlite")
}

/// A copy of the example that a test may change, with a second database and a ledger to grant.
pub fn example_copy(scratch: &Scratch) -> Result<PathBuf> {
    let folder = scratch.folder("config")?;
    for entry in std::fs::read_dir(example()).context("the example")? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let host = std::fs::read_to_string(folder.join("host.yaml")).context("the example's host.yaml")?;
    let more = "\n        - {name: second, sqlite: {path: second.db}}\n      ledgers:\n        - {name: trail, path: audit/trail.jsonl}\n";
    write(&folder, "host.yaml", &format!("{}{more}", host.trim_end()))?;
    Ok(folder)
}

/// The example key of RFC 8410 and its public part.
pub const SEAL_KEY: &str = "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC";
pub const SEAL_PUBLIC: &str = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
/// In the data folder: the public part of the key that signs the trail.
pub const SEAL_FILE: &str = "seal.pub";

/// The same, with a ledger that is signed and closed often.
pub fn signed_example_copy(scratch: &Scratch) -> Result<PathBuf> {
    let folder = example_copy(scratch)?;
    let key = scratch.path().join("seal.key");
    std::fs::write(&key, SEAL_KEY).context("the key")?;
    std::fs::write(scratch.folder("data")?.join(SEAL_FILE), SEAL_PUBLIC).context("its public part")?;
    let host = std::fs::read_to_string(folder.join("host.yaml")).context("the copy's host.yaml")?;
    let signed = format!(
        "path: audit/trail.jsonl, rotate: {{size: 64Ki}}, signing: {{key: seal, records: 20, every: 1s}}}}\n      keys:\n        - \
         {{name: seal, valueFrom: {{file: {key:?}}}}}"
    );
    write(&folder, "host.yaml", &host.replace("path: audit/trail.jsonl}", &signed))?;
    Ok(folder)
}

/// All files of the trail.
pub fn trail_files(data: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(data.join("audit")).context("the trail's folder")?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_of_it =
        |name: String| name == "trail.jsonl" || name.starts_with("trail-") && name.ends_with(".jsonl");
    let mut trail: Vec<_> = paths.into_iter().filter(|path| name(path).is_some_and(is_of_it)).collect();
    // `trail-000001.jsonl` comes before `trail.jsonl`.
    trail.sort();
    Ok(trail)
}

pub const SOURCES: [(&str, &str, &str); 2] = [("jobs", "batch", "jobs"), ("pods", "", "pods")];

pub const AUDIT: &str = "module: {file: audit.wasm}
subscribe:
  - {source: jobs, mode: every, start: beginning}
  - {source: pods, mode: every, start: beginning}
grants:
  ledger: [{name: trail, ledger: trail}]
delivery: {batch: 64}";

/// Where the example's persistence plugin writes.
pub fn platform_file(data: &Path) -> PlatformAddress {
    PlatformAddress::File(data.join("platform.db"))
}

/// Checks that the tables hold what the API server had, for every source.
pub async fn same_story(simulator: &Simulator, data: &Path) -> Result<()> {
    same_story_in(simulator, platform_file(data).open().await?).await
}

/// The same of any database.
pub async fn same_story_in(simulator: &Simulator, mut platform: Platform) -> Result<()> {
    for (source, group, resource) in SOURCES {
        let truth = simulator.truth(group, resource).await?;
        let history = platform.history(source).await?;
        compare(&truth, &history).with_context(|| format!("object_history of {source}"))?;
        let status = platform.status(source).await?;
        compare_newest(&history, &status).with_context(|| format!("object_status of {source}"))?;
    }
    Ok(())
}

/// With its journal on a server, on a busy machine, plugins read thousands of documents. How fast that is, benchmarks say.
pub const CATCH_UP: Duration = Duration::from_secs(360);

/// Waits until so many plugins have each been handed every version that the API server had, once. None is parked.
pub async fn everything_arrives(
    run: &mut Kubewitness,
    simulator: &Simulator,
    platform: &PlatformAddress,
    plugins: usize,
) -> Result<()> {
    let versions = versions(simulator).await?;
    let what = format!("{versions} states to be delivered, and none to be parked");
    let arrived = run.status_when(CATCH_UP, &what, |status| {
        status.plugins.len() == plugins && status.plugins.iter().all(|plugin| has_exactly(plugin, versions))
    });
    if let Err(error) = arrived.await {
        // What is missing says more than how many.
        let story = same_story_in(simulator, platform.open().await?).await;
        return Err(error.context(format!("{story:?}")));
    }
    Ok(())
}

pub fn has_exactly(plugin: &PluginView, states: u64) -> bool {
    plugin.delivered == states && plugin.waiting == 0 && plugin.dead == 0
}

pub fn plugin<'s>(status: &'s StatusView, name: &str) -> Option<&'s PluginView> {
    status.plugins.iter().find(|plugin| plugin.name == name)
}

pub fn is_active(status: &StatusView, name: &str) -> bool {
    plugin(status, name).is_some_and(|plugin| plugin.state == "active")
}

pub fn requests_of(verb: &str, requests: &RequestCounts, group: &str, resource: &str) -> u64 {
    let suffix = if group.is_empty() { String::new() } else { format!(".{group}") };
    requests.get(&format!("{verb} {resource}{suffix}")).copied().unwrap_or(0)
}

/// Lists of all objects of a resource, in pages or streamed.
pub fn lists(requests: &RequestCounts, group: &str, resource: &str) -> u64 {
    ["list", "list-stream"].iter().map(|verb| requests_of(verb, requests, group, resource)).sum()
}

/// The newest version of the API server.
pub async fn version(simulator: &Simulator) -> Result<u64> {
    simulator.ask("version").await?["version"].as_u64().context("the server's version")
}

/// How many versions the API server had, of every source.
pub async fn versions(simulator: &Simulator) -> Result<u64> {
    let mut versions = 0;
    for (_, group, resource) in SOURCES {
        versions += simulator.truth(group, resource).await?.entries.len() as u64;
    }
    Ok(versions)
}

/// Runs `kubewitness journal verify` and `audit verify` on a data folder.
pub async fn proofs(data: &Path) -> Result<()> {
    proofs_of(data, &[]).await
}

/// The same of a journal that is somewhere else: `place` are the flags that say where.
pub async fn proofs_of(data: &Path, place: &[&str]) -> Result<()> {
    proofs_in(data, place, &[]).await
}

/// The same where granted databases are servers, whose addresses the environment has.
pub async fn proofs_with(data: &Path, env: &[(String, String)]) -> Result<()> {
    proofs_in(data, &[], env).await
}

async fn proofs_in(data: &Path, place: &[&str], env: &[(String, String)]) -> Result<()> {
    journal_proof_in(data, place, env).await?;
    if data.join("audit").join("trail.jsonl").is_file() {
        trail_proof(data, place, env).await?;
    }
    Ok(())
}

pub async fn journal_proof(data: &Path, place: &[&str]) -> Result<()> {
    journal_proof_in(data, place, &[]).await
}

pub async fn journal_proof_in(data: &Path, place: &[&str], env: &[(String, String)]) -> Result<()> {
    let folder = data.to_string_lossy();
    let verify = [&["journal", "verify", "--data", &folder, "-o", "json"], place].concat();
    let journal = command_json_in(&verify, env).await?;
    ensure!(journal["ok"] == true, "journal verify said {journal}");
    Ok(())
}

/// Returns how many records the trail has.
pub async fn trail_proof(data: &Path, place: &[&str], env: &[(String, String)]) -> Result<u64> {
    let mut args: Vec<_> = ["audit", "verify", "-o", "json"].map(str::to_owned).to_vec();
    args.extend(["--data".to_owned(), data.display().to_string()]);
    args.extend(place.iter().map(|flag| (*flag).to_owned()));
    args.extend(trail_files(data)?.iter().map(|file| file.display().to_string()));
    let key = data.join(SEAL_FILE);
    if key.is_file() {
        args.extend(["--key".to_owned(), key.display().to_string()]);
    }
    let audit = command_json_in(&args.iter().map(String::as_str).collect::<Vec<_>>(), env).await?;
    ensure!(audit["ok"] == true, "audit verify said {audit}");
    audit["lines"].as_u64().with_context(|| format!("audit verify counts no records: {audit}"))
}

pub async fn simulator(scratch: &Scratch) -> Result<Simulator> {
    let options = SimulatorOptions { bookmark_every: Some("1s".to_owned()), ..SimulatorOptions::default() };
    Simulator::start(scratch.path(), &options).await
}

/// A workload in the background.
pub struct BackgroundLoad {
    stop: CancellationToken,
    work: JoinHandle<Result<WorkloadReport, WorkloadError>>,
}

impl BackgroundLoad {
    /// A load that begins after the first lists of `first`: nobody can witness what was there before them. `first` stops in
    /// order, so that no commit is on its way when the notes of effects begin. Returns also how many rows there are then.
    pub async fn start_noted(
        mut first: Kubewitness,
        simulator: &Simulator,
        platform: &PlatformAddress,
        rate: f64,
    ) -> Result<(Self, i64)> {
        first.answers().await?;
        first.listed(SOURCES.len(), CATCH_UP).await?;
        let load = Self::start(simulator, seed(), rate);
        platform.grows_by(&mut first, CATCH_UP).await?;
        first.stop().await?;
        Ok((load, platform.note_effects().await?))
    }

    #[allow(clippy::disallowed_methods)]
    pub fn start(simulator: &Simulator, seed: u64, rate: f64) -> Self {
        let options = WorkloadOptions {
            url: simulator.url().to_owned(),
            token: Some(simulator.token().to_owned()),
            seed,
            rate,
            keep_finished: Duration::from_secs(3),
            ..WorkloadOptions::default()
        };
        let stop = CancellationToken::new();
        let work = tokio::spawn(workload::run(options, Arc::default(), stop.clone()));
        Self { stop, work }
    }

    pub async fn stop(self) -> Result<WorkloadReport> {
        self.stop.cancel();
        Ok(self.work.await.context("the workload panicked")??)
    }
}

/// A ConfigMap with one plugin.
pub fn plugin_manifest(name: &str, spec: &str) -> String {
    let spec: String = spec.trim().lines().map(|line| format!("      {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  labels:\n    kubewitness.dev/plugin: \"true\"\n\
         data:\n  plugin.yaml: |\n    apiVersion: kubewitness.dev/v1alpha1\n    kind: Plugin\n    metadata: {{name: {name}}}\n    \
         spec:\n{spec}"
    )
}

/// Two components that do the same and have different digests: each has a custom section of its own.
pub fn components(scratch: &Scratch, plugin: &str) -> Result<PathBuf> {
    let folder = scratch.folder("modules")?;
    let built = std::fs::read(plugins_folder()?.join(format!("{plugin}.wasm"))).context("the plugin")?;
    for number in 0..2 {
        let section = [&[0, 2, 1][..], &[b'0' + number]].concat();
        std::fs::write(folder.join(format!("{plugin}-{number}.wasm")), [&built[..], &section].concat())?;
    }
    Ok(folder)
}

pub fn write(folder: &Path, file: &str, text: &str) -> Result<()> {
    std::fs::write(folder.join(file), text).with_context(|| format!("writing {file}"))
}

/// A Job that nothing drives.
pub fn job(name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": {"kubewitness.dev/channel": "cli"}},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "trainer", "image": "registry.example.com/train:1"}],
        }}},
    })
}

const WITNESSED_WITHIN: Duration = Duration::from_secs(120);

pub async fn create_job(simulator: &Simulator, name: &str) -> Result<()> {
    let path = "/apis/batch/v1/namespaces/default/jobs";
    let (status, answer) = simulator.request(reqwest::Method::POST, path, Some(&job(name))).await?;
    ensure!(status == 201, "creating {name} answered {status}: {answer}");
    Ok(())
}

/// The same where nothing else happens: the watch tells of it a moment later.
pub async fn witness_job(simulator: &Simulator, run: &mut Kubewitness, name: &str) -> Result<()> {
    let before = run.status().await?.journal.states;
    create_job(simulator, name).await?;
    let what = format!("{name} in the journal");
    run.status_when(WITNESSED_WITHIN, &what, |status| status.journal.states > before).await.map(drop)
}
