//! Runs the login command of a kubeconfig, and caches its credential until that expires.
//!
//! The client library could run the command, but without a timeout, twice, and with all of its output in
//! memory. Here both its time and its output are limited. A command that exceeds a limit is killed.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use kubewitness_core::calendar;
use kubewitness_core::clock::{Clock, SystemClock};
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use crate::connect::provider::holds_token_or_password;

/// A token and a certificate with its key have some KiB.
const PRINTED: usize = 1 << 20;
/// How many bytes of a command's error output are kept.
const SAID: usize = 4 << 10;
/// A token is renewed this long before it expires, so that no request carries an old one.
const EARLY: Duration = Duration::from_secs(60);

/// Why a command gave no credentials. Nothing that it printed is quoted but its error output.
#[derive(Debug, Error)]
pub(crate) enum ExecError {
    #[error("`exec` of the kubeconfig names no `command`")]
    NoCommand,
    #[error("`provideClusterInfo` is set, and the kubeconfig has no cluster")]
    NoCluster,
    #[error("the kubeconfig's cluster can't be written as JSON: {0}")]
    ClusterInfo(#[source] serde_json::Error),
    #[error("it can't be started: {0}")]
    NotStarted(#[source] io::Error),
    #[error("it has no output")]
    NoOutput,
    #[error("reading what it prints: {0}")]
    Unread(#[source] io::Error),
    #[error("it prints more than {} MiB: that is no credential", PRINTED >> 20)]
    TooLong,
    #[error("waiting for its end: {0}")]
    NoEnd(#[source] io::Error),
    #[error("it ended with {status}{}{error_line}", if error_line.is_empty() { "" } else { ": " })]
    Failed { status: ExitStatus, error_line: String },
    /// Without the parser's own words, which may quote a secret.
    #[error("what it prints is no ExecCredential: run it by hand to see what it prints")]
    NoCredential,
    #[error("the `expirationTimestamp` that it prints is no time")]
    NoExpiration,
    #[error("its token has characters that no header takes")]
    NoHeader,
}

pub(crate) struct ExecLogin {
    config: ExecConfig,
    kept: Mutex<Option<CredentialStatus>>,
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<CredentialStatus>,
}

/// The status of an ExecCredential.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl CredentialStatus {
    fn is_valid_at(&self, now_ms: u64) -> bool {
        let expires_ms = self.expiration_timestamp.as_deref().and_then(calendar::parse_rfc3339_ms);
        expires_ms.is_none_or(|expires| now_ms.saturating_add(EARLY.as_millis() as u64) < expires)
    }

    fn authorization_header(&self) -> Result<Option<HeaderValue>, ExecError> {
        let Some(token) = &self.token else { return Ok(None) };
        let header = HeaderValue::try_from(format!("Bearer {token}"));
        let mut header = header.map_err(|_| ExecError::NoHeader)?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl ExecLogin {
    /// Takes over the command, so that the client library does not run it. `None` if another login method
    /// takes precedence, as in kubectl, or if no command exists.
    pub fn take_from(user: &mut AuthInfo) -> Option<Self> {
        let is_first = user.auth_provider.is_none() && !holds_token_or_password(user);
        let config = user.exec.take_if(|_| is_first)?;
        Some(Self { config, kept: Mutex::default() })
    }

    /// Without its arguments, which may be secret.
    pub fn command_name(&self) -> &str {
        self.config.command.as_deref().unwrap_or_default()
    }

    /// Logs in for the first time. Connections use the certificate that the command returns, if it returns
    /// one.
    pub async fn log_in(&self, user: &mut AuthInfo) -> Result<(), ExecError> {
        let status = self.renew_credentials().await?;
        if let (Some(certificate), Some(key)) = (status.client_certificate_data, status.client_key_data) {
            user.client_certificate_data = Some(STANDARD.encode(certificate));
            user.client_key_data = Some(STANDARD.encode(key).into());
        }
        Ok(())
    }

    /// The header for a request that is made now. Runs the command again if its token is about to expire.
    pub async fn authorization_header(&self) -> Result<Option<HeaderValue>, ExecError> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match kept.filter(|kept| kept.token.is_none() || kept.is_valid_at(SystemClock::default().now_ms())) {
            Some(kept) => kept.authorization_header(),
            None => self.renew_credentials().await?.authorization_header(),
        }
    }

    async fn renew_credentials(&self) -> Result<CredentialStatus, ExecError> {
        let status = run(&self.config).await?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.clone());
        Ok(status)
    }
}

/// The process ends with the future.
async fn run(config: &ExecConfig) -> Result<CredentialStatus, ExecError> {
    let mut child = start(config)?;
    let printed = child.stdout.take().ok_or(ExecError::NoOutput)?;
    let errors = child.stderr.take();
    let (printed, error_line) =
        tokio::try_join!(read_bounded(printed), async { Ok(first_error_line(errors).await) })?;
    let status = child.wait().await.map_err(ExecError::NoEnd)?;
    if !status.success() {
        return Err(ExecError::Failed { status, error_line });
    }
    let credential: ExecCredential =
        serde_saphyr::from_slice(&printed).map_err(|_| ExecError::NoCredential)?;
    let status = credential.status.ok_or(ExecError::NoCredential)?;
    let expires = status.expiration_timestamp.as_deref();
    match expires.is_none_or(|expires| calendar::parse_rfc3339_ms(expires).is_some()) {
        true => Ok(status),
        false => Err(ExecError::NoExpiration),
    }
}

fn start(config: &ExecConfig) -> Result<Child, ExecError> {
    let name = config.command.as_deref().ok_or(ExecError::NoCommand)?;
    let is_interactive = config.interactive_mode != Some(ExecInteractiveMode::Never);
    let mut spec = serde_json::json!({"interactive": is_interactive});
    if config.provide_cluster_info {
        let cluster = config.cluster.as_ref().ok_or(ExecError::NoCluster)?;
        spec["cluster"] = serde_json::to_value(cluster).map_err(ExecError::ClusterInfo)?;
    }
    let info = serde_json::json!({"apiVersion": config.api_version, "kind": "ExecCredential", "spec": spec});
    let mut command = Command::new(name);
    command.args(config.args.iter().flatten());
    for variable in config.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.env("KUBERNETES_EXEC_INFO", info.to_string()).stdout(Stdio::piped()).kill_on_drop(true);
    match is_interactive {
        true => command.stdin(Stdio::inherit()).stderr(Stdio::inherit()),
        false => command.stdin(Stdio::null()).stderr(Stdio::piped()),
    };
    command.spawn().map_err(ExecError::NotStarted)
}

/// Everything that a command prints, up to a limit.
async fn read_bounded(printed: impl AsyncRead + Unpin) -> Result<Vec<u8>, ExecError> {
    let mut bytes = Vec::new();
    let read = printed.take(PRINTED as u64 + 1).read_to_end(&mut bytes).await;
    read.map_err(ExecError::Unread)?;
    match bytes.len() > PRINTED {
        true => Err(ExecError::TooLong),
        false => Ok(bytes),
    }
}

/// The first line of the error output. The rest is read, too, so that the command does not block.
async fn first_error_line(errors: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut errors) = errors else { return String::new() };
    let (mut chunk, mut error_line) = (vec![0; SAID], Vec::new());
    // If reading fails, the message has only what was read before.
    while let Ok(read @ 1..) = errors.read(&mut chunk).await {
        let room = SAID - error_line.len();
        error_line.extend(&chunk[..read.min(room)]);
    }
    let text = String::from_utf8_lossy(&error_line);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::time::timeout;

    use super::*;

    fn exec(script: &str) -> ExecLogin {
        let mut user: AuthInfo = serde_json::from_value(serde_json::json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "env": [{"name": "OF_KUBECONFIG", "value": "v"}], "interactiveMode": "Never"}}))
        .unwrap();
        ExecLogin::take_from(&mut user).unwrap()
    }

    async fn refused(script: &str) -> String {
        exec(script).renew_credentials().await.err().unwrap().to_string()
    }

    fn giving(status: &str) -> String {
        format!(
            r#"printf '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}'"#
        )
    }

    #[tokio::test]
    async fn what_a_command_prints_has_a_bound_and_its_process_ends_there() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let since = Instant::now();
        let why = refused(&format!("echo $$ >{}; exec cat /dev/zero", pid.display())).await;
        assert_eq!(why, "it prints more than 1 MiB: that is no credential");
        assert!(since.elapsed() < Duration::from_secs(30));
        ends(&pid).await;
    }

    /// Waits for the end of the process whose id is in the file.
    async fn ends(pid: &std::path::Path) {
        let pid = std::fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        for _ in 0..600 {
            match std::fs::read_to_string(&stat) {
                Ok(stat) if !stat.contains(") Z ") => tokio::time::sleep(Duration::from_millis(50)).await,
                _ => return,
            }
        }
        panic!("it still runs: {stat}");
    }

    #[tokio::test]
    async fn a_command_that_is_given_up_ends() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600", pid.display());
        let hanging = exec(&script);
        let mut header = Box::pin(hanging.authorization_header());
        while !pid.exists() {
            assert!(timeout(Duration::from_millis(20), &mut header).await.is_err());
        }
        drop(header);
        ends(&pid).await;
    }

    #[tokio::test]
    async fn what_a_failing_command_says_is_told_on_one_bounded_line_and_what_it_prints_is_not() {
        let why = refused("echo secret; printf 'log in\\nfirst' >&2; exit 3").await;
        assert_eq!(why, "it ended with exit status: 3: log in first");
        let why = refused("head -c 1000000 /dev/zero | tr '\\0' e >&2; exit 1").await;
        assert!(why.len() < SAID + 100, "{}", why.len());
        let why = refused("echo '{\"status\": {\"token\": [\"secret\"]}}'").await;
        assert!(why.contains("no ExecCredential") && !why.contains("secret"), "{why}");
    }

    #[tokio::test]
    async fn a_token_is_kept_until_it_is_about_to_expire() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let counted = |status: &str| format!("echo >>{}; {}", runs.display(), giving(status));
        let times = || std::fs::read_to_string(&runs).unwrap_or_default().lines().count();
        let lasting = exec(&counted(r#"{"token":"t"}"#));
        for _ in 0..3 {
            let header = lasting.authorization_header().await.unwrap().unwrap();
            assert!(header == "Bearer t" && header.is_sensitive());
        }
        assert_eq!(times(), 1);
        let old = exec(&counted(r#"{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}"#));
        for _ in 0..2 {
            old.authorization_header().await.unwrap();
        }
        assert_eq!(times(), 3, "each request needs another one");
    }

    #[tokio::test]
    async fn a_command_is_told_what_kubectl_tells_it_and_gives_a_certificate_to_the_connections() {
        let script = format!(
            r#"case "$OF_KUBECONFIG$KUBERNETES_EXEC_INFO" in v*'"interactive":false'*) ;; *) exit 9 ;; esac; {}"#,
            giving(r#"{"clientCertificateData":"C","clientKeyData":"K"}"#)
        );
        let (command, mut user) = (exec(&script), AuthInfo::default());
        command.log_in(&mut user).await.unwrap();
        assert_eq!(user.client_certificate_data.as_deref(), Some("Qw=="));
        assert!(user.client_key_data.is_some());
        assert_eq!(command.authorization_header().await.unwrap(), None, "requests need no token");
    }

    #[test]
    fn another_way_of_logging_in_that_comes_first_leaves_the_command_alone() {
        let mut user: AuthInfo =
            serde_json::from_value(serde_json::json!({"token": "t", "exec": {"command": "sh"}})).unwrap();
        assert!(ExecLogin::take_from(&mut user).is_none() && user.exec.is_some());
        assert!(ExecLogin::take_from(&mut AuthInfo::default()).is_none());
    }
}
