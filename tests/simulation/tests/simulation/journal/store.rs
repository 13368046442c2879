//! A journal with the semantics of a log that is synced: a transaction is in the log, then durable,
//! then acknowledged, and the process may die between any two. What dies unsynced is there up to the
//! border of some transaction.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use kubewitness_core::ports::{
    AppendBatch, AppendResult, Backlog, DeadLetter, FormerEnd, JournalError, OwedPage, PluginPause,
    PluginProgress, PresentPage, ProgressSave, StateWitness, WarmStart,
};
use kubewitness_core::{Seq, State};
use kubewitness_faults::delivery::DeliveryBreach;
use tokio::sync::watch;

use crate::bugs::PlantedBug;
use crate::journal::disk::{DiskWrite, SimulatedDisk};
use crate::steps::StepClock;

/// Milliseconds that a sync takes at most; much more on a disk that is slow for a while.
const SYNC: u64 = 4;
const SLOW_SYNC: u64 = 1500;

/// Looks at what is durable after a plugin's progress was.
type DurableLook = dyn Fn(&SimulatedDisk, &str) + Send + Sync;

struct StoreInner {
    disk: SimulatedDisk,
    log: VecDeque<(u64, DiskWrite)>,
    tickets: u64,
    answers: HashMap<u64, Option<AppendResult>>,
    /// The disk is full.
    refuses: bool,
    slow: bool,
    /// The next sync fails.
    sync_fails: bool,
    in_doubt: bool,
    /// Who was told so how often, and may not come again. Of one name there are as many as witness.
    told: HashMap<String, usize>,
    witnesses: usize,
    /// The look at its content after each change of a plugin's progress.
    watched: Option<Arc<DurableLook>>,
}

pub struct SimulatedStore {
    steps: Arc<StepClock>,
    inner: Mutex<StoreInner>,
    /// One for each who asks: among several who wait at one, chance decides who is woken first.
    newest: Mutex<Vec<watch::Sender<Seq>>>,
}

impl SimulatedStore {
    pub fn new(steps: &Arc<StepClock>) -> Arc<Self> {
        let inner = StoreInner {
            disk: SimulatedDisk::default(),
            log: VecDeque::new(),
            tickets: 0,
            answers: HashMap::new(),
            refuses: false,
            slow: false,
            sync_fails: false,
            in_doubt: false,
            told: HashMap::new(),
            witnesses: 1,
            watched: None,
        };
        Arc::new(Self { steps: Arc::clone(steps), inner: Mutex::new(inner), newest: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, StoreInner> {
        self.inner.lock().unwrap()
    }

    pub fn disk<T>(&self, look: impl FnOnce(&SimulatedDisk) -> T) -> T {
        look(&self.inner().disk)
    }

    pub fn watch(&self, look: impl Fn(&SimulatedDisk, &str) + Send + Sync + 'static) {
        self.inner().watched = Some(Arc::new(look));
    }

    pub fn refuses(&self, refuses: bool) {
        self.inner().refuses = refuses;
    }

    pub fn set_witnesses(&self, witnesses: usize) {
        self.inner().witnesses = witnesses;
    }

    pub fn slow(&self, slow: bool) {
        self.inner().slow = slow;
    }

    pub fn next_sync_fails(&self) {
        self.inner().sync_fails = true;
    }

    fn publish(&self) {
        let newest = self.inner().disk.newest();
        let mut waiting = self.newest.lock().unwrap();
        waiting.retain(|waiting| !waiting.is_closed());
        for waiting in &*waiting {
            waiting.send_if_modified(|known| std::mem::replace(known, newest) != newest);
        }
    }

    /// The process is gone: what is in the log is there up to some transaction. A handle is opened
    /// anew, and with it the doubt is over.
    pub fn crash(&self) {
        let some = {
            let inner = self.inner();
            let many = inner.log.len() as u64;
            self.steps.dice(|dice| dice.between(0, many)) as usize
        };
        let (all, mut log) = {
            let mut inner = self.inner();
            (inner.disk.newest(), std::mem::take(&mut inner.log))
        };
        let marks = &self.steps.marks;
        marks.when(!log.is_empty() && some == 0, "a crash lost what was in the log");
        marks.when(some > 0, "a crash kept what nobody heard of");
        marks.when(some > 0 && some < log.len(), "a crash tore the log between two transactions");
        self.steps.write_down(|| format!("the disk has {all} and {some} of {} more", log.len()));
        let torn = log.get(some).cloned();
        log.truncate(some);
        for (_, write) in log {
            self.apply(&write, true);
        }
        if let Some((_, write)) = torn
            && self.steps.bug == PlantedBug::CheckpointFirst
        {
            self.apply(&write, false);
        }
        let mut inner = self.inner();
        (inner.in_doubt, inner.sync_fails) = (false, false);
        inner.told.clear();
        inner.answers.clear();
        drop(inner);
        self.publish();
    }

    /// States that come from nowhere, for a test that has no use for a watch.
    pub fn fill(&self, append: AppendBatch) {
        self.inner().disk.apply(&DiskWrite::Append(append), true, PlantedBug::None);
        self.publish();
    }

    /// In good order: what is under way is finished.
    pub fn close(&self) {
        let log = std::mem::take(&mut self.inner().log);
        self.inner().sync_fails = false;
        for (_, write) in log {
            self.apply(&write, true);
        }
        self.inner().answers.clear();
        self.publish();
    }

    fn apply(&self, write: &DiskWrite, whole: bool) -> Option<AppendResult> {
        let mut inner = self.inner();
        let appended = inner.disk.apply(write, whole, self.steps.bug);
        if let (DiskWrite::Save(plugin, _), Some(watched)) = (write, inner.watched.clone()) {
            watched(&inner.disk, plugin);
        }
        appended
    }

    pub fn is_in_doubt(&self) -> bool {
        self.inner().in_doubt
    }

    fn check(&self) -> Result<(), JournalError> {
        let inner = self.inner();
        if inner.in_doubt {
            return Err(self.doubt());
        }
        if inner.refuses {
            return Err(JournalError::Unavailable("the disk is full".into()));
        }
        Ok(())
    }

    fn doubt(&self) -> JournalError {
        let text = "the last write is in doubt".to_owned();
        match self.steps.bug {
            PlantedBug::TriesAgain => JournalError::Unavailable(text),
            _ => JournalError::Fatal(text),
        }
    }

    /// Who writes: one that was told of a doubt must not come again.
    fn comes(&self, who: &str) -> Result<(), JournalError> {
        let is_told = {
            let inner = self.inner();
            inner.told.get(who).is_some_and(|times| *times >= inner.witnesses)
        };
        if is_told {
            self.steps.find(DeliveryBreach::Doubted, format!("{who} wrote again"));
        }
        let checked = self.check();
        if self.is_in_doubt() {
            *self.inner().told.entry(who.to_owned()).or_default() += 1;
        }
        checked
    }

    async fn commit(&self, kind: &str, who: &str, write: DiskWrite) -> Result<AppendResult, JournalError> {
        self.steps.step(&format!("{kind}: asked")).await;
        self.comes(who)?;
        let ticket = self.log(write);
        self.steps.step(&format!("{kind}: in the log")).await;
        let slow = self.inner().slow;
        self.steps.pass(if slow { SLOW_SYNC } else { SYNC }).await;
        if std::mem::take(&mut self.inner().sync_fails) {
            self.inner().in_doubt = true;
            self.steps.marks.when(true, "a sync failed");
        }
        if self.is_in_doubt() {
            *self.inner().told.entry(who.to_owned()).or_default() += 1;
            return Err(self.doubt());
        }
        self.sync_through(ticket);
        self.publish();
        self.steps.step(&format!("{kind}: durable")).await;
        self.steps.pass(1).await;
        self.steps.step(&format!("{kind}: acknowledged")).await;
        let answer = self.inner().answers.remove(&ticket).unwrap_or(Some(AppendResult::default()));
        answer.ok_or_else(|| JournalError::Overtaken("another witness is further".into()))
    }

    fn log(&self, write: DiskWrite) -> u64 {
        let mut inner = self.inner();
        inner.tickets += 1;
        let ticket = inner.tickets;
        inner.log.push_back((ticket, write));
        ticket
    }

    /// One sync makes everything durable that was in the log before it.
    fn sync_through(&self, ticket: u64) {
        loop {
            let next = {
                let mut inner = self.inner();
                match inner.log.front() {
                    Some((first, _)) if *first <= ticket => inner.log.pop_front(),
                    _ => return,
                }
            };
            let Some((number, write)) = next else { return };
            self.steps.marks.when(number != ticket, "one sync was for several");
            if self.steps.bug == PlantedBug::LettersApart {
                self.apply(&write, false);
            }
            let appended = self.apply(&write, true);
            self.inner().answers.insert(number, appended);
        }
    }

    async fn reading(&self, kind: &str) -> Result<(), JournalError> {
        self.steps.step(&format!("read: {kind}")).await;
        self.steps.pass(1).await;
        self.check()
    }

    /// Hands states out, as a bug has them.
    fn handed_out(&self, mut states: Vec<Arc<State>>) -> Vec<Arc<State>> {
        match self.steps.bug {
            PlantedBug::SkipsStates if states.len() > 2 && self.steps.dice(|dice| dice.one_in(5)) => {
                states.remove(1);
            }
            PlantedBug::SwapsStates => {
                let pair =
                    (1..states.len()).find(|&place| states[place - 1].lane_key() == states[place].lane_key());
                if let Some(place) = pair {
                    let (first, second) = (Arc::clone(&states[place - 1]), Arc::clone(&states[place]));
                    states[place - 1] = Arc::new(State { seq: first.seq, ..(*second).clone() });
                    states[place] = Arc::new(State { seq: second.seq, ..(*first).clone() });
                }
            }
            _ => {}
        }
        states
    }
}

#[async_trait]
impl StateWitness for SimulatedStore {
    async fn append_batch(&self, append: AppendBatch) -> Result<AppendResult, JournalError> {
        let who = append.source.to_string();
        self.commit("append", &who, DiskWrite::Append(append)).await
    }

    async fn load_warm_start(&self, source: &str) -> Result<WarmStart, JournalError> {
        self.reading("warm").await?;
        let inner = self.inner();
        let checkpoint = inner.disk.checkpoints.get(source).cloned();
        Ok(WarmStart { checkpoint, objects: inner.disk.warm(source), ..WarmStart::default() })
    }

    async fn end_of_former(&self, source: &str, _epoch: u32, uid: &str) -> Result<FormerEnd, JournalError> {
        self.reading("fate").await?;
        let has_ended = self.inner().disk.has_ended(source, uid);
        Ok(if has_ended { FormerEnd::Ended } else { FormerEnd::Unknown })
    }
}

#[async_trait]
impl Backlog for SimulatedStore {
    fn newest_position(&self) -> watch::Receiver<Seq> {
        let (sender, receiver) = watch::channel(self.inner().disk.newest());
        self.newest.lock().unwrap().push(sender);
        receiver
    }

    async fn read(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, JournalError> {
        self.reading("states").await?;
        let states =
            self.disk(|disk| disk.states.range(after + 1..).take(limit).map(|(_, s)| s.clone()).collect());
        Ok(self.handed_out(states))
    }

    async fn read_at(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError> {
        self.reading("single states").await?;
        Ok(self.disk(|disk| seqs.iter().filter_map(|seq| disk.states.get(seq).cloned()).collect()))
    }

    async fn present_objects(
        &self,
        source: &str,
        from: u64,
        limit: usize,
    ) -> Result<PresentPage, JournalError> {
        self.reading("what is there").await?;
        Ok(self.disk(|disk| {
            let mut seqs: Vec<Seq> = disk.current(source).map(|(_, live)| live.seq).collect();
            seqs.sort_unstable();
            let part: Vec<_> = seqs.iter().copied().filter(|seq| *seq > from).take(limit + 1).collect();
            let next = (part.len() > limit).then(|| part[limit - 1]);
            let states = part.iter().take(limit).map(|seq| disk.states[seq].clone()).collect();
            PresentPage { states, next }
        }))
    }

    async fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Result<u64, JournalError> {
        tokio::task::yield_now().await;
        self.check()?;
        Ok(self.disk(|disk| {
            let states = disk.states.range(after + 1..=through.max(after)).map(|(_, state)| state);
            states.filter(|state| sources.contains(&state.source)).count() as u64
        }))
    }

    async fn plugin_progress(&self, plugin: &str) -> Result<Option<PluginProgress>, JournalError> {
        self.reading("progress").await?;
        Ok(self.disk(|disk| disk.kept_progress(plugin).progress))
    }

    async fn save(&self, plugin: &str, save: ProgressSave) -> Result<(), JournalError> {
        self.commit("save", plugin, DiskWrite::Save(plugin.to_owned(), save)).await.map(|_| ())
    }

    async fn dead_letters(&self, plugin: &str) -> Result<Vec<DeadLetter>, JournalError> {
        self.reading("letters").await?;
        Ok(self.disk(|disk| disk.kept_progress(plugin).letters.into_values().collect()))
    }

    async fn owed_states(&self, plugin: &str, from: Seq, limit: usize) -> Result<OwedPage, JournalError> {
        self.reading("what is owed").await?;
        Ok(self.disk(|disk| {
            let seqs: Vec<Seq> = disk.kept_progress(plugin).owed.range(from..).take(limit).copied().collect();
            let end = seqs.last().copied().filter(|_| seqs.len() == limit);
            OwedPage { states: seqs.iter().filter_map(|seq| disk.states.get(seq).cloned()).collect(), end }
        }))
    }

    async fn mark_replaying(
        &self,
        plugin: &str,
        seqs: &[Seq],
        _who: &str,
        _why: &str,
    ) -> Result<(), JournalError> {
        self.commit("replay", plugin, DiskWrite::Replaying(plugin.to_owned(), seqs.to_vec()))
            .await
            .map(|_| ())
    }

    async fn mark_dropped(
        &self,
        plugin: &str,
        _seqs: &[Seq],
        _who: &str,
        _why: &str,
    ) -> Result<(), JournalError> {
        Err(JournalError::Invalid(format!("no operator of `{plugin}` drops anything here")))
    }

    async fn plugin_pause(&self, _plugin: &str) -> Result<Option<PluginPause>, JournalError> {
        self.check()?;
        Ok(None)
    }

    async fn mark_paused(
        &self,
        plugin: &str,
        _pauses: bool,
        _who: &str,
        _why: &str,
    ) -> Result<(), JournalError> {
        Err(JournalError::Invalid(format!("no operator pauses `{plugin}` here")))
    }

    async fn await_earlier_writes(&self) -> Result<(), JournalError> {
        self.reading("settle").await?;
        if self.steps.bug == PlantedBug::NeverSettles {
            return Ok(());
        }
        let tickets = self.inner().tickets;
        self.sync_through(tickets);
        self.publish();
        Ok(())
    }

    async fn plugin_kv(&self, plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
        self.reading("kv").await?;
        Ok(self.disk(|disk| disk.kept_progress(plugin).kv.into_iter().collect()))
    }
}
