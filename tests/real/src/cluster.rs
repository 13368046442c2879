//! An etcd and an API server on free ports of this machine, in a folder of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{Process, Scratch, free_port, http, http_trusting, tls, until};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

/// A server that has not answered by then never will.
const READY_WITHIN: Duration = Duration::from_secs(120);
const ENDED_WITHIN: Duration = Duration::from_secs(30);
/// Longer than any run.
const LONGEST_WATCH: Duration = Duration::from_secs(3600);
/// Who may do everything. It is made for each cluster, which listens on loopback alone.
const ADMIN: &str = "admin";
/// Pages of what is kept may grow to this: a run writes some megabytes.
const ETCD_QUOTA: &str = "--quota-backend-bytes=1073741824";

/// The folder with the programs of one minor, and with etcd.
#[derive(Clone, Debug)]
pub struct ServerPrograms {
    pub folder: PathBuf,
    /// Such as `1.36`.
    pub minor: String,
}

impl ServerPrograms {
    pub fn command(&self, name: &str) -> Command {
        let folder = if name == "etcd" { "etcd".to_owned() } else { format!("kubernetes-{}", self.minor) };
        Command::new(self.folder.join(folder).join(name))
    }
}

/// Asks an API server as its administrator.
#[derive(Clone, Debug)]
pub struct ApiClient {
    url: String,
    http: reqwest::Client,
    token: String,
}

impl ApiClient {
    /// Returns the code and the object of the answer.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        self.send(method, path, media, body).await
    }

    /// A patch that merges lists by their keys, as kubelets write.
    pub async fn merge_lists(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        self.send(Method::PATCH, path, "application/strategic-merge-patch+json", Some(body)).await
    }

    /// An answer that goes on.
    pub async fn watch(&self, path: &str) -> Result<reqwest::Response> {
        let request = self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.token);
        Ok(request.timeout(LONGEST_WATCH).send().await?.error_for_status()?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("content-type", media).body(body.to_string());
        }
        let answer = request.send().await?;
        let (code, text) = (answer.status().as_u16(), answer.text().await?);
        Ok((code, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }
}

pub struct RealCluster {
    programs: ServerPrograms,
    folder: PathBuf,
    etcd: Process,
    etcd_url: String,
    api: Process,
    api_flags: Vec<String>,
    api_port: u16,
    client: ApiClient,
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
            api: start_api_server(programs, &folder, &etcd_url, api_port, &api_flags)?,
            api_flags,
            programs: programs.clone(),
            etcd,
            etcd_url,
            api_port,
            client: ApiClient { url, http: http_trusting(&certificates.authority)?, token },
            kubeconfig,
            folder,
            ready_after: Duration::ZERO,
        };
        cluster.is_ready().await?;
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

    pub fn etcd_url(&self) -> &str {
        &self.etcd_url
    }

    pub fn client(&self) -> &ApiClient {
        &self.client
    }

    /// Asks the API server as its administrator, and returns the code and the object of the answer.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        self.client.request(method, path, body).await
    }

    /// SIGKILL, and another one in its place.
    pub async fn restart_api_server(&mut self) -> Result<()> {
        self.api.kill().await?;
        self.api =
            start_api_server(&self.programs, &self.folder, &self.etcd_url, self.api_port, &self.api_flags)?;
        self.is_ready().await
    }

    /// Everything up to this moment is compacted: a watch can't begin before it any more.
    pub async fn compact(&self) -> Result<()> {
        let status = etcd_call(&self.etcd_url, "maintenance/status", &json!({})).await?;
        let revision = status["header"]["revision"].as_str().context("a revision")?;
        etcd_call(&self.etcd_url, "kv/compaction", &json!({"revision": revision, "physical": true})).await?;
        Ok(())
    }

    pub async fn stop(mut self) -> Result<()> {
        // An API server without etcd stays, so it goes first.
        self.api.terminate(ENDED_WITHIN).await?;
        self.etcd.terminate(ENDED_WITHIN).await?;
        Ok(())
    }

    async fn is_ready(&mut self) -> Result<()> {
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

fn start_etcd(programs: &ServerPrograms, folder: &Path, url: &str, peer_port: u16) -> Result<Process> {
    let peers = format!("http://127.0.0.1:{peer_port}");
    let mut etcd = programs.command("etcd");
    etcd.arg("--data-dir").arg(folder.join("etcd")).args(["--listen-client-urls", url]);
    etcd.args(["--advertise-client-urls", url, "--listen-peer-urls", &peers]);
    etcd.args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("default={peers}")]);
    etcd.args([ETCD_QUOTA, "--log-level", "warn"]);
    Process::start("etcd", &mut etcd, folder)
}

fn start_api_server(
    programs: &ServerPrograms,
    folder: &Path,
    etcd: &str,
    port: u16,
    flags: &[String],
) -> Result<Process> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut api = programs.command("kube-apiserver");
    for (flag, value) in [
        ("etcd-servers", etcd.to_owned()),
        ("secure-port", port.to_string()),
        ("bind-address", "127.0.0.1".into()),
        ("advertise-address", "127.0.0.1".into()),
        // Of an endpoint on loopback, newer servers would be refused by themselves.
        ("endpoint-reconciler-type", "none".into()),
        ("tls-cert-file", file("server.pem")),
        ("tls-private-key-file", file("server.key")),
        ("cert-dir", file("certificates")),
        ("service-account-key-file", file("accounts.key")),
        ("service-account-signing-key-file", file("accounts.key")),
        ("service-account-issuer", "https://kubernetes.default.svc".into()),
        ("token-auth-file", file("tokens.csv")),
        ("authorization-mode", "RBAC".into()),
        ("service-cluster-ip-range", "10.0.0.0/24".into()),
        // Compaction is left to the run, and what is kept can be read without the server's own types.
        ("etcd-compaction-interval", "0".into()),
        ("storage-media-type", "application/json".into()),
        // Nothing here gives pods their accounts.
        ("disable-admission-plugins", "ServiceAccount".into()),
    ] {
        api.arg(format!("--{flag}={value}"));
    }
    Process::start("kube-apiserver", api.args(flags), folder)
}

async fn make_service_account_key(folder: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(["genrsa", "-out", "accounts.key", "2048"]);
    let made = command.output().await.context("starting openssl")?;
    ensure!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr).trim());
    Ok(())
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes).context("random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn kubeconfig_of(url: &str, authority: &Path, token: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": url, "certificate-authority": authority}}],
        "users": [{"name": ADMIN, "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": ADMIN}}],
        "current-context": "real",
    })
}

/// A call of etcd's gateway, which takes JSON over HTTP.
async fn etcd_call(url: &str, what: &str, body: &Value) -> Result<Value> {
    let answer = http().post(format!("{url}/v3/{what}")).body(body.to_string()).send().await?;
    let (code, text) = (answer.status(), answer.text().await?);
    ensure!(code.is_success(), "etcd answered {code} to {what}: {text}");
    serde_json::from_str(&text).with_context(|| format!("etcd's answer to {what}: {text}"))
}
