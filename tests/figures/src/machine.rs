//! Where figures come from: the commit, the machine, and the versions of the programs that ours are compared with.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::root;

const GO_MODULES: &str = "tests/bench/peers/clientgo/go.mod";
/// The peers that cargo and Go pin, by their names there.
const CRATES: [&str; 2] = ["kube-runtime", "wasmtime"];
const MODULES: [&str; 1] = ["k8s.io/client-go"];

/// The machine is not noted of figures that were in the pages before `cargo xtask figures` was there to measure them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct MeasuredRun {
    /// In UTC.
    pub begun: String,
    pub commit: String,
    /// Whether files differed from the commit. Then nobody can measure the same again.
    pub is_dirty: bool,
    pub cores: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// The machine's load average before the run. Above a few tenths, somebody else was at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    pub peers: BTreeMap<String, String>,
}

impl MeasuredRun {
    pub fn begin() -> Result<Self> {
        Ok(Self {
            begun: output("date", &["-u", "+%FT%TZ"])?,
            commit: git(&["rev-parse", "HEAD"])?,
            is_dirty: !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty(),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: Some(memory()?),
            processor: Some(processor()),
            load: Some(load()?),
            peers: peers()?,
        })
    }
}

/// Returns what git prints, without its last line break. The error says what to do.
pub fn git(args: &[&str]) -> Result<String> {
    output("git", args).context("figures are kept with their commit: run it in a clone, with git installed")
}

pub fn output(program: &str, args: &[&str]) -> Result<String> {
    let ran = Command::new(program).args(args).current_dir(root()).output();
    let ran = ran.with_context(|| format!("starting {program}"))?;
    if !ran.status.success() {
        bail!("`{program} {}`: {}", args.join(" "), String::from_utf8_lossy(&ran.stderr).trim());
    }
    Ok(String::from_utf8(ran.stdout)?.trim_end().to_owned())
}

fn memory() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).context("no MemTotal")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok((kib / 1024.0 / 1024.0 * 10.0).round() / 10.0)
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name"));
    // Processors of ARM have no name there.
    model.map_or(std::env::consts::ARCH, |model| model.trim_start_matches([' ', '\t', ':'])).to_owned()
}

fn load() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").context("reading /proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

fn peers() -> Result<BTreeMap<String, String>> {
    let mut peers = BTreeMap::new();
    let modules =
        std::fs::read_to_string(root().join(GO_MODULES)).with_context(|| format!("reading {GO_MODULES}"))?;
    for module in MODULES {
        let version = modules.lines().find_map(|line| line.trim().strip_prefix(module)?.strip_prefix(' '));
        peers.insert(
            module.to_owned(),
            version.with_context(|| format!("{GO_MODULES} has no {module}"))?.to_owned(),
        );
    }
    if let Ok(go) = output("go", &["env", "GOVERSION"]) {
        peers.insert("go".to_owned(), go.trim_start_matches("go").to_owned());
    }
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("reading Cargo.lock")?;
    for name in CRATES {
        let package =
            lock.split("[[package]]").find(|package| package.contains(&format!("\nname = \"{name}\"\n")));
        let version = package.and_then(|package| package.split("version = \"").nth(1)?.split('"').next());
        peers.insert(
            name.to_owned(),
            version.with_context(|| format!("Cargo.lock has no {name}"))?.to_owned(),
        );
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_that_are_pinned_have_their_versions() {
        let peers = peers().unwrap();
        assert!(peers["k8s.io/client-go"].starts_with("v0."), "{peers:?}");
        assert!(peers["kube-runtime"].contains('.'), "{peers:?}");
    }
}
