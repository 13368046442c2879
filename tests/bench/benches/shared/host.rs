//! The real binary as a process: what it is configured by, and what it says of itself.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_harness::free_port;

/// The manifest of the host's settings.
pub fn settings(spec: &str) -> String {
    manifest("host", "host", "Host", spec)
}

/// The manifest of a shipped plugin, `module` without its ending.
pub fn plugin(name: &str, module: &str, spec: &str) -> String {
    manifest(name, "plugin", "Plugin", &format!("module: {{file: {module}.wasm}}\n{spec}"))
}

fn manifest(name: &str, label: &str, kind: &str, spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("      {line}\n")).collect();
    format!(
        "kind: ConfigMap\nmetadata: {{name: {name}, labels: {{kubewitness.dev/{label}: \"true\"}}}}\ndata:\n  \
         {label}.yaml: |\n    apiVersion: kubewitness.dev/v1alpha1\n    kind: {kind}\n    metadata: {{name: {name}}}\n    \
         spec:\n{spec}---\n"
    )
}

pub fn binary() -> Result<PathBuf> {
    let folder = std::env::var_os("KUBEWITNESS_BIN_DIR").context("run it with `cargo xtask bench`")?;
    Ok(Path::new(&folder).join("kubewitness"))
}

/// A folder with a configuration and what a host leaves behind.
pub struct Lab {
    folder: PathBuf,
}

impl Lab {
    pub fn new(folder: &Path, manifests: &[String]) -> Result<Self> {
        std::fs::create_dir_all(folder.join("config"))?;
        std::fs::write(folder.join("config/all.yaml"), manifests.concat())?;
        Ok(Self { folder: folder.to_path_buf() })
    }

    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub fn start(&self, kubeconfig: &Path) -> Result<Host> {
        self.start_with(kubeconfig, &[])
    }

    pub fn start_with(&self, kubeconfig: &Path, args: &[&str]) -> Result<Host> {
        let port = free_port()?;
        let process = Command::new(binary()?)
            .args(["run", "--log", "warn", "--listen", &format!("127.0.0.1:{port}"), "--kubeconfig"])
            .arg(kubeconfig)
            .arg("--config")
            .arg(self.folder.join("config"))
            .arg("--data")
            .arg(self.data())
            .args(args)
            .stdout(Stdio::null())
            .spawn()
            .context("starting kubewitness")?;
        Ok(Host { process: Process(process), port, client: kubewitness_harness::http() })
    }
}

/// Ended whatever happens.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// KiB, as the kernel counts them.
pub struct Memory {
    pub resident: u64,
    pub peak: u64,
}

impl Memory {
    pub fn of(pid: u32) -> Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let of = |name: &str| -> Result<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.with_context(|| format!("no {name}"))?.trim().trim_end_matches(" kB").trim().parse()?)
        };
        Ok(Self { resident: of("VmRSS:")?, peak: of("VmHWM:")? })
    }
}

pub fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

pub struct Host {
    process: Process,
    port: u16,
    /// One for all questions: what a new one costs would be taken from what is measured.
    client: reqwest::Client,
}

impl Host {
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// An error if it has ended by itself.
    pub fn runs(&mut self) -> Result<()> {
        match self.process.0.try_wait()? {
            None => Ok(()),
            Some(code) => bail!("the host ended with {code}"),
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub async fn status(&self) -> Result<serde_json::Value> {
        let answer = self.client.get(format!("http://127.0.0.1:{}/api/v1/status", self.port)).send().await?;
        Ok(answer.json().await?)
    }

    /// Of all threads since it started, in user and kernel mode.
    pub fn processor_time(&self) -> Result<Duration> {
        const TICKS: u64 = 100;
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // Behind the name, which may hold spaces; the 14th and 15th of the line.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
        let used = ticks(11).zip(ticks(12)).context("no times in /proc")?;
        Ok(Duration::from_millis((used.0 + used.1) * 1000 / TICKS))
    }

    pub fn memory(&self) -> Result<Memory> {
        Memory::of(self.pid())
    }
}

/// What the status says of a plugin.
pub fn plugin_of<'a>(status: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    status["plugins"].as_array()?.iter().find(|plugin| plugin["name"] == name)
}
