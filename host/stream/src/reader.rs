//! Reads a source that another controller witnesses from a stream.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::Version;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::FromSpec;
use kubewitness_core::ports::AppendBatch;
use kubewitness_core::stream::{FeedError, FeedItem, ReaderPositions, StateFeed, StreamIntake};
use tokio::time::{Instant, timeout};

use crate::batch::{BatchBuilder, StateBatch};
use crate::claims::PartitionClaim;
use crate::poison::PoisonKeeper;
use crate::progress::new_name;
use crate::server::{ServerAway, StreamServer};
use crate::session::ReaderSession;

/// How often the reader checks whether it has reached the end, until it has, or while a state waits for that.
const LOOK: Duration = Duration::from_millis(200);
/// The pause between two removals of durable messages from the stream.
const PURGE: Duration = Duration::from_secs(1);
/// How long states of another kind wait for one of the source's kind that is on its way, before the settings count as wrong.
const UNDECIDED: Duration = Duration::from_secs(5);
/// The limit for releasing the claims at the stop. They also expire by themselves.
const GIVE_UP: Duration = Duration::from_secs(2);

pub struct StreamReader {
    server: StreamServer,
    source: Arc<str>,
    kind: String,
    partitions: Vec<u32>,
    /// The claims on the partitions. They outlive a connection, so that a refused reader sees whether the
    /// other one's is renewed.
    held: Vec<PartitionClaim>,
    take_over: Option<String>,
    clock: Arc<dyn Clock>,
    /// The part that is durable here.
    durable: StreamIntake,
    /// Whether its name is new and not yet durable.
    is_new: bool,
    session: Option<(ReaderSession, StreamIntake)>,
    poison: PoisonKeeper,
    purged_at: Instant,
}

impl StreamReader {
    /// The source's name and the kind of its objects must match.
    pub fn new(
        server: StreamServer,
        source: &str,
        kind: &str,
        from: &FromSpec,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (source, kind): (Arc<str>, _) = (source.into(), kind.to_owned());
        let partitions = from.chosen_partitions(server.spec.partitions);
        let take_over = from.take_over.clone();
        let durable = StreamIntake::new(
            source.clone(),
            server.spec.name.clone(),
            &partitions,
            None,
            ReaderPositions::default(),
        );
        let (session, purged_at) = (None, Instant::now());
        Self {
            server,
            source,
            kind,
            partitions,
            held: Vec::new(),
            take_over,
            clock,
            durable,
            is_new: false,
            session,
            poison: PoisonKeeper::default(),
            purged_at,
        }
    }

    async fn open(&mut self) -> Result<(), ServerAway> {
        if self.session.is_none() {
            let mut intake = self.durable.with_positions_only();
            let take_over = self.take_over.as_deref();
            let session =
                ReaderSession::open(&self.server, &self.source, &mut self.held, take_over, &mut intake);
            self.session = Some((session.await?, intake));
        }
        Ok(())
    }

    /// Reads the available messages, up to one append. It waits until some arrive, or everything was read.
    async fn read(&mut self) -> Result<FeedItem, ServerAway> {
        self.open().await?;
        let Some((session, intake)) = &mut self.session else { return Ok(FeedItem::default()) };
        session.renew_claims(&mut self.held).await?;
        let (was_level, poison, begun) = (session.is_level(), self.poison.clone(), Instant::now());
        let mut builder = BatchBuilder::new(session, intake, &mut self.poison, &self.kind, &*self.clock);
        while !builder.is_full() {
            if builder.retry_stashed().await? {
                break;
            }
            let has_all = !builder.is_empty() && !builder.may_have_wrong_kind();
            let is_behind = builder.session.has_waiting() || !builder.session.is_level();
            let patience = match () {
                () if has_all => Duration::ZERO,
                () if is_behind => LOOK,
                () => PURGE,
            };
            let Ok(next) = timeout(patience, builder.session.next()).await else {
                if has_all {
                    break;
                }
                if is_behind || builder.session.must_compare() {
                    builder.session.find_read_positions(builder.intake).await?;
                }
                let is_undecided = builder.may_have_wrong_kind()
                    && !builder.session.is_level()
                    && begun.elapsed() < UNDECIDED;
                let is_due = builder.session.is_level() != was_level || self.purged_at.elapsed() > PURGE;
                if is_due && !is_undecided {
                    break;
                }
                continue;
            };
            let (place, message) = next?;
            if builder.take_message(place, &message).await? {
                break;
            }
        }
        if let Err(away) = builder.refuse_a_wrong_kind() {
            // These messages are read again, so the poison that was kept of them is not counted.
            self.poison = poison;
            return Err(away);
        }
        let StateBatch { append, late, repeats, passed, .. } = builder.batch;
        let moved = intake.reader_positions() != self.durable.reader_positions();
        let append = AppendBatch {
            source: self.source.clone(),
            epoch: intake.current_epoch(),
            checkpoint: moved.then(|| Version::new(&intake.reader_positions().to_string())),
            ..append
        };
        Ok(FeedItem { append, late, repeats, passed, level: session.is_level() })
    }
}

#[async_trait]
impl StateFeed for StreamReader {
    fn resume_from(&mut self, epoch: Option<u32>, checkpoint: Option<&Version>) {
        let known = checkpoint.map(|checkpoint| ReaderPositions::parse(checkpoint.as_str()));
        let places = match known {
            Some(Ok(places)) => places,
            other => {
                if let Some(Err(error)) = other {
                    tracing::warn!(source = &*self.source, "the stream is read from its beginning: {error}");
                }
                self.is_new = true;
                ReaderPositions { reader: new_name().to_string(), ..ReaderPositions::default() }
            }
        };
        let claim = |partition: &u32| PartitionClaim::new(&self.source, *partition, &places.reader);
        self.held = self.partitions.iter().map(claim).collect();
        let (source, stream) = (self.source.clone(), self.server.spec.name.clone());
        self.durable = StreamIntake::new(source, stream, &self.partitions, epoch, places);
        self.session = None;
    }

    async fn next(&mut self) -> Result<FeedItem, FeedError> {
        // Other hosts know its name, so it must be the same after a restart.
        if self.is_new {
            let checkpoint = Some(Version::new(&self.durable.reader_positions().to_string()));
            let append = AppendBatch {
                source: self.source.clone(),
                epoch: self.durable.current_epoch(),
                checkpoint,
                ..AppendBatch::default()
            };
            return Ok(FeedItem { append, ..FeedItem::default() });
        }
        self.read().await.map_err(|away| {
            self.session = None;
            FeedError(away.into())
        })
    }

    async fn confirm_durable(&mut self) -> Result<(), FeedError> {
        self.is_new = false;
        let Some((session, intake)) = &mut self.session else { return Ok(()) };
        self.durable = intake.clone();
        session.note_durable();
        if self.purged_at.elapsed() > PURGE {
            self.purged_at = Instant::now();
            if let Err(away) = session.purge_durable(&mut self.held).await {
                self.session = None;
                return Err(FeedError(away.into()));
            }
        }
        Ok(())
    }

    async fn close(&mut self) {
        let Some((session, _)) = self.session.take() else { return };
        match timeout(GIVE_UP, session.release_claims(&self.held)).await {
            Ok(Ok(())) => {}
            Ok(Err(away)) => {
                tracing::debug!(source = &*self.source, "the next reader has to wait: {away}");
            }
            Err(_) => tracing::debug!(source = &*self.source, "the next reader has to wait for its claim"),
        }
    }
}
