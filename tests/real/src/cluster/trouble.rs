//! Troubles of servers: signals, compaction, a backup and its restore, another minor, a new certificate, a
//! second server.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{ChildProcess, free_port, http, until, until_ok};
use reqwest::Method;
use serde_json::{Value, json};

use super::at_rest::encryption_configuration;
use super::commands::{start_api_server, start_etcd};
use super::{ApiClient, READY_WITHIN, RealCluster, SecondServer};

/// etcd answers within milliseconds once it is up.
const ETCD_WITHIN: Duration = Duration::from_secs(60);

const UPGRADE_WAITS: Duration = Duration::from_secs(5);

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPart {
    ApiServer,
    Etcd,
}

impl RealCluster {
    fn process(&mut self, part: ServerPart) -> &mut ChildProcess {
        match part {
            ServerPart::ApiServer => &mut self.api,
            ServerPart::Etcd => &mut self.etcd,
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, part: ServerPart) -> Result<()> {
        self.process(part).kill().await
    }

    /// Starts a process that ended where it was, and waits until the cluster is ready.
    pub async fn start_again(&mut self, part: ServerPart) -> Result<()> {
        let (programs, folder, etcd) = (&self.programs, &self.folder, &self.etcd_url);
        match part {
            ServerPart::ApiServer => {
                let (port, flags) = (self.api_port, &self.api_flags);
                self.api = start_api_server(programs, folder, "kube-apiserver", etcd, port, flags)?;
            }
            ServerPart::Etcd => self.etcd = start_etcd(programs, folder, etcd, self.etcd_ports.1)?,
        }
        self.await_ready().await
    }

    pub async fn signal(&mut self, part: ServerPart, signal: &str) -> Result<()> {
        self.process(part).signal(signal).await
    }

    /// Everything up to this moment is compacted: a watch can't begin before it any more. Returns the revision.
    pub async fn compact(&self) -> Result<u64> {
        let revision = self.revision().await?;
        let body = json!({"revision": revision.to_string(), "physical": true});
        etcd_call(&self.etcd_url, "kv/compaction", &body).await?;
        Ok(revision)
    }

    async fn revision(&self) -> Result<u64> {
        let status = etcd_call(&self.etcd_url, "maintenance/status", &json!({})).await?;
        let revision = status["header"]["revision"].as_str().context("a revision")?;
        revision.parse().with_context(|| format!("the revision {revision}"))
    }

    /// Copies etcd's folder while no etcd writes, as a snapshot of its disk does.
    pub async fn back_up(&mut self) -> Result<()> {
        self.etcd.kill().await?;
        let (from, to) = (self.folder.join("etcd"), self.folder.join("etcd-backup"));
        if to.exists() {
            fs::remove_dir_all(&to).context("removing the backup before")?;
        }
        copy_folder(&from, &to)?;
        self.start_again(ServerPart::Etcd).await
    }

    /// Puts the backup in the place of what etcd has, and starts the servers with it, as etcd's guide says. Returns the
    /// newest revision of the backup.
    pub async fn restore(&mut self) -> Result<u64> {
        self.api.kill().await?;
        self.etcd.kill().await?;
        let folder = self.folder.join("etcd");
        fs::remove_dir_all(&folder).context("removing what etcd has")?;
        copy_folder(&self.folder.join("etcd-backup"), &folder)?;
        self.etcd = start_etcd(&self.programs, &self.folder, &self.etcd_url, self.etcd_ports.1)?;
        let revision = until_ok(ETCD_WITHIN, "the restored etcd", async || self.revision().await).await?;
        self.start_again(ServerPart::ApiServer).await?;
        Ok(revision)
    }

    /// Ends the API server, and starts that of another minor in its place.
    pub async fn switch_to(&mut self, minor: &str) -> Result<()> {
        minor.clone_into(&mut self.programs.minor);
        self.replace_api_server().await
    }

    async fn replace_api_server(&mut self) -> Result<()> {
        // A server that somebody watches may take longer than an upgrade waits for it.
        if self.api.terminate(UPGRADE_WAITS).await.is_err() {
            self.api.kill().await?;
        }
        self.start_again(ServerPart::ApiServer).await
    }

    /// Jobs that are written from now on are encrypted in etcd, or no longer. Those that are there stay as they are.
    pub async fn encrypt(&mut self, is_encrypted: bool) -> Result<()> {
        let file = self.folder.join("encryption.json");
        fs::write(&file, encryption_configuration(is_encrypted).to_string())
            .with_context(|| format!("writing {}", file.display()))?;
        let flag = format!("--encryption-provider-config={}", file.display());
        if !self.api_flags.contains(&flag) {
            self.api_flags.push(flag);
        }
        self.replace_api_server().await
    }

    /// A new certificate of the same authority. A running API server takes it up by itself, within a minute.
    pub fn renew_certificate(&self) -> Result<()> {
        let old = fs::read(&self.certificates.certificate).context("the certificate")?;
        let sign = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
        let mut openssl = Command::new("openssl");
        openssl.current_dir(&self.folder).args(sign.split_whitespace()).args(["-out", "server.pem"]);
        let output = openssl.output().context("starting openssl")?;
        ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr).trim());
        ensure!(fs::read(&self.certificates.certificate)? != old, "the certificate is still the old one");
        Ok(())
    }

    /// Starts an API server of the same minor, which reaches etcd by this address, and returns its own address.
    pub async fn start_second(&mut self, etcd: SocketAddr) -> Result<SocketAddr> {
        let (port, etcd) = (free_port()?, format!("http://{etcd}"));
        let (programs, folder, flags) = (&self.programs, &self.folder, &self.api_flags);
        let process = start_api_server(programs, folder, "kube-apiserver-second", &etcd, port, flags)?;
        let client = ApiClient { url: format!("https://127.0.0.1:{port}"), ..self.client.clone() };
        let mut second = SecondServer { process, port, client };
        until(READY_WITHIN, "the second API server to be ready", async || {
            if let Some(ended) = second.process.ended()? {
                bail!("it ended with {ended:?}; {}", second.process.say());
            }
            let asked = second.client.request(Method::GET, "/readyz", None).await;
            Ok(asked.is_ok_and(|(code, _)| code == 200).then_some(()))
        })
        .await?;
        let address = SocketAddr::from(([127, 0, 0, 1], second.port));
        self.second = Some(second);
        Ok(address)
    }

    pub async fn stop_second(&mut self) -> Result<()> {
        match self.second.take() {
            Some(mut second) => second.process.kill().await,
            None => Ok(()),
        }
    }
}

pub(crate) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("writing {}", target.display()))?;
        }
    }
    Ok(())
}

/// A call of etcd's gateway, which takes JSON over HTTP.
async fn etcd_call(url: &str, what: &str, body: &Value) -> Result<Value> {
    let answer = http().post(format!("{url}/v3/{what}")).body(body.to_string()).send().await?;
    let (code, text) = (answer.status(), answer.text().await?);
    ensure!(code.is_success(), "etcd answered {code} to {what}: {text}");
    serde_json::from_str(&text).with_context(|| format!("etcd's answer to {what}: {text}"))
}
