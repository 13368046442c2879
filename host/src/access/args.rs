//! The flags that decide who may use the portal.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// People sign in with a token of Kubernetes. They see and do what Kubernetes lets them
    Kubernetes,
    /// Whoever reaches the address sees and does everything. Refused on an address that others reach
    None,
}

/// The most live streams that `--streams` allows.
const STREAMS_MOST: u16 = 256;

fn parse_streams(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=STREAMS_MOST).contains(number));
    number.ok_or_else(|| format!("write a whole number from 1 to {STREAMS_MOST}"))
}

#[derive(Debug, Default, Args)]
pub struct AccessArgs {
    /// Who may use the portal and API. Without it: `kubernetes` where the credentials are those of the pod, `none`
    /// elsewhere
    #[arg(long, value_enum, value_name = "WHO")]
    pub auth: Option<Auth>,
    /// The certificate of the portal as PEM, such as a file of a mounted Secret. It is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A file with the key of people's sessions, the same for all replicas: 32 random bytes, or 64 hex digits.
    /// Without it: a key in the data folder
    #[arg(long, env = "KUBEWITNESS_SESSION_KEY_FILE", value_name = "FILE")]
    pub session_key_file: Option<PathBuf>,
    /// A file with the secret that a proxy which signs people in sends as X-Kubewitness-Proxy-Secret. It names them
    /// in X-Remote-User
    #[arg(long, env = "KUBEWITNESS_PROXY_SECRET_FILE", value_name = "FILE")]
    pub proxy_secret_file: Option<PathBuf>,
    /// Believes the groups that the proxy names in X-Remote-Group. The proxy has to remove the header of its clients
    #[arg(long, requires = "proxy_secret_file")]
    pub proxy_groups: bool,
    /// Logs each document that a person reads, whatever --log says
    #[arg(long)]
    pub log_reads: bool,
    /// Live streams at once, of all people together. More are refused until one ends. Without it: 64
    #[arg(long, value_name = "N", value_parser = parse_streams)]
    pub streams: Option<u16>,
}
