//! The simulated API server as its own process, and the questions that only it can answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::truth::{Truth, TruthEntry};
use crate::{Process, http, simulator_binary};

const START_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub struct SimulatorOptions {
    pub enforce_rbac: bool,
    /// Such as `1s`; left out, as rarely as a real one does.
    pub bookmark_every: Option<String>,
    /// More of its own flags.
    pub args: Vec<String>,
}

pub struct Simulator {
    process: Process,
    url: String,
    token: String,
    kubeconfig: PathBuf,
    client: reqwest::Client,
}

/// How often each verb was asked of each resource, such as `list jobs.batch` or `watch pods`. A
/// list of one item, which asks how far the server is or for one old version, is a `list-one`;
/// what was refused for want of rights begins with `forbidden`.
pub type Requests = BTreeMap<String, u64>;

impl Simulator {
    /// Starts it on a free port; kubeconfig and logs go into `folder`.
    pub async fn start(folder: &Path, options: &SimulatorOptions) -> Result<Self> {
        let kubeconfig = folder.join("simulator.kubeconfig");
        let mut command = Command::new(simulator_binary()?);
        command.args(["--listen", "127.0.0.1:0", "--hooks", "--kubeconfig-out"]);
        command.arg(&kubeconfig).args(&options.args);
        if let Some(pause) = &options.bookmark_every {
            command.args(["--bookmark-every", pause]);
        }
        if options.enforce_rbac {
            command.arg("--enforce-rbac");
        }
        let mut process = Process::start("simulator", &mut command, folder)?;
        let url = process.line(0, START_WITHIN, address).await?;
        let token = token_of(&kubeconfig)?;
        Ok(Self { process, url, token, kubeconfig, client: http() })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// One request as its administrator.
    pub async fn request(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.with_context(|| format!("asking the simulator for {path}"))?;
        let (status, text) = (response.status().as_u16(), response.text().await?);
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    async fn hook(&self, method: reqwest::Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, answer) = self.request(method, path, body).await?;
        if !(200..300).contains(&status) {
            bail!("{path} answered {status}: {answer}");
        }
        Ok(answer)
    }

    /// Forgets what was before a version; `None` is now.
    pub async fn compact(&self, version: Option<u64>) -> Result<()> {
        self.hook(reqwest::Method::POST, "/_sim/compact", Some(&json!({"version": version}))).await.map(drop)
    }

    /// Ends every watch that is open.
    pub async fn drop_watches(&self) -> Result<()> {
        self.hook(reqwest::Method::POST, "/_sim/drop-watches", Some(&json!({}))).await.map(drop)
    }

    pub async fn requests(&self) -> Result<Requests> {
        let answer = self.hook(reqwest::Method::GET, "/_sim/requests", None).await?;
        serde_json::from_value(answer).context("the counts of requests")
    }

    /// Everything that happened to one resource, in order.
    pub async fn truth(&self, group: &str, resource: &str) -> Result<Truth> {
        let path = format!("/_sim/history?group={group}&resource={resource}");
        let request = self.client.get(format!("{}{path}", self.url)).bearer_auth(&self.token);
        let response =
            request.send().await.context("asking the simulator for its history")?.error_for_status()?;
        let text = response.text().await?;
        let entries: Result<Vec<TruthEntry>, _> =
            text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect();
        Ok(Truth { entries: entries.with_context(|| format!("the answer of {path}"))? })
    }
}

/// The first http address in a line.
fn address(line: &str) -> Option<String> {
    let start = line.find("http://")?;
    let rest = &line[start..];
    let end = rest.find(|c: char| c.is_whitespace() || c == '"' || c == ',').unwrap_or(rest.len());
    Some(rest[..end].trim_end_matches('/').to_owned())
}

/// Kubeconfigs are YAML; of this one only the line with the token is needed.
fn token_of(kubeconfig: &Path) -> Result<String> {
    let text =
        std::fs::read_to_string(kubeconfig).with_context(|| format!("reading {}", kubeconfig.display()))?;
    let token = text.split_once("token:").or_else(|| text.split_once("\"token\":"));
    let (_, rest) = token.with_context(|| format!("{} has no token", kubeconfig.display()))?;
    let value = rest.trim_start().split(['\n', ',', '}']).next().unwrap_or_default();
    Ok(value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_whatever_line_it_stands() {
        assert_eq!(address("listening on http://127.0.0.1:4242/").as_deref(), Some("http://127.0.0.1:4242"));
        assert_eq!(address("http://127.0.0.1:1").as_deref(), Some("http://127.0.0.1:1"));
        assert_eq!(address("starting"), None);
    }
}
