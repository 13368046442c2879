//! Versions of the plugin `persistence` take turns on one database: each row is there once, and an older version leaves
//! newer tables alone. The older ones are components that were built then.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    DatabaseServer, Kubewitness, RunOptions, Scratch, Simulator, SqlService, in_scratch, plugins_folder,
    project_root, seed, skip,
};

use crate::storage::databases::PERSISTENCE;
use crate::storage::place::{DatabasePlace, WITHIN, again, says};
use crate::support::{
    BackgroundLoad, SOURCES, create_job, everything_arrives, plugin_manifest, proofs_with, same_story_in,
    simulator, write,
};

const TURNS: usize = 8;
const RATE: f64 = 20.0;

/// A component, by the name of its file.
#[derive(Clone, Copy)]
enum ComponentVersion {
    /// Writes version 1 of the tables, over interface 1.0.
    First,
    /// The first one that wrote the tables as they are.
    Second,
    Built,
}

impl ComponentVersion {
    const ALL: [Self; 3] = [Self::First, Self::Second, Self::Built];

    fn file(self) -> &'static str {
        match self {
            Self::First => "tables-1.wasm",
            Self::Second => "tables-2.wasm",
            Self::Built => "persistence.wasm",
        }
    }

    fn folder(self) -> Result<PathBuf> {
        match self {
            Self::First | Self::Second => Ok(project_root().join("tests/e2e/testdata/persistence")),
            Self::Built => plugins_folder(),
        }
    }

    fn manifest(self, config: &str) -> String {
        let spec = PERSISTENCE.replace("persistence.wasm", self.file());
        plugin_manifest("persistence", &format!("{spec}\nconfig: {config}"))
    }
}

/// A folder with all of them.
fn versions(scratch: &Scratch) -> Result<PathBuf> {
    let folder = scratch.folder("modules")?;
    for version in ComponentVersion::ALL {
        let from = version.folder()?.join(version.file());
        std::fs::copy(&from, folder.join(version.file())).with_context(|| from.display().to_string())?;
    }
    Ok(folder)
}

/// The host before a database in which one version has written one row, and a load of states.
struct TurnLoad<'p, 's> {
    place: &'p DatabasePlace<'s>,
    options: RunOptions,
    simulator: Simulator,
    load: BackgroundLoad,
    kubewitness: Kubewitness,
    /// The digest of the version before, and the states that it had handed over.
    before: (String, u64),
}

impl<'p, 's> TurnLoad<'p, 's> {
    async fn begin(place: &'p DatabasePlace<'s>, version: ComponentVersion, config: &str) -> Result<Self> {
        let simulator = simulator(place.scratch).await?;
        let mut options = place.options(&simulator, "{}", None)?;
        options.plugins = Some(versions(place.scratch)?);
        let folder = options.config.clone().context("a folder")?;
        write(&folder, "persistence.yaml", &version.manifest(config))?;
        let mut kubewitness = Kubewitness::start("run", &options, place.scratch.path())?;
        kubewitness.answers().await?;
        kubewitness.listed(SOURCES.len(), WITHIN).await?;
        create_job(&simulator, "before").await?;
        place.comes("SELECT name FROM object_history", &["before"]).await?;
        let before = active(&kubewitness.caught_up(WITHIN).await?).context("an active plugin")?;
        place.administrator().await?.note_effects().await?;
        let load = BackgroundLoad::start(&simulator, seed(), RATE);
        Ok(Self { place, options, simulator, load, kubewitness, before })
    }

    fn select(&self, version: ComponentVersion, config: &str) -> Result<()> {
        let folder = self.options.config.as_deref().context("a folder")?;
        write(folder, "persistence.yaml", &version.manifest(config))
    }

    /// Waits until the version that was selected has handed over more.
    async fn takes_over(&mut self) -> Result<()> {
        let (digest, delivered) = self.before.clone();
        let took_over =
            |status: &StatusView| active(status).is_some_and(|now| now.0 != digest && now.1 > delivered);
        let status = self.kubewitness.status_when(WITHIN, "the other version", took_over).await?;
        self.before = active(&status).context("an active plugin")?;
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        self.kubewitness.kill().await?;
        self.kubewitness = Kubewitness::start("again", &self.options, self.place.scratch.path())?;
        self.kubewitness.answers().await?;
        Ok(())
    }

    /// Each version of each object is there once and in order, and was written once.
    async fn end(mut self) -> Result<()> {
        let report = self.load.stop().await?;
        ensure!(report.errors == 0, "the workload met {} errors", report.errors);
        everything_arrives(&mut self.kubewitness, &self.simulator, &self.place.platform()?, 1).await?;
        self.kubewitness.stop().await?;
        same_story_in(&self.simulator, self.place.administrator().await?).await?;
        self.place.administrator().await?.one_effect_each(1).await?;
        proofs_with(&self.options.data, &self.options.env).await
    }
}

/// The digest of the version that is active, and how many states were handed over.
fn active(status: &StatusView) -> Option<(String, u64)> {
    let plugin = status.plugins.first().filter(|plugin| plugin.state == "active")?;
    Some((plugin.digest.clone(), plugin.delivered))
}

async fn versions_in_turn_write_each_row_once(place: DatabasePlace<'_>) -> Result<()> {
    // Each version has columns of its own, so that each turn also looks at the tables again.
    let version = |turn: usize| match turn % 2 {
        0 => (
            ComponentVersion::Second,
            "{columns: [{name: team, pointer: /metadata/labels/team, type: text}]}",
        ),
        _ => (
            ComponentVersion::Built,
            "{columns: [{name: pods, pointer: /spec/parallelism, type: integer}], documents: pruned, index: true}",
        ),
    };
    let (first, config) = version(0);
    let mut turns = TurnLoad::begin(&place, first, config).await?;
    for turn in 1..=TURNS {
        let (version, config) = version(turn);
        turns.select(version, config)?;
        turns.takes_over().await?;
        if turn == TURNS / 2 {
            turns.kill().await?;
        }
    }
    turns.end().await
}

async fn rows_of_the_first_version_stay_and_it_waits_before_newer_tables(
    place: DatabasePlace<'_>,
) -> Result<()> {
    let mut turns = TurnLoad::begin(&place, ComponentVersion::First, "{}").await?;
    let named = "SELECT DISTINCT kind FROM object_history WHERE owner_name IS NOT NULL";
    place.comes(named, &["Pod"]).await?;
    turns.select(ComponentVersion::Built, "{}")?;
    turns.kill().await?;
    turns.takes_over().await?;
    let linked = "SELECT DISTINCT kind FROM object_history WHERE owner_uid IS NOT NULL";
    place.comes(linked, &["Pod"]).await?;
    turns.select(ComponentVersion::First, "{}")?;
    says(&mut turns.kubewitness, "the tables have version 2, this plugin writes version 1").await?;
    turns.kill().await?;
    says(&mut turns.kubewitness, "the tables have version 2, this plugin writes version 1").await?;
    turns.before.0.clear();
    turns.select(ComponentVersion::Built, "{}")?;
    turns.takes_over().await?;
    turns.end().await?;
    let unlinked =
        "SELECT DISTINCT kind FROM object_history WHERE owner_name IS NOT NULL AND owner_uid IS NULL";
    ensure!(place.texts(unlinked).await? == ["Pod"], "rows of the first version are gone");
    Ok(())
}

async fn an_older_version_leaves_newer_tables_alone_and_goes_on_with_its_own(
    place: DatabasePlace<'_>,
) -> Result<()> {
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

            async fn with(test: &'static str, run: impl AsyncFnOnce(DatabasePlace<'_>) -> Result<()>) {
                let service: Option<SqlService> = $service;
                let server = match service.map(DatabaseServer::shared) {
                    None => None,
                    Some(started) => match started.expect("the server starts") {
                        None => return skip(test, &format!("{service:?} is not installed")),
                        server => server,
                    },
                };
                in_scratch("turns", async |scratch| {
                    run(DatabasePlace::new(scratch, server)?).await.with_context(|| again(concat!("turns::", stringify!($name))))
                })
                .await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn versions_in_turn_write_each_row_once() {
                with("versions_in_turn_write_each_row_once", super::versions_in_turn_write_each_row_once).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn rows_of_the_first_version_stay_and_it_waits_before_newer_tables() {
                let test = "rows_of_the_first_version_stay_and_it_waits_before_newer_tables";
                with(test, super::rows_of_the_first_version_stay_and_it_waits_before_newer_tables).await;
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
    postgres Some(SqlService::Postgres),
    mariadb Some(SqlService::MariaDb),
    mysql Some(SqlService::MySql)
);
