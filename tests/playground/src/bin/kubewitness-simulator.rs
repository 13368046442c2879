//! The simulated API server as a separate process, for tests and for manual trials.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use kubewitness_playground::apiserver::faults::InjectedFault;
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions, ServerTask, TlsOptions, VersionStyle};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const USAGE: &str = "\
A simulated Kubernetes API server.

Usage: kubewitness-simulator [OPTIONS]

      --listen ADDR            where to listen [127.0.0.1:0]; once more for each further server
      --servers N              API servers over the one store, each with its own cache; their addresses are
                               printed one a line [1]
      --kubeconfig-out FILE    write the administrator's kubeconfig there; FILE.1 is of the second server
      --enforce-rbac           let roles decide; otherwise everybody may do everything
      --hooks                  serve /_sim/ for tests
      --bookmark-every TIME    between bookmarks of a watch, such as 500ms or 60s [60s]
      --future-wait TIME       how long a list waits for a version to come [1s]
      --watch-timeout TIME     the longest a watch lasts [30m]
      --history-age TIME       how long versions are kept; 0s keeps them whatever their age [5m]
      --history-versions N     how many versions are kept [500000]
      --watch-window N         changes of a resource that a watch can start from [102400]
      --seed N                 repeatable uids, names and tokens
      --state FILE             keep the store in a file, so that a server that was killed goes on with it
      --opaque-versions        versions that cannot be compared, as some aggregated servers give
      --tls-cert FILE          serve TLS with this certificate (PEM); needs --tls-key
      --tls-key FILE           its key (PEM)
      --tls-ca FILE            its authority (PEM), which kubeconfigs name [the certificate itself]
      --http1-only             do not offer HTTP/2 over TLS
      --fault JSON             a fault to begin with, such as '{\"fault\": \"cut\", \"within\": 900, \"oneIn\": 3,
                               \"times\": 0}'; may be repeated, and changed with POST /_sim/faults
  -h, --help                   this text
";

/// More servers than any test of a client needs.
const MAX_SERVERS: usize = 16;

struct Arguments {
    options: ApiServerOptions,
    listen: Vec<SocketAddr>,
    servers: usize,
    kubeconfig: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            // A reader such as `head` may have left.
            std::io::stdout().write_all(USAGE.as_bytes()).ok();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error:#}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result =
        runtime.context("cannot start the runtime").and_then(|runtime| runtime.block_on(run(arguments)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let servers = start(&arguments).await?;
    for (number, (server, _)) in servers.iter().enumerate() {
        if let Some(path) = &arguments.kubeconfig {
            write_kubeconfig(&of_server(path, number), server)?;
        }
        println!("{}", server.url());
    }
    let stop = CancellationToken::new();
    let serving = servers.into_iter().map(|(_, serving)| serving.serve(stop.clone()));
    let mut serving = futures::future::try_join_all(serving);
    tokio::select! {
        ended = &mut serving => return Ok(ended.map(drop)?),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.cancel();
    Ok(serving.await.map(drop)?)
}

/// Starts the first server, and the others beside it.
async fn start(arguments: &Arguments) -> anyhow::Result<Vec<(ApiServer, ServerTask)>> {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut listen = arguments.listen.iter().copied().chain(std::iter::repeat(anywhere));
    let options = ApiServerOptions { listen: listen.next().unwrap_or(anywhere), ..arguments.options.clone() };
    let (first, serving) = ApiServer::bind(options).await?;
    let mut servers = vec![(first.clone(), serving)];
    for address in listen.take(arguments.servers - 1) {
        servers.push(first.beside(address).await?);
    }
    Ok(servers)
}

fn of_server(path: &Path, number: usize) -> PathBuf {
    match number {
        0 => path.to_owned(),
        number => PathBuf::from(format!("{}.{number}", path.display())),
    }
}

fn write_kubeconfig(path: &Path, server: &ApiServer) -> anyhow::Result<()> {
    std::fs::write(path, server.kubeconfig()).with_context(|| format!("cannot write {}", path.display()))
}

fn parse(arguments: impl Iterator<Item = String>) -> anyhow::Result<Option<Arguments>> {
    let mut parsed =
        Arguments { options: ApiServerOptions::default(), listen: Vec::new(), servers: 1, kubeconfig: None };
    let options = &mut parsed.options;
    let (mut certificate, mut key, mut authority, mut http2) = (None, None, None, true);
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value = || match inline.clone().or_else(|| arguments.next()) {
            Some(value) => Ok(value),
            None => bail!("{name} needs a value"),
        };
        match name.as_str() {
            "-h" | "--help" => return Ok(None),
            "--enforce-rbac" => options.enforce_rbac = true,
            "--hooks" => options.hooks = true,
            "--listen" => parsed.listen.push(number(&name, &value()?)?),
            "--servers" => {
                parsed.servers = number(&name, &value()?)?;
                if !(1..=MAX_SERVERS).contains(&parsed.servers) {
                    bail!("--servers cannot be {}: 1 to {MAX_SERVERS}", parsed.servers);
                }
            }
            "--kubeconfig-out" => parsed.kubeconfig = Some(value()?.into()),
            "--bookmark-every" => options.bookmark_every = duration(&name, &value()?)?,
            "--future-wait" => options.future_wait = duration(&name, &value()?)?,
            "--watch-timeout" => options.watch_timeout = duration(&name, &value()?)?,
            "--history-age" => {
                options.history.age = Some(duration(&name, &value()?)?).filter(|age| !age.is_zero());
            }
            "--history-versions" => options.history.versions = number(&name, &value()?)?,
            "--watch-window" => options.history.watch_window = number(&name, &value()?)?,
            "--seed" => options.seed = Some(number(&name, &value()?)?),
            "--state" => options.state = Some(value()?.into()),
            "--opaque-versions" => options.versions = VersionStyle::Opaque,
            "--tls-cert" => certificate = Some(value()?.into()),
            "--tls-key" => key = Some(value()?.into()),
            "--tls-ca" => authority = Some(value()?.into()),
            "--http1-only" => http2 = false,
            "--fault" => options.faults.push(fault(&value()?)?),
            other => bail!("unknown argument {other}"),
        }
    }
    options.tls = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(TlsOptions { certificate, key, authority, http2 }),
        (None, None) => None,
        _ => bail!("--tls-cert and --tls-key go together"),
    };
    Ok(Some(parsed))
}

fn fault(text: &str) -> anyhow::Result<InjectedFault> {
    let document = serde_json::from_str(text).with_context(|| format!("--fault {text}"))?;
    InjectedFault::parse(&document).map_err(|why| anyhow::anyhow!("--fault {text}: {why}"))
}

fn number<T>(name: &str, text: &str) -> anyhow::Result<T>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().with_context(|| format!("{name} cannot be {text}"))
}

fn duration(name: &str, text: &str) -> anyhow::Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = number(name, &text[..digits])?;
    Ok(match &text[digits..] {
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        "m" => Duration::from_secs(count * 60),
        "h" => Duration::from_secs(count * 3600),
        unit => bail!("{name} cannot be {text}: the unit {unit:?} is none of ms, s, m, h"),
    })
}
