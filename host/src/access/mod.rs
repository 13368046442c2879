//! Access to the portal: turns the flags of the command line into the options of the portal.
//!
//! A portal that is open by mistake shows everything to everybody. So combinations of flags that would admit
//! unknown people are refused at startup instead of being logged. This module answers no request, and decides
//! about nobody's rights.

mod args;
mod session_key;
mod sharing;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::files;
use kubewitness_portal::{
    AccessControl, AccessOptions, AnswerTimes, EndedSessions, PortalAccess, ProxySecret, TlsFiles,
    TrustedProxy,
};
use kubewitness_watch::{ApiConnection, ReviewClient};
use tracing::{info, warn};

pub use args::{AccessArgs, Auth};
pub use sharing::share_ended_sessions;

/// A secret is one line.
const SECRET_BYTES: u64 = 4096;
/// The name of the file in the data folder.
const ENDED: &str = "ended-sessions";

/// How people reach the portal.
pub struct PortalDoors {
    pub access: PortalAccess,
    pub tls: Option<TlsFiles>,
    /// The most concurrent live streams; `None` for the portal's default.
    pub streams: Option<usize>,
}

impl PortalDoors {
    /// No sign-in: everybody who can reach the address sees everything.
    #[cfg(feature = "playground")]
    pub fn open() -> Self {
        Self { access: PortalAccess::None, tls: None, streams: None }
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// Refuses flags that would admit unknown people.
pub async fn open_portal_doors(
    args: AccessArgs,
    listen: SocketAddr,
    connection: &ApiConnection,
    data: &Path,
    is_replica: bool,
    times: AnswerTimes,
) -> Result<PortalDoors> {
    let auth = args.auth.unwrap_or(if connection.in_cluster { Auth::Kubernetes } else { Auth::None });
    let streams = args.streams.map(usize::from);
    let tls = args.tls_cert.zip(args.tls_key).map(|(certificate, key)| TlsFiles { certificate, key });
    if auth == Auth::None {
        refuse_to_let_everybody_in(listen, args.auth.is_some() || connection.in_cluster)?;
        if args.session_key_file.is_some() || args.proxy_secret_file.is_some() || args.log_reads {
            bail!(
                "--session-key-file, --proxy-secret-file and --log-reads are for people who sign in: add \
                 --auth kubernetes, or leave them out"
            );
        }
        return Ok(PortalDoors { access: PortalAccess::None, tls, streams });
    }
    if !listen.ip().is_loopback() && tls.is_none() {
        warn!(
            "people's tokens come to {listen} as plain text: give a certificate with --tls-cert and --tls-key, or let \
             only a proxy that has one reach this address"
        );
    }
    let session_key = match &args.session_key_file {
        Some(file) => session_key::of_file(file).await?,
        None => {
            if is_replica {
                warn!(
                    "each replica has a session key of its own, so that people sign in at each: give all of them the \
                     same with --session-key-file"
                );
            }
            session_key::of_data(data).await.or_else(|error| {
                // An unusable session file does not stop witnessing.
                warn!("{error:#}: repair or remove the file; until then, people's sessions end with this process");
                session_key::random()
            })?
        }
    };
    let trusted_proxy = match args.proxy_secret_file {
        Some(file) => {
            Some(TrustedProxy { secret: proxy_secret(&file).await?, names_groups: args.proxy_groups })
        }
        None => None,
    };
    info!("people sign in to the portal with a token of Kubernetes");
    let ended = ended_sessions(data).await;
    let options = AccessOptions { session_key, ended, times, log_reads: args.log_reads, trusted_proxy };
    let control = AccessControl::new(Arc::new(ReviewClient::new(connection)), options);
    Ok(PortalDoors { access: PortalAccess::Kubernetes(Arc::new(control)), tls, streams })
}

fn refuse_to_let_everybody_in(listen: SocketAddr, is_asked_for: bool) -> Result<()> {
    if listen.ip().is_loopback() {
        return Ok(());
    }
    let asked = if is_asked_for { "--auth none" } else { "no --auth" };
    bail!(
        "others can reach {listen}, and with {asked} each of them sees and does everything: let people sign in with \
         --auth kubernetes, or listen on 127.0.0.1 and let people reach it with `kubectl port-forward`"
    );
}

/// If the file is unreadable, every session counts as ended: otherwise, making it unreadable would reopen
/// sessions that people ended. Witnessing continues.
async fn ended_sessions(data: &Path) -> EndedSessions {
    let file = data.join(ENDED);
    let error = match EndedSessions::open(&file).await {
        Ok(ended) => return ended,
        Err(error) => error,
    };
    let (every, written) = EndedSessions::all_ended(&file, SystemClock::default().now_ms()).await;
    warn!("{} can't be read ({error}): everybody has to sign in again", file.display());
    if let Err(error) = written {
        warn!(
            "{} can't be written either ({error}): repair or remove it, so that a log-out holds after a restart",
            file.display()
        );
    }
    every
}

async fn proxy_secret(file: &Path) -> Result<ProxySecret> {
    let path = file.to_owned();
    let read = files::run_within_limit(file, files::ANSWER, move || files::text(&path, SECRET_BYTES)).await;
    let text = read.with_context(|| format!("reading the proxy's secret from {}", file.display()))?;
    ProxySecret::new(&text).with_context(|| format!("the file {}", file.display()))
}

#[cfg(test)]
mod tests {
    use kubewitness_watch::{ConnectOptions, connect_to_server};

    use super::*;

    async fn made(listen: &str, args: AccessArgs) -> Result<PortalDoors> {
        made_where(false, listen, args).await
    }

    /// Uses a kubeconfig, or in a pod the pod's own credentials.
    async fn made_where(in_cluster: bool, listen: &str, args: AccessArgs) -> Result<PortalDoors> {
        let folder = tempfile::tempdir().unwrap();
        let config = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        let mut connection =
            connect_to_server(&ConnectOptions { kubeconfig: Some(path), context: None }).await.unwrap();
        connection.in_cluster = in_cluster;
        let data = folder.path().join("data");
        open_portal_doors(args, listen.parse().unwrap(), &connection, &data, false, AnswerTimes::default())
            .await
    }

    fn kubernetes() -> AccessArgs {
        AccessArgs { auth: Some(Auth::Kubernetes), ..AccessArgs::default() }
    }

    #[tokio::test]
    async fn an_address_that_others_reach_is_for_people_who_sign_in() {
        for auth in [None, Some(Auth::None)] {
            let args = AccessArgs { auth, ..AccessArgs::default() };
            let error = made("0.0.0.0:8787", args).await.err().unwrap().to_string();
            assert!(error.contains("--auth kubernetes") && error.contains("port-forward"), "{error}");
        }
        assert!(matches!(
            made("0.0.0.0:8787", kubernetes()).await.unwrap().access,
            PortalAccess::Kubernetes(_)
        ));
    }

    #[tokio::test]
    async fn against_a_kubeconfig_nobody_signs_in_unless_it_is_said() {
        assert!(matches!(
            made("127.0.0.1:8787", AccessArgs::default()).await.unwrap().access,
            PortalAccess::None
        ));
        let few = AccessArgs { streams: Some(2), ..AccessArgs::default() };
        assert_eq!(
            made("127.0.0.1:8787", few).await.unwrap().streams,
            Some(2),
            "it needs nobody who signs in"
        );
        let read = AccessArgs { log_reads: true, ..AccessArgs::default() };
        let error = made("127.0.0.1:8787", read).await.err().unwrap().to_string();
        assert!(error.contains("--auth kubernetes"), "{error}");
    }

    #[tokio::test]
    async fn by_the_pods_own_credentials_people_sign_in_unless_it_is_said() {
        for listen in ["127.0.0.1:8787", "0.0.0.0:8787"] {
            let made = made_where(true, listen, AccessArgs::default()).await.unwrap();
            assert!(matches!(made.access, PortalAccess::Kubernetes(_)), "{listen}");
        }
        let none = || AccessArgs { auth: Some(Auth::None), ..AccessArgs::default() };
        assert!(matches!(
            made_where(true, "127.0.0.1:8787", none()).await.unwrap().access,
            PortalAccess::None
        ));
        let error = made_where(true, "0.0.0.0:8787", none()).await.err().unwrap().to_string();
        assert!(error.contains("--auth kubernetes"), "{error}");
    }

    #[tokio::test]
    async fn a_damaged_file_of_ended_sessions_is_made_anew_and_keeps_nothing_from_starting() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(ENDED);
        for _ in 0..2 {
            std::fs::write(&file, "damaged").unwrap();
            ended_sessions(folder.path()).await;
            assert!(EndedSessions::open(&file).await.is_ok(), "it says that every session has ended");
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        ended_sessions(folder.path()).await;
    }

    #[tokio::test]
    async fn a_proxys_secret_that_can_be_guessed_is_refused_by_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret\n").unwrap();
        let args = AccessArgs { proxy_secret_file: Some(file.path().into()), ..kubernetes() };
        let error = format!("{:#}", made("127.0.0.1:8787", args).await.err().unwrap());
        assert!(
            error.contains(&file.path().display().to_string()) && error.contains("openssl rand"),
            "{error}"
        );
    }
}
