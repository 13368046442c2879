//! Tests of messages that another client has published: invalid ones, forged ones, and states of another
//! kind.

use std::sync::Arc;

use anyhow::Result;
use async_nats::jetstream;
use async_nats::jetstream::context::PublishErrorKind;
use kubewitness_core::config::FromSpec;
use kubewitness_core::ports::Backlog;
use kubewitness_core::stream::{StateFeed, pack_state, partition_of};
use kubewitness_core::{ObjectRef, State, StateId, Version};
use kubewitness_harness::until;

use crate::support::{StreamWorld, WITHIN, all, connect, from, sent, stories};

#[tokio::test]
async fn what_somebody_else_writes_into_the_stream_is_kept_as_poison_and_holds_nobody_up() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::poison")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 0..10, 100).await?;
    until(WITHIN, "the first to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 10).then_some(()))
    })
    .await?;
    let context = jetstream::new(connect(&world.server).await?);
    for partition in 0..4 {
        let subject = format!("kubewitness.platform.states.jobs.{partition}");
        context.publish(subject, format!("hello {partition}").into()).await?.await?;
    }
    let states = foreign_states(&journal.read(0, 1).await?[0]);
    for state in &states {
        publish(&context, "f00", state).await?;
    }
    sent(&journal, 0, 10..20, 100).await?;
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 20).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    until(WITHIN, "what is none of ours", async || {
        Ok((other.poison_of(&Default::default()).await?.len() == 4 + states.len()).then_some(()))
    })
    .await?;
    reader.stop().await?;
    carrier.stop().await
}

/// Valid messages with wrong states: another id, kind, source, epoch or position.
fn foreign_states(fine: &State) -> Vec<State> {
    let fine = State { seq: 1000, ..fine.clone() };
    let named = |source: &str, epoch: u32, kind: &str| {
        let object = ObjectRef { kind: kind.into(), ..(*fine.object).clone() };
        let id = StateId::of(source, epoch, &object, fine.change, &fine.resource_version, None);
        State { id, epoch, source: source.into(), object: Arc::new(object), ..fine.clone() }
    };
    vec![
        State { id: named("jobs", 7, "Job").id, ..fine.clone() },
        named("jobs", 0, "Pod"),
        named("pods", 0, "Job"),
        named("jobs", u32::MAX, "Job"),
        State { seq: u64::MAX - 1, ..fine.clone() },
    ]
}

/// Publishes like a client that knows the format, but has no key. A server lists a new stream a moment
/// before it takes messages for it.
async fn publish(context: &jetstream::Context, line: &str, state: &State) -> Result<()> {
    let subject = format!("kubewitness.platform.states.jobs.{}", partition_of(&state.object, 4));
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Kubewitness-Stood", format!("{line} {} 0", state.seq));
    until(WITHIN, "the stream to take messages", async || {
        let message = pack_state(state, b"");
        match context.publish_with_headers(subject.clone(), headers.clone(), message).await?.await {
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => Ok(None),
            answer => Ok(Some(answer.map(drop)?)),
        }
    })
    .await
}

#[tokio::test]
async fn only_what_is_signed_with_the_shared_key_is_taken() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::key")? else { return Ok(()) };
    world.key = Some("00112233445566778899aabbccddeeff".into());
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 0..10, 100).await?;
    until(WITHIN, "the first to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 10).then_some(()))
    })
    .await?;
    // Everything except the key is as a carrier would write it.
    let fine = State { seq: 1000, ..(*journal.read(0, 1).await?[0]).clone() };
    publish(&jetstream::new(connect(&world.server).await?), "f00", &fine).await?;
    sent(&journal, 0, 10..20, 100).await?;
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 20).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    let poison =
        until(WITHIN, "what is not signed", async || Ok(other.poison_of(&Default::default()).await?.pop()))
            .await?;
    assert!(poison.error.contains("not signed"), "{}", poison.error);
    reader.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn a_first_message_of_another_kind_holds_nobody_up_once_a_true_one_comes() -> Result<()> {
    for epoch in [0, 1] {
        check_first_of_another_kind(epoch).await?;
    }
    Ok(())
}

/// The carrier's states are of this epoch. A reader begins in the first one.
async fn check_first_of_another_kind(epoch: u32) -> Result<()> {
    let Some(world) = StreamWorld::new("stream::first_kind")? else { return Ok(()) };
    let (journal, sample) = (world.journal("carrier").await?, world.journal("sample").await?);
    sent(&sample, 0, 0..1, 100).await?;
    let foreign = foreign_states(&sample.read(0, 1).await?[0]).remove(1);
    let carrier = world.carry(&journal, &["jobs"]);
    let context = jetstream::new(connect(&world.server).await?);
    until(WITHIN, "the stream", async || Ok(context.get_stream("kubewitness-platform").await.ok().map(drop)))
        .await?;
    publish(&context, "f00", &foreign).await?;
    let mut reader = world.reader(&from(&[]));
    reader.resume_from(Some(0), Some(&Version::new("reader:a1")));
    let Err(away) = reader.next().await else { panic!("it may be the setting") };
    assert!(away.to_string().contains("write `kind: Pod`"), "{away}");
    reader.close().await;
    drop(reader);
    sent(&journal, epoch, 0..10, 100).await?;
    let other = world.journal("reader").await?;
    let takes_over = FromSpec { take_over: Some("a1".into()), ..from(&[]) };
    let reader = world.read(&other, &takes_over);
    all(&other, 10).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    let poison = other.poison_of(&Default::default()).await?;
    assert_eq!(poison.len(), 1);
    assert!(poison[0].error.contains("of the kind Pod"), "{}", poison[0].error);
    reader.stop().await?;
    carrier.stop().await
}

#[tokio::test]
async fn objects_of_another_kind_are_told_with_the_kind_to_write() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::kinds")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    sent(&journal, 0, 0..1, 100).await?;
    let carrier = world.carry(&journal, &["jobs"]);
    until(WITHIN, "it to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 1).then_some(()))
    })
    .await?;
    let mut reader = world.reader_of("jobs", "Pod", &from(&[0, 1, 2, 3]));
    reader.resume_from(None, None);
    // The reader first returns its new name.
    reader.next().await?;
    reader.confirm_durable().await?;
    let Err(away) = reader.next().await else { panic!("it reads") };
    let away = away.to_string();
    assert!(away.contains("the kind Job") && away.contains("write `kind: Job`"), "{away}");
    carrier.stop().await
}
