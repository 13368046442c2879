//! One connection of a reader: a consumer for each partition, from the first that is there. What was
//! read is taken from the stream soon, so that this is little that comes again; and no number of the
//! stream is trusted longer than a connection.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Info, RawMessageErrorKind, Stream};
use futures::stream::Stream as _;
use kubewitness_core::carry::{Arrival, Intake};

use crate::message::Parts;
use crate::server::{Away, Link, Server};

/// Messages that the server sends ahead, of each partition.
const AHEAD: usize = 128;
const AHEAD_BYTES: usize = 8 << 20;
/// How soon a server that fell silent is noticed.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A reader that is gone leaves its consumers to the server for this long.
const LEFT: Duration = Duration::from_secs(30);

/// One partition.
pub(crate) struct Lane {
    pub partition: u32,
    consumer: PullConsumer,
    messages: pull::Stream,
    pub parts: Parts,
    /// The last that came, in the stream's numbers; of it, what is durable; and of that, what was taken
    /// from the stream.
    pub came: u64,
    durable: u64,
    purged: u64,
    /// What waits for other partitions; nothing behind it is read meanwhile.
    pub stash: Option<(Arrival, bytes::Bytes)>,
    /// The server had nothing more when the last came.
    pub level: bool,
}

pub(crate) struct Session {
    server: Server,
    source: String,
    link: Link,
    pub lanes: Vec<Lane>,
    /// Whose turn it is.
    turn: usize,
}

impl Session {
    /// Claims the partitions and reads them.
    pub async fn open(
        server: &Server,
        source: &str,
        partitions: &[u32],
        take_over: Option<&str>,
        intake: &mut Intake,
    ) -> Result<Self, Away> {
        let link = server.link().await?;
        let (server, source) = (server.clone(), source.to_owned());
        let mut session = Self { server, source, link, lanes: Vec::new(), turn: 0 };
        let reader = intake.places().reader.clone();
        let readers = session.server.readers_stream(&session.link.context).await?;
        for partition in partitions {
            session.claim(&readers, *partition, &reader, take_over).await?;
            let lane = session.lane(*partition).await?;
            session.lanes.push(lane);
        }
        session.look(intake).await?;
        Ok(session)
    }

    /// Each partition has one reader: what it has read is taken from the stream.
    async fn claim(
        &self,
        readers: &Stream<Info>,
        partition: u32,
        reader: &str,
        take_over: Option<&str>,
    ) -> Result<(), Away> {
        let subject = self.server.readers(&self.source, partition);
        let failed = |error: String| self.server.away("who reads it can't be found", error);
        let found = match readers.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => Some(message),
            Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => None,
            Err(error) => return Err(failed(error.to_string())),
        };
        let holder = found.as_ref().map(|found| String::from_utf8_lossy(&found.payload).into_owned());
        match holder {
            Some(holder) if holder == reader => return Ok(()),
            Some(holder) if Some(holder.as_str()) != take_over => {
                let why = format!(
                    "partition {partition} of `{}` is read by another host, `{holder}`: give each partition to one \
                     host; if that one is gone for good, say `takeOver: {holder}` here",
                    self.source
                );
                return Err(self.server.away("it is not for this host", why));
            }
            _ => {}
        }
        let last = found.map_or(0, |found| found.sequence);
        let claim =
            PublishMessage::build().payload(reader.to_owned().into()).expected_last_subject_sequence(last);
        let claimed = self.link.context.send_publish(subject, claim).await;
        let claimed = claimed.map_err(|error| failed(error.to_string()))?.await;
        claimed.map(drop).map_err(|error| failed(error.to_string()))
    }

    async fn lane(&self, partition: u32) -> Result<Lane, Away> {
        let config = pull::Config {
            filter_subject: self.server.subject(&self.source, partition),
            deliver_policy: DeliverPolicy::All,
            // What was taken is known by its place, and not by the server.
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: LEFT,
            ..pull::Config::default()
        };
        let failed = |error: String| self.server.away(&format!("partition {partition} can't be read"), error);
        let consumer = self.link.stream.create_consumer(config).await.map_err(|e| failed(e.to_string()))?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(AHEAD)
            .max_bytes_per_batch(AHEAD_BYTES)
            .heartbeat(HEARTBEAT)
            .expires(HEARTBEAT * 5)
            .messages();
        let messages = messages.await.map_err(|error| failed(error.to_string()))?;
        let (parts, stash, level) = (Parts::default(), None, false);
        Ok(Lane { partition, consumer, messages, parts, came: 0, durable: 0, purged: 0, stash, level })
    }

    /// Reads a partition from the first that is there.
    pub async fn read_again(&mut self, place: usize) -> Result<(), Away> {
        self.lanes[place] = self.lane(self.lanes[place].partition).await?;
        Ok(())
    }

    /// The next message of any partition that doesn't wait, and whose it is. Nothing is lost where it
    /// is dropped.
    pub async fn next(&mut self) -> Result<(usize, Message), Away> {
        let (place, message) = std::future::poll_fn(|cx| self.poll(cx)).await;
        let what = format!("partition {} can't be read", self.lanes[place].partition);
        match message {
            Some(Ok(message)) => Ok((place, message)),
            Some(Err(error)) => Err(self.server.away(&what, error)),
            None => Err(self.server.away(&what, "its server has ended it")),
        }
    }

    #[allow(clippy::type_complexity)]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Option<Result<Message, pull::MessagesError>>)> {
        for step in 0..self.lanes.len() {
            let place = (self.turn + step) % self.lanes.len();
            let lane = &mut self.lanes[place];
            if lane.stash.is_some() {
                continue;
            }
            if let Poll::Ready(message) = Pin::new(&mut lane.messages).poll_next(cx) {
                self.turn = place + 1;
                return Poll::Ready((place, message));
            }
        }
        Poll::Pending
    }

    /// Finds out of each partition how far it was read: where the server has nothing more of it, up to
    /// the stream's end.
    pub async fn look(&mut self, intake: &mut Intake) -> Result<(), Away> {
        let failed = |error: String| self.server.away("it can't be looked at", error);
        // First the end, then who is there: what comes between is behind the end.
        let info = self.link.stream.get_info().await.map_err(|error| failed(error.to_string()))?;
        for lane in self.lanes.iter_mut().filter(|lane| lane.stash.is_none()) {
            let seen = lane.consumer.get_info().await.map_err(|error| failed(error.to_string()))?;
            let nothing_flies =
                seen.delivered.consumer_sequence == 0 || seen.delivered.stream_sequence <= lane.came;
            lane.level = seen.num_pending == 0 && nothing_flies;
            if lane.level {
                intake.is_read_through(lane.partition, info.state.last_sequence);
            }
        }
        Ok(())
    }

    pub fn is_level(&self) -> bool {
        self.lanes.iter().all(|lane| lane.level && lane.stash.is_none())
    }

    pub fn waits(&self) -> bool {
        self.lanes.iter().any(|lane| lane.stash.is_some())
    }

    /// All that came is durable, but for what waits.
    pub fn is_durable(&mut self) {
        for lane in &mut self.lanes {
            lane.durable = lane.stash.as_ref().map_or(lane.came, |(waits, _)| waits.sequence - 1);
        }
    }

    /// Takes from the stream what is durable here.
    pub async fn purge(&mut self) -> Result<(), Away> {
        // Behind another connection the numbers may be those of others.
        if self.link.client.statistics().connects.load(Ordering::Relaxed) > 1 {
            return Err(self.server.away("its server", "the connection broke"));
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.durable > lane.purged) {
            let subject = self.server.subject(&self.source, lane.partition);
            let purging = self.link.stream.purge().filter(subject).sequence(lane.durable + 1);
            let done = purging.await;
            done.map_err(|error| self.server.away("what was read can't be taken from it", error))?;
            lane.purged = lane.durable;
        }
        Ok(())
    }
}
