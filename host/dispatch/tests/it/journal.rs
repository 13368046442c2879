//! A journal in memory that checks every save against the save before.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::ports::{Backlog, DeadLetter, JournalError, KvWrite, Paused, Present, Progress, Save};
use kubewitness_core::state::StateId;
use kubewitness_core::{Change, ObjectRef, Seq, State, Status, Version};
use tokio::sync::watch;

use crate::rng::Rng;

#[derive(Default)]
pub struct Kept {
    pub progress: HashMap<String, Progress>,
    pub letters: BTreeMap<(String, Seq), DeadLetter>,
    pub kv: Vec<KvWrite>,
    pub replays: Vec<(Vec<Seq>, String, String)>,
    pub paused: Option<Paused>,
    pub saves: usize,
    /// The states that `read` returned.
    pub read: usize,
    pub refuse: Option<fn() -> JournalError>,
    /// A save takes two transactions: a fault that tests must find.
    pub tears_saves: bool,
    states: BTreeMap<Seq, Arc<State>>,
}

pub struct Journal {
    kept: Mutex<Kept>,
    newest: watch::Sender<Seq>,
    rng: Mutex<Rng>,
    /// The longest time of each operation.
    slowness_ms: u64,
}

pub fn state(seq: Seq, source: &str, object: &str, phase: &str) -> State {
    let status = |phase: &str| Arc::new(Status { phase: phase.into(), ..Status::default() });
    State {
        id: StateId::parse(&format!("{source}/0/{object}/{seq}")),
        seq,
        source: source.into(),
        epoch: 0,
        change: Change::Present,
        object: Arc::new(ObjectRef { name: object.into(), ..ObjectRef::default() }),
        owner: None,
        resource_version: Version::new(&seq.to_string()),
        status: status(phase),
        previous: Some(status("Running")),
        observed_ms: 1_000_000 + seq,
        late: false,
    }
}

impl Journal {
    pub fn new(seed: u64, slowness_ms: u64) -> Arc<Self> {
        let (newest, _) = watch::channel(0);
        Arc::new(Self { kept: Mutex::default(), newest, rng: Mutex::new(Rng::new(seed)), slowness_ms })
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Kept) -> T) -> T {
        look(&mut self.kept.lock().unwrap())
    }

    /// Appends states of these objects to the source `jobs`.
    pub fn append(&self, objects: impl IntoIterator<Item = usize>) {
        for object in objects {
            self.append_one("jobs", &format!("job-{object}"), "Failed");
        }
    }

    pub fn append_one(&self, source: &str, object: &str, phase: &str) -> Seq {
        self.append_in("", source, object, phase)
    }

    pub fn append_in(&self, namespace: &str, source: &str, object: &str, phase: &str) -> Seq {
        let seq = *self.newest.borrow() + 1;
        let mut state = state(seq, source, object, phase);
        Arc::make_mut(&mut state.object).namespace = namespace.to_owned();
        self.with(|kept| kept.states.insert(seq, Arc::new(state)));
        self.newest.send_replace(seq);
        seq
    }

    /// Announces a state and stores it later: a fault that tests must find.
    pub async fn append_after(&self, object: usize, later: impl Future<Output = ()>) {
        let seq = *self.newest.borrow() + 1;
        self.newest.send_replace(seq);
        later.await;
        let state = state(seq, "jobs", &format!("job-{object}"), "Failed");
        self.with(|kept| kept.states.insert(seq, Arc::new(state)));
    }

    /// Removes states, as retention past cursors does.
    pub fn remove(&self, range: RangeInclusive<Seq>) {
        self.with(|kept| kept.states.retain(|seq, _| !range.contains(seq)));
    }

    pub fn newest_seq(&self) -> Seq {
        *self.newest.borrow()
    }

    pub fn states(&self) -> Vec<Arc<State>> {
        self.with(|kept| kept.states.values().cloned().collect())
    }

    /// The newest state of each object of a source, in the order of the names.
    pub fn newest_of(&self, source: &str) -> Vec<Arc<State>> {
        let states = self.states().into_iter().filter(|state| &*state.source == source);
        let newest: BTreeMap<_, _> = states.map(|state| (state.object.name.clone(), state)).collect();
        newest.into_values().collect()
    }

    pub fn dead(&self, plugin: &str) -> Vec<Seq> {
        self.with(|kept| kept.letters.keys().filter(|(of, _)| of == plugin).map(|(_, seq)| *seq).collect())
    }

    /// Whether a state's end is durable, so that it must not be handed over again.
    /// What a plugin's `kv` holds durably under this key.
    pub fn kv_of(&self, key: &str) -> Option<Vec<u8>> {
        self.with(|kept| kept.kv.iter().rev().find(|write| write.key == key)?.value.clone())
    }

    pub fn is_finished(&self, plugin: &str, seq: Seq) -> bool {
        self.with(|kept| {
            let Some(progress) = kept.progress.get(plugin) else { return false };
            let finished =
                seq <= progress.cursor || progress.above.iter().any(|(a, b)| (a..=b).contains(&&seq));
            finished && kept.letters.get(&(plugin.to_owned(), seq)).is_none_or(|letter| !letter.replaying)
        })
    }

    async fn pass(&self) -> Result<(), JournalError> {
        let wait = self.rng.lock().unwrap().below(self.slowness_ms + 1);
        if wait > 0 {
            tokio::time::sleep(Duration::from_millis(wait)).await;
        } else {
            tokio::task::yield_now().await;
        }
        match self.with(|kept| kept.refuse) {
            Some(error) => Err(error()),
            None => Ok(()),
        }
    }

    fn check(before: &Progress, after: &Progress) {
        assert!(after.cursor >= before.cursor, "the cursor went back: {before:?} {after:?}");
        assert!(after.delivered >= before.delivered && after.filtered >= before.filtered);
        for start in &before.sources {
            let moved =
                after.sources.iter().any(|other| other.source == start.source && other.after != start.after);
            assert!(!moved, "the start of {} was moved", start.source);
        }
        for (first, last) in &before.above {
            for seq in *first..=*last {
                let finished =
                    seq <= after.cursor || after.above.iter().any(|(a, b)| (a..=b).contains(&&seq));
                assert!(finished, "{seq} was finished and is not any more");
            }
        }
    }
}

#[async_trait]
impl Backlog for Journal {
    fn newest(&self) -> watch::Receiver<Seq> {
        self.newest.subscribe()
    }

    async fn read(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, JournalError> {
        self.pass().await?;
        Ok(self.with(|kept| {
            let states: Vec<_> =
                kept.states.range(after + 1..).take(limit).map(|(_, state)| state.clone()).collect();
            kept.read += states.len();
            states
        }))
    }

    async fn read_at(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError> {
        self.pass().await?;
        Ok(self.with(|kept| seqs.iter().filter_map(|seq| kept.states.get(seq).cloned()).collect()))
    }

    async fn present(&self, source: &str, from: u64, limit: usize) -> Result<Present, JournalError> {
        self.pass().await?;
        let states = self.newest_of(source);
        let from = from as usize;
        let next = (states.len() > from + limit).then_some((from + limit) as u64);
        Ok(Present { states: states.into_iter().skip(from).take(limit).collect(), next })
    }

    async fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Result<u64, JournalError> {
        self.pass().await?;
        Ok(self.with(|kept| {
            let states = kept.states.range(after + 1..=through).map(|(_, state)| state);
            states.filter(|state| sources.contains(&state.source)).count() as u64
        }))
    }

    async fn progress(&self, plugin: &str) -> Result<Option<Progress>, JournalError> {
        self.pass().await?;
        Ok(self.with(|kept| kept.progress.get(plugin).cloned()))
    }

    async fn save(&self, plugin: &str, save: Save) -> Result<(), JournalError> {
        self.pass().await?;
        self.with(|kept| {
            if let Some(before) = kept.progress.get(plugin).filter(|before| !before.sources.is_empty()) {
                Self::check(before, &save.progress);
            }
            kept.saves += 1;
            kept.progress.insert(plugin.to_owned(), save.progress);
        });
        if self.with(|kept| kept.tears_saves) {
            tokio::task::yield_now().await;
        }
        self.with(|kept| {
            for letter in save.parked {
                kept.letters.insert((plugin.to_owned(), letter.seq), letter);
            }
            for seq in save.revived {
                assert!(kept.letters.remove(&(plugin.to_owned(), seq)).is_some(), "{seq} was no dead letter");
            }
            kept.kv.extend(save.kv);
        });
        // A kill between the commit and its answer is the worst moment.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn dead_letters(&self, plugin: &str) -> Result<Vec<DeadLetter>, JournalError> {
        self.pass().await?;
        let of = |letter: &&DeadLetter| letter.plugin == plugin;
        Ok(self.with(|kept| kept.letters.values().filter(of).cloned().collect()))
    }

    async fn mark_replaying(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.pass().await?;
        self.with(|kept| {
            for seq in seqs {
                kept.letters.get_mut(&(plugin.to_owned(), *seq)).unwrap().replaying = true;
            }
            kept.replays.push((seqs.to_vec(), who.to_owned(), why.to_owned()));
        });
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn mark_dropped(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.pass().await?;
        self.with(|kept| {
            for seq in seqs {
                kept.letters.get_mut(&(plugin.to_owned(), *seq)).unwrap().dropped = true;
            }
            kept.replays.push((seqs.to_vec(), who.to_owned(), why.to_owned()));
        });
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn paused(&self, _plugin: &str) -> Result<Option<Paused>, JournalError> {
        self.pass().await?;
        Ok(self.with(|kept| kept.paused.clone()))
    }

    async fn mark_paused(
        &self,
        _plugin: &str,
        pauses: bool,
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.pass().await?;
        let paused = Paused { who: who.to_owned(), why: why.to_owned(), at_ms: 1 };
        self.with(|kept| kept.paused = pauses.then_some(paused));
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn kv(&self, _plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
        Ok(Vec::new())
    }

    async fn settle(&self) -> Result<(), JournalError> {
        self.pass().await
    }
}
