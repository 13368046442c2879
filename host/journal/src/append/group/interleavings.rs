//! Runs group commit under many interleavings of its callers: shuttle chooses the next task at each await.
//! The store is a model in memory. Like a database, it completes a transaction whose caller was dropped, and
//! its answer may be lost.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use futures::future::{Either, select};
use kubewitness_chance::{assert_fault_is_found, panic_message};
use kubewitness_core::ports::{ProgressSave, WitnessedState};
use kubewitness_core::{Change, ObjectRef, StateId, Version};
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::*;
use crate::store::memory::chain_ends::ChainEnd;
use crate::store::memory::{FoundObject, NextNumbers, ObjectIdentity, StoreMemory};
use crate::store::rows::{KnownKeys, ObjectRow, RowBatch, StateKey, StoreResult as Answered};

/// The number of interleavings that a test tries. Each takes one or two milliseconds.
const ORDERS: usize = 1500;
const SOURCES: u64 = 2;
const APPENDS: u64 = 3;

/// Bugs that can be planted in the model store. The tests must detect each of them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct StoreFaults {
    /// The writer does not wait for an abandoned transaction to end.
    is_hasty: bool,
    /// A transaction is answered before its rows are visible.
    is_early: bool,
    /// The writer does not report that another process has written.
    is_forgetful: bool,
    /// A session that the server ended for its silence still commits.
    is_undead: bool,
}

/// How often a reconnecting writer looks for the lock before it ends the session that holds it.
const FAILED_LOOKS: usize = 2;

#[derive(Default)]
struct ModelDisk {
    streams: BTreeMap<i64, (String, u32)>,
    objects: BTreeMap<i64, ObjectRow>,
    states: BTreeMap<Seq, (i64, StateKey)>,
    kinds: hashbrown::HashMap<(String, String, String), i64>,
    saves: Vec<Seq>,
    under_way: usize,
    /// Incremented by every commit that other processes have to read.
    epoch: u64,
    /// The process and the session whose transaction holds the writer's row.
    held: Option<(usize, u64)>,
}

impl ModelDisk {
    fn apply(&mut self, rows: Option<RowBatch>, saves: Vec<Seq>) {
        self.saves.extend(saves);
        let Some(rows) = rows else { return };
        self.streams.extend(rows.streams.into_iter().map(|row| (row.id, (row.source, row.epoch))));
        self.kinds
            .extend(rows.kinds.into_iter().map(|(id, group, version, kind)| ((group, version, kind), id)));
        for row in rows.objects {
            assert!(self.objects.insert(row.id, row).is_none(), "an object's number was given twice");
        }
        for row in rows.states {
            let envelope = row.envelope;
            let before = self.states.insert(envelope.seq, (envelope.object, envelope.key));
            assert!(before.is_none(), "position {} was given twice", envelope.seq);
        }
    }

    /// All states as `source/uid/version`.
    fn ids(&self) -> Vec<String> {
        let id = |(object, key): &(i64, StateKey)| {
            let object = &self.objects[object];
            let version = key.version().expect("of a present object");
            format!("{}/{}/{version}", self.streams[&object.stream].0, object.uid)
        };
        self.states.values().map(id).collect()
    }

    fn object_of(&self, identity: &ObjectIdentity) -> Option<&ObjectRow> {
        self.objects
            .values()
            .find(|row| row.uid == identity.object.uid && self.streams[&row.stream].0 == *identity.source)
    }
}

struct ModelStore {
    disk: Arc<Mutex<ModelDisk>>,
    planted: StoreFaults,
    /// The number of this process, if several processes share the disk.
    replica: Option<usize>,
    session: u64,
    /// The epoch that this process last wrote or read, and the epoch that the open transaction found.
    epoch: u64,
    found: u64,
}

impl ModelStore {
    fn of(disk: &Arc<Mutex<ModelDisk>>, planted: StoreFaults, replica: Option<usize>) -> Self {
        Self { disk: Arc::clone(disk), planted, replica, session: 0, epoch: 0, found: 0 }
    }

    fn own(&self) -> Option<(usize, u64)> {
        self.replica.map(|replica| (replica, self.session))
    }

    /// A session that was ended gets no more answers.
    fn check_session(&self) -> Answered<()> {
        match self.replica.is_some() && self.with(|disk| disk.held) != self.own() {
            true => Err(JournalError::Unavailable("the session was ended".into())),
            false => Ok(()),
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut ModelDisk) -> T) -> T {
        look(&mut self.disk.lock().unwrap())
    }

    /// Starts a transaction that continues even if its caller is dropped. The receiver gets the result once
    /// it is decided.
    fn transact(&self, rows: Option<RowBatch>, saves: Vec<Seq>) -> oneshot::Receiver<bool> {
        let (answer_sender, answer) = oneshot::channel();
        let (disk, fails) = (Arc::clone(&self.disk), thread_rng().gen_range(0..8) == 0);
        self.with(|disk| disk.under_way += 1);
        let (own, is_undead) = (self.own(), self.planted.is_undead);
        spawn(async move {
            yield_now().await;
            let mut disk = disk.lock().unwrap();
            let is_ended = disk.held != own && !is_undead;
            let fails = fails || is_ended;
            if !fails {
                disk.epoch += u64::from(rows.is_some());
                disk.apply(rows, saves);
            }
            if !is_ended {
                disk.held = None;
            }
            disk.under_way -= 1;
            // The caller may have been dropped.
            answer_sender.send(!fails).ok();
        });
        answer
    }
}

#[async_trait]
impl StoreWriter for ModelStore {
    async fn reconnect(&mut self) -> Answered<()> {
        let own = self.own();
        // If several processes share the disk, each waits only for its own transaction.
        let is_undecided = |disk: &mut ModelDisk| match own {
            Some(_) => disk.held == own && disk.under_way > 0,
            None => disk.under_way > 0,
        };
        while !self.planted.is_hasty && self.with(is_undecided) {
            yield_now().await;
        }
        self.with(|disk| disk.held.take_if(|held| Some(*held) == own));
        self.session += 1;
        Ok(())
    }

    async fn load_memory(&mut self) -> Answered<StoreMemory> {
        yield_now().await;
        self.check_session()?;
        let mut memory = self.with(|disk| {
            let next = NextNumbers {
                seq: disk.states.keys().max().unwrap_or(&0) + 1,
                object: disk.objects.keys().max().unwrap_or(&0) + 1,
                status: 1,
                stream: disk.streams.keys().max().map_or(1, |id| *id as u32 + 1),
                kind: disk.kinds.len() as i64 + 1,
                anchor: 1,
            };
            let mut memory = StoreMemory { next, kinds: disk.kinds.clone(), ..StoreMemory::default() };
            for (id, (source, epoch)) in &disk.streams {
                memory.sources.entry(source.as_str().into()).or_default().streams.push((*epoch, *id as u32));
            }
            memory
        });
        memory.shrink_to_bounds();
        self.epoch = self.found;
        Ok(memory)
    }

    async fn find_chain_ends(
        &mut self,
        _memory: &StoreMemory,
        strangers: Vec<ObjectIdentity>,
    ) -> Answered<Vec<FoundObject>> {
        yield_now().await;
        self.check_session()?;
        Ok(self.with(|disk| {
            let found = |identity: ObjectIdentity| {
                let row = disk.object_of(&identity)?;
                let mut tail = ChainEnd::of(row.id, row.stream as u32, 0);
                let (seq, (_, key)) = disk.states.iter().rfind(|(_, (object, _))| *object == row.id)?;
                (tail.seq, tail.live) = (*seq, true);
                tail.set_newest(key.version().as_ref(), *seq);
                Some(FoundObject { identity, epoch: disk.streams[&row.stream].1, tail })
            };
            strangers.into_iter().filter_map(found).collect()
        }))
    }

    async fn begin_transaction(&mut self) -> Answered<TransactionStart> {
        let Some(own) = self.own() else { return Ok(TransactionStart::ALONE) };
        let mut looks = 0;
        while self.with(|disk| disk.held.is_some()) {
            looks += 1;
            // Rarely, so that two processes don't end each other's sessions for ever.
            if looks > FAILED_LOOKS && thread_rng().gen_range(0..12) == 0 {
                self.with(|disk| disk.held = None);
            }
            yield_now().await;
        }
        let newest = self.with(|disk| {
            disk.held = Some(own);
            disk.states.keys().max().copied()
        });
        self.found = self.with(|disk| disk.epoch);
        let is_stale = self.found != self.epoch && !self.planted.is_forgetful;
        Ok(TransactionStart { is_stale, newest, ..TransactionStart::ALONE })
    }

    async fn set_leadership(&mut self, _: bool) -> Answered<()> {
        Ok(())
    }

    async fn mark_import(&mut self, _: bool) -> Answered<()> {
        Ok(())
    }

    async fn elect_by(&mut self, _: &str) -> Answered<()> {
        Ok(())
    }

    async fn forget_plugin(&mut self, _: &str) -> Answered<()> {
        Ok(())
    }

    async fn end_transaction(&mut self) -> Answered<()> {
        let own = self.own();
        self.with(|disk| disk.held.take_if(|held| Some(*held) == own));
        Ok(())
    }

    async fn find_known_keys(&mut self, questions: Vec<(i64, StateKey)>) -> Answered<KnownKeys> {
        self.check_session()?;
        Ok(self.with(|disk| {
            let known = disk.states.iter().map(|(seq, place)| (place.clone(), *seq));
            known.filter(|(place, _)| questions.contains(place)).collect()
        }))
    }

    async fn commit_rows(&mut self, rows: Option<RowBatch>, left: &PluginWrites<'_>) -> Answered<()> {
        let news = u64::from(rows.is_some());
        let decided = self.transact(rows, left.saves.iter().map(|(_, save)| save.progress.cursor).collect());
        if self.planted.is_early {
            return Ok(());
        }
        let unavailable = |text: &str| JournalError::Unavailable(text.into());
        match decided.await {
            Ok(true) if thread_rng().gen_range(0..8) == 0 => Err(unavailable("the answer was lost")),
            Ok(true) => {
                self.epoch += if self.epoch == self.found { news } else { 0 };
                Ok(())
            }
            _ => Err(unavailable("it was not committed")),
        }
    }

    fn store_reader(&mut self) -> &mut dyn crate::store::StoreReader {
        panic!("nothing here reads")
    }

    async fn remove(&mut self, _: &crate::store::rows::removal::RemovalPlan) -> Answered<()> {
        Err(JournalError::Invalid("nothing here is about retention".into()))
    }

    async fn sweep_unused_rows(&mut self, _: &crate::store::rows::removal::UnusedRows) -> Answered<()> {
        Err(JournalError::Invalid("nothing here is about retention".into()))
    }

    async fn maintain_store(&mut self) {
        yield_now().await;
    }

    async fn close(self: Box<Self>) -> Answered<()> {
        Ok(())
    }

    fn abandon_store(self: Box<Self>) {}

    async fn limit_pages(&mut self, _more: Option<i64>) -> Answered<()> {
        Ok(())
    }
}

/// An append with one version of an object of a source.
fn state(source: u64, version: u64) -> AppendBatch {
    let name: Arc<str> = format!("s{source}").into();
    let object =
        Arc::new(ObjectRef { kind: "Job".into(), uid: format!("u{source}"), ..ObjectRef::default() });
    let resource_version = Version::new(&version.to_string());
    let state = WitnessedState {
        id: StateId::of(&name, 0, &object, Change::Present, &resource_version, None),
        change: Change::Present,
        object,
        owner: None,
        controller: None,
        resource_version,
        status: Arc::default(),
        previous: None,
        observed_ms: 1,
        document: format!("{{\"v\":{version}}}").into_bytes().into(),
        base: None,
        quotes_none_under: None,
    };
    AppendBatch { source: name, states: vec![state], ..AppendBatch::default() }
}

/// Lets other tasks run for a few turns.
async fn turns() {
    for _ in 0..thread_rng().gen_range(0..12) {
        yield_now().await;
    }
}

/// Appends like the watch does: retries until the append is durable. Sometimes the caller is dropped, and a
/// successor appends the same again.
async fn append(group: &GroupCommit, append: AppendBatch) {
    loop {
        let given = append.clone();
        let submitted = Box::pin(group.submit_work(|answer| GroupWork::Append(given, answer)));
        if thread_rng().gen_range(0..3) > 0 {
            match submitted.await {
                Ok(_) => return,
                Err(JournalError::Unavailable(_)) => continue,
                Err(error) => panic!("{error}"),
            }
        }
        match select(submitted, Box::pin(turns())).await {
            Either::Left((Ok(_), _)) => return,
            Either::Left((Err(_), _)) | Either::Right(_) => {}
        }
    }
}

/// Reads like the journal does for a dispatcher: states that are no longer in memory come from the disk.
fn read(group: &GroupCommit, disk: &Mutex<ModelDisk>, after: Seq) -> Vec<Seq> {
    let recent = group.recent.read().unwrap().states_after(after, usize::MAX);
    match recent {
        Some(states) => states.iter().map(|state| state.seq).collect(),
        None => disk.lock().unwrap().states.range(after + 1..).map(|(seq, _)| *seq).collect(),
    }
}

/// Reads on after each notification, and skips positions that hold no state.
async fn follow(group: Arc<GroupCommit>, disk: Arc<Mutex<ModelDisk>>, states: u64) {
    let (mut newest, mut after, mut seen) = (group.newest_position(), 0, BTreeSet::new());
    while (seen.len() as u64) < states {
        let end = *newest.borrow_and_update();
        if end > after {
            let read = read(&group, &disk, after);
            after = read.last().copied().unwrap_or_default().max(end);
            seen.extend(read);
            assert_eq!(seen.len() as u64, after, "a position was skipped: {seen:?} of {after}");
        }
        if (seen.len() as u64) < states {
            newest.changed().await.unwrap();
        }
    }
}

async fn work(planted: StoreFaults) {
    let disk = Arc::new(Mutex::new(ModelDisk::default()));
    let mut store = ModelStore::of(&disk, planted, None);
    let memory = store.load_memory().await.unwrap();
    let recent = Arc::new(RwLock::new(RecentStates::new(4, usize::MAX)));
    let group = Arc::new(GroupCommit::new(Box::new(store), memory, recent));
    let following = spawn(follow(Arc::clone(&group), Arc::clone(&disk), SOURCES * APPENDS));
    let mut working = Vec::new();
    for source in 0..SOURCES {
        let (group, disk) = (Arc::clone(&group), Arc::clone(&disk));
        working.push(spawn(async move {
            for version in 1..=APPENDS {
                append(&group, state(source, version)).await;
                let id = format!("s{source}/u{source}/{version}");
                assert!(disk.lock().unwrap().ids().contains(&id), "{id} was answered and is not there");
            }
        }));
    }
    let (saver, saved) = (Arc::clone(&group), Arc::clone(&disk));
    working.push(spawn(async move {
        for cursor in 1..=APPENDS {
            let mut save = ProgressSave::default();
            save.progress.cursor = cursor;
            turns().await;
            if saver.submit_work(|answer| GroupWork::Save("p".into(), save, answer)).await.is_ok() {
                assert!(
                    saved.lock().unwrap().saves.contains(&cursor),
                    "a save was answered and is not there"
                );
            }
        }
    }));
    for worker in working {
        worker.await.unwrap();
    }
    following.await.unwrap();
    group.close().await.unwrap();
    let refused = group.submit_work(|answer| GroupWork::Append(state(0, 99), answer)).await;
    assert!(refused.is_err(), "it is closed");
    let disk = disk.lock().unwrap();
    let mut ids = disk.ids();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len() as u64, SOURCES * APPENDS);
    assert!(disk.states.keys().copied().eq(1..=SOURCES * APPENDS), "each once, without a hole");
}

/// Two processes append the same states to one journal, and each also appends states of its own.
async fn share(planted: StoreFaults) {
    let disk = Arc::new(Mutex::new(ModelDisk::default()));
    let mut working = Vec::new();
    for replica in 0..2 {
        let store = ModelStore::of(&disk, planted, Some(replica));
        // The memory of a journal before anything was written.
        let next = NextNumbers { seq: 1, object: 1, status: 1, stream: 1, kind: 1, anchor: 1 };
        let memory = StoreMemory { next, ..StoreMemory::default() };
        let group = Arc::new(GroupCommit::new(
            Box::new(store),
            memory,
            Arc::new(RwLock::new(RecentStates::new(4, usize::MAX))),
        ));
        let disk = Arc::clone(&disk);
        working.push(spawn(async move {
            for version in 1..=APPENDS {
                for source in [9, replica as u64] {
                    append(&group, state(source, version)).await;
                    let id = format!("s{source}/u{source}/{version}");
                    assert!(disk.lock().unwrap().ids().contains(&id), "{id} was answered and is not there");
                }
            }
            group.close().await.unwrap();
        }));
    }
    for worker in working {
        worker.await.unwrap();
    }
    let disk = disk.lock().unwrap();
    let mut ids = disk.ids();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len() as u64, 3 * APPENDS);
    assert!(disk.states.keys().copied().eq(1..=3 * APPENDS), "each once, without a hole");
}

/// The default stack is too small for a whole transaction.
fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

/// Tries many interleavings of one process. Returns the message of the first failure.
fn first_failure(planted: StoreFaults) -> Option<String> {
    let tried = std::panic::catch_unwind(|| {
        Runner::new(RandomScheduler::new(ORDERS), config()).run(move || block_on(work(planted)));
        Runner::new(PctScheduler::new(3, ORDERS / 3), config()).run(move || block_on(work(planted)));
    });
    tried.err().map(|panic| panic_message(&*panic))
}

/// Tries many interleavings of two processes. Returns the message of the first failure.
fn first_failure_of_two(planted: StoreFaults) -> Option<String> {
    let tried = std::panic::catch_unwind(|| {
        Runner::new(RandomScheduler::new(ORDERS), config()).run(move || block_on(share(planted)));
        Runner::new(PctScheduler::new(3, ORDERS / 3), config()).run(move || block_on(share(planted)));
    });
    tried.err().map(|panic| panic_message(&*panic))
}

#[test]
fn in_every_order_what_two_processes_witness_is_there_once() {
    assert_eq!(first_failure_of_two(StoreFaults::default()), None, "shuttle prints the order above");
}

/// The messages that reveal stale memory: two transactions got the same position, or the journal ends before
/// the end that the process remembers.
const DOUBLED: [&str; 2] = ["was given twice", "lies behind the journal's end"];

#[test]
fn stale_memory_beside_another_process_is_found() {
    assert_fault_is_found(
        first_failure_of_two(StoreFaults { is_forgetful: true, ..StoreFaults::default() }),
        &DOUBLED,
    );
}

#[test]
fn a_session_that_commits_after_its_end_is_found() {
    assert_fault_is_found(
        first_failure_of_two(StoreFaults { is_undead: true, ..StoreFaults::default() }),
        &DOUBLED,
    );
}

#[test]
fn in_every_order_what_is_answered_is_there_once_and_readers_miss_none() {
    assert_eq!(first_failure(StoreFaults::default()), None, "shuttle prints the order above");
}

#[test]
fn an_abandoned_transaction_that_is_not_waited_for_is_found() {
    assert_fault_is_found(first_failure(StoreFaults { is_hasty: true, ..StoreFaults::default() }), &DOUBLED);
}

#[test]
fn an_answer_that_comes_before_its_transaction_is_found() {
    assert_fault_is_found(
        first_failure(StoreFaults { is_early: true, ..StoreFaults::default() }),
        &["was answered and is not there"],
    );
}
