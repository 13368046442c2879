//! Several replicas witness into one journal, and one of them hands states to plugins: whichever is killed
//! or stopped, every version is there once and in order, with one effect each.

mod followers;
mod without_journal;

use std::collections::BTreeSet;
use std::slice::from_mut;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::views::{PluginView, ReplicaView, SourceView, StatusView};
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, PlatformAddress, ProcessEnd, RunOptions, Scratch, Simulator,
    SimulatorOptions, SqlService, command, command_json, command_json_in, http, in_scratch, in_time, kills,
    seed, shared_server, skip, until,
};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use serde_json::Value;

use crate::plugins::probing::{FOR_PROBE, manifest};
use crate::storage::databases::{ADDRESS, configuration};
use crate::support::{
    BackgroundLoad, SOURCES, create_job, everything_arrives, lists, same_story_in, version, write,
};

/// Each way in which one can go comes once.
const ROUNDS: u64 = 5;
const RATE: f64 = 20.0;
/// A Lease is another's after 15 seconds at most.
const WITHIN: Duration = Duration::from_secs(180);
const LEASE: &str = "default/kubewitness";
const LEASE_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/kubewitness";

struct ReplicaWorld<'a> {
    scratch: &'a Scratch,
    simulator: Simulator,
    options: RunOptions,
    /// Where the persistence plugin writes.
    platform: PlatformAddress,
}

impl<'a> ReplicaWorld<'a> {
    async fn new(scratch: &'a Scratch, server: &DatabaseServer) -> Result<Self> {
        Self::with_bookmarks(scratch, server, "1s").await
    }

    async fn with_bookmarks(scratch: &'a Scratch, server: &DatabaseServer, every: &str) -> Result<Self> {
        let simulated = SimulatorOptions {
            bookmark_every: Some(every.to_owned()),
            more_servers: 1,
            ..SimulatorOptions::keeping_history()
        };
        let simulator = Simulator::start(scratch.path(), &simulated).await?;
        let (platform, journal) = (server.create_database()?, server.create_database()?);
        write(scratch.path(), "journal-address", &journal)?;
        let file = scratch.path().join("journal-address").to_string_lossy().into_owned();
        let database = format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", server.service().scheme());
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(configuration(scratch, &database)?),
            args: ["--journal-file", &file, "--lease", LEASE].map(String::from).to_vec(),
            env: vec![(ADDRESS.to_owned(), platform.clone())],
            ..RunOptions::default()
        };
        Ok(Self { scratch, simulator, options, platform: PlatformAddress::Server(platform) })
    }

    /// With a data folder of its own, as a pod has one.
    fn start(&self, name: &str) -> Result<Kubewitness> {
        let options = RunOptions { data: self.scratch.folder(name)?, ..self.options.clone() };
        Kubewitness::start(name, &options, self.scratch.path())
    }

    /// The same, at one of the API servers.
    fn start_at(&self, server: usize, name: &str) -> Result<Kubewitness> {
        let kubeconfig = self.simulator.kubeconfig_at(server);
        let options = RunOptions { kubeconfig, data: self.scratch.folder(name)?, ..self.options.clone() };
        Kubewitness::start(name, &options, self.scratch.path())
    }

    /// Waits until more is in the history than when it was asked.
    async fn grows(&self, why: &str) -> Result<()> {
        self.platform.grows(WITHIN, why).await
    }

    /// A load, and how many rows there are when the notes of effects begin.
    async fn begin(&self) -> Result<(BackgroundLoad, i64)> {
        BackgroundLoad::start_noted(self.start("run-first")?, &self.simulator, &self.platform, RATE).await
    }

    async fn lease(&self) -> Result<Value> {
        let (status, lease) = self.simulator.request(Method::GET, LEASE_PATH, None).await?;
        ensure!(status == 200, "the Lease: {status}: {lease}");
        Ok(lease)
    }

    /// As an operator who writes another holder into it. Its holder believes for a moment that it still has it.
    async fn give_the_lease_to(&self, name: &str) -> Result<()> {
        until(WITHIN, "the Lease to have another holder", async || {
            let mut lease = self.lease().await?;
            lease["spec"]["holderIdentity"] = name.into();
            let (status, _) = self.simulator.request(Method::PUT, LEASE_PATH, Some(&lease)).await?;
            // Its holder may have renewed it in between.
            Ok((status == 200).then_some(()))
        })
        .await
    }

    /// Waits until the Lease was renewed several times: there are newer versions, and none of them is of the sources.
    async fn lease_is_renewed(&self) -> Result<()> {
        let mut renewals = BTreeSet::new();
        until(WITHIN, "the Lease to be renewed", async || {
            let (_, lease) = self.simulator.request(Method::GET, LEASE_PATH, None).await?;
            renewals.insert(lease["spec"]["renewTime"].to_string());
            Ok((renewals.len() > 4).then_some(()))
        })
        .await
    }

    /// Every version is handed over, once, by what the status of this replica says.
    async fn everything_arrives(&self, run: &mut Kubewitness) -> Result<()> {
        everything_arrives(run, &self.simulator, &self.platform, 1).await
    }

    /// Every version is in the tables once, the journal proves it, and nothing was tried twice.
    async fn proves(&self, before: i64) -> Result<()> {
        same_story_in(&self.simulator, self.platform.open().await?).await?;
        self.platform.open().await?.one_effect_each(before).await?;
        // Its settings name the granted database as well.
        let data = self.scratch.path().join("run-a").to_string_lossy().into_owned();
        let file = &self.options.args[1];
        let verify = ["journal", "verify", "--data", &data, "-o", "json", "--journal-file", file];
        let journal = command_json_in(&verify, &self.options.env).await?;
        ensure!(journal["ok"] == true, "journal verify said {journal}");
        Ok(())
    }
}

fn replica(status: &StatusView) -> Result<&ReplicaView> {
    status.replica.as_ref().context("the status says nothing of replicas")
}

/// Waits until one of them dispatches; answers which.
async fn dispatcher(runs: &mut [Kubewitness]) -> Result<usize> {
    until(WITHIN, "one of them to dispatch", async || {
        for (index, run) in runs.iter_mut().enumerate() {
            if let Some(ended) = run.process().ended()? {
                bail!("it ended with {ended:?}; {}", run.process().say());
            }
            // One that is stopped or still starts says nothing.
            let asked = in_time(Duration::from_secs(2), run.status()).await;
            let Some(Ok(status)) = asked else { continue };
            // It has the Lease before it has read which plugins there are.
            let runs_all =
                !status.plugins.is_empty() && status.plugins.iter().all(|plugin| plugin.state == "active");
            if replica(&status)?.dispatches && runs_all {
                return Ok(Some(index));
            }
        }
        Ok(None)
    })
    .await
}

async fn survive(scratch: &Scratch, server: &DatabaseServer) -> Result<()> {
    let world = ReplicaWorld::new(scratch, server).await?;
    let (load, before) = world.begin().await?;
    let mut runs = vec![world.start("run-a")?, world.start("run-b")?];
    let mut dice = Dice::new(seed());
    for round in 0..kills(ROUNDS) {
        let leads = dispatcher(&mut runs).await?;
        world.grows("the history to grow").await?;
        dice.pause(700).await;
        let again = format!("run-{round:02}");
        match round % 5 {
            0 => {
                runs[leads].kill().await?;
                runs[leads] = world.start(&again)?;
            }
            // Stopped past its Lease, it goes on beside the next one.
            1 => {
                runs[leads].process().signal("STOP").await?;
                let next = dispatcher(&mut runs).await?;
                ensure!(next != leads, "who is stopped dispatches");
                world.grows("the next one to go on").await?;
                runs[leads].process().signal("CONT").await?;
            }
            // Told to end, it hands over.
            2 => {
                runs[leads].stop().await?;
                runs[leads] = world.start(&again)?;
            }
            // Who stands by may come and go.
            3 => {
                runs[1 - leads].kill().await?;
                runs[1 - leads] = world.start(&again)?;
            }
            _ => {
                for run in &mut runs {
                    run.kill().await?;
                }
                runs = vec![world.start(&again)?, world.start(&format!("{again}-other"))?];
            }
        }
        world.grows(&format!("the history to grow after round {round}")).await?;
    }
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    let leads = dispatcher(&mut runs).await?;
    for run in [leads, 1 - leads] {
        let arrived = world.everything_arrives(&mut runs[run]).await;
        arrived.with_context(|| format!("by what replica {run} says"))?;
    }
    for run in &mut runs {
        run.stop().await?;
    }
    world.proves(before).await
}

async fn on_server(service: SqlService, test: &str) {
    let Some(server) = DatabaseServer::shared(service).expect("the server starts") else {
        return skip(test, &format!("{service} is not installed"));
    };
    in_scratch("replicas", async |scratch| survive(scratch, &server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_has_every_version_once_whichever_replica_is_killed_or_stopped() {
    on_server(SqlService::Postgres, "replicas::postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_has_every_version_once_whichever_replica_is_killed_or_stopped() {
    on_server(SqlService::MariaDb, "replicas::mariadb").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_has_every_version_once_whichever_replica_is_killed_or_stopped() {
    on_server(SqlService::MySql, "replicas::mysql").await;
}

/// Somebody gives the Lease to the other replica, again and again. Jobs are made until that one dispatches, so that either
/// may have some in its hands.
async fn a_lease_that_is_taken_away_doubles_nothing(service: SqlService, test: &str) {
    let Some(server) = shared_server(service, test) else { return };
    in_scratch("replicas-taken", async |scratch| {
        let world = ReplicaWorld::new(scratch, server).await?;
        let mut first = world.start("run-first")?;
        create_job(&world.simulator, "first").await?;
        world.grows("the first row").await?;
        first.stop().await?;
        let before = world.platform.note_effects().await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let mut leads = dispatcher(&mut runs).await?;
        for round in 0..ROUNDS {
            let next = &mut runs[1 - leads];
            let name = replica(&next.listed(SOURCES.len(), WITHIN).await?)?.name.clone();
            let mut jobs = 0;
            until(WITHIN, "the other replica to dispatch", async || {
                jobs += 1;
                // The one that had it may take it back before the other has looked.
                if world.lease().await?["spec"]["holderIdentity"] != name.as_str() {
                    world.give_the_lease_to(&name).await?;
                }
                create_job(&world.simulator, &format!("taken-{round}-{jobs}")).await?;
                Ok(replica(&next.status().await?)?.dispatches.then_some(()))
            })
            .await?;
            dispatcher(from_mut(next)).await?;
            leads = 1 - leads;
        }
        world.everything_arrives(&mut runs[leads]).await?;
        for run in &mut runs {
            run.stop().await?;
        }
        world.proves(before).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_taken_away_doubles_nothing_in_postgres() {
    a_lease_that_is_taken_away_doubles_nothing(SqlService::Postgres, "replicas::taken_postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_taken_away_doubles_nothing_in_mariadb() {
    a_lease_that_is_taken_away_doubles_nothing(SqlService::MariaDb, "replicas::taken_mariadb").await;
}

/// The other replica has witnessed the states that one of them no longer gets from the API server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_stopped_past_compaction_goes_on_where_the_other_is_and_leaves_no_gap() {
    let test = "replicas::past_compaction";
    let Some(server) = shared_server(SqlService::Postgres, test) else { return };
    in_scratch("replicas-behind", async |scratch| {
        let world = ReplicaWorld::new(scratch, server).await?;
        let (load, before) = world.begin().await?;
        let mut runs = [world.start_at(0, "run-a")?, world.start_at(1, "run-b")?];
        let leads = dispatcher(&mut runs).await?;
        runs[1 - leads].answers().await?;
        runs[1 - leads].listed(SOURCES.len(), WITHIN).await?;
        runs[1 - leads].process().signal("STOP").await?;
        // What comes from now on does not even wait in its sockets.
        world.simulator.drop_watches_at(1 - leads).await?;
        for _ in 0..3 {
            world.grows("the history to grow without it").await?;
        }
        load.stop().await?;
        world.everything_arrives(&mut runs[leads]).await?;
        // What it missed can't be read any more, and the other needs none of it.
        let status = runs[leads].status().await?;
        let oldest = status.sources.iter().map(checkpoint).min().context("a checkpoint")?;
        world.simulator.compact(Some(oldest)).await?;
        runs[1 - leads].process().signal("CONT").await?;
        create_job(&world.simulator, "afterwards").await?;
        let newest = version(&world.simulator).await?;
        let level = |status: &StatusView| {
            status.sources.iter().all(|source| source.synced && source.gaps == 0 && source.walking == 0)
                && status.sources.iter().all(|source| checkpoint(source) >= newest)
        };
        runs[1 - leads].status_when(WITHIN, "it to be level and to know of no gap", level).await?;
        // It is as good as the other: that one may go.
        runs[leads].kill().await?;
        create_job(&world.simulator, "at-last").await?;
        world.everything_arrives(&mut runs[1 - leads]).await?;
        runs[1 - leads].stop().await?;
        world.proves(before).await
    })
    .await;
}

/// Nothing happens in the sources and no bookmark comes, so that no checkpoint tells how far the one is that
/// was there all the time, when the other comes back past compaction. Answers who that one is.
async fn quiet_past_compaction(
    world: &ReplicaWorld<'_>,
    load: BackgroundLoad,
    runs: &mut [Kubewitness; 2],
) -> Result<usize> {
    let leads = dispatcher(runs).await?;
    runs[1 - leads].answers().await?;
    runs[1 - leads].listed(SOURCES.len(), WITHIN).await?;
    world.grows("the history to grow").await?;
    load.stop().await?;
    world.everything_arrives(&mut runs[leads]).await?;
    runs[1 - leads].process().signal("STOP").await?;
    world.simulator.drop_watches_at(1 - leads).await?;
    world.lease_is_renewed().await?;
    world.simulator.compact(None).await?;
    let before = world.simulator.requests().await?;
    runs[1 - leads].process().signal("CONT").await?;
    let has_listed = async || {
        let now = world.simulator.requests().await?;
        let again = |(_, group, resource): &(&str, &str, &str)| {
            lists(&now, group, resource) > lists(&before, group, resource)
        };
        Ok(SOURCES.iter().all(again).then_some(()))
    };
    until(WITHIN, "it to list both sources again", has_listed).await?;
    Ok(leads)
}

/// A gap may be behind this version: as long as the replica does not know, its checkpoint stays before it.
fn checkpoint(source: &SourceView) -> u64 {
    source.checkpoint.parse().unwrap_or(0)
}

async fn whole_gaps(run: &Kubewitness) -> Result<Vec<Value>> {
    let server = format!("http://{}", run.address());
    let gaps = command_json(&["gaps", "-o", "json", "--server", &server]).await?;
    Ok(gaps.as_array().context("a list of gaps")?.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_missed_in_a_quiet_time_is_no_gap_where_the_others_watch_went_on() {
    let test = "replicas::quiet_time";
    let Some(server) = shared_server(SqlService::Postgres, test) else { return };
    in_scratch("replicas-quiet", async |scratch| {
        let world = ReplicaWorld::with_bookmarks(scratch, server, "1h").await?;
        let (load, before) = world.begin().await?;
        let mut runs = [world.start_at(0, "run-a")?, world.start_at(1, "run-b")?];
        let leads = quiet_past_compaction(&world, load, &mut runs).await?;
        // As long as nothing is known, nothing is said. The one that came back asks more often than the Lease is renewed.
        world.lease_is_renewed().await?;
        let listed = version(&world.simulator).await?;
        let waiting = runs[1 - leads].status().await?;
        ensure!(waiting.sources.iter().all(|it| checkpoint(it) < listed), "{:?}", waiting.sources);
        ensure!(whole_gaps(&runs[leads]).await?.is_empty(), "{:?}", whole_gaps(&runs[leads]).await?);
        let load = BackgroundLoad::start(&world.simulator, seed(), RATE);
        let has_heard = |status: &StatusView| status.sources.iter().all(|it| checkpoint(it) >= listed);
        let what = "it to hear that the other has seen everything";
        runs[1 - leads].status_when(WITHIN, what, has_heard).await?;
        // It is as good as the other: that one may go.
        runs[leads].kill().await?;
        dispatcher(from_mut(&mut runs[1 - leads])).await?;
        world.grows("the next one to go on").await?;
        load.stop().await?;
        world.everything_arrives(&mut runs[1 - leads]).await?;
        ensure!(whole_gaps(&runs[1 - leads]).await?.is_empty(), "{:?}", whole_gaps(&runs[1 - leads]).await?);
        runs[1 - leads].stop().await?;
        world.proves(before).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_missed_in_a_quiet_time_is_a_gap_once_the_other_is_killed_before_it_knew_more() {
    let test = "replicas::quiet_time_killed";
    let Some(server) = shared_server(SqlService::Postgres, test) else { return };
    in_scratch("replicas-quiet-killed", async |scratch| {
        let world = ReplicaWorld::with_bookmarks(scratch, server, "1h").await?;
        let (load, before) = world.begin().await?;
        let mut runs = [world.start_at(0, "run-a")?, world.start_at(1, "run-b")?];
        let leads = quiet_past_compaction(&world, load, &mut runs).await?;
        runs[leads].kill().await?;
        let gaps = until(WITHIN, "a gap of each source", async || {
            let gaps = whole_gaps(&runs[1 - leads]).await?;
            Ok((gaps.len() == SOURCES.len()).then_some(gaps))
        })
        .await?;
        for (source, ..) in SOURCES {
            let is_it = |gap: &&Value| gap["source"] == source && gap["object"].is_null();
            let gap = gaps.iter().find(is_it).with_context(|| format!("of {source}: {gaps:?}"))?;
            ensure!(gap["reason"] == "Compacted", "{gap}");
        }
        create_job(&world.simulator, "afterwards").await?;
        world.everything_arrives(&mut runs[1 - leads]).await?;
        runs[1 - leads].stop().await?;
        world.proves(before).await
    })
    .await;
}
