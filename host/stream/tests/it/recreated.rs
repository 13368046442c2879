//! Tests of a stream that is made anew while a reader is connected.

use std::time::Duration;

use anyhow::{Result, ensure};
use async_nats::jetstream;
use kubewitness_core::ports::StateWitness;
use kubewitness_core::stream::StateFeed;
use kubewitness_harness::until;

use crate::support::{StreamWorld, WITHIN, connect, from, sent};

const STREAM: &str = "kubewitness-platform";

/// The numbers of messages that were read then belong to other messages, which were not.
#[tokio::test]
async fn a_reader_removes_nothing_from_a_stream_that_was_made_anew_since_it_read() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::recreated")? else { return Ok(()) };
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 0..32, 100).await?;
    until(WITHIN, "all to be carried", async || {
        Ok((carrier.handle.current_snapshot().carried == 32).then_some(()))
    })
    .await?;
    carrier.stop().await?;
    let other = world.journal("reader").await?;
    let mut reader = world.reader(&from(&[]));
    reader.resume_from(None, None);
    let mut read = 0;
    while read < 32 {
        let fed = reader.next().await?;
        read += fed.append.states.len();
        other.append_batch(fed.append).await?;
        if read < 32 {
            reader.confirm_durable().await?;
        }
    }

    let context = jetstream::new(connect(&world.server).await?);
    let config = context.get_stream(STREAM).await?.cached_info().config.clone();
    context.delete_stream(STREAM).await?;
    context.create_stream(config).await?;
    for partition in 0..4 {
        let subject = format!("kubewitness.platform.states.jobs.{partition}");
        context.publish(subject, "not read yet".into()).await?.await?;
    }
    // Messages that were read are removed after a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let said = reader.confirm_durable().await;
    let left = context.get_stream(STREAM).await?.cached_info().state.messages;
    ensure!(left == 4, "{left} messages are left of 4 that nobody has read: {said:?}");
    let error = said.unwrap_err().to_string();
    ensure!(error.contains("it was made anew, or has lost messages"), "{error}");
    Ok(())
}
