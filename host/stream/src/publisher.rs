//! Sends messages to the server, in order. Each is accepted only directly after the previous one. So no
//! message overtakes one that the server did not accept, and no reader considers that one lost.

use std::collections::VecDeque;

use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, ErrorCode};
use futures::FutureExt;

use crate::message::{MessageKeys, MessagePart};
use crate::server::{ServerAway, ServerLink, StreamServer};

/// The most bytes in flight: sent and not yet acknowledged.
const FLYING_BYTES: usize = 8 << 20;
const FLYING: usize = 256;

struct PublishInFlight {
    ack: PublishAckFuture,
    bytes: usize,
    /// Whether it is the last message of a state.
    ends: bool,
}

pub(crate) struct StreamPublisher {
    server: StreamServer,
    link: ServerLink,
    keys: Option<MessageKeys>,
    /// The number after which the next message is stored, if the server accepts every message in flight.
    last: u64,
    /// The greatest acknowledged number.
    newest: u64,
    flying: VecDeque<PublishInFlight>,
    bytes: usize,
    /// Whether messages are sent one at a time. The server may have some of them already, and then the number
    /// before the later ones is unknown.
    careful: bool,
    /// Whether the server already had one of them.
    met: bool,
    /// States acknowledged since the last call.
    acknowledged: usize,
}

impl StreamPublisher {
    pub async fn new(server: &StreamServer) -> Result<Self, ServerAway> {
        let keys = server.message_keys().await?;
        let link = server.link_to_carry().await?;
        let last = link.stream.cached_info().state.last_sequence;
        Ok(Self {
            server: server.clone(),
            link,
            keys,
            last,
            newest: 0,
            flying: VecDeque::new(),
            bytes: 0,
            careful: true,
            met: false,
            acknowledged: 0,
        })
    }

    /// When the stream was made, and its last number.
    pub fn stream_identity(&self) -> (String, u64) {
        let info = self.link.stream.cached_info();
        (info.created.unix_timestamp_nanos().to_string(), info.state.last_sequence)
    }

    /// The last acknowledged number.
    pub fn newest_acknowledged(&self) -> u64 {
        self.newest
    }

    /// Checks the stream. Returns the number of its first message.
    pub async fn check_stream(&mut self) -> Result<u64, ServerAway> {
        let info = self.link.stream.info().await;
        let info = info.map_err(|error| self.server.server_away("its state can't be read", error))?;
        Ok(info.state.first_sequence)
    }

    pub fn context(&self) -> &Context {
        &self.link.context
    }

    pub fn max_payload(&self) -> usize {
        self.link.client.server_info().max_payload
    }

    pub async fn send(
        &mut self,
        subject: String,
        mut part: MessagePart,
        ends: bool,
    ) -> Result<(), ServerAway> {
        part.expect_last_sequence(self.last);
        if let Some(keys) = &self.keys {
            keys.sign_message(&subject, &mut part.headers, &part.body);
        }
        let bytes = part.body.len();
        let message = PublishMessage::build().payload(part.body).headers(part.headers);
        let sent = self.link.context.send_publish(subject, message).await;
        let ack = sent.map_err(|error| self.refusal_of(&error))?;
        self.last += 1;
        self.bytes += bytes;
        self.flying.push_back(PublishInFlight { ack, bytes, ends });
        while self.flying.len() >= FLYING
            || self.bytes > FLYING_BYTES
            || (self.careful && !self.flying.is_empty())
        {
            self.await_ack().await?;
        }
        Ok(())
    }

    /// Waits for every message in flight. Returns how many states the server accepted since the last call,
    /// excluding those after an error.
    pub async fn await_acknowledged(&mut self) -> (usize, Result<(), ServerAway>) {
        let mut settled = Ok(());
        while !self.flying.is_empty() && settled.is_ok() {
            settled = self.await_ack().await;
        }
        if settled.is_ok() {
            self.careful = std::mem::take(&mut self.met);
        }
        (std::mem::take(&mut self.acknowledged), settled)
    }

    async fn await_ack(&mut self) -> Result<(), ServerAway> {
        let Some(PublishInFlight { ack, bytes, ends }) = self.flying.pop_front() else { return Ok(()) };
        self.bytes -= bytes;
        let ack = ack.into_future().boxed().await.map_err(|error| self.refusal_of(&error))?;
        self.newest = self.newest.max(ack.sequence);
        if ack.duplicate {
            self.met = true;
            // The message was already stored, and its intended number is free.
            self.last -= 1;
        } else if self.careful {
            self.last = ack.sequence;
        }
        self.acknowledged += usize::from(ends);
        Ok(())
    }

    fn refusal_of(&self, error: &PublishError) -> ServerAway {
        let code = |error: &PublishError| {
            let source = std::error::Error::source(error)?;
            source.downcast_ref::<async_nats::jetstream::Error>().map(|error| error.error_code())
        };
        let server = &self.server;
        match error.kind() {
            _ if code(error) == Some(ErrorCode::STREAM_STORE_FAILED) => {
                let most = server.spec.max_bytes.0 >> 20;
                let why = "new states wait in the journal until its readers have read";
                server.server_away(&format!("it is full ({most} MiB, or the server's disk)"), why)
            }
            PublishErrorKind::WrongLastSequence => {
                server.server_away("another client has written to it", "the carrier connects again")
            }
            PublishErrorKind::TimedOut => {
                server.server_away("its server does not acknowledge a message", "the carrier connects again")
            }
            _ => match std::error::Error::source(error) {
                Some(source) => {
                    server.server_away("its server does not take it", format!("{error}: {source}"))
                }
                None => server.server_away("its server does not take it", error.to_string()),
            },
        }
    }
}
