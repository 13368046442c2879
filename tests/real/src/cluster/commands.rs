//! How each server is started.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{ChildProcess, bound_command};
use serde_json::{Value, json};
use tokio::process::Command;

/// Who may do everything. It is made for each cluster, which listens on loopback alone.
pub(super) const ADMIN: &str = "admin";
/// Pages of what is kept may grow to this: a run writes some megabytes.
const ETCD_QUOTA: &str = "--quota-backend-bytes=1073741824";

/// The folder with the programs of one minor, and with etcd.
#[derive(Clone, Debug, Default)]
pub struct ServerPrograms {
    pub folder: PathBuf,
    /// Such as `1.36`.
    pub minor: String,
}

impl ServerPrograms {
    pub fn command(&self, name: &str) -> Command {
        let folder = if name == "etcd" { "etcd".to_owned() } else { format!("kubernetes-{}", self.minor) };
        bound_command(self.folder.join(folder).join(name))
    }
}

pub(super) fn start_etcd(
    programs: &ServerPrograms,
    folder: &Path,
    url: &str,
    peer_port: u16,
) -> Result<ChildProcess> {
    let peers = format!("http://127.0.0.1:{peer_port}");
    let mut etcd = programs.command("etcd");
    etcd.arg("--data-dir").arg(folder.join("etcd")).args(["--listen-client-urls", url]);
    etcd.args(["--advertise-client-urls", url, "--listen-peer-urls", &peers]);
    etcd.args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("default={peers}")]);
    etcd.args([ETCD_QUOTA, "--log-level", "warn"]);
    ChildProcess::start("etcd", &mut etcd, folder)
}

/// `name` is that of its logs.
pub(super) fn start_api_server(
    programs: &ServerPrograms,
    folder: &Path,
    name: &str,
    etcd: &str,
    port: u16,
    flags: &[String],
) -> Result<ChildProcess> {
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
    ChildProcess::start(name, api.args(flags), folder)
}

pub(super) async fn make_service_account_key(folder: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(["genrsa", "-out", "accounts.key", "2048"]);
    let made = command.output().await.context("starting openssl")?;
    ensure!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr).trim());
    Ok(())
}

pub(super) fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes).context("random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(super) fn kubeconfig_of(url: &str, authority: &Path, token: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": url, "certificate-authority": authority}}],
        "users": [{"name": ADMIN, "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": ADMIN}}],
        "current-context": "real",
    })
}
