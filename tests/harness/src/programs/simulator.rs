//! Runs the simulated API server as its own process, and asks it what only it knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::tls::TestCertificates;
use crate::truth::{ResourceVersions, TruthEntry};
use crate::{ChildProcess, RunOptions, Scratch, free_port, http, http_trusting, simulator_binary};

const START_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub struct SimulatorOptions {
    pub enforce_rbac: bool,
    /// Such as `1s`; left out, as rarely as a real one does.
    pub bookmark_every: Option<String>,
    /// API servers beside the first one, over the same store.
    pub more_servers: usize,
    /// Keep the store in a file, so that it can be killed and started again.
    pub durable: bool,
    /// Serve TLS with these; its kubeconfig names their authority.
    pub tls: Option<TestCertificates>,
    /// More of its own flags.
    pub args: Vec<String>,
}

impl SimulatorOptions {
    /// A bookmark each second, and every version stays until a test asks for compaction: on a slow machine, too, a restart
    /// finds all that it still needs.
    pub fn keeping_history() -> Self {
        let args = ["--history-age", "0s"].map(str::to_owned).to_vec();
        Self { bookmark_every: Some("1s".to_owned()), args, ..Self::default() }
    }
}

pub struct Simulator {
    process: ChildProcess,
    options: SimulatorOptions,
    folder: PathBuf,
    /// One for each server.
    urls: Vec<String>,
    token: String,
    kubeconfig: PathBuf,
    client: reqwest::Client,
}

/// How often each verb was asked of each resource, such as `list jobs.batch` or `watch pods`. A
/// list of one item, which asks how far the server is or for one old version, is a `list-one`;
/// what was refused for want of rights begins with `forbidden`.
pub type RequestCounts = BTreeMap<String, u64>;

impl Simulator {
    /// Starts it on a free port; kubeconfig, state and logs go into `folder`.
    pub async fn start(folder: &Path, options: &SimulatorOptions) -> Result<Self> {
        let (process, urls) = launch(folder, options, &[]).await?;
        let token = token_of(&kubeconfig(folder, 0))?;
        let client = match &options.tls {
            Some(tls) => http_trusting(&tls.authority)?,
            None => http(),
        };
        Ok(Self {
            process,
            options: options.clone(),
            folder: folder.to_path_buf(),
            urls,
            token,
            kubeconfig: kubeconfig(folder, 0),
            client,
        })
    }

    /// SIGKILL, as often as a test needs it.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Starts it again after its end, at the same addresses. What it knew is there again if it is durable.
    pub async fn start_again(&mut self) -> Result<()> {
        let urls = self.urls.clone();
        (self.process, self.urls) = launch(&self.folder, &self.options, &urls).await?;
        Ok(())
    }

    pub fn url(&self) -> &str {
        &self.urls[0]
    }

    /// The addresses of all its servers.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The administrator's at one of its servers.
    pub fn kubeconfig_at(&self, server: usize) -> PathBuf {
        kubeconfig(&self.folder, server)
    }

    /// A controller of this API server, with the data folder `data` in the test's own folder. Without a folder of
    /// configuration it reads the labelled ConfigMaps of its namespace.
    pub fn run_options(&self, scratch: &Scratch, config: impl Into<Option<PathBuf>>) -> Result<RunOptions> {
        let (kubeconfig, data) = (self.kubeconfig.clone(), scratch.folder("data")?);
        Ok(RunOptions { kubeconfig, config: config.into(), data, ..RunOptions::default() })
    }

    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    /// One request as its administrator.
    pub async fn request(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        self.request_at(0, method, path, body).await
    }

    async fn request_at(
        &self,
        server: usize,
        method: reqwest::Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let url = &self.urls[server];
        let mut request = self.client.request(method, format!("{url}{path}")).bearer_auth(&self.token);
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

    /// `POST /_sim/HOOK`: what only a test can make happen, see the tables of the simulator's hooks and faults.
    pub async fn make(&self, hook: &str, body: &Value) -> Result<Value> {
        self.hook(reqwest::Method::POST, &format!("/_sim/{hook}"), Some(body)).await
    }

    /// `GET /_sim/HOOK`
    pub async fn ask(&self, hook: &str) -> Result<Value> {
        self.hook(reqwest::Method::GET, &format!("/_sim/{hook}"), None).await
    }

    /// Forgets what was before a version; `None` is now.
    pub async fn compact(&self, version: Option<u64>) -> Result<()> {
        self.hook(reqwest::Method::POST, "/_sim/compact", Some(&json!({"version": version}))).await.map(drop)
    }

    /// Ends every watch that is open.
    pub async fn drop_watches(&self) -> Result<()> {
        self.hook(reqwest::Method::POST, "/_sim/drop-watches", Some(&json!({}))).await.map(drop)
    }

    /// The same of one of its servers.
    pub async fn drop_watches_at(&self, server: usize) -> Result<()> {
        let path = "/_sim/drop-watches";
        let (status, answer) = self.request_at(server, reqwest::Method::POST, path, Some(&json!({}))).await?;
        anyhow::ensure!(status == 200, "{path} answered {status}: {answer}");
        Ok(())
    }

    pub async fn requests(&self) -> Result<RequestCounts> {
        let answer = self.hook(reqwest::Method::GET, "/_sim/requests", None).await?;
        serde_json::from_value(answer).context("the counts of requests")
    }

    /// Everything that happened to one resource, in order.
    pub async fn truth(&self, group: &str, resource: &str) -> Result<ResourceVersions> {
        let path = format!("/_sim/history?group={group}&resource={resource}");
        let request = self.client.get(format!("{}{path}", self.url())).bearer_auth(&self.token);
        let response =
            request.send().await.context("asking the simulator for its history")?.error_for_status()?;
        let text = response.text().await?;
        let entries: Result<Vec<TruthEntry>, _> =
            text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect();
        Ok(ResourceVersions { entries: entries.with_context(|| format!("the answer of {path}"))? })
    }
}

fn kubeconfig(folder: &Path, server: usize) -> PathBuf {
    match server {
        0 => folder.join("simulator.kubeconfig"),
        server => folder.join(format!("simulator.kubeconfig.{server}")),
    }
}

/// Starts the process; its servers listen where they did before, if they did.
async fn launch(
    folder: &Path,
    options: &SimulatorOptions,
    before: &[String],
) -> Result<(ChildProcess, Vec<String>)> {
    let mut command = Command::new(simulator_binary()?);
    command.args(["--hooks", "--kubeconfig-out"]).arg(kubeconfig(folder, 0));
    let servers = options.more_servers + 1;
    command.args(["--servers", &servers.to_string()]);
    for server in 0..servers {
        let address = match before.get(server).and_then(|url| url.split("//").nth(1)) {
            Some(address) => address.to_owned(),
            None => format!("127.0.0.1:{}", free_port()?),
        };
        command.args(["--listen", &address]);
    }
    if options.durable {
        command.arg("--state").arg(folder.join("simulator.state"));
    }
    if let Some(pause) = &options.bookmark_every {
        command.args(["--bookmark-every", pause]);
    }
    if options.enforce_rbac {
        command.arg("--enforce-rbac");
    }
    if let Some(TestCertificates { authority, certificate, key }) = &options.tls {
        command.arg("--tls-ca").arg(authority).arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
    }
    command.args(&options.args);
    // Its output goes on where that of the process before ended.
    let from = std::fs::metadata(folder.join("simulator.out")).map_or(0, |file| file.len());
    let mut process = ChildProcess::start("simulator", &mut command, folder)?;
    let mut urls: Vec<String> = Vec::new();
    for _ in 0..servers {
        let next = |line: &str| address(line).filter(|url| !urls.contains(url));
        urls.push(process.line(from, START_WITHIN, next).await?);
    }
    Ok((process, urls))
}

/// The first http address in a line, with TLS or without.
fn address(line: &str) -> Option<String> {
    let start = line.find("http://").or_else(|| line.find("https://"))?;
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
