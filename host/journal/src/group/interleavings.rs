//! Group commit under every order of its callers: shuttle chooses who goes on wherever one waits.
//! The store is one in memory, which goes on with a transaction although nobody waits for it any
//! more, as a database does, and whose answer may be lost.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use futures::future::{Either, select};
use kubewitness_core::ports::Witnessed;
use kubewitness_core::{Change, ObjectRef, StateId, Version};
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::*;
use crate::memory::{Found, Identity, Memory, Next};
use crate::plan::{Known, Rows};
use crate::rows::{Key, ObjectRow};
use crate::store::Answer as Answered;
use crate::tails::Tail;

/// Orders that are tried. Each takes one or two milliseconds.
const ORDERS: usize = 1500;
const SOURCES: u64 = 2;
const APPENDS: u64 = 3;

/// Faults of the store that the judge has to find.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Planted {
    /// What becomes of an abandoned transaction is not waited for.
    is_hasty: bool,
    /// A transaction is answered before it is there.
    is_early: bool,
}

#[derive(Default)]
struct Disk {
    streams: BTreeMap<i64, (String, u32)>,
    objects: BTreeMap<i64, ObjectRow>,
    states: BTreeMap<Seq, (i64, Key)>,
    kinds: hashbrown::HashMap<(String, String, String), i64>,
    saves: Vec<Seq>,
    under_way: usize,
}

impl Disk {
    fn apply(&mut self, rows: Option<Rows>, saves: Vec<Seq>) {
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

    /// Every state as `source/uid/version`.
    fn ids(&self) -> Vec<String> {
        let id = |(object, key): &(i64, Key)| {
            let object = &self.objects[object];
            let version = key.version().expect("of a present object");
            format!("{}/{}/{version}", self.streams[&object.stream].0, object.uid)
        };
        self.states.values().map(id).collect()
    }

    fn object_of(&self, identity: &Identity) -> Option<&ObjectRow> {
        self.objects
            .values()
            .find(|row| row.uid == identity.object.uid && self.streams[&row.stream].0 == *identity.source)
    }
}

struct Store {
    disk: Arc<Mutex<Disk>>,
    planted: Planted,
}

impl Store {
    fn with<T>(&self, look: impl FnOnce(&mut Disk) -> T) -> T {
        look(&mut self.disk.lock().unwrap())
    }

    /// Begins a transaction, which goes on by itself. Answered once it is decided.
    fn transact(&self, rows: Option<Rows>, saves: Vec<Seq>) -> oneshot::Receiver<bool> {
        let (tell, told) = oneshot::channel();
        let (disk, fails) = (Arc::clone(&self.disk), thread_rng().gen_range(0..8) == 0);
        self.with(|disk| disk.under_way += 1);
        spawn(async move {
            yield_now().await;
            let mut disk = disk.lock().unwrap();
            if !fails {
                disk.apply(rows, saves);
            }
            disk.under_way -= 1;
            // Whoever waited may be gone.
            tell.send(!fails).ok();
        });
        told
    }
}

#[async_trait]
impl Writes for Store {
    async fn reconnect(&mut self) -> Answered<()> {
        while !self.planted.is_hasty && self.with(|disk| disk.under_way > 0) {
            yield_now().await;
        }
        Ok(())
    }

    async fn memory(&mut self) -> Answered<Memory> {
        yield_now().await;
        let mut memory = self.with(|disk| {
            let next = Next {
                seq: disk.states.keys().max().unwrap_or(&0) + 1,
                object: disk.objects.keys().max().unwrap_or(&0) + 1,
                status: 1,
                stream: disk.streams.keys().max().map_or(1, |id| *id as u32 + 1),
                kind: disk.kinds.len() as i64 + 1,
                anchor: 1,
            };
            let mut memory = Memory { next, kinds: disk.kinds.clone(), ..Memory::default() };
            for (id, (source, epoch)) in &disk.streams {
                memory.sources.entry(source.as_str().into()).or_default().streams.push((*epoch, *id as u32));
            }
            memory
        });
        memory.shrink();
        Ok(memory)
    }

    async fn tails(&mut self, _memory: &Memory, strangers: Vec<Identity>) -> Answered<Vec<Found>> {
        yield_now().await;
        Ok(self.with(|disk| {
            let found = |identity: Identity| {
                let row = disk.object_of(&identity)?;
                let mut tail = Tail::of(row.id, row.stream as u32, 0);
                let (seq, (_, key)) = disk.states.iter().rfind(|(_, (object, _))| *object == row.id)?;
                (tail.seq, tail.live) = (*seq, true);
                tail.set_newest(key.version().as_ref(), *seq);
                Some(Found { identity, epoch: disk.streams[&row.stream].1, tail })
            };
            strangers.into_iter().filter_map(found).collect()
        }))
    }

    async fn begin(&mut self) -> Answered<Turn> {
        Ok(Turn::ALONE)
    }

    async fn lead(&mut self, _: bool) -> Answered<()> {
        Ok(())
    }

    async fn end(&mut self) -> Answered<()> {
        Ok(())
    }

    async fn keys(&mut self, questions: Vec<(i64, Key)>) -> Answered<Known> {
        Ok(self.with(|disk| {
            let there = disk.states.iter().map(|(seq, place)| (place.clone(), *seq));
            there.filter(|(place, _)| questions.contains(place)).collect()
        }))
    }

    async fn commit(
        &mut self,
        rows: Option<Rows>,
        saves: &[(&str, &Save)],
        _replays: &[Replay],
    ) -> Answered<()> {
        let decided = self.transact(rows, saves.iter().map(|(_, save)| save.progress.cursor).collect());
        if self.planted.is_early {
            return Ok(());
        }
        let unavailable = |text: &str| JournalError::Unavailable(text.into());
        match decided.await {
            Ok(true) if thread_rng().gen_range(0..8) == 0 => Err(unavailable("the answer was lost")),
            Ok(true) => Ok(()),
            _ => Err(unavailable("it was not committed")),
        }
    }

    fn rows(&mut self) -> &mut dyn crate::store::Fetch {
        panic!("nothing here reads")
    }

    async fn remove(&mut self, _: &crate::removal::Removal) -> Answered<()> {
        Err(JournalError::Invalid("nothing here is about retention".into()))
    }

    async fn sweep(&mut self, _: &crate::removal::Sweep) -> Answered<()> {
        Err(JournalError::Invalid("nothing here is about retention".into()))
    }

    async fn tend(&mut self) {
        yield_now().await;
    }

    async fn close(self: Box<Self>) -> Answered<()> {
        Ok(())
    }

    fn abandon(self: Box<Self>) {}

    async fn limit_pages(&mut self, _more: Option<i64>) -> Answered<()> {
        Ok(())
    }
}

/// Of a source, its object and this version of it.
fn state(source: u64, version: u64) -> Append {
    let name: Arc<str> = format!("s{source}").into();
    let object =
        Arc::new(ObjectRef { kind: "Job".into(), uid: format!("u{source}"), ..ObjectRef::default() });
    let resource_version = Version::new(&version.to_string());
    let state = Witnessed {
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
    };
    Append { source: name, states: vec![state], ..Append::default() }
}

/// Some turns of the others.
async fn turns() {
    for _ in 0..thread_rng().gen_range(0..12) {
        yield_now().await;
    }
}

/// As the watch does it: until it is durable. Now and then whoever appends is stopped, and a
/// successor does it again.
async fn append(group: &Group, append: Append) {
    loop {
        let given = append.clone();
        let submitted = Box::pin(group.submit(|answer| Work::Append(given, answer)));
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

/// As the journal reads for a dispatcher: what is not remembered, from the disk.
fn read(group: &Group, disk: &Mutex<Disk>, after: Seq) -> Vec<Seq> {
    let recent = group.recent.read().unwrap().after(after, usize::MAX);
    match recent {
        Some(states) => states.iter().map(|state| state.seq).collect(),
        None => disk.lock().unwrap().states.range(after + 1..).map(|(seq, _)| *seq).collect(),
    }
}

/// Reads on whenever it is told that there is more, and skips what is not there for good.
async fn follow(group: Arc<Group>, disk: Arc<Mutex<Disk>>, states: u64) {
    let (mut newest, mut after, mut seen) = (group.newest(), 0, BTreeSet::new());
    while (seen.len() as u64) < states {
        let told = *newest.borrow_and_update();
        if told > after {
            let read = read(&group, &disk, after);
            after = read.last().copied().unwrap_or_default().max(told);
            seen.extend(read);
            assert_eq!(seen.len() as u64, after, "a position was skipped: {seen:?} of {after}");
        }
        if (seen.len() as u64) < states {
            newest.changed().await.unwrap();
        }
    }
}

async fn work(planted: Planted) {
    let disk = Arc::new(Mutex::new(Disk::default()));
    let mut store = Store { disk: Arc::clone(&disk), planted };
    let memory = store.memory().await.unwrap();
    let recent = Arc::new(RwLock::new(Recent::new(4, usize::MAX)));
    let group = Arc::new(Group::new(Box::new(store), memory, recent));
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
            let mut save = Save::default();
            save.progress.cursor = cursor;
            turns().await;
            if saver.submit(|answer| Work::Save("p".into(), save, answer)).await.is_ok() {
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
    let refused = group.submit(|answer| Work::Append(state(0, 99), answer)).await;
    assert!(refused.is_err(), "it is closed");
    let disk = disk.lock().unwrap();
    let mut ids = disk.ids();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len() as u64, SOURCES * APPENDS);
    assert!(disk.states.keys().copied().eq(1..=SOURCES * APPENDS), "each once, without a hole");
}

/// The usual stack is for less than a whole transaction.
fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

fn try_orders(planted: Planted) -> bool {
    let tried = std::panic::catch_unwind(|| {
        Runner::new(RandomScheduler::new(ORDERS), config()).run(move || block_on(work(planted)));
        Runner::new(PctScheduler::new(3, ORDERS / 3), config()).run(move || block_on(work(planted)));
    });
    tried.is_ok()
}

#[test]
fn in_every_order_what_is_answered_is_there_once_and_readers_miss_none() {
    assert!(try_orders(Planted::default()), "shuttle prints the order above");
}

#[test]
fn faults_of_the_store_are_found() {
    assert!(!try_orders(Planted { is_hasty: true, ..Planted::default() }), "an abandoned transaction");
    assert!(!try_orders(Planted { is_early: true, ..Planted::default() }), "an answer that is too early");
}
