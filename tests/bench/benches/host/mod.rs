//! The real binary as a process, and what it says of itself.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Not the default, so that a playground beside the benchmark is not asked instead.
const PORT: u16 = 18_787;

/// Ended whatever happens.
pub struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Host {
    pub fn start(kubeconfig: &Path, config: &Path, data: &Path) -> Result<Self> {
        let binary = std::env::var_os("KUBEWITNESS_BIN_DIR").context("run it with `cargo xtask bench`")?;
        let listening = format!("127.0.0.1:{PORT}");
        Command::new(Path::new(&binary).join("kubewitness"))
            .args(["run", "--log", "warn", "--listen", &listening, "--kubeconfig"])
            .arg(kubeconfig)
            .arg("--config")
            .arg(config)
            .arg("--data")
            .arg(data)
            .stdout(Stdio::null())
            .spawn()
            .map(Self)
            .context("starting kubewitness")
    }

    /// An error if it has ended by itself.
    pub fn runs(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(code) => bail!("the host ended with {code}"),
        }
    }

    pub async fn status(&self) -> Result<serde_json::Value> {
        let answer = reqwest::get(format!("http://127.0.0.1:{PORT}/api/v1/status")).await?;
        Ok(answer.json().await?)
    }

    /// Of all threads since it started, in user and kernel mode.
    pub fn processor_time(&self) -> Result<Duration> {
        const TICKS: u64 = 100;
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // Behind the name, which may hold spaces; the 14th and 15th of the line.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
        let used = ticks(11).zip(ticks(12)).context("no times in /proc")?;
        Ok(Duration::from_millis((used.0 + used.1) * 1000 / TICKS))
    }

    /// MiB at most, as the kernel counted it.
    pub fn peak_memory(&self) -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1024.0)
    }
}
