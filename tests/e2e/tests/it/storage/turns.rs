//! Versions of the plugin `persistence` take turns on one database: each row is there once, and an older version leaves
//! newer tables alone.

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{DatabaseServer, Kubewitness, Service, in_scratch, seed, skip};

use crate::storage::databases::{PERSISTENCE, everything_arrives};
use crate::storage::place::{Place, WITHIN, again, says};
use crate::support::{
    Load, SOURCES, components, create_job, plugin_manifest, proofs_with, same_story_in, simulator, write,
};

const TURNS: usize = 8;
const RATE: f64 = 20.0;

/// The version that is active.
fn digest(status: &StatusView) -> Option<&str> {
    let plugin = status.plugins.first().filter(|plugin| plugin.state == "active")?;
    Some(plugin.digest.as_str())
}

/// Each version has columns of its own, so that each turn also looks at the tables again.
fn manifest(turn: usize) -> String {
    let config = match turn % 2 {
        0 => "{columns: [{name: team, pointer: /metadata/labels/team, type: text}]}",
        _ => {
            "{columns: [{name: pods, pointer: /spec/parallelism, type: integer}], documents: pruned, index: true}"
        }
    };
    let spec = PERSISTENCE.replace("persistence.wasm", &format!("persistence-{}.wasm", turn % 2));
    plugin_manifest("persistence", &format!("{spec}\nconfig: {config}"))
}

async fn versions_in_turn_write_each_row_once(place: Place<'_>) -> Result<()> {
    let simulator = simulator(place.scratch).await?;
    let mut options = place.options(&simulator, "{}", None)?;
    options.plugins = Some(components(place.scratch, "persistence")?);
    let folder = options.config.clone().context("a folder")?;
    write(&folder, "persistence.yaml", &manifest(0))?;
    let mut kubewitness = Kubewitness::start("run", &options, place.scratch.path())?;
    kubewitness.answers().await?;
    kubewitness.listed(SOURCES.len(), WITHIN).await?;
    create_job(&simulator, "before").await?;
    place.comes("SELECT name FROM object_history", &["before"]).await?;
    let status = kubewitness.caught_up(WITHIN).await?;
    let mut before = (digest(&status).unwrap_or_default().to_owned(), status.plugins[0].delivered);
    place.administrator().await?.note_effects().await?;
    let load = Load::start(&simulator, seed(), RATE);
    for turn in 1..=TURNS {
        write(&folder, "persistence.yaml", &manifest(turn))?;
        let took_over = |status: &StatusView| {
            let delivered = status.plugins.first().map_or(0, |plugin| plugin.delivered);
            digest(status).is_some_and(|digest| digest != before.0) && delivered > before.1
        };
        let status = kubewitness.status_when(WITHIN, "the other version", took_over).await?;
        before = (digest(&status).unwrap_or_default().to_owned(), status.plugins[0].delivered);
        if turn == TURNS / 2 {
            kubewitness.kill().await?;
            kubewitness = Kubewitness::start("again", &options, place.scratch.path())?;
            kubewitness.answers().await?;
        }
    }
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    everything_arrives(&mut kubewitness, &simulator).await?;
    kubewitness.stop().await?;
    same_story_in(&simulator, place.administrator().await?).await?;
    place.administrator().await?.one_effect_each(1).await?;
    proofs_with(&options.data, &options.env).await
}

async fn an_older_version_leaves_newer_tables_alone_and_goes_on_with_its_own(place: Place<'_>) -> Result<()> {
    let simulator = simulator(place.scratch).await?;
    let mut kubewitness = place.start(&simulator, "old", "{}").await?;
    create_job(&simulator, "a").await?;
    place.comes("SELECT name FROM object_history", &["a"]).await?;
    kubewitness.stop().await?;
    // As a newer version does, which only adds.
    let newer = "ALTER TABLE object_history ADD COLUMN newer BIGINT; INSERT INTO object_schema VALUES (3)";
    place.administrator().await?.run(newer).await?;
    create_job(&simulator, "b").await?;
    let mut kubewitness = place.start(&simulator, "old-again", "{}").await?;
    says(&mut kubewitness, "the tables have version 3, this plugin writes version 2").await?;
    let told = kubewitness.status().await?.plugins[0].message.clone().unwrap_or_default();
    ensure!(told.contains("run the newer plugin") && told.contains("`prefix`"), "no way out is told: {told}");
    ensure!(place.texts("SELECT name FROM object_history").await? == ["a"], "newer tables were written");
    kubewitness.stop().await?;
    // The newer version goes on. It may write what the older one left waiting.
    place.administrator().await?.run("DELETE FROM object_schema WHERE version = 3").await?;
    let mut kubewitness = place.start(&simulator, "new", "{}").await?;
    place.comes("SELECT name FROM object_history WHERE newer IS NULL ORDER BY name", &["a", "b"]).await?;
    let status = kubewitness.caught_up(WITHIN).await?;
    ensure!(status.plugins.iter().all(|plugin| plugin.dead == 0), "states were parked: {:?}", status.plugins);
    kubewitness.stop().await
}

macro_rules! in_turn_on {
    ($($name:ident $service:expr),*) => {
        $(mod $name {
            use super::*;

            async fn with(test: &'static str, run: impl AsyncFnOnce(Place<'_>) -> Result<()>) {
                let service: Option<Service> = $service;
                let server = match service.map(|service| DatabaseServer::start(service, &[])) {
                    None => None,
                    Some(started) => match started.expect("the server starts") {
                        None => return skip(test, &format!("{service:?} is not installed")),
                        server => server,
                    },
                };
                in_scratch("turns", async |scratch| {
                    run(Place::new(scratch, server)?).await.with_context(|| again(concat!("turns::", stringify!($name))))
                })
                .await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn versions_in_turn_write_each_row_once() {
                with("versions_in_turn_write_each_row_once", super::versions_in_turn_write_each_row_once).await;
            }

            #[tokio::test]
            async fn an_older_version_leaves_newer_tables_alone_and_goes_on_with_its_own() {
                let test = "an_older_version_leaves_newer_tables_alone_and_goes_on_with_its_own";
                with(test, super::an_older_version_leaves_newer_tables_alone_and_goes_on_with_its_own).await;
            }
        })*
    };
}

in_turn_on!(
    sqlite None,
    postgres Some(Service::Postgres),
    mariadb Some(Service::MariaDb),
    mysql Some(Service::MySql)
);
