//! Several replicas witness into one journal, and one of them hands states to plugins: whichever is killed
//! or stopped, every version is there once and in order, with one effect each.

mod followers;
mod without_journal;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::views::{PluginView, ReplicaView, StatusView};
use kubewitness_harness::{
    DatabaseServer, Dice, Ended, Kubewitness, Platform, RunOptions, Scratch, Service, Simulator,
    SimulatorOptions, command, command_json, command_json_in, http, in_scratch, kills, seed, shared_server,
    skip, until,
};

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};

use crate::plugins::probing::{FOR_PROBE, manifest};
use crate::storage::databases::{ADDRESS, configuration};
use crate::support::{Load, SOURCES, create_job, same_story_in, write};

/// Each way in which one can go comes once.
const ROUNDS: u64 = 5;
const RATE: f64 = 40.0;
/// A Lease is another's after 15 seconds at most.
const WITHIN: Duration = Duration::from_secs(180);
const LEASE: &str = "default/kubewitness";

struct World<'a> {
    scratch: &'a Scratch,
    simulator: Simulator,
    options: RunOptions,
    /// Where the persistence plugin writes.
    platform: String,
}

impl<'a> World<'a> {
    async fn new(scratch: &'a Scratch, server: &DatabaseServer) -> Result<Self> {
        Self::with_bookmarks(scratch, server, "1s").await
    }

    async fn with_bookmarks(scratch: &'a Scratch, server: &DatabaseServer, every: &str) -> Result<Self> {
        let simulated = SimulatorOptions {
            bookmark_every: Some(every.to_owned()),
            more_servers: 1,
            // However slow the machine is: nothing is compacted that a restart still needs.
            args: vec!["--history-age".to_owned(), "0s".to_owned()],
            ..SimulatorOptions::default()
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
        Ok(Self { scratch, simulator, options, platform })
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

    async fn count(&self) -> i64 {
        match Platform::connect(&self.platform).await {
            Ok(mut platform) => platform.count().await.unwrap_or(0),
            Err(_) => 0,
        }
    }

    /// Waits until more is in the history than when it was asked.
    async fn grows(&self, why: &str) -> Result<()> {
        let before = self.count().await;
        until(WITHIN, why, async || Ok((self.count().await > before).then_some(()))).await
    }

    /// The first start may list, and what was before that list nobody can witness, so the load begins
    /// after it. Answers how many rows there are when the notes of effects begin.
    async fn begin(&self) -> Result<(Load, i64)> {
        let mut first = self.start("run-first")?;
        first.answers().await?;
        first.listed(SOURCES.len(), WITHIN).await?;
        // Stopped in order, so that no commit is still on its way when the notes begin.
        let load = Load::start(&self.simulator, seed(), RATE);
        self.grows("the first rows").await?;
        first.stop().await?;
        let mut platform = Platform::connect(&self.platform).await?;
        platform.note_effects().await?;
        Ok((load, platform.count().await?))
    }

    /// As an operator who empties it.
    async fn take_the_lease_away(&self) -> Result<()> {
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/kubewitness";
        until(WITHIN, "the Lease to be emptied", async || {
            let (_, mut lease) = self.simulator.request(Method::GET, path, None).await?;
            lease["spec"] = serde_json::json!({});
            let (status, _) = self.simulator.request(Method::PUT, path, Some(&lease)).await?;
            // Its holder may have renewed it in between.
            Ok((status == 200).then_some(()))
        })
        .await
    }

    /// Waits until the Lease was renewed several times: there are newer versions, and none of them is of the sources.
    async fn lease_is_renewed(&self) -> Result<()> {
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/kubewitness";
        let mut renewals = BTreeSet::new();
        until(WITHIN, "the Lease to be renewed", async || {
            let (_, lease) = self.simulator.request(Method::GET, path, None).await?;
            renewals.insert(lease["spec"]["renewTime"].to_string());
            Ok((renewals.len() > 4).then_some(()))
        })
        .await
    }

    async fn versions(&self) -> Result<u64> {
        let mut versions = 0;
        for (_, group, resource) in SOURCES {
            versions += self.simulator.truth(group, resource).await?.entries.len() as u64;
        }
        Ok(versions)
    }

    /// Every version is in the tables once, the journal proves it, and nothing was tried twice.
    async fn proves(&self, before: i64) -> Result<()> {
        let connect = async || Platform::connect(&self.platform).await;
        same_story_in(&self.simulator, connect().await?).await?;
        connect().await?.one_effect_each(before).await?;
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
            let asked = tokio::time::timeout(Duration::from_secs(2), run.status()).await;
            let Ok(Ok(status)) = asked else { continue };
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
    let world = World::new(scratch, server).await?;
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
    let versions = world.versions().await?;
    let arrived = |plugin: &PluginView| plugin.delivered == versions && plugin.waiting == 0;
    for run in [leads, 1 - leads] {
        let what = format!("{versions} states to be delivered, by what replica {run} says");
        runs[run].status_when(WITHIN, &what, |status| status.plugins.iter().all(arrived)).await?;
    }
    for run in &mut runs {
        run.stop().await?;
    }
    world.proves(before).await
}

async fn on_server(service: Service, test: &str) {
    let Some(server) = DatabaseServer::shared(service).expect("the server starts") else {
        return skip(test, &format!("{service} is not installed"));
    };
    let again =
        format!("KUBEWITNESS_SEED={} KUBEWITNESS_KILLS={} cargo xtask test {test}", seed(), kills(ROUNDS));
    in_scratch("replicas", async |scratch| {
        survive(scratch, &server).await.with_context(|| format!("again with `{again}`"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_has_every_version_once_whichever_replica_is_killed_or_stopped() {
    on_server(Service::Postgres, "replicas::postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_has_every_version_once_whichever_replica_is_killed_or_stopped() {
    on_server(Service::MariaDb, "replicas::mariadb").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_has_every_version_once_whichever_replica_is_killed_or_stopped() {
    on_server(Service::MySql, "replicas::mysql").await;
}

/// Somebody takes the Lease away from its holder, who believes for a moment that he still has it.
async fn a_lease_that_is_taken_away_doubles_nothing(service: Service, test: &str) {
    let Some(server) = shared_server(service, test) else { return };
    in_scratch("replicas-taken", async |scratch| {
        let world = World::new(scratch, server).await?;
        let mut first = world.start("run-first")?;
        create_job(&world.simulator, "first").await?;
        world.grows("the first row").await?;
        first.stop().await?;
        let mut platform = Platform::connect(&world.platform).await?;
        platform.note_effects().await?;
        let before = platform.count().await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let mut leads = dispatcher(&mut runs).await?;
        let mut changes = 0;
        for round in 0..3 * ROUNDS {
            runs[1 - leads].listed(SOURCES.len(), WITHIN).await?;
            world.take_the_lease_away().await?;
            // Each of them looks again within three seconds, and it is quiet until then: who had it has
            // nothing to save that would be refused.
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(4) {
                if replica(&runs[1 - leads].status().await?)?.dispatches {
                    changes += 1;
                    for number in 0..5 {
                        create_job(&world.simulator, &format!("taken-{round}-{number}")).await?;
                    }
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            leads = dispatcher(&mut runs).await?;
            if changes == ROUNDS {
                break;
            }
        }
        ensure!(changes > 0, "its holder took it again each time: nothing is tried here");
        let versions = world.versions().await?;
        let arrived = |plugin: &PluginView| plugin.delivered == versions && plugin.waiting == 0;
        let all = |status: &StatusView| status.plugins.iter().all(arrived);
        runs[leads].status_when(WITHIN, "all to be delivered", all).await?;
        for run in &mut runs {
            run.stop().await?;
        }
        world.proves(before).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_taken_away_doubles_nothing_in_postgres() {
    a_lease_that_is_taken_away_doubles_nothing(Service::Postgres, "replicas::taken_postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_taken_away_doubles_nothing_in_mariadb() {
    a_lease_that_is_taken_away_doubles_nothing(Service::MariaDb, "replicas::taken_mariadb").await;
}

/// What one of them no longer gets from the API server, the other has witnessed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_stopped_past_compaction_goes_on_where_the_other_is_and_leaves_no_gap() {
    let test = "replicas::past_compaction";
    let Some(server) = shared_server(Service::Postgres, test) else { return };
    in_scratch("replicas-behind", async |scratch| {
        let world = World::new(scratch, server).await?;
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
        let versions = world.versions().await?;
        let arrived = |plugin: &PluginView| plugin.delivered == versions && plugin.waiting == 0;
        runs[leads].status_when(WITHIN, "all to arrive", |status| status.plugins.iter().all(arrived)).await?;
        // What it missed can't be read any more, and the other needs none of it.
        let status = runs[leads].status().await?;
        let checkpoints = status.sources.iter().filter_map(|source| source.checkpoint.parse::<u64>().ok());
        let oldest = checkpoints.min().context("a checkpoint")?;
        world.simulator.compact(Some(oldest)).await?;
        runs[1 - leads].process().signal("CONT").await?;
        create_job(&world.simulator, "afterwards").await?;
        let behind = &mut runs[1 - leads];
        let said = until(WITHIN, "it to begin again", async || {
            Ok(behind.process().stderr().contains("is ahead").then_some(()))
        });
        said.await.with_context(|| behind.process().say())?;
        let level = |status: &StatusView| {
            status.sources.iter().all(|source| source.synced && source.gaps == 0 && source.walking == 0)
        };
        behind.status_when(WITHIN, "it to be level and to know of no gap", level).await?;
        // It is as good as the other: that one may go.
        runs[leads].kill().await?;
        create_job(&world.simulator, "at-last").await?;
        let versions = world.versions().await?;
        let arrived = |status: &StatusView| status.plugins.iter().all(|plugin| plugin.delivered == versions);
        runs[1 - leads].status_when(WITHIN, "the last to arrive", arrived).await?;
        runs[1 - leads].stop().await?;
        world.proves(before).await
    })
    .await;
}

/// Nothing happens in the sources and no bookmark comes, so that no checkpoint tells how far the one is that
/// was there all the time, when the other comes back past compaction. Answers who that one is.
async fn quiet_past_compaction(world: &World<'_>, load: Load, runs: &mut [Kubewitness; 2]) -> Result<usize> {
    let leads = dispatcher(runs).await?;
    runs[1 - leads].answers().await?;
    runs[1 - leads].listed(SOURCES.len(), WITHIN).await?;
    world.grows("the history to grow").await?;
    load.stop().await?;
    let versions = world.versions().await?;
    let arrived = |plugin: &PluginView| plugin.delivered == versions && plugin.waiting == 0;
    runs[leads].status_when(WITHIN, "all to arrive", |status| status.plugins.iter().all(arrived)).await?;
    runs[1 - leads].process().signal("STOP").await?;
    world.simulator.drop_watches_at(1 - leads).await?;
    world.lease_is_renewed().await?;
    world.simulator.compact(None).await?;
    runs[1 - leads].process().signal("CONT").await?;
    let behind = &mut runs[1 - leads];
    let said = until(WITHIN, "it to leave both sources to the other", async || {
        let times = behind.process().stderr().matches("are left to another replica").count();
        Ok((times == SOURCES.len()).then_some(()))
    });
    said.await.with_context(|| behind.process().say())?;
    Ok(leads)
}

async fn whole_gaps(run: &Kubewitness) -> Result<Vec<serde_json::Value>> {
    let server = format!("http://{}", run.address());
    let gaps = command_json(&["gaps", "-o", "json", "--server", &server]).await?;
    Ok(gaps.as_array().context("a list of gaps")?.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_missed_in_a_quiet_time_is_no_gap_where_the_others_watch_went_on() {
    let test = "replicas::quiet_time";
    let Some(server) = shared_server(Service::Postgres, test) else { return };
    in_scratch("replicas-quiet", async |scratch| {
        let world = World::with_bookmarks(scratch, server, "1h").await?;
        let (load, before) = world.begin().await?;
        let mut runs = [world.start_at(0, "run-a")?, world.start_at(1, "run-b")?];
        let leads = quiet_past_compaction(&world, load, &mut runs).await?;
        // As long as nothing is known, nothing is said. The one that came back asks more often than the Lease is renewed.
        world.lease_is_renewed().await?;
        ensure!(whole_gaps(&runs[leads]).await?.is_empty(), "{:?}", whole_gaps(&runs[leads]).await?);
        let load = Load::start(&world.simulator, seed(), RATE);
        let behind = &mut runs[1 - leads];
        let said = until(WITHIN, "it to hear that the other has seen everything", async || {
            Ok((behind.process().stderr().matches("no gap: ").count() == SOURCES.len()).then_some(()))
        });
        said.await.with_context(|| behind.process().say())?;
        // It is as good as the other: that one may go.
        runs[leads].kill().await?;
        dispatcher(std::slice::from_mut(&mut runs[1 - leads])).await?;
        world.grows("the next one to go on").await?;
        load.stop().await?;
        let versions = world.versions().await?;
        let arrived = |status: &StatusView| status.plugins.iter().all(|plugin| plugin.delivered == versions);
        runs[1 - leads].status_when(WITHIN, "the last to arrive", arrived).await?;
        ensure!(whole_gaps(&runs[1 - leads]).await?.is_empty(), "{:?}", whole_gaps(&runs[1 - leads]).await?);
        runs[1 - leads].stop().await?;
        world.proves(before).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_missed_in_a_quiet_time_is_a_gap_once_the_other_is_killed_before_it_knew_more() {
    let test = "replicas::quiet_time_killed";
    let Some(server) = shared_server(Service::Postgres, test) else { return };
    in_scratch("replicas-quiet-killed", async |scratch| {
        let world = World::with_bookmarks(scratch, server, "1h").await?;
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
            let is_it = |gap: &&serde_json::Value| gap["source"] == source && gap["object"].is_null();
            let gap = gaps.iter().find(is_it).with_context(|| format!("of {source}: {gaps:?}"))?;
            ensure!(gap["reason"] == "Compacted", "{gap}");
        }
        create_job(&world.simulator, "afterwards").await?;
        let versions = world.versions().await?;
        let arrived = |status: &StatusView| status.plugins.iter().all(|plugin| plugin.delivered == versions);
        runs[1 - leads].status_when(WITHIN, "the last to arrive", arrived).await?;
        runs[1 - leads].stop().await?;
        world.proves(before).await
    })
    .await;
}
