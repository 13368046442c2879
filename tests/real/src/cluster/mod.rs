//! An etcd and an API server on free ports of this machine, in a folder of their own.
//!
//! [`trouble`] does to them what a cluster suffers. It knows nothing of who watches.

mod at_rest;
mod balancer;
mod client;
mod commands;
mod etcd;
mod trouble;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::tls::{self, TestCertificates};
use kubewitness_harness::{ChildProcess, Scratch, free_port, http_trusting, until};
use reqwest::Method;
use serde_json::Value;

pub use balancer::LoadBalancer;
pub use client::ApiClient;
pub use commands::ServerPrograms;
#[cfg(test)]
pub(crate) use etcd::changes_of;
pub(crate) use etcd::{EtcdChange, EtcdStream};
pub use trouble::ServerPart;
pub(crate) use trouble::copy_folder;

use commands::{ADMIN, kubeconfig_of, make_service_account_key, random_token, start_api_server, start_etcd};

/// A server that has not answered by then never will.
const READY_WITHIN: Duration = Duration::from_secs(120);
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// A second API server, which reaches etcd by an address of its own.
struct SecondServer {
    process: ChildProcess,
    port: u16,
    client: ApiClient,
}

pub struct RealCluster {
    programs: ServerPrograms,
    folder: PathBuf,
    certificates: TestCertificates,
    etcd: ChildProcess,
    etcd_url: String,
    etcd_ports: (u16, u16),
    api: ChildProcess,
    api_flags: Vec<String>,
    api_port: u16,
    client: ApiClient,
    second: Option<SecondServer>,
    kubeconfig: PathBuf,
    /// From the start of the first process until the API server was ready.
    pub ready_after: Duration,
}

impl RealCluster {
    pub async fn start(programs: &ServerPrograms, scratch: &Scratch) -> Result<Self> {
        Self::start_with(programs, scratch, &[]).await
    }

    /// With flags for the API server, which may repeat those that it has already.
    pub async fn start_with(
        programs: &ServerPrograms,
        scratch: &Scratch,
        api_flags: &[&str],
    ) -> Result<Self> {
        let api_flags: Vec<String> = api_flags.iter().map(|flag| (*flag).to_owned()).collect();
        let begun = Instant::now();
        let folder = scratch.folder("cluster")?;
        let (client_port, peer_port, api_port) = (free_port()?, free_port()?, free_port()?);
        let etcd_url = format!("http://127.0.0.1:{client_port}");
        let certificates = tls::make(&folder)?;
        make_service_account_key(&folder).await?;
        let token = random_token()?;
        fs::write(folder.join("tokens.csv"), format!("{token},{ADMIN},{ADMIN},system:masters\n"))?;
        let url = format!("https://127.0.0.1:{api_port}");
        let kubeconfig = folder.join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(&url, &certificates.authority, &token).to_string())?;

        let etcd = start_etcd(programs, &folder, &etcd_url, peer_port)?;
        let mut cluster = Self {
            api: start_api_server(programs, &folder, "kube-apiserver", &etcd_url, api_port, &api_flags)?,
            api_flags,
            programs: programs.clone(),
            etcd,
            etcd_url,
            etcd_ports: (client_port, peer_port),
            api_port,
            client: ApiClient { url, http: http_trusting(&certificates.authority)?, token },
            second: None,
            kubeconfig,
            folder,
            certificates,
            ready_after: Duration::ZERO,
        };
        cluster.await_ready().await?;
        cluster.ready_after = begun.elapsed();
        Ok(cluster)
    }

    /// Where the servers' logs are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig of the same cluster by another address.
    pub fn kubeconfig_by(&self, address: SocketAddr) -> Result<PathBuf> {
        let path = self.folder.join(format!("kubeconfig-{}", address.port()));
        let url = format!("https://{address}");
        let text = kubeconfig_of(&url, &self.certificates.authority, &self.client.token).to_string();
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    pub fn etcd_url(&self) -> &str {
        &self.etcd_url
    }

    pub fn etcd_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.etcd_ports.0))
    }

    pub fn api_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.api_port))
    }

    pub fn minor(&self) -> &str {
        &self.programs.minor
    }

    pub fn client(&self) -> &ApiClient {
        &self.client
    }

    /// Asks the API server as its administrator, and returns the code and the object of the answer.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        self.client.request(method, path, body).await
    }

    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let (code, answer) = self.client.request(Method::POST, path, Some(object)).await?;
        ensure!(code == 201, "{path} was answered with {code}: {answer}");
        Ok(answer)
    }

    /// Starts a controller manager that has these controllers alone.
    pub fn start_manager(&self, controllers: &str, scratch: &Scratch) -> Result<ChildProcess> {
        let mut manager = self.programs.command("kube-controller-manager");
        manager.arg(format!("--kubeconfig={}", self.kubeconfig.display()));
        manager.arg(format!("--controllers={controllers}"));
        manager.args(["--leader-elect=false", "--use-service-account-credentials=false", "--secure-port=0"]);
        ChildProcess::start("kube-controller-manager", &mut manager, scratch.path())
    }

    pub async fn stop(mut self) -> Result<()> {
        // An API server without etcd stays, so it goes first.
        self.stop_second().await?;
        self.api.terminate(ENDED_WITHIN).await?;
        self.etcd.terminate(ENDED_WITHIN).await?;
        Ok(())
    }

    /// SIGKILL for each process that still runs.
    pub async fn kill_all(&mut self) {
        let second = self.second.as_mut().map(|second| &mut second.process);
        for process in [&mut self.api, &mut self.etcd].into_iter().chain(second) {
            // One that has ended already can't be killed.
            process.kill().await.ok();
        }
    }

    async fn await_ready(&mut self) -> Result<()> {
        let ready = until(READY_WITHIN, "the API server to be ready", async || {
            for process in [&mut self.etcd, &mut self.api] {
                if let Some(ended) = process.ended()? {
                    bail!("it ended with {ended:?}; {}", process.say());
                }
            }
            let asked = self.client.request(Method::GET, "/readyz", None).await;
            Ok(asked.is_ok_and(|(code, _)| code == 200).then_some(()))
        });
        let ready = ready.await;
        ready.with_context(|| format!("{}\n{}", self.etcd.say(), self.api.say()))
    }
}
