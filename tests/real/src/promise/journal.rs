//! A journal in PostgreSQL, whose server can be lost to a standby. The controller knows one address, behind which the
//! servers change.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{DatabaseServer, SqlService};

use crate::cluster::LoadBalancer;

pub(super) struct JournalServers {
    primary: DatabaseServer,
    standby: Option<DatabaseServer>,
    balancer: LoadBalancer,
}

fn address_of(server: &DatabaseServer) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}

impl JournalServers {
    /// Starts a server with an empty database, and writes its address into the file, which `--journal-file` takes.
    pub(super) async fn start(file: &Path) -> Result<Self> {
        let primary =
            DatabaseServer::start(SqlService::Postgres, &[])?.context("PostgreSQL is not installed")?;
        let address = address_of(&primary);
        let balancer = LoadBalancer::to(address).await?;
        let url = primary.create_database()?.replace(&address.to_string(), &balancer.address().to_string());
        fs::write(file, url).with_context(|| format!("writing {}", file.display()))?;
        Ok(Self { primary, standby: None, balancer })
    }

    /// The server gets a standby, for which each commit waits from now on.
    pub(super) fn start_standby(&mut self) -> Result<()> {
        ensure!(self.standby.is_none(), "there is a standby already");
        self.standby = Some(self.primary.start_standby()?);
        Ok(())
    }

    /// Kills the server, and lets its standby take over.
    pub(super) fn fail_over(&mut self) -> Result<()> {
        let standby = self.standby.take().context("a standby")?;
        self.primary.kill()?;
        self.balancer.cut();
        standby.promote()?;
        self.balancer.route(&[address_of(&standby)]);
        self.primary = standby;
        Ok(())
    }
}
