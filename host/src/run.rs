//! `kubewitness run`: the controller against any API server.

use anyhow::{Result, bail};
use kubewitness_core::config::is_name;
use kubewitness_watch::{ConnectOptions, connect_to_server};
use tracing::info;

use crate::access;
use crate::cli::RunArgs;
use crate::commands::{CommandEnd, CommandResult};
use crate::config::component;
use crate::controller::{self, ConfigFrom, ControllerOptions, LeaseName, RunningController};
use crate::journal_place;
use crate::process::logs;
use crate::process::signals::{self, EndRequests};
use crate::process::timers::ControllerTimers;

pub async fn run(args: RunArgs) -> CommandResult {
    let ends = EndRequests::new();
    signals::listen(&ends).await?;
    logs::to_stderr(&args.log, args.access.log_reads)?;
    journal_place::refuse_a_playgrounds(&args.data)?;
    let controller = tokio::select! {
        biased;
        // Nothing was journaled yet, so nothing must be drained.
        () = ends.asked.cancelled() => return Ok(CommandEnd::Fine),
        controller = start(args, &ends) => controller?,
    };
    let Some(controller) = controller else { return Ok(CommandEnd::Fine) };
    info!("portal and API on {}://{}", controller.scheme, controller.address);
    controller.finish_draining().await.map(|()| CommandEnd::Fine)
}

async fn start(args: RunArgs, ends: &EndRequests) -> Result<Option<RunningController>> {
    let journal = journal_place::journal_place(&args.journal, &args.data)?;
    if args.lease.is_some() && journal.kind() == journal_place::EMBEDDED {
        bail!(
            "replicas can't share an embedded journal: name a database of a server with --journal or --journal-file, \
             or leave out --lease"
        );
    }
    let options = ConnectOptions { kubeconfig: args.kubeconfig, context: args.context };
    let connection = connect_to_server(&options).await?;
    let own = || args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let lease = args.lease.as_deref().map(|lease| lease_name(lease, own)).transpose()?;
    let config = match args.config {
        Some(folder) => ConfigFrom::Folder(folder),
        None => ConfigFrom::Namespace(own()),
    };
    let (is_replica, timers) = (lease.is_some(), ControllerTimers::of_process()?);
    let doors = access::open_portal_doors(
        args.access,
        args.listen,
        &connection,
        &args.data,
        is_replica,
        timers.answers,
    )
    .await?;
    info!(server = origin(&connection.server), "connected to the API server");
    let options = ControllerOptions {
        connection,
        journal,
        config,
        data: args.data,
        listener: controller::listen_on(args.listen)?,
        doors,
        health_listen: args.health_listen,
        plugin_folders: component::default_folders(args.plugins.plugins),
        lease,
        timers,
    };
    RunningController::start(options, ends.begun.clone(), ends.abort.clone()).await
}

/// `[NAMESPACE/]NAME`
fn lease_name(text: &str, own: impl FnOnce() -> String) -> Result<LeaseName> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (namespace.to_owned(), name),
        None => (own(), text),
    };
    if !is_name(&namespace) || !is_name(name) {
        bail!(
            "--lease {text}: name a Lease as NAME or NAMESPACE/NAME, in lower case letters, digits and dashes"
        );
    }
    Ok(LeaseName { namespace, name: name.to_owned() })
}

/// Without path and user, which may be secret.
fn origin(server: &str) -> String {
    reqwest::Url::parse(server).map_or_else(|_| "unknown".into(), |url| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_lease_is_in_the_controllers_own_namespace_unless_it_says_another() {
        let of = |text| super::lease_name(text, || "own".into()).map(|lease| (lease.namespace, lease.name));
        let pair = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        assert_eq!(of("one").unwrap(), pair("own", "one"));
        assert_eq!(of("there/one").unwrap(), pair("there", "one"));
        for wrong in ["", "/", "a/", "/a", "a/b/c", "A", "a b"] {
            assert!(of(wrong).unwrap_err().to_string().contains("NAMESPACE/NAME"), "{wrong}");
        }
    }

    #[test]
    fn what_may_be_a_secret_in_an_address_is_not_told() {
        assert_eq!(super::origin("https://user:word@host:6443/_token/abc"), "https://host:6443");
    }
}
