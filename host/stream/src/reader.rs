//! A source that another host witnesses, as the stream brings it.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Message;
use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::carry::{Arrival, Fed, Feed, FeedError, Intake, Places, Taken};
use kubewitness_core::clock::Clock;
use kubewitness_core::config::FromSpec;
use kubewitness_core::limits::APPEND_BATCH;
use kubewitness_core::ports::{Append, Poison, Witnessed};
use tokio::time::{Instant, timeout};

use crate::kept::new_name;
use crate::server::{Away, Server};
use crate::session::Session;

/// Bytes of documents in one append.
const BATCH_BYTES: usize = 8 << 20;
/// How often it is looked whether the end was reached, while it was not or something waits for it.
const LOOK: Duration = Duration::from_millis(200);
/// Between two times that what is durable is taken from the stream.
const PURGE: Duration = Duration::from_secs(1);

pub struct Reader {
    server: Server,
    source: Arc<str>,
    kind: String,
    partitions: Vec<u32>,
    take_over: Option<String>,
    clock: Arc<dyn Clock>,
    /// What is durable here.
    durable: Intake,
    /// Its name was given now, and is not durable.
    is_new: bool,
    session: Option<(Session, Intake)>,
    purged_at: Instant,
}

/// One append in the making.
#[derive(Default)]
struct Batch {
    append: Append,
    late: Vec<bool>,
    repeats: u64,
    bytes: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.append.states.len() >= APPEND_BATCH || self.bytes > BATCH_BYTES
    }

    fn is_empty(&self) -> bool {
        let Append { states, poison, gaps, .. } = &self.append;
        states.is_empty() && poison.is_empty() && gaps.is_empty()
    }
}

impl Reader {
    /// A source with this name, of objects of this kind.
    pub fn new(server: Server, source: &str, kind: &str, from: &FromSpec, clock: Arc<dyn Clock>) -> Self {
        let (source, kind): (Arc<str>, _) = (source.into(), kind.to_owned());
        let partitions = from.partitions(server.spec.partitions);
        let take_over = from.take_over.clone();
        let durable =
            Intake::new(source.clone(), server.spec.name.clone(), &partitions, None, Places::default());
        let (session, purged_at) = (None, Instant::now());
        Self {
            server,
            source,
            kind,
            partitions,
            take_over,
            clock,
            durable,
            is_new: false,
            session,
            purged_at,
        }
    }

    async fn open(&mut self) -> Result<(), Away> {
        if self.session.is_none() {
            let mut intake = self.durable.anew();
            let take_over = self.take_over.as_deref();
            let session = Session::open(&self.server, &self.source, &self.partitions, take_over, &mut intake);
            self.session = Some((session.await?, intake));
        }
        Ok(())
    }

    /// What is there, up to one append; waits until something is, or everything was read.
    async fn read(&mut self) -> Result<Fed, Away> {
        self.open().await?;
        let Some((session, intake)) = &mut self.session else { return Ok(Fed::default()) };
        let mut batch = Batch::default();
        let was_level = session.is_level();
        while !batch.is_full() {
            if retry_stashed(session, intake, &mut batch, self.clock.now_ms()).await? {
                break;
            }
            let patience = match () {
                () if !batch.is_empty() => Duration::ZERO,
                () if session.waits() || !session.is_level() => LOOK,
                () => PURGE,
            };
            let Ok(next) = timeout(patience, session.next()).await else {
                if !batch.is_empty() {
                    break;
                }
                if session.waits() || !session.is_level() {
                    session.look(intake).await?;
                }
                if session.is_level() != was_level || self.purged_at.elapsed() > PURGE {
                    break;
                }
                continue;
            };
            let (place, message) = next?;
            if took(session, intake, &mut batch, place, &message, self.clock.now_ms()).await? {
                break;
            }
            let kind = batch.append.states.last().map(|state| &state.object.kind);
            if let Some(kind) = kind.filter(|kind| **kind != self.kind) {
                let what = format!("`{}` has objects of the kind {kind}", self.source);
                let why = format!("the settings say {}: write `kind: {kind}`", self.kind);
                return Err(session.away(&what, why));
            }
        }
        let level = session.is_level();
        let moved = intake.places() != self.durable.places();
        let append = Append {
            source: self.source.clone(),
            epoch: intake.epoch(),
            checkpoint: moved.then(|| Version::new(&intake.places().to_string())),
            ..batch.append
        };
        Ok(Fed { append, late: batch.late, repeats: batch.repeats, level })
    }
}

/// Takes a message in. `true`: what was collected has to be written before anything else.
async fn took(
    session: &mut Session,
    intake: &mut Intake,
    batch: &mut Batch,
    place: usize,
    message: &Message,
    now_ms: u64,
) -> Result<bool, Away> {
    let lane = &mut session.lanes[place];
    let Ok(info) = message.info() else { return Ok(false) };
    lane.came = info.stream_sequence;
    lane.messages_seen += 1;
    lane.level = info.pending == 0;
    let headers = message.headers.clone().unwrap_or_default();
    let (stood, state, document) = match lane.parts.take(info.stream_sequence, &headers, &message.payload) {
        Ok(Some(whole)) => whole,
        Ok(None) => return Ok(false),
        Err(garbled) => {
            intake.is_read_through(lane.partition, info.stream_sequence);
            let raw = message.payload.clone();
            batch.append.poison.push(Poison { raw, error: garbled.to_string(), observed_ms: now_ms });
            return Ok(false);
        }
    };
    let (partition, sequence) = (lane.partition, info.stream_sequence);
    let arrival = Arrival { partition, sequence, stood, state };
    offer(session, intake, batch, place, arrival, document, now_ms).await
}

/// Offers again what waits, oldest first.
async fn retry_stashed(
    session: &mut Session,
    intake: &mut Intake,
    batch: &mut Batch,
    now_ms: u64,
) -> Result<bool, Away> {
    let waiting = session.lanes.iter().enumerate();
    let sequence =
        |(place, lane): (usize, &crate::session::Lane)| Some((lane.stash.as_ref()?.0.sequence, place));
    let Some((_, place)) = waiting.filter_map(sequence).min() else { return Ok(false) };
    let Some((arrival, document)) = session.lanes[place].stash.take() else { return Ok(false) };
    offer(session, intake, batch, place, arrival, document, now_ms).await
}

async fn offer(
    session: &mut Session,
    intake: &mut Intake,
    batch: &mut Batch,
    place: usize,
    arrival: Arrival,
    document: Bytes,
    now_ms: u64,
) -> Result<bool, Away> {
    // One append is of one epoch.
    let begins = arrival.state.epoch > intake.epoch() && !batch.is_empty();
    let taken = if begins { Taken::Waits } else { intake.offer(&arrival, now_ms) };
    match taken {
        Taken::New(gap) => {
            batch.append.gaps.extend(gap.map(|gap| *gap));
            batch.bytes += document.len();
            batch.late.push(arrival.state.late);
            batch.append.states.push(Witnessed::elsewhere(arrival.state, document));
        }
        Taken::Over(gap) => batch.append.gaps.push(*gap),
        Taken::Foreign => {
            let why = "empty the data folder of this host, so that it begins with what is carried now";
            let what =
                "what it brings comes from a journal that was begun anew, in an epoch that is over here";
            return Err(session.away(what, why));
        }
        Taken::Repeat => batch.repeats += 1,
        Taken::Hole => {
            intake.reads_again(arrival.partition);
            session.read_again(place).await?;
        }
        Taken::Waits => session.lanes[place].stash = Some((arrival, document)),
    }
    Ok(begins)
}

#[async_trait]
impl Feed for Reader {
    fn resume(&mut self, epoch: Option<u32>, checkpoint: Option<&Version>) {
        let known = checkpoint.map(|checkpoint| Places::parse(checkpoint.as_str()));
        let places = match known {
            Some(Ok(places)) => places,
            other => {
                if let Some(Err(error)) = other {
                    tracing::warn!(source = &*self.source, "read from its beginning: {error}");
                }
                self.is_new = true;
                Places { reader: new_name().to_string(), ..Places::default() }
            }
        };
        let (source, stream) = (self.source.clone(), self.server.spec.name.clone());
        self.durable = Intake::new(source, stream, &self.partitions, epoch, places);
        self.session = None;
    }

    async fn next(&mut self) -> Result<Fed, FeedError> {
        // Others are told its name: it has to be the same after a restart.
        if self.is_new {
            let checkpoint = Some(Version::new(&self.durable.places().to_string()));
            let append = Append {
                source: self.source.clone(),
                epoch: self.durable.epoch(),
                checkpoint,
                ..Append::default()
            };
            return Ok(Fed { append, ..Fed::default() });
        }
        self.read().await.map_err(|Away(why)| {
            self.session = None;
            FeedError(why)
        })
    }

    async fn durable(&mut self) -> Result<(), FeedError> {
        self.is_new = false;
        let Some((session, intake)) = &mut self.session else { return Ok(()) };
        self.durable = intake.clone();
        session.is_durable();
        if self.purged_at.elapsed() > PURGE {
            self.purged_at = Instant::now();
            if let Err(Away(why)) = session.purge().await {
                self.session = None;
                return Err(FeedError(why));
            }
        }
        Ok(())
    }
}
