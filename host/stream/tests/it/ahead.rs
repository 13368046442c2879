//! Tests that the number and size of messages in flight are bounded while the other side does not answer.

use std::time::Duration;

use anyhow::Result;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, stream::Stream};
use futures::{StreamExt, TryStreamExt};
use kubewitness_core::ports::StateWitness;
use kubewitness_core::stream::StateFeed;
use kubewitness_harness::{TestWire, until};

use crate::support::{StreamWorld, WITHIN, all, connect, from, one_append, sent, sent_at_once, stories};

const LARGE: usize = 512 * 1024;
const MEBIBYTES_8: u64 = 8 << 20;
/// The begin of the subjects of states.
const STATES: &str = "kubewitness.platform.states.";
/// The most states of one test: versions have numbers below the next epoch's.
const MOST: u64 = 6000;
/// How often a carrier may give up before it sends more than one message.
const TRIES: u32 = 10;

async fn stream(world: &StreamWorld) -> Result<Stream> {
    let context = jetstream::new(connect(&world.server).await?);
    Ok(context.get_stream("kubewitness-platform").await?)
}

#[tokio::test]
async fn a_server_that_acknowledges_nothing_is_sent_no_more_than_256_messages_and_8_mebibytes() -> Result<()>
{
    for (states, bytes) in [(600, 100), (24, LARGE)] {
        let Some(world) = StreamWorld::new("stream::unacknowledged")? else { return Ok(()) };
        let wire = TestWire::to(world.server.address()).await?;
        world.tell(world.server.url(wire.address()));
        let journal = world.journal("carrier").await?;
        sent(&journal, 0, 0..8, 100).await?;
        let carrier = world.carry(&journal, &["jobs"]);
        let mut made = 8;
        let mut tries = 0;
        let (before, after) = loop {
            let carried = async || Ok((carrier.handle.current_snapshot().carried == made).then_some(()));
            until(WITHIN, "all so far to be carried", carried).await?;
            let before = stream(&world).await?.get_info().await?.state;
            let append = one_append(0, made..made + states, bytes);
            // Other requests are answered: a carrier that waits for an answer sends nothing.
            wire.deafen_at(STATES);
            journal.append_batch(append).await?;
            let given_up = async || Ok(carrier.handle.current_snapshot().condition);
            until(WITHIN, "the carrier to give up", given_up).await?;
            let after = stream(&world).await?.get_info().await?.state;
            made += states;
            tries += 1;
            // The carrier may have to renew its claim after the first message, and give up before it sends more. Then it
            // sends one message at a time until it knows its position.
            if after.messages > before.messages + 1 || tries == TRIES {
                break (before, after);
            }
            wire.cut();
        };
        let messages = after.messages - before.messages;
        assert!((2..=256).contains(&messages) && messages < states, "{messages} messages");
        // The bound is checked after each message.
        let most = MEBIBYTES_8 + 2 * LARGE as u64;
        assert!(after.bytes - before.bytes <= most, "{} bytes", after.bytes - before.bytes);
        carrier.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_sent_two_requests_of_128_messages_and_8_mebibytes_ahead() -> Result<()>
{
    for (states, bytes, most) in [(4000, 100, 128), (160, LARGE, 16)] {
        let Some(world) = StreamWorld::new("stream::ahead")? else { return Ok(()) };
        let journal = world.journal("carrier").await?;
        sent_at_once(&journal, 0, 0..states, bytes).await?;
        let carrier = world.carry(&journal, &["jobs"]);
        let carried = async || Ok((carrier.handle.current_snapshot().carried == states).then_some(()));
        until(WITHIN, "all to be carried", carried).await?;
        let mut reader = world.reader(&from(&[]));
        reader.resume_from(None, None);
        let mut given = 0;
        while given == 0 {
            given = reader.next().await?.append.states.len();
            reader.confirm_durable().await?;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let consumers: Vec<_> = stream(&world).await?.consumers().try_collect().await?;
        let delivered: u64 = consumers.iter().map(|consumer| consumer.delivered.consumer_sequence).sum();
        // The client library sends its next request before the present one is used up.
        let bound = given + 2 * most * consumers.len();
        assert!(!consumers.is_empty() && delivered as usize <= bound, "{delivered} of at most {bound}");
        assert!(delivered < states, "all {states} were sent: the bound was never met");
        carrier.stop().await?;
    }
    Ok(())
}

/// A server sends each message once. Here another reader takes one, like a connection that breaks between
/// servers.
#[tokio::test]
async fn a_message_that_was_sent_and_did_not_come_is_read_again_though_nothing_follows_it() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::not_come")? else { return Ok(()) };
    let (journal, other) = (world.journal("carrier").await?, world.journal("reader").await?);
    let (carrier, reader) = (world.carry(&journal, &["jobs"]), world.read(&other, &from(&[])));
    sent(&journal, 0, 0..16, 100).await?;
    all(&other, 16).await?;
    let server = stream(&world).await?;
    let names: Vec<String> = server.consumer_names().try_collect().await?;
    let mut others = futures::stream::FuturesUnordered::new();
    for name in &names {
        let consumer: PullConsumer =
            server.get_consumer(name).await.map_err(|error| anyhow::anyhow!(error))?;
        let taken = consumer.fetch().max_messages(1).expires(WITHIN).messages().await?;
        others.push(taken.into_future());
    }
    let mut states = 16;
    // All messages are of one object and taken one at a time, including the last one.
    while tokio::time::timeout(Duration::from_millis(500), others.next()).await.is_err() {
        sent(&journal, 0, states..states + 1, 100).await?;
        states += 16;
        assert!(states < MOST, "nobody else is sent one");
    }
    all(&other, (states - 16) / 16 + 16).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?, "in order, and each once");
    let gaps = other.gaps_of(&Default::default()).await?;
    assert!(gaps.is_empty(), "nothing is missing: {gaps:?}");
    carrier.stop().await?;
    reader.stop().await
}
