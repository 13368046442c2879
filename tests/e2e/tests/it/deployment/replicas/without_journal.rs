//! A leader that has lost its way to the journal leaves the Lease to a replica that has one.

use std::sync::Arc;

use kubewitness_harness::TestWire;
use reqwest::Url;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_no_longer_reaches_the_journal_leaves_the_lease_to_a_replica_that_does() {
    let Some(server) = shared_server(SqlService::Postgres, "replicas::without_journal") else { return };
    in_scratch("replicas-cut-off", async |scratch| {
        let world = ReplicaWorld::new(scratch, server).await?;
        let (load, before) = world.begin().await?;
        let (wire, wired) = wired(&world).await?;
        let mut leader = Kubewitness::start("run-wired", &wired, scratch.path())?;
        dispatcher(from_mut(&mut leader)).await?;
        let mut other = world.start("run-other")?;
        other.answers().await?;
        world.grows("the history to grow").await?;
        wire.shut();
        wire.cut();
        dispatcher(from_mut(&mut other)).await?;
        world.grows("the other one to go on").await?;
        let lease = world.lease().await?;
        let name = replica(&other.status().await?)?.name.clone();
        ensure!(lease["spec"]["holderIdentity"] == name, "{lease}");
        ensure!(leader.process().ended()?.is_none(), "the leader has ended: {}", leader.process().say());
        leader.kill().await?;

        let report = load.stop().await?;
        ensure!(report.errors == 0, "the workload met {} errors", report.errors);
        world.everything_arrives(&mut other).await?;
        other.stop().await?;
        world.proves(before).await
    })
    .await;
}

/// How a replica is started whose way to the journal can be cut.
async fn wired(world: &ReplicaWorld<'_>) -> Result<(Arc<TestWire>, RunOptions)> {
    let mut address: Url = std::fs::read_to_string(world.scratch.path().join("journal-address"))?.parse()?;
    let server = (address.host_str().context("a host")?.to_owned(), address.port().context("a port")?);
    let server = tokio::net::lookup_host(server).await?.next().context("the server's address")?;
    let wire = TestWire::to(server).await?;
    address.set_port(Some(wire.address().port())).ok().context("a port")?;
    address.set_host(Some("127.0.0.1"))?;
    write(world.scratch.path(), "wired-address", address.as_str())?;
    let file = world.scratch.path().join("wired-address").to_string_lossy().into_owned();
    let args = ["--journal-file", &file, "--lease", LEASE].map(String::from).to_vec();
    Ok((wire, RunOptions { args, data: world.scratch.folder("run-wired")?, ..world.options.clone() }))
}
