//! Hands what the journal has to the stream, in its order, and keeps how far it is in the journal:
//! retention leaves what was not handed over, and `journal verify` counts it as it counts a plugin's.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kubewitness_core::carry::{Stood, pack, partition};
use kubewitness_core::ports::{Backlog, Documents, JournalError, KvWrite, Progress, Save, SourceStart};
use kubewitness_core::{Seq, State};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::acked::Acked;
use crate::message::parts;
use crate::publisher::Publisher;
use crate::server::{Away, Server};

/// States of one reading, and of one save.
const PAGE: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often it is looked how much of the stream was read.
const LOOK: Duration = Duration::from_secs(5);
/// In what is kept beside the progress: the name of this journal, and what the server may forget.
const LINE: &str = "line";
const ACKED: &str = "acked";

/// Under which name the journal keeps how far a stream's carrier is. No plugin can have it.
pub fn progress_name(stream: &str) -> String {
    format!("stream/{stream}")
}

/// How a carrier stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierSnapshot {
    /// The position up to which all is with the server.
    pub cursor: Seq,
    pub carried: u64,
    /// What keeps it from going on, for people; `None` while all is well.
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

    /// Says it once: the same condition again is no news.
    fn set_condition(&self, condition: Option<String>) {
        let held = std::mem::replace(&mut self.lock().condition, condition.clone());
        match condition {
            Some(condition) if held.as_ref() != Some(&condition) => {
                tracing::warn!(stream = &*self.name, "{condition}");
            }
            None if held.is_some() => tracing::info!(stream = &*self.name, "carrying again"),
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

/// What is kept: how far it is, and what stood last in each partition.
struct Kept {
    progress: Progress,
    line: Arc<str>,
    acked: Acked,
    before: HashMap<(Arc<str>, u32), Seq>,
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

    /// Runs until the stop. What the server or the journal can't do now is tried again; an error is
    /// final.
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

    /// One connection, until something is away.
    async fn session(&self) -> Result<std::convert::Infallible, Fault> {
        let mut kept = self.load().await?;
        let mut publisher = Publisher::new(&self.server).await?;
        self.go_back(&mut kept, &publisher).await?;
        self.handle.set_condition(None);
        let mut newest = self.backlog.newest();
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() > LOOK {
                kept.acked.read_below(publisher.first().await?);
                looked = Instant::now();
            }
            let cursor = kept.progress.cursor;
            if newest.wait_for(|newest| *newest > cursor).await.is_err() {
                return Err(JournalError::Unavailable("it is being closed".into()).into());
            }
            let states = self.backlog.read(cursor, PAGE).await?;
            let Some(last) = states.last().map(|state| state.seq) else { continue };
            let carried: Vec<_> = states.iter().filter(|state| kept.wants(state)).collect();
            let sent = self.send(&mut publisher, &kept, &carried).await;
            let (there, settled) = publisher.settle().await;
            let all = sent.is_ok() && settled.is_ok();
            let through = if all { last } else { carried[..there].last().map_or(cursor, |state| state.seq) };
            if there > 0 {
                kept.acked.add(publisher.newest(), through);
            }
            self.keep(&mut kept, &carried[..there], through).await?;
            sent?;
            settled?;
        }
    }

    /// Where the server no longer has what it acknowledged, that is handed over again.
    async fn go_back(&self, kept: &mut Kept, publisher: &Publisher) -> Result<(), JournalError> {
        let (made, last) = publisher.found();
        let Some(position) = kept.acked.found(&made, last) else { return Ok(()) };
        let cursor = kept.progress.cursor;
        let carried: Vec<_> = self.server.spec.carry.iter().map(|name| Arc::from(name.as_str())).collect();
        let again = self.backlog.count(&carried, position, cursor).await?;
        tracing::warn!(
            stream = self.server.spec.name,
            states = again,
            "its server has forgotten what it had acknowledged: what may be of it is handed over again"
        );
        kept.progress.cursor = position.min(cursor);
        kept.progress.delivered = kept.progress.delivered.saturating_sub(again);
        // What stood in front of each partition's first is not known from here: it says nothing.
        kept.before.clear();
        let old = self.backlog.kv(&progress_name(&self.server.spec.name)).await?;
        let gone = |(key, _): (String, _)| key.contains('/').then_some(KvWrite { key, value: None });
        let mut kv: Vec<_> = old.into_iter().filter_map(gone).collect();
        kv.push(kept.acked_write());
        self.save(&kept.progress, kv).await?;
        self.show(&kept.progress);
        Ok(())
    }

    /// Up to the first that the server does not take.
    async fn send(
        &self,
        publisher: &mut Publisher,
        kept: &Kept,
        states: &[&Arc<State>],
    ) -> Result<(), Fault> {
        let mut before: BTreeMap<(&str, u32), Seq> = BTreeMap::new();
        for state in states {
            let partition = partition(&state.object, self.server.spec.partitions);
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

    /// A source that is carried from now on begins here; one that no longer is ends here.
    async fn load(&self) -> Result<Kept, JournalError> {
        let name = progress_name(&self.server.spec.name);
        self.backlog.settle().await?;
        let found = self.backlog.progress(&name).await?;
        let kv: HashMap<_, _> = self.backlog.kv(&name).await?.into_iter().collect();
        let line = kv.get(LINE).and_then(|line| std::str::from_utf8(line).ok()).map(Arc::from);
        let is_new = found.is_none() || line.is_none();
        let mut progress = Progress { retired_ms: None, ..found.clone().unwrap_or_default() };
        let cursor = progress.cursor;
        for start in progress.sources.iter_mut().filter(|start| start.until.is_none()) {
            if !self.server.spec.carry.iter().any(|name| *name == *start.source) {
                start.until = Some(cursor);
            }
        }
        for source in &self.server.spec.carry {
            if !progress.sources.iter().any(|start| *start.source == **source && start.until.is_none()) {
                progress.sources.push(SourceStart {
                    source: source.as_str().into(),
                    after: cursor,
                    until: None,
                });
            }
        }
        let acked = kv.get(ACKED).and_then(|text| Acked::parse(std::str::from_utf8(text).ok()?));
        let (line, before) = (line.unwrap_or_else(new_name), HashMap::new());
        let mut kept = Kept { progress, line, acked: acked.unwrap_or_default(), before };
        for (key, value) in &kv {
            let Some((source, partition)) = key.rsplit_once('/') else { continue };
            let seq = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            if let (Ok(partition), Some(seq)) = (partition.parse(), seq) {
                kept.before.insert((source.into(), partition), seq);
            }
        }
        if is_new || found.as_ref() != Some(&kept.progress) {
            let line = KvWrite { key: LINE.into(), value: Some(kept.line.as_bytes().to_vec()) };
            self.save(&kept.progress, vec![line]).await?;
        }
        self.show(&kept.progress);
        Ok(kept)
    }

    /// All up to here is with the server.
    async fn keep(&self, kept: &mut Kept, states: &[&Arc<State>], through: Seq) -> Result<(), JournalError> {
        let mut last = BTreeMap::new();
        for state in states {
            let partition = partition(&state.object, self.server.spec.partitions);
            last.insert((state.source.clone(), partition), state.seq);
        }
        let write = |((source, partition), seq): (&(Arc<str>, u32), &Seq)| KvWrite {
            key: format!("{source}/{partition}"),
            value: Some(seq.to_string().into_bytes()),
        };
        let mut kv: Vec<_> = last.iter().map(write).collect();
        kv.push(kept.acked_write());
        kept.progress.cursor = through;
        kept.progress.delivered += states.len() as u64;
        self.save(&kept.progress, kv).await?;
        kept.before.extend(last);
        self.show(&kept.progress);
        Ok(())
    }

    async fn save(&self, progress: &Progress, kv: Vec<KvWrite>) -> Result<(), JournalError> {
        let save = Save { progress: progress.clone(), kv, ..Save::default() };
        self.backlog.save(&progress_name(&self.server.spec.name), save).await
    }

    fn show(&self, progress: &Progress) {
        let mut snapshot = self.handle.lock();
        (snapshot.cursor, snapshot.carried) = (progress.cursor, progress.delivered);
    }
}

impl Kept {
    fn acked_write(&self) -> KvWrite {
        KvWrite { key: ACKED.into(), value: Some(self.acked.text().into_bytes()) }
    }

    fn wants(&self, state: &State) -> bool {
        self.progress.sources.iter().any(|start| start.until.is_none() && start.covers(state))
    }

    /// What lies in front of where a source begins is missing to whoever reads it, and is told so.
    fn before(&self, source: &Arc<str>, partition: u32) -> Seq {
        let begins = self.progress.sources.iter().filter(|start| start.source == *source);
        let begins = begins.map(|start| start.after).max().unwrap_or_default();
        self.before.get(&(source.clone(), partition)).copied().unwrap_or_default().max(begins)
    }
}

/// Random enough that no two journals of one stream have the same.
pub(crate) fn new_name() -> Arc<str> {
    format!("{:016x}", RandomState::new().hash_one(0_u8)).into()
}
