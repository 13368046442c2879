//! Sends a journal's states to the stream, in order. The journal keeps the carrier's progress like a
//! plugin's: retention keeps states that were not sent, and `journal verify` counts them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::ports::{Backlog, Documents, JournalError, Progress};
use kubewitness_core::stream::{Stood, pack};
use kubewitness_core::{Seq, State};
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::claims::{Carries, Claims};
use crate::message::parts;
use crate::progress::CarrierProgress;
use crate::publisher::Publisher;
use crate::server::{Away, Server};

/// The states of one read, and of one save.
const PAGE: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often the carrier checks that the stream exists, and how much of it was read.
const LOOK: Duration = Duration::from_secs(5);
/// How often the carrier tells the server how far this journal is carried. The journal is recognized by it.
const TELL: Duration = Duration::from_secs(1);

/// The figures of a carrier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierSnapshot {
    /// Every state up to this position is with the server.
    pub cursor: Seq,
    pub carried: u64,
    /// What keeps the carrier from going on, for people; `None` while all is well.
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

    pub fn view(&self) -> CarrierSnapshot {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, CarrierSnapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the condition, and logs it unless it is the same as before.
    fn set_condition(&self, condition: Option<String>) {
        let held = std::mem::replace(&mut self.lock().condition, condition.clone());
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
enum Fault {
    #[error(transparent)]
    Away(#[from] Away),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

pub struct Carrier {
    server: Server,
    backlog: Arc<dyn Backlog>,
    documents: Arc<dyn Documents>,
    handle: CarrierHandle,
}

impl Carrier {
    pub fn new(
        server: Server,
        backlog: Arc<dyn Backlog>,
        documents: Arc<dyn Documents>,
    ) -> (Self, CarrierHandle) {
        let handle = CarrierHandle { name: server.spec.name.as_str().into(), snapshot: Arc::default() };
        (Self { server, backlog, documents, handle: handle.clone() }, handle)
    }

    /// Runs until the stop. It retries what the server or the journal can't do now. An error is final.
    pub async fn run(self, stop: CancellationToken) -> Result<(), JournalError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.handle.view().cursor;
            let why = match stop.run_until_cancelled(self.session()).await {
                None => return Ok(()),
                Some(Err(Fault::Away(away))) => away.to_string(),
                Some(Err(Fault::Journal(JournalError::Unavailable(why)))) => {
                    format!("the stream `{}`: the journal: {why}", self.server.spec.name)
                }
                Some(Err(Fault::Journal(fatal))) => return Err(fatal),
                Some(Ok(never)) => match never {},
            };
            self.handle.set_condition(Some(why));
            if self.handle.view().cursor > before {
                pause = FIRST_PAUSE;
            }
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(());
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Runs over one connection until something becomes unavailable.
    async fn session(&self) -> Result<std::convert::Infallible, Fault> {
        let mut kept = CarrierProgress::load(&self.backlog, &self.server.spec).await?;
        self.show(&kept.progress);
        let mut publisher = Publisher::new(&self.server).await?;
        let mut claim = self.claim(&mut kept, &publisher).await?;
        self.go_back(&mut kept, &publisher).await?;
        self.handle.set_condition(None);
        let mut newest = self.backlog.newest();
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                self.look(&mut kept, &mut publisher).await?;
            }
            claim.tell(false).await?;
            let cursor = kept.progress.cursor;
            let news = async { newest.wait_for(|newest| *newest > cursor).await.map(drop) };
            let Ok(news) = timeout(TELL, news).await else { continue };
            if news.is_err() {
                return Err(JournalError::Unavailable("it is being closed".into()).into());
            }
            let states = self.backlog.read(cursor, PAGE).await?;
            let Some(last) = states.last().map(|state| state.seq) else { continue };
            let carried: Vec<_> = states.iter().filter(|state| kept.wants(state)).collect();
            let sent = self.send(&mut publisher, &kept, &carried).await;
            let (there, settled) = publisher.settle().await;
            let all = sent.is_ok() && settled.is_ok();
            let through = if all { last } else { carried[..there].last().map_or(cursor, |state| state.seq) };
            if let Some(state) = carried[..there].last() {
                kept.acked.add(publisher.newest(), through);
                (claim.is.position, claim.is.id) = (state.seq, state.id.to_string());
            }
            kept.add(&carried[..there], through).await?;
            self.show(&kept.progress);
            sent?;
            settled?;
        }
    }

    /// Claims the stream for this journal; only one journal carries to it. A journal that was restored from a
    /// backup is recognized: the state that it carried last now stands elsewhere in it, or nowhere.
    async fn claim(&self, kept: &mut CarrierProgress, publisher: &Publisher) -> Result<Claim, Fault> {
        let claims = Claims::open(&self.server, publisher.context()).await?;
        let spec = &self.server.spec;
        let found = claims.carrier().await?;
        let sequence = found.as_ref().map_or(0, |(_, sequence)| *sequence);
        let mut is =
            Carries { sources: spec.carry.clone(), line: kept.line.to_string(), ..Carries::default() };
        match found {
            Some((held, _)) if held.line == *kept.line => {
                (is.position, is.id) = (held.position, held.id.clone());
                if self.went_back(&held).await? {
                    tracing::warn!(
                        stream = spec.name,
                        "the journal was restored from an older copy: it is carried under a new name"
                    );
                    kept.begin_anew().await?;
                    is = Carries { line: kept.line.to_string(), sources: is.sources, ..Carries::default() };
                }
            }
            Some((held, _)) if kept.former.as_deref() == Some(&*held.line) => {}
            Some((held, _)) if spec.take_over.as_ref() != Some(&held.line) => {
                let why = format!(
                    "`{0}`; give each controller that witnesses a stream of its own; if that journal is gone for \
                     good, write `takeOver: {0}` here, and let its readers begin with empty data folders",
                    held.line
                );
                return Err(self.server.away("another journal carries to it", why).into());
            }
            _ => {}
        }
        let mut claim = Claim { claims, sequence, is, told: Carries::default(), told_at: Instant::now() };
        claim.tell(true).await?;
        kept.is_claimed().await?;
        Ok(claim)
    }

    async fn went_back(&self, held: &Carries) -> Result<bool, JournalError> {
        if held.position == 0 {
            return Ok(false);
        }
        if *self.backlog.newest().borrow() < held.position {
            return Ok(true);
        }
        // A state that retention removed proves nothing.
        let there = self.backlog.read_at(&[held.position]).await?;
        Ok(there.first().is_some_and(|state| state.id.as_str() != held.id))
    }

    /// Sends states again that the server acknowledged and no longer has.
    async fn go_back(&self, kept: &mut CarrierProgress, publisher: &Publisher) -> Result<(), JournalError> {
        let (made, last) = publisher.found();
        let Some(position) = kept.acked.found(&made, last) else { return Ok(()) };
        let states = kept.go_back(position).await?;
        tracing::warn!(
            stream = self.server.spec.name,
            states,
            "the stream's server has lost states that it had acknowledged: they are sent again"
        );
        self.show(&kept.progress);
        Ok(())
    }

    /// Looks at the stream. Messages that were read can't be forgotten any more. It also finds a server that
    /// is away, or that forgot messages, while there is nothing to send.
    async fn look(&self, kept: &mut CarrierProgress, publisher: &mut Publisher) -> Result<(), Away> {
        let first = publisher.look().await?;
        let (made, last) = publisher.found();
        if kept.acked.clone().found(&made, last).is_some() {
            return Err(self
                .server
                .away("its server has lost what it had acknowledged", "the carrier connects again"));
        }
        kept.acked.read_below(first);
        Ok(())
    }

    /// Sends states, up to the first that the server does not take.
    async fn send(
        &self,
        publisher: &mut Publisher,
        kept: &CarrierProgress,
        states: &[&Arc<State>],
    ) -> Result<(), Fault> {
        let mut before: BTreeMap<(&str, u32), Seq> = BTreeMap::new();
        for state in states {
            let partition = kept.partition(state);
            let held = before.entry((&state.source, partition));
            let held = held.or_insert_with(|| kept.before(&state.source, partition));
            let stood = Stood {
                line: kept.line.clone(),
                position: state.seq,
                before: std::mem::replace(held, state.seq),
            };
            let document = self.documents.document(state.seq).await?.unwrap_or_default();
            let packed = pack(state, &document);
            let subject = self.server.subject(&state.source, partition);
            let parts = parts(&state.source, &stood, &packed, publisher.max_payload());
            let last = parts.len() - 1;
            for (index, part) in parts.into_iter().enumerate() {
                publisher.send(subject.clone(), part, index == last).await?;
            }
        }
        Ok(())
    }

    fn show(&self, progress: &Progress) {
        let mut snapshot = self.handle.lock();
        (snapshot.cursor, snapshot.carried) = (progress.cursor, progress.delivered);
    }
}

/// The server's record that this journal carries.
struct Claim {
    claims: Claims,
    sequence: u64,
    is: Carries,
    told: Carries,
    told_at: Instant,
}

impl Claim {
    async fn tell(&mut self, at_once: bool) -> Result<(), Away> {
        if self.is != self.told && (at_once || self.told_at.elapsed() > TELL) {
            self.sequence = self.claims.carries(&self.is, self.sequence).await?;
            (self.told, self.told_at) = (self.is.clone(), Instant::now());
        }
        Ok(())
    }
}
