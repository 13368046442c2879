//! Writes the log to standard error. Standard output is for data.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::cli::LogArgs;

pub fn to_stderr(args: &LogArgs) -> Result<()> {
    let builder = fmt().with_env_filter(filter(args)?).with_writer(std::io::stderr);
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let result = if args.log_json { builder.json().try_init() } else { builder.with_ansi(ansi).try_init() };
    result.map_err(|error| anyhow::anyhow!("setting up the log: {error}"))
}

/// What of the log is told.
pub fn filter(args: &LogArgs) -> Result<EnvFilter> {
    // Clients log each failed connection as an error of its own; the watch and the streams tell the
    // same once, with what it is about and what they do about it.
    let quiet = format!("kube_client=off,async_nats=off,{}", args.log);
    EnvFilter::try_new(quiet)
        .with_context(|| format!("`{}` is not a log filter: write such as `info`", args.log))
}
