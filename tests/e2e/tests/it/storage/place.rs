//! A database of one test's own with the plugin `persistence` before it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    DatabaseServer, Kubewitness, Platform, PlatformAddress, RunOptions, Scratch, Simulator, SqlService,
    database_of, project_root, until,
};

use crate::storage::databases::{ADDRESS, PERSISTENCE, configuration};
use crate::support::{plugin_manifest, write};

pub const WITHIN: Duration = Duration::from_secs(180);
/// A database that a test may use as the plugin and as its administrator.
pub struct DatabasePlace<'s> {
    pub scratch: &'s Scratch,
    /// `None`: SQLite.
    pub server: Option<(DatabaseServer, String)>,
    /// Below the data folder.
    pub file: &'static str,
}

impl<'s> DatabasePlace<'s> {
    pub fn new(scratch: &'s Scratch, server: Option<DatabaseServer>) -> Result<Self> {
        let server = server.map(|server| server.create_database().map(|url| (server, url))).transpose()?;
        Ok(Self { scratch, server, file: "platform.db" })
    }

    pub fn data(&self) -> Result<PathBuf> {
        self.scratch.folder("data")
    }

    pub fn platform(&self) -> Result<PlatformAddress> {
        Ok(match &self.server {
            Some((_, url)) => PlatformAddress::Server(url.clone()),
            None => PlatformAddress::File(self.data()?.join(self.file)),
        })
    }

    pub fn service(&self) -> Option<SqlService> {
        self.server.as_ref().map(|(server, _)| server.service())
    }

    /// The name of its database, on a server.
    pub fn database(&self) -> Result<&str> {
        let (_, url) = self.server.as_ref().context("SQLite has no databases")?;
        Ok(database_of(url))
    }

    fn folder(&self) -> PathBuf {
        let dialect = self.service().map_or("sqlite", SqlService::scheme);
        project_root().join("deploy").join("schema").join(dialect)
    }

    pub async fn administrator(&self) -> Result<Platform> {
        match &self.server {
            Some((_, url)) => Platform::connect(url).await,
            None => Platform::create(&self.data()?.join(self.file)).await,
        }
    }

    /// Runs a file of `deploy/schema`.
    pub async fn apply(&self, file: &str) -> Result<()> {
        let path = self.folder().join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        self.administrator().await?.run(&text).await
    }

    pub async fn texts(&self, query: &str) -> Result<Vec<String>> {
        self.administrator().await?.texts(query).await
    }

    /// Waits until the query gives these texts.
    pub async fn comes(&self, query: &str, expected: &[&str]) -> Result<()> {
        let mut last = String::new();
        let came = until(WITHIN, "the rows", async || {
            let found = self.texts(query).await;
            last = format!("{found:?}");
            Ok(found.is_ok_and(|found| found == expected).then_some(()))
        });
        came.await.with_context(|| format!("{query}: {last}, and not {expected:?}"))
    }

    /// The host with the plugin, with this `spec.config` in one line.
    pub async fn start(&self, simulator: &Simulator, name: &str, config: &str) -> Result<Kubewitness> {
        self.start_as(simulator, name, config, None).await
    }

    /// The same with the address of another user.
    pub async fn start_as(
        &self,
        simulator: &Simulator,
        name: &str,
        config: &str,
        url: Option<&str>,
    ) -> Result<Kubewitness> {
        let options = self.options(simulator, config, url)?;
        let mut kubewitness = Kubewitness::start(name, &options, self.scratch.path())?;
        kubewitness.answers().await?;
        Ok(kubewitness)
    }

    /// Writes the configuration, and says how the host is started with it.
    pub fn options(&self, simulator: &Simulator, config: &str, url: Option<&str>) -> Result<RunOptions> {
        let database = match &self.server {
            Some((server, _)) => format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", server.service().scheme()),
            None => format!("sqlite: {{path: {}}}", self.file),
        };
        let folder = configuration(self.scratch, &database)?;
        let manifest = format!("{PERSISTENCE}\nconfig: {config}");
        write(&folder, "persistence.yaml", &plugin_manifest("persistence", &manifest))?;
        Ok(RunOptions { env: self.address(url), ..simulator.run_options(self.scratch, folder)? })
    }

    /// The variable that holds the address.
    pub fn address(&self, url: Option<&str>) -> Vec<(String, String)> {
        let own = self.server.as_ref().map(|(_, url)| url.as_str());
        url.or(own).map(|url| (ADDRESS.to_owned(), url.to_owned())).into_iter().collect()
    }

    /// A user of this test's own, since others share the server.
    pub fn guest(&self) -> Result<String> {
        Ok(format!("guest_{}", self.database()?))
    }

    /// The address for a user with the password `plain`.
    pub fn url_of(&self, user: &str) -> Result<String> {
        let (server, url) = self.server.as_ref().context("SQLite has no users")?;
        let (_, rest) = url.split_once('@').context("an address has a user")?;
        Ok(format!("{}://{user}:plain@{rest}", server.service().scheme()))
    }
}

/// Waits until the plugin says this of itself. No state is parked meanwhile.
pub async fn says(kubewitness: &mut Kubewitness, words: &str) -> Result<()> {
    let said = kubewitness.status_when(WITHIN, words, |status| {
        status.plugins.iter().any(|plugin| plugin.message.as_deref().unwrap_or_default().contains(words))
    });
    let status = said.await?;
    ensure!(status.plugins.iter().all(|plugin| plugin.dead == 0), "states were parked: {:?}", status.plugins);
    Ok(())
}

/// Where a test has its files, whatever the database.
pub fn again(name: &str) -> String {
    format!("again with `cargo xtask test {name}`")
}
