//! Collects one append from the messages of a stream.

use async_nats::jetstream::Message;
use bytes::Bytes;
use kubewitness_core::clock::Clock;
use kubewitness_core::limits::APPEND_BATCH;
use kubewitness_core::ports::{AppendBatch, WitnessedState};
use kubewitness_core::stream::{ArrivalAction, GarbledMessage, StateArrival, StreamIntake};

use crate::poison::PoisonKeeper;
use crate::server::ServerAway;
use crate::session::{PartitionLane, ReaderSession};

/// The bytes of documents in one append.
const BATCH_BYTES: usize = 8 << 20;
/// How many messages are read for one append, repeats and poison included: messages are removed from the
/// stream only after it.
const BATCH_MESSAGES: usize = 4 * APPEND_BATCH;

#[derive(Default)]
pub(crate) struct StateBatch {
    pub append: AppendBatch,
    pub late: Vec<bool>,
    pub repeats: u64,
    /// Poison messages that are not kept.
    pub passed: u64,
    bytes: usize,
    messages: usize,
    /// The kind of a state that came although the source has another one.
    other_kind: Option<String>,
}

pub(crate) struct BatchBuilder<'a> {
    pub session: &'a mut ReaderSession,
    pub intake: &'a mut StreamIntake,
    pub batch: StateBatch,
    poison: &'a mut PoisonKeeper,
    /// The kind of the source's objects.
    kind: &'a str,
    clock: &'a dyn Clock,
}

impl<'a> BatchBuilder<'a> {
    pub fn new(
        session: &'a mut ReaderSession,
        intake: &'a mut StreamIntake,
        poison: &'a mut PoisonKeeper,
        kind: &'a str,
        clock: &'a dyn Clock,
    ) -> Self {
        Self { session, intake, batch: StateBatch::default(), poison, kind, clock }
    }

    pub fn is_full(&self) -> bool {
        self.batch.append.states.len() >= APPEND_BATCH
            || self.batch.bytes > BATCH_BYTES
            || self.batch.messages >= BATCH_MESSAGES
    }

    pub fn is_empty(&self) -> bool {
        let AppendBatch { states, poison, gaps, .. } = &self.batch.append;
        states.is_empty() && poison.is_empty() && gaps.is_empty()
    }

    /// Takes a message. Returns `true` if the collected states must be written first.
    pub async fn take_message(&mut self, place: usize, message: &Message) -> Result<bool, ServerAway> {
        let is_authentic = self.session.is_authentic(message);
        let lane = &mut self.session.lanes[place];
        let Ok(info) = message.info() else { return Ok(false) };
        let (partition, sequence) = (lane.partition, info.stream_sequence);
        lane.note_came(sequence, info.pending == 0);
        self.batch.messages += 1;
        let headers = message.headers.clone().unwrap_or_default();
        let taken = match is_authentic {
            true => lane.parts.take(sequence, &headers, &message.payload),
            false => Err(GarbledMessage::NotSigned),
        };
        let whole = taken.and_then(|whole| {
            let Some((stood, state, document)) = whole else { return Ok(None) };
            self.session.expected_states(partition).check(&stood, &state, &document)?;
            Ok(Some((StateArrival { partition, sequence, stood, state }, document)))
        });
        match whole {
            Ok(Some((arrival, document))) if *arrival.state.object.kind == *self.kind => {
                self.offer_arrival(place, arrival, document).await
            }
            Ok(Some((arrival, _))) => {
                let kind = &arrival.state.object.kind;
                let why = format!("its object is of the kind {kind}, and the source has {}", self.kind);
                self.keep_poison(partition, sequence, &message.payload, &why);
                self.batch.other_kind = Some(kind.clone());
                Ok(false)
            }
            Ok(None) => Ok(false),
            Err(garbled) => {
                self.keep_poison(partition, sequence, &message.payload, &garbled.to_string());
                Ok(false)
            }
        }
    }

    /// Whether the settings may name a wrong kind: states of another kind came, and none of the source's own was ever
    /// taken or waits. If one was, somebody else has published the others.
    pub fn may_have_wrong_kind(&self) -> bool {
        self.batch.other_kind.is_some()
            && self.intake.reader_positions().of.is_empty()
            && !self.session.has_waiting()
    }

    /// States of another kind show wrong settings if the carrier has certainly sent them, or if nothing else comes.
    pub fn refuse_a_wrong_kind(&self) -> Result<(), ServerAway> {
        let Some(kind) = &self.batch.other_kind else { return Ok(()) };
        if !self.session.has_key() && !self.may_have_wrong_kind() {
            return Ok(());
        }
        let what = format!("`{}` has objects of the kind {kind}", self.session.source());
        let why = format!("the settings say {}: write `kind: {kind}`", self.kind);
        Err(self.session.server_away(&what, why))
    }

    fn keep_poison(&mut self, partition: u32, sequence: u64, raw: &Bytes, error: &str) {
        self.intake.note_read_through(partition, sequence);
        let (now_ms, age) = (self.clock.now_ms(), self.poison.age());
        match self.poison.keep_message(raw, error, now_ms, age) {
            Some(poison) => {
                self.batch.bytes += poison.raw.len();
                self.batch.append.poison.push(poison);
            }
            None => self.batch.passed += 1,
        }
    }

    /// Offers waiting states again, oldest first.
    pub async fn retry_stashed(&mut self) -> Result<bool, ServerAway> {
        let waiting = self.session.lanes.iter().enumerate();
        let sequence =
            |(place, lane): (usize, &PartitionLane)| Some((lane.stash.as_ref()?.0.sequence, place));
        let Some((_, place)) = waiting.filter_map(sequence).min() else { return Ok(false) };
        let Some((arrival, document)) = self.session.lanes[place].stash.take() else { return Ok(false) };
        self.offer_arrival(place, arrival, document).await
    }

    async fn offer_arrival(
        &mut self,
        place: usize,
        arrival: StateArrival,
        document: Bytes,
    ) -> Result<bool, ServerAway> {
        // An append has one epoch.
        let begins = arrival.state.epoch > self.intake.current_epoch() && !self.is_empty();
        let taken = if begins {
            ArrivalAction::Waits
        } else {
            self.intake.offer_arrival(&arrival, self.clock.now_ms())
        };
        match taken {
            ArrivalAction::New(gap) => {
                self.batch.append.gaps.extend(gap.map(|gap| *gap));
                self.batch.bytes += document.len();
                self.batch.late.push(arrival.state.late);
                self.batch.append.states.push(WitnessedState::from_other_journal(arrival.state, document));
            }
            ArrivalAction::Over(gap) => self.batch.append.gaps.push(*gap),
            // The carrier's claim names its journal. A message from a journal without a claim was published
            // by somebody else.
            ArrivalAction::Foreign if !self.session.is_carried_by(&arrival.stood.line).await? => {
                let StateArrival { partition, sequence, stood, .. } = arrival;
                let why =
                    format!("it comes from the journal `{}`, which does not carry to the stream", stood.line);
                self.keep_poison(partition, sequence, &document, &why);
            }
            ArrivalAction::Foreign => {
                let why = "empty the data folder of this controller, so that it begins with the new journal";
                let what = "it carries a new journal, in an epoch that has ended here";
                return Err(self.session.server_away(what, why));
            }
            ArrivalAction::Repeat => self.batch.repeats += 1,
            ArrivalAction::Hole => {
                self.intake.reads_again(arrival.partition);
                self.session.read_again(place).await?;
            }
            ArrivalAction::Waits => self.session.lanes[place].stash = Some((arrival, document)),
        }
        Ok(begins)
    }
}
