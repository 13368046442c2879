//! Runs one connection of a reader, with a consumer for each partition that begins at the first message.
//! Messages are removed from the stream soon after they were read, so few come again. No number of the stream
//! is trusted beyond its connection.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures::future::try_join_all;
use futures::stream::Stream as _;
use kubewitness_core::BoxedError;
use kubewitness_core::stream::{MessageRemoval, PartitionStates, StateArrival, StreamIntake};

use crate::claims::{PartitionClaim, RENEW, ServerClaims};
use crate::message::{MessageKeys, PartJoiner};
use crate::server::{ServerAway, ServerLink, StreamServer};

/// How many messages of each partition the server sends in advance for one request. The client library has
/// two requests at most.
const AHEAD: usize = 128;
const AHEAD_BYTES: usize = 8 << 20;
/// How soon a silent server is noticed.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How often a reader that has reached the end compares what the server has sent with what has come.
const COMPARE: Duration = Duration::from_secs(5);
/// How long a message that the server has sent may be on its way, while nothing else comes. The largest takes as long on a
/// slow network.
const ON_ITS_WAY: Duration = Duration::from_secs(10);
/// How many messages are removed at a time, where each is removed by its number.
const REMOVALS: usize = 64;
/// How long the server keeps the consumers of a reader that has gone.
const LEFT: Duration = Duration::from_secs(30);

/// One partition.
pub(crate) struct PartitionLane {
    pub partition: u32,
    consumer: PullConsumer,
    messages: pull::Stream,
    pub parts: PartJoiner,
    /// The last number that arrived, the last durable one, and the last one removed from the stream.
    pub came: u64,
    /// The number of messages that came.
    pub messages_seen: u64,
    durable: u64,
    purged: u64,
    /// The numbers that came and were not removed from the stream.
    unremoved: BTreeSet<u64>,
    /// A state that waits for other partitions. Nothing after it is read meanwhile.
    pub stash: Option<(StateArrival, bytes::Bytes)>,
    /// Whether the server had nothing more when the last message came.
    pub level: bool,
    /// Since when messages that the server has sent do not come, and how many had come then.
    late: Option<(Instant, u64)>,
}

impl PartitionLane {
    /// Notes that a message came.
    pub fn note_came(&mut self, sequence: u64, is_last: bool) {
        self.came = sequence;
        self.messages_seen += 1;
        self.level = is_last;
        self.unremoved.insert(sequence);
    }

    /// Notes that the durable messages were removed from the stream.
    fn note_removed(&mut self) {
        self.purged = self.durable;
        self.unremoved = self.unremoved.split_off(&self.durable.saturating_add(1));
    }

    /// Whether messages are lost: the server has sent all it has, and for some time nothing came although something
    /// should. Between the servers of a cluster, and to a reader, each message is sent once.
    fn has_lost(&mut self, pending: u64, delivered: u64) -> bool {
        if pending > 0 || delivered <= self.messages_seen {
            self.late = None;
            return false;
        }
        match self.late {
            Some((since, seen)) if seen == self.messages_seen => since.elapsed() > ON_ITS_WAY,
            _ => {
                self.late = Some((Instant::now(), self.messages_seen));
                false
            }
        }
    }
}

pub(crate) struct ReaderSession {
    server: StreamServer,
    source: String,
    link: ServerLink,
    keys: Option<MessageKeys>,
    claims: ServerClaims,
    renewed: Instant,
    looked: Instant,
    pub lanes: Vec<PartitionLane>,
    /// The partition whose turn it is.
    turn: usize,
}

impl ReaderSession {
    /// Claims the partitions and reads them.
    pub async fn open(
        server: &StreamServer,
        source: &str,
        held: &mut [PartitionClaim],
        take_over: Option<&str>,
        intake: &mut StreamIntake,
    ) -> Result<Self, ServerAway> {
        let keys = server.message_keys().await?;
        let link = server.connect_reader().await?;
        let claims = ServerClaims::open(server, &link.context).await?;
        let mut session = Self {
            server: server.clone(),
            source: source.to_owned(),
            link,
            keys,
            claims,
            renewed: Instant::now(),
            looked: Instant::now(),
            lanes: Vec::new(),
            turn: 0,
        };
        session.check_carried().await?;
        session.claims.claim_partitions(held, take_over).await?;
        for claim in held {
            let lane = session.open_lane(claim.partition).await?;
            session.lanes.push(lane);
        }
        session.find_read_positions(intake).await?;
        Ok(session)
    }

    /// Checks that a carrier carries what is read.
    async fn check_carried(&self) -> Result<(), ServerAway> {
        if let Some((claim, _)) = self.claims.carrier_claim().await?
            && !claim.sources.contains(&self.source)
        {
            let why = format!(
                "it carries {}; the name is that of the other host's source",
                claim.sources.join(", ")
            );
            return Err(self.server.server_away(&format!("nobody carries `{}` to it", self.source), why));
        }
        Ok(())
    }

    /// Renews the claims on the partitions in time. Fails if another reader has one of them.
    pub async fn renew_claims(&mut self, held: &mut [PartitionClaim]) -> Result<(), ServerAway> {
        if self.renewed.elapsed() > RENEW {
            self.check_carried().await?;
            for claim in held {
                self.claims.renew_partition(claim).await?;
            }
            self.renewed = Instant::now();
        }
        Ok(())
    }

    /// Lets another process of this reader begin at once.
    pub async fn release_claims(&self, held: &[PartitionClaim]) -> Result<(), ServerAway> {
        for claim in held {
            self.claims.release_partition(claim).await?;
        }
        Ok(())
    }

    async fn open_lane(&self, partition: u32) -> Result<PartitionLane, ServerAway> {
        let config = pull::Config {
            filter_subject: self.server.state_subject(&self.source, partition),
            deliver_policy: DeliverPolicy::All,
            // The reader tracks its own place, so the server needs no acknowledgements.
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: LEFT,
            ..pull::Config::default()
        };
        let what = format!("partition {partition} can't be read");
        let failed = |error: BoxedError| self.server.server_away(&what, error);
        let consumer = self.link.stream.create_consumer(config).await.map_err(|e| failed(e.into()))?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(AHEAD)
            .max_bytes_per_batch(AHEAD_BYTES)
            .heartbeat(HEARTBEAT)
            .expires(HEARTBEAT * 5)
            .messages();
        let messages = messages.await.map_err(|error| failed(error.into()))?;
        let (parts, stash, level, late) = (PartJoiner::default(), None, false, None);
        Ok(PartitionLane {
            partition,
            consumer,
            messages,
            parts,
            came: 0,
            messages_seen: 0,
            durable: 0,
            purged: 0,
            unremoved: BTreeSet::new(),
            stash,
            level,
            late,
        })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn has_key(&self) -> bool {
        self.keys.is_some()
    }

    /// Whether the carrier's claim names this line of a journal, or a line that came after it. A state that fits is not
    /// refused for a line that the claim lacks: after `takeOver` or the start of a restored copy, unread true states
    /// have lines that the claim no longer names.
    pub async fn is_carried_by(&self, line: &str) -> Result<bool, ServerAway> {
        let claim = self.claims.carrier_claim().await?;
        Ok(claim.is_none_or(|(claim, _)| *claim.line == *line || claim.former.iter().any(|it| **it == *line)))
    }

    /// The values that the states of a partition have in common.
    pub fn expected_states(&self, partition: u32) -> PartitionStates<'_> {
        PartitionStates { source: &self.source, partition, partitions: self.server.spec.partitions }
    }

    /// Whether the carrier has sent the message, as far as the key can prove it.
    pub fn is_authentic(&self, message: &Message) -> bool {
        let Some(keys) = &self.keys else { return true };
        let headers = message.headers.clone().unwrap_or_default();
        keys.is_valid(&message.subject, &headers, &message.payload)
    }

    /// Reads a partition again from its first message.
    pub async fn read_again(&mut self, place: usize) -> Result<(), ServerAway> {
        self.lanes[place] = self.open_lane(self.lanes[place].partition).await?;
        Ok(())
    }

    /// The next message of any partition that does not wait, and the partition. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Result<(usize, Message), ServerAway> {
        let (place, message) = std::future::poll_fn(|cx| self.poll(cx)).await;
        let what = format!("partition {} can't be read", self.lanes[place].partition);
        match message {
            Some(Ok(message)) => Ok((place, message)),
            Some(Err(error)) => Err(self.server.server_away(&what, error)),
            None => Err(self.server.server_away(&what, "its server has ended it")),
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

    /// Determines how far each partition was read. If the server has nothing more of it, it was read to the
    /// stream's end.
    pub async fn find_read_positions(&mut self, intake: &mut StreamIntake) -> Result<(), ServerAway> {
        self.looked = Instant::now();
        let failed = |error: BoxedError| self.server.server_away("its state can't be read", error);
        // The end is read before the messages, so that messages in between are after the end.
        let info = self.link.stream.get_info().await.map_err(|error| failed(error.into()))?;
        for lane in self.lanes.iter_mut().filter(|lane| lane.stash.is_none()) {
            let seen = lane.consumer.get_info().await.map_err(|error| failed(error.into()))?;
            // The stream's number of the last delivery moves past messages of other partitions.
            let delivered = seen.delivered.consumer_sequence;
            lane.level = seen.num_pending == 0 && delivered == lane.messages_seen;
            if lane.has_lost(seen.num_pending, delivered) {
                let lost = delivered.saturating_sub(lane.messages_seen);
                let what = format!("{lost} messages of partition {} did not come", lane.partition);
                return Err(self.server.server_away(&what, "it is read again from its first message"));
            }
            if lane.level {
                intake.note_read_through(lane.partition, info.state.last_sequence);
            }
        }
        Ok(())
    }

    /// Whether [`find_read_positions`](Self::find_read_positions) is due although every partition was read to its end.
    pub fn must_compare(&self) -> bool {
        self.looked.elapsed() > COMPARE
    }

    pub fn server_away(&self, what: &str, why: impl Into<BoxedError>) -> ServerAway {
        self.server.server_away(what, why)
    }

    pub fn is_level(&self) -> bool {
        self.lanes.iter().all(|lane| lane.level && lane.stash.is_none())
    }

    pub fn has_waiting(&self) -> bool {
        self.lanes.iter().any(|lane| lane.stash.is_some())
    }

    /// Records that everything that arrived is durable, except waiting states.
    pub fn note_durable(&mut self) {
        for lane in &mut self.lanes {
            let waits = lane.stash.as_ref().map(|(waits, _)| waits.sequence);
            // An incomplete state must come again as a whole.
            let first = waits.into_iter().chain(lane.parts.first_number()).min();
            lane.durable = first.map_or(lane.came, |first| first.saturating_sub(1));
        }
    }

    /// Checks that the stream is unchanged, and returns how many copies of it the servers keep. A stream that was created
    /// again, or that lost its last messages, assigns the numbers of read messages to unread ones.
    async fn check_same_stream(&self) -> Result<usize, ServerAway> {
        let found = self.link.stream.get_info().await;
        let found = found.map_err(|error| self.server.server_away("its state can't be read", error))?;
        let durable = self.lanes.iter().map(|lane| lane.durable).max().unwrap_or_default();
        let is_same = found.created == self.link.stream.cached_info().created;
        match is_same && found.state.last_sequence >= durable {
            true => Ok(found.config.num_replicas),
            false => {
                let why = "it was made anew, or has lost messages: it is read again from its first message";
                Err(self.server.server_away("messages that were read are not removed", why))
            }
        }
    }

    /// Removes durable messages from the stream.
    pub async fn purge_durable(&mut self, held: &mut [PartitionClaim]) -> Result<(), ServerAway> {
        // On another connection, the numbers may belong to other messages.
        if self.link.client.statistics().connects.load(Ordering::Relaxed) > 1 {
            return Err(self.server.server_away("its server", "the connection broke"));
        }
        let has_more = self.lanes.iter().any(|lane| lane.durable > lane.purged);
        let copies = if has_more { self.check_same_stream().await? } else { 0 };
        self.renew_claims(held).await?;
        let removal = MessageRemoval::for_server(&self.link.client.server_info().version, copies);
        for place in 0..self.lanes.len() {
            if self.lanes[place].durable > self.lanes[place].purged {
                self.remove_durable(&self.lanes[place], removal).await.map_err(|error| {
                    self.server.server_away("messages that were read can't be removed from it", error)
                })?;
                self.lanes[place].note_removed();
            }
        }
        Ok(())
    }

    async fn remove_durable(
        &self,
        lane: &PartitionLane,
        removal: MessageRemoval,
    ) -> Result<(), async_nats::Error> {
        let stream = &self.link.stream;
        match removal {
            MessageRemoval::Purge => {
                let subject = self.server.state_subject(&self.source, lane.partition);
                stream.purge().filter(subject).sequence(lane.durable.saturating_add(1)).await?;
            }
            MessageRemoval::Each => {
                let read: Vec<_> = lane.unremoved.range(..=lane.durable).copied().collect();
                for some in read.chunks(REMOVALS) {
                    let removing: Vec<_> =
                        some.iter().map(|sequence| stream.delete_message(*sequence)).collect();
                    try_join_all(removing).await?;
                }
            }
        }
        Ok(())
    }
}
