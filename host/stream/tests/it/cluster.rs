//! Tests the faults of the model with three real servers. One server is killed at a time, and so are carriers
//! and readers.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use async_nats::ConnectOptions;
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::jetstream::{self, consumer::PullConsumer};
use futures::TryStreamExt;
use kubewitness_core::ports::Backlog;
use kubewitness_harness::{Dice, MessageCluster, PASSWORD, seed, until};
use kubewitness_journal::Journal;

use crate::support::{RunningCarrier, StreamTask, StreamWorld, from, sent, stories};

/// The number of kills and restarts, with states in between.
const STEPS: u64 = 30;
/// A cluster elects another leader within seconds, and another carrier takes over within a minute after a
/// kill.
const WITHIN: Duration = Duration::from_secs(180);
/// The most kills of carriers, and of readers: each takes as long as a claim is valid.
const MOST_KILLS: u64 = 2;

struct ClusterFaults {
    world: StreamWorld<MessageCluster>,
    dice: Dice,
    journal: Journal,
    other: Journal,
    carrier: Option<RunningCarrier>,
    reader: Option<StreamTask>,
    down: Option<usize>,
    sent: u64,
    kills: [u64; 2],
}

impl ClusterFaults {
    async fn send(&mut self, states: u64) -> Result<()> {
        sent(&self.journal, 0, self.sent..self.sent + states, 200).await?;
        self.sent += states;
        Ok(())
    }

    fn start_server(&mut self) -> Result<()> {
        self.down.take().map_or(Ok(()), |index| self.world.server.start_again(index))
    }

    async fn step(&mut self) -> Result<()> {
        let states = self.dice.between(1, 20);
        self.send(states).await?;
        let [carriers, readers] = self.kills;
        match self.dice.below(8) {
            0..=2 if self.down.is_none() => {
                let index = self.dice.index(MessageCluster::SERVERS);
                self.world.server.kill(index)?;
                self.down = Some(index);
            }
            0..=3 => self.start_server()?,
            4 if carriers < MOST_KILLS => {
                self.kills[0] += 1;
                if let Some(carrier) = self.carrier.take() {
                    carrier.kill().await;
                }
                self.carrier = Some(self.world.carry(&self.journal, &["jobs"]));
            }
            5 if readers < MOST_KILLS => {
                self.kills[1] += 1;
                if let Some(reader) = self.reader.take() {
                    reader.kill().await;
                }
                self.reader = Some(self.world.read(&self.other, &from(&[])));
            }
            _ => {}
        }
        let pause = self.dice.between(50, 1500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        Ok(())
    }

    /// Describes carrier, stream and consumers, to find the cause of missing states.
    async fn describe(&self) -> Result<String> {
        let carrier = self.carrier.as_ref().map(|carrier| carrier.handle.current_snapshot());
        let mut text = format!("missing {:?}; the carrier: {carrier:?}", self.missing().await?);
        let stream = stream_of(&self.world).await?;
        text += &format!("; the stream: {:?}", stream.get_info().await?);
        text += &format!("; gaps: {:?}", self.other.gaps_of(&Default::default()).await?);
        let names: Vec<String> = stream.consumer_names().try_collect().await?;
        for name in names {
            let consumer: PullConsumer = stream.get_consumer(&name).await.map_err(|error| anyhow!(error))?;
            text += &format!("; a consumer: {:?}", consumer.cached_info());
        }
        Ok(text)
    }

    /// The states that the reader does not have.
    async fn missing(&self) -> Result<BTreeSet<String>> {
        let ids = async |journal: &Journal| -> Result<BTreeSet<String>> {
            Ok(journal.read(0, 10_000).await?.iter().map(|state| state.id.to_string()).collect())
        };
        Ok(&ids(&self.journal).await? - &ids(&self.other).await?)
    }
}

async fn stream_of(world: &StreamWorld<MessageCluster>) -> Result<Stream> {
    let options = ConnectOptions::new().user_and_password("kubewitness".into(), PASSWORD.into());
    let addresses: Vec<_> = world.address.split(',').map(str::to_owned).collect();
    Ok(jetstream::new(options.connect(addresses).await?).get_stream("kubewitness-platform").await?)
}

/// Waits for a state of the stream. While the servers elect a leader, none answers.
async fn until_stream(
    world: &StreamWorld<MessageCluster>,
    what: &str,
    is_so: impl Fn(&Info) -> bool,
) -> Result<()> {
    until(WITHIN, what, async || {
        let Ok(stream) = stream_of(world).await else { return Ok(None) };
        Ok(stream.get_info().await.is_ok_and(|info| is_so(&info)).then_some(()))
    })
    .await
}

/// A server that starts again repeats its log. Early versions repeat a purge of one partition as one of all.
#[tokio::test]
async fn unread_states_outlive_the_restart_of_servers_that_have_removed_others() -> Result<()> {
    let Some(mut world) = StreamWorld::of_cluster("stream::removed")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    let (first, rest) = (world.journal("first").await?, world.journal("rest").await?);
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 0..64, 200).await?;
    until_stream(&world, "all to be carried", |info| info.state.messages == 64).await?;
    let reader = world.read(&first, &from(&[0]));
    until_stream(&world, "what was read to be removed", |info| info.state.messages < 64).await?;
    reader.stop().await?;
    let read = first.journal_stats().await?.states;
    assert!((1..64).contains(&read), "{read} were read");
    // A removal is repeated if something follows it in the log.
    sent(&journal, 0, 64..80, 200).await?;
    until_stream(&world, "all to be carried", |info| info.state.last_sequence == 80).await?;
    for index in 0..MessageCluster::SERVERS {
        world.server.kill(index)?;
        world.server.start_again(index)?;
        until_stream(&world, "all servers to have the stream", |info| {
            let others = info.cluster.iter().flat_map(|cluster| &cluster.replicas);
            others.filter(|other| other.current && !other.offline).count() == MessageCluster::SERVERS - 1
        })
        .await?;
    }
    // One more state in each partition, which shows whether the last one is missing.
    sent(&journal, 0, 80..96, 200).await?;
    let reader = world.read(&rest, &from(&[1, 2, 3]));
    let all_read = world.read(&first, &from(&[0]));
    let come = async || {
        let there = first.journal_stats().await?.states + rest.journal_stats().await?.states;
        Ok((there == 96).then_some(()))
    };
    if let Err(error) = until(WITHIN, "96 states", come).await {
        bail!("{error}: gaps: {:?}", rest.gaps_of(&Default::default()).await?);
    }
    let gaps = rest.gaps_of(&Default::default()).await?;
    assert!(gaps.is_empty(), "nothing is missing, and a gap is told: {gaps:?}");
    all_read.stop().await?;
    reader.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn each_state_comes_through_a_cluster_whose_servers_are_killed_one_at_a_time() -> Result<()> {
    let Some(world) = StreamWorld::of_cluster("stream::cluster")? else { return Ok(()) };
    let (journal, other) = (world.journal("carrier").await?, world.journal("reader").await?);
    let (carrier, reader) = (world.carry(&journal, &["jobs"]), world.read(&other, &from(&[])));
    let mut faults = ClusterFaults {
        world,
        dice: Dice::new(seed()),
        journal,
        other,
        carrier: Some(carrier),
        reader: Some(reader),
        down: None,
        sent: 0,
        kills: [0; 2],
    };
    faults.send(5).await?;
    until(WITHIN, "the cluster to begin", async || Ok(faults.missing().await?.is_empty().then_some(())))
        .await?;
    for _ in 0..STEPS {
        faults.step().await?;
    }
    faults.start_server()?;
    // One more state in each partition, which shows whether an earlier one is missing.
    faults.send(16).await?;
    let sent = faults.sent;
    let come = async || Ok(faults.missing().await?.is_empty().then_some(()));
    if let Err(error) = until(WITHIN, &format!("{sent} states"), come).await {
        bail!("{error}: {}", faults.describe().await?);
    }
    assert_eq!(stories(&faults.journal).await?, stories(&faults.other).await?, "in order, and each once");
    let gaps = faults.other.gaps_of(&Default::default()).await?;
    assert!(gaps.is_empty(), "nothing is missing, and a gap is told: {gaps:?}");
    if let Some(carrier) = faults.carrier {
        carrier.stop().await?;
    }
    match faults.reader {
        Some(reader) => reader.stop().await,
        None => Ok(()),
    }
}
