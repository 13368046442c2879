//! Collects one append from the messages of a stream.

use async_nats::jetstream::Message;
use bytes::Bytes;
use kubewitness_core::clock::Clock;
use kubewitness_core::limits::APPEND_BATCH;
use kubewitness_core::ports::{Append, Poison, Witnessed};
use kubewitness_core::stream::{Arrival, Intake, Taken};

use crate::server::Away;
use crate::session::{Lane, Session};

/// The bytes of documents in one append.
const BATCH_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(crate) struct Batch {
    pub append: Append,
    pub late: Vec<bool>,
    pub repeats: u64,
    bytes: usize,
}

pub(crate) struct BatchBuilder<'a> {
    pub session: &'a mut Session,
    pub intake: &'a mut Intake,
    pub batch: Batch,
    clock: &'a dyn Clock,
}

impl<'a> BatchBuilder<'a> {
    pub fn new(session: &'a mut Session, intake: &'a mut Intake, clock: &'a dyn Clock) -> Self {
        Self { session, intake, batch: Batch::default(), clock }
    }

    pub fn is_full(&self) -> bool {
        self.batch.append.states.len() >= APPEND_BATCH || self.batch.bytes > BATCH_BYTES
    }

    pub fn is_empty(&self) -> bool {
        let Append { states, poison, gaps, .. } = &self.batch.append;
        states.is_empty() && poison.is_empty() && gaps.is_empty()
    }

    /// The kind of the last object.
    pub fn newest_kind(&self) -> Option<&str> {
        self.batch.append.states.last().map(|state| &*state.object.kind)
    }

    /// Takes a message. Returns `true` if the collected states must be written before anything else.
    pub async fn takes(&mut self, place: usize, message: &Message) -> Result<bool, Away> {
        let lane = &mut self.session.lanes[place];
        let Ok(info) = message.info() else { return Ok(false) };
        let (partition, sequence) = (lane.partition, info.stream_sequence);
        lane.came = sequence;
        lane.messages_seen += 1;
        lane.level = info.pending == 0;
        let headers = message.headers.clone().unwrap_or_default();
        match lane.parts.take(sequence, &headers, &message.payload) {
            Ok(Some((stood, state, document))) => {
                self.offer(place, Arrival { partition, sequence, stood, state }, document).await
            }
            Ok(None) => Ok(false),
            Err(garbled) => {
                self.intake.is_read_through(partition, sequence);
                let (raw, observed_ms) = (message.payload.clone(), self.clock.now_ms());
                self.batch.append.poison.push(Poison { raw, error: garbled.to_string(), observed_ms });
                Ok(false)
            }
        }
    }

    /// Offers waiting states again, oldest first.
    pub async fn retry_stashed(&mut self) -> Result<bool, Away> {
        let waiting = self.session.lanes.iter().enumerate();
        let sequence = |(place, lane): (usize, &Lane)| Some((lane.stash.as_ref()?.0.sequence, place));
        let Some((_, place)) = waiting.filter_map(sequence).min() else { return Ok(false) };
        let Some((arrival, document)) = self.session.lanes[place].stash.take() else { return Ok(false) };
        self.offer(place, arrival, document).await
    }

    async fn offer(&mut self, place: usize, arrival: Arrival, document: Bytes) -> Result<bool, Away> {
        // An append has one epoch.
        let begins = arrival.state.epoch > self.intake.epoch() && !self.is_empty();
        let taken = if begins { Taken::Waits } else { self.intake.offer(&arrival, self.clock.now_ms()) };
        match taken {
            Taken::New(gap) => {
                self.batch.append.gaps.extend(gap.map(|gap| *gap));
                self.batch.bytes += document.len();
                self.batch.late.push(arrival.state.late);
                self.batch.append.states.push(Witnessed::elsewhere(arrival.state, document));
            }
            Taken::Over(gap) => self.batch.append.gaps.push(*gap),
            Taken::Foreign => {
                let why = "empty the data folder of this controller, so that it begins with the new journal";
                let what = "it carries a new journal, in an epoch that has ended here";
                return Err(self.session.away(what, why));
            }
            Taken::Repeat => self.batch.repeats += 1,
            Taken::Hole => {
                self.intake.reads_again(arrival.partition);
                self.session.read_again(place).await?;
            }
            Taken::Waits => self.session.lanes[place].stash = Some((arrival, document)),
        }
        Ok(begins)
    }
}
