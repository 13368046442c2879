//! A carrier and its readers, with a real NATS server and real journals.
//!
//! The promise is that readers on other machines have the same states as the carrier's journal, in the same
//! order, even if the stream is full, the server comes back empty, or somebody else writes into it.
//! Retention, deduplication and flow control are the server's, so a fake server would only repeat our own
//! assumptions about them. Without a server on the machine, these tests are skipped; in CI that is a failure.

mod ahead;
mod cluster;
mod copies;
mod foreign;
mod killed;
mod recreated;
mod support;

use anyhow::Result;
use async_nats::jetstream;
use kubewitness_core::config::FromSpec;
use kubewitness_core::stream::StateFeed;
use kubewitness_harness::{MessageServer, until};
use support::{StreamWorld, WITHIN, all, connect, from, sent, stories};

#[tokio::test]
async fn a_full_stream_keeps_what_comes_waiting_and_goes_on_when_it_was_read() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::full")? else { return Ok(()) };
    world.spec.max_bytes.0 = 1 << 20;
    // More than the stream can hold, however well it compresses.
    let (journal, states) = (world.journal("carrier").await?, 300);
    sent(&journal, 0, 0..states, 16 * 1024).await?;
    let carrier = world.carry(&journal, &["jobs"]);
    until(WITHIN, "the stream to be full", async || {
        let condition = carrier.handle.current_snapshot().condition.unwrap_or_default();
        Ok(condition.contains("it is full").then_some(()))
    })
    .await?;
    let before = carrier.handle.current_snapshot().carried;
    assert!(before > 10 && before < states, "{before} were carried");
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, states).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    until(WITHIN, "all to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == states
            && carrier.handle.current_snapshot().condition.is_none())
        .then_some(()))
    })
    .await?;
    reader.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn epochs_of_all_partitions_come_one_after_the_other() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::epochs")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    for epoch in 0..4 {
        sent(&journal, epoch, 0..40, 100).await?;
    }
    let carrier = world.carry(&journal, &["jobs"]);
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 160).await?;
    // The next epoch begins with a single object. No other partition has anything of it.
    sent(&journal, 4, 3..4, 100).await?;
    all(&other, 161).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    assert!(other.gaps_of(&Default::default()).await?.is_empty());
    reader.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn a_partition_is_read_by_one_host_until_another_is_told_to_take_it_over() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::take_over")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 0..20, 100).await?;
    let (one, two) = (world.journal("one").await?, world.journal("two").await?);
    let first = world.read(&one, &from(&[]));
    all(&one, 20).await?;
    // Messages that were read are removed from the stream.
    let context = jetstream::new(connect(&world.server).await?);
    until(WITHIN, "the stream to be read", async || {
        let stream = context.get_stream("kubewitness-platform").await?;
        Ok((stream.cached_info().state.messages == 0).then_some(()))
    })
    .await?;
    first.stop().await?;
    let mut second = world.reader(&from(&[]));
    second.resume_from(None, None);
    assert!(second.next().await?.append.checkpoint.is_some(), "its name comes first");
    second.confirm_durable().await?;
    let refused = second.next().await.unwrap_err().to_string();
    let holder = refused.split("takeOver: ").nth(1).map(|rest| rest.split('`').next().unwrap_or_default());
    let holder = holder.unwrap_or_else(|| panic!("{refused}")).to_owned();

    sent(&journal, 0, 20..30, 100).await?;
    let told = FromSpec { take_over: Some(holder), ..from(&[]) };
    let second = world.read(&two, &told);
    all(&two, 10).await?;
    // The stream no longer has what the first reader read, and the second reader reports a gap.
    assert!(!two.gaps_of(&Default::default()).await?.is_empty());
    second.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn a_stream_that_is_another_is_told_and_left_alone() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::another")? else { return Ok(()) };
    let context = jetstream::new(connect(&world.server).await?);
    let config = jetstream::stream::Config {
        name: "kubewitness-platform".into(),
        subjects: vec!["orders".into()],
        ..Default::default()
    };
    context.create_stream(config).await?;
    let journal = world.journal("carrier").await?;
    sent(&journal, 0, 0..1, 100).await?;
    assert!(world.refusal(&journal).await?.contains("is not one of Kubewitness"));
    context.delete_stream("kubewitness-platform").await?;

    let carrier = world.carry(&journal, &["jobs"]);
    until(WITHIN, "it to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 1).then_some(()))
    })
    .await?;
    carrier.stop().await?;
    world.spec.partitions = 8;
    assert!(world.refusal(&journal).await?.contains("the server's has 4 and the settings say 8"));
    world.address = "somewhere".into();
    assert!(world.refusal(&journal).await?.contains("can't be reached"));
    world.address = "nats://kubewitness:wrong-8472@127.0.0.1:1/%%".into();
    let said = world.refusal(&journal).await?;
    assert!(!said.contains("wrong-8472"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_and_a_server_without_jetstream_are_told_with_what_to_do() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::wrong_password")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    sent(&journal, 0, 0..1, 100).await?;
    let right = std::mem::take(&mut world.address);
    world.address = format!("nats://kubewitness:wrong-8472@{}", world.server.address());
    let said = world.refusal(&journal).await?;
    assert!(said.contains("does not let this controller in: check the user and the password"), "{said}");
    assert!(!said.contains("wrong-8472"), "{said}");

    world.address = right;
    world.server.stop()?;
    world.server.has_streams = false;
    world.server.start_again()?;
    let said = world.refusal(&journal).await?;
    assert!(said.contains("is JetStream on?"), "{said}");
    let Err(away) = world.reader(&from(&[0, 1, 2, 3])).next().await else { panic!("it reads") };
    assert!(away.to_string().contains("is JetStream on?"), "{away}");
    Ok(())
}

#[tokio::test]
async fn a_source_that_is_carried_later_begins_with_a_gap_and_one_that_pauses_has_one() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::later")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    sent(&journal, 0, 0..10, 100).await?;
    let pods = world.carry(&journal, &["pods"]);
    until(WITHIN, "all to be passed over", async || {
        Ok((pods.handle.current_snapshot().cursor == 10).then_some(()))
    })
    .await?;
    pods.stop().await?;
    let carrier = world.carry(&journal, &["jobs", "pods"]);
    until(WITHIN, "the source to begin", async || {
        Ok((carrier.handle.current_snapshot().cursor == 10).then_some(()))
    })
    .await?;
    sent(&journal, 0, 10..60, 100).await?;
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 50).await?;
    assert_eq!(other.gaps_of(&Default::default()).await?.len(), 4, "one a partition");
    reader.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn a_server_that_comes_back_empty_gets_what_nobody_had_read_again() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::empty")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 0..40, 100).await?;
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 40).await?;
    until(WITHIN, "all to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 40).then_some(()))
    })
    .await?;
    // Some unread messages are acknowledged by the old server.
    reader.stop().await?;
    sent(&journal, 0, 40..60, 100).await?;
    until(WITHIN, "all to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 60).then_some(()))
    })
    .await?;
    world.server.kill()?;
    let Some(empty) = MessageServer::start("stream::empty")? else { return Ok(()) };
    // A new server has another address, and both follow it there.
    world.tell(empty.url(empty.address()));
    sent(&journal, 0, 60..80, 100).await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 80).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    assert!(other.gaps_of(&Default::default()).await?.is_empty(), "nothing was missing");
    reader.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn a_second_journal_is_refused_by_a_stream_until_it_is_told_to_take_it_over() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::second")? else { return Ok(()) };
    let (one, two) = (world.journal("one").await?, world.journal("two").await?);
    let carrier = world.carry(&one, &["jobs"]);
    sent(&one, 0, 0..10, 100).await?;
    until(WITHIN, "the first to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 10).then_some(()))
    })
    .await?;
    let refused = world.refusal(&two).await?;
    let holder =
        refused.split("takeOver: ").nth(1).and_then(|rest| rest.split('`').next()).map(str::to_owned);
    carrier.stop().await?;
    world.spec.take_over = holder;
    sent(&two, 0, 10..20, 100).await?;
    let carrier = world.carry(&two, &["jobs"]);
    until(WITHIN, "the second to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 10).then_some(()))
    })
    .await?;
    // A reader gets an error if nobody carries its source.
    let mut reader = world.reader_of("joobs", "Job", &from(&[]));
    reader.resume_from(Some(0), Some(&kubewitness_core::Version::new("reader:a1")));
    let error = reader.next().await.unwrap_err().to_string();
    assert!(error.contains("nobody carries `joobs` to it") && error.contains("it carries jobs"), "{error}");
    carrier.stop().await
}

#[tokio::test]
async fn a_reader_whose_partitions_were_taken_over_stops_reading() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::taken")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    let (one, two) = (world.journal("one").await?, world.journal("two").await?);
    let first = world.read(&one, &from(&[]));
    sent(&journal, 0, 0..20, 100).await?;
    all(&one, 20).await?;
    let mut reader = world.reader(&from(&[]));
    reader.resume_from(Some(0), Some(&kubewitness_core::Version::new("reader:a1")));
    let refused = reader.next().await.unwrap_err().to_string();
    let holder =
        refused.split("takeOver: ").nth(1).and_then(|rest| rest.split('`').next()).map(str::to_owned);
    let second = world.read(&two, &FromSpec { take_over: holder, ..from(&[]) });
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    let before = one.journal_stats().await?.states;
    sent(&journal, 0, 20..60, 100).await?;
    all(&two, 40).await?;
    assert_eq!(one.journal_stats().await?.states, before, "both read it");
    second.stop().await?;
    first.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn what_was_purged_by_hand_is_a_gap_also_when_the_server_was_made_anew_after_it() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::purged")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    sent(&journal, 0, 0..32, 100).await?;
    all(&other, 32).await?;
    reader.stop().await?;
    sent(&journal, 0, 32..48, 100).await?;
    until(WITHIN, "all to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 48).then_some(()))
    })
    .await?;
    let context = jetstream::new(connect(&world.server).await?);
    context.get_stream("kubewitness-platform").await?.purge().await?;
    // To the carrier, nothing seems to be missing.
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    sent(&journal, 0, 48..64, 100).await?;
    until(WITHIN, "all to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 64).then_some(()))
    })
    .await?;
    world.server.kill()?;
    let Some(empty) = MessageServer::start("stream::purged")? else { return Ok(()) };
    world.tell(empty.url(empty.address()));
    let reader = world.read(&other, &from(&[]));
    all(&other, 48).await?;
    let gaps = other.gaps_of(&Default::default()).await?;
    let there = other.journal_stats().await?.states;
    assert!(there == 64 || !gaps.is_empty(), "{there} states and no gap");
    reader.stop().await?;
    carrier.stop().await
}
