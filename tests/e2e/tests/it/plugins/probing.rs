//! A controller with the probe, a plugin that does what its configuration says, so that a test can change that.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{RunOptions, Scratch, Simulator};

use crate::support::{example_copy, plugin_manifest, simulator, write};

/// With a database that is called `second`.
const PROBE: &str = "module: {file: probe.wasm}
subscribe: [{source: jobs, mode: every, start: beginning}]
grants:
  kv: true
  lister: [jobs]
  sql: [{name: main, database: second}]
  http: [{name: nobody, destination: nobody}]
  ledger: [{name: notes, ledger: notes}]
delivery: {batch: 8, retries: 8, backoff: 10ms}";

/// The things that it is granted, below the ledgers of the host's settings.
pub const FOR_PROBE: &str = "        - {name: notes, path: audit/notes.jsonl}
      destinations:
        - {name: nobody, url: 'http://127.0.0.1:9'}
";

/// The manifest of one that does this to each job, with more fields.
pub fn manifest(does: &str, more: &str) -> String {
    plugin_manifest("probe", &format!("{PROBE}\n{more}config: {does}"))
}

/// A cluster, the folder with the settings, and how a controller is started with them.
pub struct ProbeLab {
    pub simulator: Simulator,
    pub config: PathBuf,
    pub options: RunOptions,
    /// Fields of the probe's manifest.
    more: &'static str,
}

impl ProbeLab {
    pub async fn new(scratch: &Scratch, more: &'static str) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &(host.trim_end().to_owned() + "\n" + FOR_PROBE))?;
        let options = simulator.run_options(scratch, config.clone())?;
        Ok(Self { simulator, config, options, more })
    }

    /// Sets what the probe does from now on.
    pub fn version(&self, does: &str) -> Result<()> {
        write(&self.config, "probe.yaml", &manifest(does, self.more))
    }

    /// The version that was taken last is kept here.
    pub fn last_good_path(&self) -> PathBuf {
        self.data().join("last-good/probe/plugin.yaml")
    }

    /// While a version is on probation, the one before it is kept here.
    pub fn before(&self) -> PathBuf {
        self.data().join("last-good/probe/before/plugin.yaml")
    }

    pub fn data(&self) -> &Path {
        &self.options.data
    }
}

pub fn probe(status: &StatusView) -> Option<&PluginView> {
    status.plugins.iter().find(|plugin| plugin.name == "probe")
}

/// Returns the message about the obstacle that keeps it from working.
pub fn message(status: &StatusView) -> String {
    probe(status).and_then(|it| it.message.clone()).unwrap_or_default()
}
