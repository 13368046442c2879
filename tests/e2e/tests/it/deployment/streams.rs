//! States on their way from the controller that witnesses them to those that hand them out, over a real NATS
//! server with JetStream: rows 35 and 36, kills of every side, and a server that forgets what it had
//! acknowledged.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{SourceView, StatusView, StreamView};
use kubewitness_harness::{
    Dice, Kubewitness, MessageServer, Platform, RunOptions, Scratch, Simulator, SimulatorOptions, TestWire,
    command_json, compare, in_scratch, project_root, seed, until,
};
use serde_json::json;

use crate::support::{BackgroundLoad, SOURCES, create_job, journal_proof, versions, write};

const WITHIN: Duration = Duration::from_secs(120);
/// How long the server knows a message again, where a test waits for the end of that.
const WINDOW: Duration = Duration::from_millis(300);

/// A simulated API server, a message server, and the hosts that are started beside them.
struct StreamWorld<'a> {
    scratch: &'a Scratch,
    simulator: Simulator,
    server: MessageServer,
    /// Between the host that witnesses and the message server.
    wire: Arc<TestWire>,
    witness: RunOptions,
}

impl<'a> StreamWorld<'a> {
    /// `None` where there is no message server.
    async fn new(scratch: &'a Scratch, test: &str, window: Duration) -> Result<Option<Self>> {
        let Some(server) = MessageServer::start(test)? else { return Ok(None) };
        let simulated = SimulatorOptions::keeping_history();
        let simulator = Simulator::start(scratch.path(), &simulated).await?;
        let wire = TestWire::to(server.address()).await?;
        let config = folder(scratch, "witness", &|text| {
            let carry = format!("window: {}ms, carry:", window.as_millis());
            text.replace("carry:", &carry)
        })?;
        let witness = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(config),
            data: scratch.folder("data-of-witness")?,
            env: environment(server.url(wire.address())),
            ..RunOptions::default()
        };
        Ok(Some(Self { scratch, simulator, server, wire, witness }))
    }

    /// A host that reads these partitions.
    fn dispatcher(&self, name: &str, partitions: &str) -> Result<RunOptions> {
        let config = folder(self.scratch, name, &|text| text.replace("[0, 1, 2, 3]", partitions))?;
        Ok(RunOptions {
            config: Some(config),
            data: self.scratch.folder(&format!("data-of-{name}"))?,
            env: environment(self.server.url(self.server.address())),
            ..self.witness.clone()
        })
    }

    fn start(&self, name: &str, options: &RunOptions) -> Result<Kubewitness> {
        Kubewitness::start(name, options, self.scratch.path())
    }

    async fn start_witness(&self) -> Result<Kubewitness> {
        let mut witness = self.start("witness", &self.witness)?;
        witness.answers().await?;
        witness.listed(SOURCES.len(), WITHIN).await?;
        Ok(witness)
    }

    /// Checks that the dispatchers' tables together hold what the API server had, once and in order.
    async fn same_story(&self, dispatchers: &[&RunOptions]) -> Result<()> {
        for (source, group, resource) in SOURCES {
            let truth = self.simulator.truth(group, resource).await?;
            let mut history = Vec::new();
            for options in dispatchers {
                history.extend(platform(options).await?.history(source).await?);
            }
            compare(&truth, &history).with_context(|| format!("object_history of {source}"))?;
        }
        Ok(())
    }
}

/// The variables that the example's settings name.
fn environment(url: String) -> Vec<(String, String)> {
    vec![
        ("NATS_URL".to_owned(), url),
        ("STREAM_KEY".to_owned(), "00112233445566778899aabbccddeeff".to_owned()),
    ]
}

/// A copy of the example's folder, with its host's text changed.
fn folder(scratch: &Scratch, name: &str, change: &dyn Fn(&str) -> String) -> Result<PathBuf> {
    let example = project_root().join("deploy").join("examples").join("across-a-stream");
    let role = if name == "witness" { "witness" } else { "dispatcher" };
    let folder = scratch.folder(&format!("config-of-{name}"))?;
    for entry in std::fs::read_dir(example.join(role)).context("the example")? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path())?;
        write(&folder, &entry.file_name().to_string_lossy(), &change(&text))?;
    }
    Ok(folder)
}

async fn platform(options: &RunOptions) -> Result<Platform> {
    Platform::open(&options.data.join("platform.db")).await
}

fn source<'a>(status: &'a StatusView, name: &str) -> Option<&'a SourceView> {
    status.sources.iter().find(|source| source.name == name)
}

fn delivered(status: &StatusView) -> u64 {
    status.plugins.iter().map(|plugin| plugin.delivered).sum()
}

/// So many states are with the server, and nothing waits.
async fn await_carried(witness: &mut Kubewitness, states: u64) -> Result<StatusView> {
    let is_level = |status: &StatusView| {
        let level = |stream: &StreamView| {
            stream.carried >= states && stream.waiting == 0 && stream.condition.is_none()
        };
        status.streams.iter().all(level) && !status.streams.is_empty()
    };
    witness.status_when(WITHIN, &format!("{states} states to be carried"), is_level).await
}

/// A reader tells the server who it is before it has read anything.
async fn reads(dispatcher: &mut Kubewitness) -> Result<StatusView> {
    let synced = |status: &StatusView| status.sources.len() == 2 && status.sources.iter().all(|s| s.synced);
    dispatcher.status_when(WITHIN, "the stream to be read", synced).await
}

/// Every version was delivered by one of them.
async fn everything_arrives(world: &StreamWorld<'_>, dispatchers: &[&Kubewitness]) -> Result<()> {
    let versions = versions(&world.simulator).await?;
    until(WITHIN, &format!("{versions} states to be delivered"), async || {
        let mut told = 0;
        for dispatcher in dispatchers {
            told += delivered(&dispatcher.status().await?);
        }
        Ok((told >= versions).then_some(()))
    })
    .await
}

/// A text that hardly anything packs.
fn noise(length: usize) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut dice = Dice::new(seed());
    (0..length).map(|_| char::from(LETTERS[dice.below(64) as usize])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_host_witnesses_reaches_the_plugins_of_two_others_each_object_at_one() {
    in_scratch("streams", async |scratch| {
        let test = "streams::what_one_host_witnesses_reaches_the_plugins_of_two_others";
        let Some(world) = StreamWorld::new(scratch, test, WINDOW).await? else { return Ok(()) };
        let mut witness = world.start_witness().await?;
        let (one, two) = (world.dispatcher("one", "[0, 2]")?, world.dispatcher("two", "[1, 3]")?);
        let (mut first, mut second) = (world.start("one", &one)?, world.start("two", &two)?);
        let load = BackgroundLoad::start(&world.simulator, seed(), 60.0);
        // More than the server takes in one message, and no packing helps.
        let mut large = crate::support::job("large");
        large["spec"]["template"]["spec"]["containers"][0]["args"] = json!([noise(1_400_000)]);
        let path = "/apis/batch/v1/namespaces/default/jobs";
        let (status, _) = world.simulator.request(reqwest::Method::POST, path, Some(&large)).await?;
        ensure!(status == 201, "the large job was answered with {status}");
        for dispatcher in [&mut first, &mut second] {
            dispatcher.status_when(WITHIN, "its share", |status| delivered(status) > 50).await?;
        }
        // A second reader of a partition would take from the first what it has not read.
        let mut third = world.start("three", &world.dispatcher("three", "[0]")?)?;
        let refused = third.status_when(WITHIN, "a refusal", |status| {
            let said = source(status, "jobs").and_then(|source| source.condition.clone()).unwrap_or_default();
            said.contains("another controller reads it: partition 0 of `jobs`") && said.contains("takeOver: ")
        });
        refused.await?;
        third.stop().await?;
        let report = load.stop().await?;
        ensure!(report.errors == 0, "the workload met {} errors", report.errors);
        everything_arrives(&world, &[&first, &second]).await?;
        // What is there now is there, too, and the witness still has it all.
        let (_, now) = first.get("/api/v1/objects?source=jobs").await?;
        ensure!(now.contains("\"phase\""), "the jobs of one are {now}");
        await_carried(&mut witness, versions(&world.simulator).await?).await?;
        for host in [&mut witness, &mut first, &mut second] {
            host.stop().await?;
        }
        world.same_story(&[&one, &two]).await?;
        for options in [&world.witness, &one, &two] {
            journal_proof(&options.data, &[]).await?;
        }
        // The proof counts what was carried as it counts what plugins were handed.
        let folder = world.witness.data.to_string_lossy().into_owned();
        let proof = command_json(&["journal", "verify", "--data", &folder, "-o", "json"]).await?;
        ensure!(proof["plugins_checked"] == 1, "the proof does not know the stream: {proof}");
        Ok(())
    })
    .await;
}

/// The acknowledgement of a state is lost, and it is sent again: in the window or behind it.
async fn an_acknowledgement_is_lost(test: &str, is_late: bool) {
    let window = if is_late { WINDOW } else { Duration::from_secs(120) };
    in_scratch("streams-ack", async |scratch| {
        let Some(mut world) = StreamWorld::new(scratch, test, window).await? else { return Ok(()) };
        let mut witness = world.start_witness().await?;
        let options = world.dispatcher("one", "[0, 1, 2, 3]")?;
        let mut dispatcher = world.start("one", &options)?;
        reads(&mut dispatcher).await?;
        create_job(&world.simulator, "first").await?;
        dispatcher.status_when(WITHIN, "the first job", |status| delivered(status) == 1).await?;
        await_carried(&mut witness, 1).await?;
        Platform::open_to_note(&options.data.join("platform.db")).await?.note_effects().await?;

        world.wire.deafen();
        create_job(&world.simulator, "second").await?;
        dispatcher.status_when(WITHIN, "the second job", |status| delivered(status) == 2).await?;
        until(WITHIN, "the acknowledgement to be lost", async || Ok((world.wire.lost() > 0).then_some(())))
            .await?;
        let told = witness.status().await?.streams;
        ensure!(told[0].waiting == 1, "it was acknowledged after all: {told:?}");
        if is_late {
            world.server.stop()?;
            tokio::time::sleep(WINDOW * 3).await;
            world.server.start_again()?;
        }
        world.wire.cut();
        await_carried(&mut witness, 2).await?;
        create_job(&world.simulator, "third").await?;
        let done = dispatcher.status_when(WITHIN, "the third job", |status| delivered(status) == 3).await?;
        let repeats = source(&done, "jobs").map_or(0, |source| source.counts.duplicates);
        // Within the window the server knows it again; behind it, the one who reads does.
        ensure!((repeats > 0) == is_late, "{repeats} repeats came");
        witness.stop().await?;
        dispatcher.stop().await?;
        world.same_story(&[&options]).await?;
        platform(&options).await?.one_effect_each(1).await?;
        journal_proof(&options.data, &[]).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_35_a_message_server_that_is_down_for_longer_than_its_window_brings_a_state_twice_and_it_has_one_effect()
 {
    an_acknowledgement_is_lost("streams::row_35", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_36_a_state_whose_acknowledgement_was_lost_is_sent_with_the_same_id_and_has_one_effect() {
    an_acknowledgement_is_lost("streams::row_36", false).await;
}

async fn kills(scratch: &Scratch) -> Result<()> {
    let Some(mut world) = StreamWorld::new(scratch, "streams::kills", WINDOW).await? else { return Ok(()) };
    let mut witness = world.start_witness().await?;
    let options = world.dispatcher("one", "[0, 1, 2, 3]")?;
    let mut dispatcher = world.start("one-first", &options)?;
    let load = BackgroundLoad::start(&world.simulator, seed(), 60.0);
    dispatcher.status_when(WITHIN, "the first states", |status| delivered(status) > 20).await?;
    dispatcher.stop().await?;
    let before = platform(&options).await?.count().await?;
    Platform::open_to_note(&options.data.join("platform.db")).await?.note_effects().await?;
    dispatcher = world.start("one", &options)?;
    let mut dice = Dice::new(seed());
    for round in 0..kubewitness_harness::kills(4) {
        dice.pause(1500).await;
        let name = format!("round-{round:03}");
        match round % 4 {
            0 => {
                witness.kill().await?;
                witness = world.start(&format!("witness-{name}"), &world.witness)?;
            }
            1 => {
                dispatcher.kill().await?;
                dispatcher = world.start(&format!("one-{name}"), &options)?;
            }
            2 => {
                world.server.kill()?;
                dice.pause(1000).await;
                world.server.start_again()?;
            }
            _ => {
                world.wire.deafen();
                dice.pause(500).await;
                world.wire.cut();
            }
        }
    }
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    witness.answers().await?;
    dispatcher.answers().await?;
    await_carried(&mut witness, versions(&world.simulator).await?).await?;
    everything_arrives(&world, &[&dispatcher]).await?;
    let status = dispatcher.status().await?;
    ensure!(status.sources.iter().all(|source| source.gaps == 0), "there is a gap: {:?}", status.sources);
    witness.stop().await?;
    dispatcher.stop().await?;
    world.same_story(&[&options]).await?;
    platform(&options).await?.one_effect_each(before).await?;
    journal_proof(&world.witness.data, &[]).await?;
    journal_proof(&options.data, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_is_there_once_after_kills_of_every_side() {
    in_scratch("streams-kills", async |scratch| kills(scratch).await).await;
}

/// Servers of this kind acknowledge before they sync: a power cut takes what they said they had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_forgets_after_it_acknowledged_it_is_handed_over_again() {
    in_scratch("streams-forgets", async |scratch| {
        let test = "streams::what_the_server_forgets";
        let Some(mut world) = StreamWorld::new(scratch, test, WINDOW).await? else { return Ok(()) };
        let mut witness = world.start_witness().await?;
        let options = world.dispatcher("one", "[0, 1, 2, 3]")?;
        let mut dispatcher = world.start("one", &options)?;
        create_job(&world.simulator, "kept").await?;
        dispatcher.status_when(WITHIN, "the first job", |status| delivered(status) == 1).await?;
        await_carried(&mut witness, 1).await?;
        dispatcher.stop().await?;
        Platform::open_to_note(&options.data.join("platform.db")).await?.note_effects().await?;

        world.server.stop()?;
        let copy = world.server.copy()?;
        world.server.start_again()?;
        for number in 0..8 {
            create_job(&world.simulator, &format!("forgotten-{number}")).await?;
        }
        await_carried(&mut witness, 9).await?;
        world.server.kill()?;
        world.server.go_back(&copy)?;
        world.server.start_again()?;
        for number in 0..8 {
            create_job(&world.simulator, &format!("later-{number}")).await?;
        }
        await_carried(&mut witness, 17).await?;

        let mut dispatcher = world.start("one-again", &options)?;
        dispatcher.status_when(WITHIN, "all jobs", |status| delivered(status) == 17).await?;
        let gaps = dispatcher.status().await?.sources.iter().map(|source| source.gaps).sum::<u64>();
        ensure!(gaps == 0, "there are {gaps} gaps");
        witness.stop().await?;
        dispatcher.stop().await?;
        world.same_story(&[&options]).await?;
        platform(&options).await?.one_effect_each(1).await?;
        journal_proof(&world.witness.data, &[]).await?;
        journal_proof(&options.data, &[]).await
    })
    .await;
}
