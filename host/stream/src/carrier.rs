//! Sends a journal's states to the stream, in order. The journal stores the carrier's progress like a
//! plugin's: retention keeps states that were not sent, and `journal verify` counts them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::ports::{Backlog, DocumentReader, JournalError, PluginProgress};
use kubewitness_core::stream::{CarrierCandidate, CarrierClaim, CarrierStart, pack_state};
use kubewitness_core::{Seq, State};
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::claims::{LapseWatch, ONE_COPY, RENEW, ServerClaims};
use crate::message::split_into_parts;
use crate::progress::{CarrierProgress, new_name};
use crate::publisher::StreamPublisher;
use crate::server::{ServerAway, StreamServer};

/// How many states one read and one save have.
const PAGE: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often the carrier checks that the stream exists, and how much of it was read.
const LOOK: Duration = Duration::from_secs(5);
/// How long a carrier may continue after the stop, to record what it has sent and to release its claim.
const GRACE: Duration = Duration::from_secs(2);

/// The figures of a carrier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierSnapshot {
    /// The server has every state up to this position.
    pub cursor: Seq,
    pub carried: u64,
    /// Why the carrier can't continue, for people; `None` while all is well.
    pub condition: Option<String>,
}

#[derive(Clone)]
pub struct CarrierHandle {
    name: Arc<str>,
    snapshot: Arc<Mutex<CarrierSnapshot>>,
}

impl CarrierHandle {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn current_snapshot(&self) -> CarrierSnapshot {
        self.lock_snapshot().clone()
    }

    fn lock_snapshot(&self) -> MutexGuard<'_, CarrierSnapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the condition, and logs it unless it is the same as before.
    fn set_condition(&self, condition: Option<String>) {
        let held = std::mem::replace(&mut self.lock_snapshot().condition, condition.clone());
        match condition {
            Some(condition) if held.as_ref() != Some(&condition) => {
                tracing::warn!(stream = &*self.name, "{condition}");
            }
            None if held.is_some() => {
                tracing::info!(stream = &*self.name, "states are sent to the stream again");
            }
            _ => {}
        }
    }
}

#[derive(Debug, Error)]
enum CarrierFault {
    #[error(transparent)]
    Away(#[from] ServerAway),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

pub struct StreamCarrier {
    server: StreamServer,
    backlog: Arc<dyn Backlog>,
    documents: Arc<dyn DocumentReader>,
    handle: CarrierHandle,
    /// Whether the claim of another process is renewed.
    lapse: LapseWatch,
    /// The last position that was sent in the current line. Over a connection that broke, the server may have taken states
    /// that it did not acknowledge.
    sent: Seq,
}

/// One connection of a carrier.
struct CarrierConnection {
    kept: CarrierProgress,
    publisher: StreamPublisher,
    claim: HeldClaim,
}

impl StreamCarrier {
    pub fn new(
        server: StreamServer,
        backlog: Arc<dyn Backlog>,
        documents: Arc<dyn DocumentReader>,
    ) -> (Self, CarrierHandle) {
        let handle = CarrierHandle { name: server.spec.name.as_str().into(), snapshot: Arc::default() };
        let lapse = LapseWatch::default();
        (Self { server, backlog, documents, handle: handle.clone(), lapse, sent: 0 }, handle)
    }

    /// Runs until the stop. Failures of the server or the journal are retried. A returned error is final.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), JournalError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.handle.current_snapshot().cursor;
            let why = match self.run_session(&stop).await {
                Ok(()) => return Ok(()),
                Err(CarrierFault::Away(away)) => away.to_string(),
                Err(CarrierFault::Journal(JournalError::Unavailable(why))) => {
                    format!("the stream `{}`: the journal: {why}", self.server.spec.name)
                }
                Err(CarrierFault::Journal(fatal)) => return Err(fatal),
            };
            self.handle.set_condition(Some(why));
            if self.handle.current_snapshot().cursor > before {
                pause = FIRST_PAUSE;
            }
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(());
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Runs over one connection, until something becomes unavailable or the stop.
    async fn run_session(&mut self, stop: &CancellationToken) -> Result<(), CarrierFault> {
        let Some(connection) = stop.run_until_cancelled(self.open()).await else { return Ok(()) };
        let mut connection = connection?;
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            ended = self.carry_states(&mut connection, stop) => ended,
            () = late => Ok(()),
        }
    }

    async fn open(&mut self) -> Result<CarrierConnection, CarrierFault> {
        let mut kept = CarrierProgress::load(&self.backlog, &self.server.spec).await?;
        self.show_progress(&kept.progress);
        let publisher = StreamPublisher::new(&self.server).await?;
        let claim = self.claim_stream(&mut kept, &publisher).await?;
        self.send_lost_again(&mut kept, &publisher).await?;
        self.handle.set_condition(None);
        Ok(CarrierConnection { kept, publisher, claim })
    }

    async fn carry_states(
        &mut self,
        connection: &mut CarrierConnection,
        stop: &CancellationToken,
    ) -> Result<(), CarrierFault> {
        let CarrierConnection { kept, publisher, claim } = connection;
        let mut newest = self.backlog.newest_position();
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                self.check_stream(kept, publisher).await?;
            }
            claim.renew_in_time().await?;
            let cursor = kept.progress.cursor;
            let news = async { newest.wait_for(|newest| *newest > cursor).await.map(drop) };
            let Some(news) = stop.run_until_cancelled(timeout(RENEW, news)).await else {
                return Ok(claim.release_claim(cursor.max(self.sent)).await?);
            };
            let Ok(news) = news else { continue };
            if news.is_err() {
                return Err(JournalError::Unavailable("it is being closed".into()).into());
            }
            let states = self.backlog.read(cursor, PAGE).await?;
            let Some(last) = states.last().map(|state| state.seq) else { continue };
            let carried: Vec<_> = states.iter().filter(|state| kept.carries_state(state)).collect();
            self.sent = carried.last().map_or(self.sent, |state| self.sent.max(state.seq));
            let sent = self.send(publisher, kept, claim, &carried).await;
            let (there, settled) = publisher.await_acknowledged().await;
            let all = sent.is_ok() && settled.is_ok();
            let through = if all { last } else { carried[..there].last().map_or(cursor, |state| state.seq) };
            if there > 0 {
                kept.acked.add(publisher.newest_acknowledged(), through);
            }
            kept.add(&carried[..there], through).await?;
            self.show_progress(&kept.progress);
            sent?;
            settled?;
        }
    }

    /// Claims the stream for this process and this journal. The claim comes before the first state.
    async fn claim_stream(
        &mut self,
        kept: &mut CarrierProgress,
        publisher: &StreamPublisher,
    ) -> Result<HeldClaim, CarrierFault> {
        let claims = ServerClaims::open(&self.server, publisher.context()).await?;
        let StreamServer { spec, instance, .. } = &self.server;
        let found = claims.carrier_claim().await?;
        let sequence = found.as_ref().map_or(0, |(_, sequence)| *sequence);
        let found = found.map(|(found, _)| found);
        let candidate = CarrierCandidate {
            lineage: &kept.lineage,
            is_new: kept.is_new,
            cursor: kept.progress.cursor,
            instance,
            take_over: spec.take_over.as_deref(),
        };
        let begun = match candidate.start(found.as_ref(), self.lapse.has_lapsed(sequence)) {
            CarrierStart::Continue => None,
            CarrierStart::BeginLine => Some(kept.lineage.begin_line(new_name(), kept.progress.cursor)),
            CarrierStart::HeldByInstance => {
                let what = "another process carries this journal to it, or a copy of it";
                return Err(self.server.server_away(what, ONE_COPY).into());
            }
            CarrierStart::HeldByJournal => {
                let why = format!(
                    "`{0}`; give each controller that witnesses a stream of its own; if that journal is gone for \
                     good, write `takeOver: {0}` here",
                    found.map(|found| found.line).unwrap_or_default()
                );
                return Err(self.server.server_away("another journal carries to it", why).into());
            }
        };
        let lineage = begun.as_ref().unwrap_or(&kept.lineage);
        let is = CarrierClaim {
            line: lineage.current_line().clone(),
            former: lineage.former_lines().cloned().collect(),
            sources: spec.carry.clone(),
            position: kept.progress.cursor,
            instance: Some(instance.clone()),
        };
        let sequence = claims.put_carrier_claim(&is, sequence).await?;
        if let Some(lineage) = begun {
            tracing::info!(
                stream = spec.name,
                line = &**lineage.current_line(),
                "states are carried in a new line: it is not known how far the process before this one came"
            );
            // If the process is killed before this save, the claim still has the former line.
            kept.begin_line(lineage).await?;
            self.sent = 0;
        }
        Ok(HeldClaim { claims, sequence, is, renewed: Instant::now() })
    }

    /// Sends states again that the server acknowledged and no longer has.
    async fn send_lost_again(
        &self,
        kept: &mut CarrierProgress,
        publisher: &StreamPublisher,
    ) -> Result<(), JournalError> {
        let (made, last) = publisher.stream_identity();
        let Some(position) = kept.acked.compare_stream(&made, last) else { return Ok(()) };
        let states = kept.move_back_to(position).await?;
        tracing::warn!(
            stream = self.server.spec.name,
            states,
            "the stream's server has lost states that it had acknowledged: they are sent again"
        );
        self.show_progress(&kept.progress);
        Ok(())
    }

    /// Checks the stream. Messages that were read can't be forgotten any more. The check also finds a server
    /// that is away, or that forgot messages, while nothing has to be sent.
    async fn check_stream(
        &self,
        kept: &mut CarrierProgress,
        publisher: &mut StreamPublisher,
    ) -> Result<(), ServerAway> {
        let first = publisher.check_stream().await?;
        let (made, last) = publisher.stream_identity();
        if kept.acked.clone().compare_stream(&made, last).is_some() {
            return Err(self
                .server
                .server_away("its server has lost what it had acknowledged", "the carrier connects again"));
        }
        kept.acked.read_below(first);
        Ok(())
    }

    /// Sends states, up to the first one that the server refuses.
    async fn send(
        &self,
        publisher: &mut StreamPublisher,
        kept: &CarrierProgress,
        claim: &mut HeldClaim,
        states: &[&Arc<State>],
    ) -> Result<(), CarrierFault> {
        let mut before: BTreeMap<(&str, u32), Seq> = BTreeMap::new();
        for state in states {
            // Large documents on a slow network take longer than a claim is valid.
            claim.renew_in_time().await?;
            let partition = kept.partition_of(state);
            let held = before.entry((&state.source, partition));
            let held = held.or_insert_with(|| kept.previous_position(&state.source, partition));
            let stood = kept.lineage.journal_position(state.seq, std::mem::replace(held, state.seq));
            let document = self.documents.document_at(state.seq).await?.unwrap_or_default();
            let packed = pack_state(state, &document);
            let subject = self.server.state_subject(&state.source, partition);
            let parts = split_into_parts(&state.source, &stood, &packed, publisher.max_payload());
            let last = parts.len() - 1;
            for (index, part) in parts.into_iter().enumerate() {
                publisher.send(subject.clone(), part, index == last).await?;
            }
        }
        Ok(())
    }

    fn show_progress(&self, progress: &PluginProgress) {
        let mut snapshot = self.handle.lock_snapshot();
        (snapshot.cursor, snapshot.carried) = (progress.cursor, progress.delivered);
    }
}

/// This process's claim.
struct HeldClaim {
    claims: ServerClaims,
    sequence: u64,
    is: CarrierClaim,
    renewed: Instant,
}

impl HeldClaim {
    /// Renews the claim in time. Fails if another process has the stream.
    async fn renew_in_time(&mut self) -> Result<(), ServerAway> {
        if self.renewed.elapsed() > RENEW {
            self.sequence = self.claims.put_carrier_claim(&self.is, self.sequence).await?;
            self.renewed = Instant::now();
        }
        Ok(())
    }

    /// Records that nothing above the position was sent, so that another process can continue at once.
    async fn release_claim(&mut self, position: Seq) -> Result<(), ServerAway> {
        (self.is.position, self.is.instance) = (position, None);
        self.claims.put_carrier_claim(&self.is, self.sequence).await.map(drop)
    }
}
