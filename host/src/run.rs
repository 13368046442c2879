//! `kubewitness run`: the controller against any API server.

use anyhow::Result;
use kubewitness_watch::{ConnectOptions, connect};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::cli::RunArgs;
use crate::commands::{End, Ended};
use crate::controller::{ConfigFrom, Controller, Options, modules};
use crate::logs;
use crate::tasks::{Fate, Tasks, signals};

pub async fn run(args: RunArgs) -> Ended {
    logs::to_stderr(&args.log)?;
    let (stop, abort) = (CancellationToken::new(), CancellationToken::new());
    let listening = Tasks::new(stop.clone());
    listening.spawn("signals", Fate::Finite, signals(stop.clone(), abort.clone()));
    let result = run_until(args, stop, abort.clone()).await;
    abort.cancel();
    listening.finish().await?;
    result.map(|()| End::Fine)
}

async fn run_until(args: RunArgs, stop: CancellationToken, abort: CancellationToken) -> Result<()> {
    let options = ConnectOptions { kubeconfig: args.kubeconfig, context: args.context };
    let connection = connect(&options).await?;
    let config = match args.config {
        Some(folder) => ConfigFrom::Folder(folder),
        None => ConfigFrom::Namespace(args.namespace.unwrap_or_else(|| connection.namespace.clone())),
    };
    info!(server = origin(&connection.server), "witnessing");
    let options = Options {
        connection,
        config,
        data: args.data,
        listen: args.listen,
        health_listen: args.health_listen,
        plugin_folders: modules::default_folders(args.plugins.plugins),
    };
    let controller = Controller::start(options, stop, abort).await?;
    info!("portal and API on http://{}", controller.address);
    controller.finish().await
}

/// Without path and user: what follows the host may be a secret.
fn origin(server: &str) -> String {
    reqwest::Url::parse(server).map_or_else(|_| "unknown".into(), |url| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_may_be_a_secret_in_an_address_is_not_told() {
        assert_eq!(super::origin("https://user:word@host:6443/_token/abc"), "https://host:6443");
    }
}
