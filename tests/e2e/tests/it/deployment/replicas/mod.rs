//! Several replicas witness into one journal, and one of them hands states to plugins: whichever is killed
//! or stopped, every version is there once and in order, with one effect each.

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
/// A Lease is another's after 15 seconds.
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
            if replica(&status)?.dispatches && status.plugins.iter().all(|plugin| plugin.state == "active") {
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
    let Some(server) = DatabaseServer::start(service, &[]).expect("the server starts") else {
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
    // Their Lease is renewed meanwhile: there are newer versions, and none of them is of the sources.
    tokio::time::sleep(Duration::from_secs(8)).await;
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
        // As long as nothing is known, nothing is said.
        tokio::time::sleep(Duration::from_secs(5)).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_by_says_so_and_who_does_not_belong_is_told_what_to_do() {
    let Some(server) = shared_server(Service::Postgres, "replicas::stands_by") else { return };
    in_scratch("replicas-told", async |scratch| {
        let world = World::new(scratch, server).await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        create_job(&world.simulator, "one").await?;
        let delivered = |status: &StatusView| status.plugins.iter().all(|plugin| plugin.delivered == 1);
        let status = runs[leads].status_when(WITHIN, "it to be delivered", delivered).await?;
        let name = replica(&status)?.name.clone();
        // The figures of who stands by are those that the other has saved.
        let standby = runs[1 - leads].status_when(WITHIN, "the other to know of it", delivered).await?;
        ensure!(standby.plugins.iter().all(|plugin| plugin.state == "standby"), "{:?}", standby.plugins);
        let ReplicaView { dispatches, dispatcher, replicas, .. } = replica(&standby)?;
        ensure!(!dispatches && dispatcher.as_deref() == Some(&name) && replicas.len() == 2, "{standby:?}");
        let (ready, why) = runs[1 - leads].get("/readyz").await?;
        ensure!(ready == 200, "{ready} {why}");

        let address = format!("http://{}", runs[1 - leads].address());
        let (code, told, _) = command(&["status", "--server", &address]).await?;
        let line = format!("{name} (leader)");
        ensure!(code == Some(0) && told.contains(&line) && told.contains(LEASE), "{told}");
        let (_, metrics) = runs[1 - leads].get("/metrics").await?;
        ensure!(
            metrics.contains("kubewitness_replica_dispatches{") && metrics.contains("kubewitness_replicas 2")
        );

        let alone = ["--journal-file", &world.options.args[1]].map(String::from).to_vec();
        let alone = RunOptions { args: alone, data: scratch.folder("alone")?, ..world.options.clone() };
        refused(scratch, "alone", &alone, "--lease").await?;
        let elsewhere = RunOptions { data: scratch.folder("elsewhere")?, ..world.options.clone() };
        let args = vec!["--lease".into(), "default/another".into()];
        let elsewhere = RunOptions { args: [&elsewhere.args[..2], &args].concat(), ..elsewhere };
        refused(scratch, "elsewhere", &elsewhere, "another Lease").await?;
        // A pod that was made anew knows nothing of what its source has witnessed; the journal does.
        let config = world.options.config.as_ref().context("a folder")?;
        let other = scratch.folder("other-config")?;
        for file in std::fs::read_dir(config)? {
            let file = file?;
            let text = std::fs::read_to_string(file.path())?.replace("kind: Job}", "kind: CronJob}");
            write(&other, &file.file_name().to_string_lossy(), &text)?;
        }
        let data = scratch.folder("rescoped")?;
        let rescoped = RunOptions { config: Some(other), data, ..world.options.clone() };
        let mut rescoped = Kubewitness::start("rescoped", &rescoped, scratch.path())?;
        let told =
            |status: &StatusView| status.problems.iter().any(|problem| problem.contains("another kind"));
        rescoped.status_when(WITHIN, "the other source to be refused", told).await?;
        rescoped.stop().await?;

        let embedded = RunOptions { args, data: scratch.folder("embedded")?, ..world.options.clone() };
        refused(scratch, "embedded", &embedded, "can't share an embedded journal").await?;
        for run in &mut runs {
            run.stop().await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_told_by_the_others_and_holds_for_the_next_that_dispatches() {
    let Some(server) = shared_server(Service::Postgres, "replicas::paused") else { return };
    in_scratch("replicas-paused", async |scratch| {
        let world = World::new(scratch, server).await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        create_job(&world.simulator, "one").await?;
        let all = |plugin: &PluginView| plugin.delivered == 1;
        // A status without plugins is one of before.
        runs[leads]
            .status_when(WITHIN, "it to be delivered", |status| status.plugins.iter().any(all))
            .await?;
        let order = async |run: &Kubewitness, verb: &str| {
            let server = format!("http://{}", run.address());
            let line = [verb, "persistence", "--reason", "a move", "--who", "ada", "--server", &server];
            command(&line).await
        };
        let stands_by = |status: &StatusView| status.plugins.iter().any(|plugin| plugin.state == "standby");
        runs[1 - leads].status_when(WITHIN, "the other to know of it", stands_by).await?;
        // Who stands by has nothing to pause, and says so.
        let (code, _, stderr) = order(&runs[1 - leads], "pause").await?;
        ensure!(code != Some(0) && stderr.contains("another replica runs"), "{code:?} {stderr}");
        let (code, _, stderr) = order(&runs[leads], "pause").await?;
        ensure!(code == Some(0), "{code:?} {stderr}");
        let is_paused = |status: &StatusView| {
            status.plugins.iter().any(|p| p.paused.as_ref().is_some_and(|paused| paused.who == "ada"))
        };
        runs[1 - leads].status_when(WITHIN, "the other to tell of the pause", is_paused).await?;
        runs[leads].kill().await?;
        create_job(&world.simulator, "two").await?;
        let next = &mut runs[1 - leads];
        let held = |status: &StatusView| {
            let mut plugins = status.plugins.iter();
            plugins.any(|p| p.state == "paused" && (p.observed, p.delivered, p.waiting) == (2, 1, 1))
        };
        next.status_when(WITHIN, "the next one to hold it paused", held).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        ensure!(world.count().await == 1, "{} rows", world.count().await);
        let (code, _, stderr) = order(next, "resume").await?;
        ensure!(code == Some(0), "{code:?} {stderr}");
        let all = |plugin: &PluginView| plugin.delivered == 2 && plugin.state == "active";
        next.status_when(WITHIN, "it to go on", |status| status.plugins.iter().all(all)).await?;
        ensure!(world.count().await == 2, "{} rows", world.count().await);
        next.stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_replica_that_dispatches_ticks_and_the_next_goes_on() {
    let Some(server) = shared_server(Service::Postgres, "replicas::ticks") else { return };
    in_scratch("replicas-ticks", async |scratch| {
        let world = World::new(scratch, server).await?;
        let config = world.options.config.clone().context("the configuration")?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &(host + FOR_PROBE))?;
        let probe = manifest("{command: done, tick: [ledger.append notes ticked]}", "tick: {every: 1s}\n");
        write(&config, "probe.yaml", &probe.replace("second", "platform"))?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        // Each has a ledger of its own, in its data folder.
        let notes = |index: usize| {
            let name = ["run-a", "run-b"][index];
            let text = std::fs::read_to_string(scratch.path().join(name).join("audit/notes.jsonl"));
            text.map_or(0, |text| text.lines().count())
        };
        let ticks = async |run: &mut Kubewitness| {
            let several = |it: &PluginView| it.tick.as_ref().is_some_and(|tick| tick.ticks >= 3);
            run.status_when(WITHIN, "ticks", |status| status.plugins.iter().any(several)).await
        };
        ticks(&mut runs[leads]).await?;
        ensure!((notes(leads) >= 3, notes(1 - leads)) == (true, 0), "{} {}", notes(leads), notes(1 - leads));
        let other = runs[1 - leads].status().await?;
        ensure!(other.plugins.iter().all(|plugin| plugin.tick.is_none()), "{other:?}");
        runs[leads].kill().await?;
        ticks(&mut runs[1 - leads]).await?;
        ensure!(notes(1 - leads) >= 3);
        runs[1 - leads].stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_logs_out_at_one_is_logged_out_at_all_also_at_one_that_comes_later() {
    let Some(server) = shared_server(Service::Postgres, "replicas::log_out") else { return };
    in_scratch("replicas-log-out", async |scratch| {
        let mut world = World::new(scratch, server).await?;
        let key = scratch.path().join("session-key");
        std::fs::write(&key, "5c".repeat(32))?;
        let key = key.to_string_lossy().into_owned();
        world.options.args.extend(["--auth", "kubernetes", "--session-key-file", &key].map(String::from));
        let (one, mut other) = (world.start("run-a")?, world.start("run-b")?);
        let url = |run: &Kubewitness| format!("http://{}", run.address());
        let status = async |run: &Kubewitness, cookie: &str| {
            let asked = http().get(format!("{}/api/v1/status", url(run))).header(COOKIE, cookie).send();
            anyhow::Ok(asked.await.map_or(0, |answer| answer.status().as_u16()))
        };
        let sign_in = async || {
            let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
            let form = client.post(format!("{}/login", url(&one))).header("origin", url(&one));
            let form = form.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            let answer = form.body(format!("token={}", world.simulator.token())).send().await?;
            let set = answer.headers().get(SET_COOKIE).context("a cookie")?.to_str()?;
            anyhow::Ok(set.split(';').next().unwrap_or_default().to_owned())
        };
        let becomes = async |run: &Kubewitness, cookie: &str, code: u16| {
            let what = format!("{code} of {}", url(run));
            until(WITHIN, &what, async || Ok((status(run, cookie).await? == code).then_some(()))).await
        };
        becomes(&one, "", 401).await?;
        let (leaves, stays) = (sign_in().await?, sign_in().await?);
        for (run, cookie) in [(&one, &leaves), (&other, &leaves), (&other, &stays)] {
            becomes(run, cookie, 200).await?;
        }
        let out = http().post(format!("{}/logout", url(&one))).header(COOKIE, &leaves);
        ensure!(out.header("origin", url(&one)).send().await?.status().as_u16() < 400);
        becomes(&other, &leaves, 401).await?;
        other.kill().await?;
        let mut late = world.start("run-c")?;
        becomes(&late, &stays, 200).await?;
        becomes(&late, &leaves, 401).await?;
        late.stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_muted_at_one_is_muted_at_all_and_undone_at_any() {
    let Some(server) = shared_server(Service::Postgres, "replicas::muted") else { return };
    in_scratch("replicas-muted", async |scratch| {
        let world = World::new(scratch, server).await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        let url = |run: &Kubewitness| format!("http://{}", run.address());
        let says = async |run: &Kubewitness, line: &[&str]| {
            let (code, stdout, stderr) = command(&[line, &["--server", &url(run)]].concat()).await?;
            ensure!(code == Some(0), "{line:?} ended with {code:?}: {stdout}{stderr}");
            anyhow::Ok(stdout)
        };
        runs[1 - leads].answers().await?;
        says(&runs[1 - leads], &["mute", "-n", "sandbox", "--who", "ada"]).await?;
        says(&runs[leads], &["mute", "--all", "--to", "ops"]).await?;
        let list = says(&runs[leads], &["mute", "--list"]).await?;
        ensure!(list.contains("the namespace sandbox") && list.contains("everything"), "{list}");
        for run in &mut runs {
            run.kill().await?;
        }
        let mut late = world.start("run-c")?;
        late.answers().await?;
        let said = says(&late, &["unmute", "-n", "sandbox"]).await?;
        ensure!(said.contains("is unmuted"), "{said}");
        let list = says(&late, &["mute", "--list"]).await?;
        ensure!(!list.contains("sandbox") && list.contains("everything"), "{list}");
        late.stop().await
    })
    .await;
}

async fn refused(scratch: &Scratch, name: &str, options: &RunOptions, why: &str) -> Result<()> {
    let mut run = Kubewitness::start(name, options, scratch.path())?;
    let ended = run.process().wait(WITHIN).await?;
    let said = run.process().stderr();
    ensure!(ended == Ended::Code(1) && said.contains(why), "{name}: {ended:?}, {said}");
    Ok(())
}
